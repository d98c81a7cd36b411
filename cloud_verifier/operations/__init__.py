"""What operators see: metrics, logs and traces. All of it watches the engine, and none of it can hold it up."""
