"""The writer: the only caller of the core. Each partition has one writer, and each cycle is one durable write."""
