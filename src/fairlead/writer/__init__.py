"""The writer: the only caller of the core. One a partition, one durable write a cycle."""
