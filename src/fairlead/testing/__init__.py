"""Scenarios in a few lines, for our own tests and for users' policies."""

from fairlead.testing.world import World

__all__ = ["World"]
