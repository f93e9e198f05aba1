"""Indexes of nodes, which find nodes for tasks. They are derived from the node table."""
