"""Whether drafts may speed streams up: what operators set, and what figures undo."""
