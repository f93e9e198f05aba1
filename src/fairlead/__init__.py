"""Fairlead shares a fleet of machines among people and jobs.

One pure core decides (`fairlead.core`); the packages around it store, serve, run and simulate.
`Client`, `AsyncClient` and `Executor` ask a server. Scenarios in a few lines are written with `fairlead.testing.World`.
"""

from typing import Any

__version__ = "0.1.0"

__all__ = ["AsyncClient", "Client", "Executor", "__version__"]


def __getattr__(name: str) -> Any:
    # Most of what imports this package asks no server: the client is there when somebody wants it.
    if name not in ("AsyncClient", "Client", "Executor"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fairlead import client

    return getattr(client, name)
