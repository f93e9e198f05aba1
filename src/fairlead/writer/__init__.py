"""The writer: the only code that calls the core. Each partition has one writer, and each cycle is one durable write."""
