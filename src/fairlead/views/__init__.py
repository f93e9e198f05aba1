"""Read models: immutable views of the state for the API, logs and metrics."""
