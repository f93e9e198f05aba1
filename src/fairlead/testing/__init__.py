"""Scenarios in a few lines of code, for Fairlead's tests and for tests of users' policies."""

from fairlead.testing.world import World

__all__ = ["World"]
