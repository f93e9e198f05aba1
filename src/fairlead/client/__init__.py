"""The Python client: `Client`, `AsyncClient` and `Executor`.

`calls` says what can be asked, `sync` and `aio` ask it, `place` finds the server, `executor` runs functions on a fleet.
"""

from typing import Any

from fairlead.client.calls import Problem
from fairlead.client.place import NotFound, Place, find_place
from fairlead.client.sync import Client

__all__ = ["AsyncClient", "Client", "Executor", "NotFound", "Place", "Problem", "find_place"]


def __getattr__(name: str) -> Any:
    # The command line needs neither, and should start fast.
    if name == "AsyncClient":
        from fairlead.client.aio import AsyncClient

        return AsyncClient
    if name == "Executor":
        from fairlead.client.executor import Executor

        return Executor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
