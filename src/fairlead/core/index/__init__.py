"""Indexes of nodes that find a node for a task. They are derived from the node table."""
