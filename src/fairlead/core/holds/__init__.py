"""Holds: nodes kept free for starving asks, and nodes promised to asks."""
