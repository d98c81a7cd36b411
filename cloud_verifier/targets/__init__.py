"""Models behind one small interface: open a stream, advance many in one ragged batch, roll back, close."""
