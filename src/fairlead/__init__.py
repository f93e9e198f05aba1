"""Fairlead shares a fleet of machines among people and jobs.

One pure core decides (`fairlead.core`); the packages around it store, serve, run and simulate.
Scenarios in a few lines are written with `fairlead.testing.World`.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
