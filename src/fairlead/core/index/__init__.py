"""Indexes of the nodes, for placements. They are derived from the node table."""
