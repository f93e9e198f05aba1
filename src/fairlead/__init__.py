"""Fairlead shares a fleet of machines among people and jobs.

A pure core makes all decisions (`fairlead.core`); the packages around it store, serve, run and simulate.
`Client`, `AsyncClient` and `Executor` use a server, raise `Problem` for refusals, and issue the warning `NeverRuns` for
jobs that can never run as the cluster is now. `fairlead.testing.World` runs scenarios in a few lines of code.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes 5 ms to load, as long as the interpreter itself
    from typing import Any

__version__ = "0.2.0"

__all__ = ["AsyncClient", "Client", "Executor", "NeverRuns", "Problem", "__version__"]


def __getattr__(name: str) -> Any:
    # Most importers of this package do not use a server, so the client is imported on first use.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fairlead import client

    return getattr(client, name)
