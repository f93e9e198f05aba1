"""The Python client: `Client`, `AsyncClient` and `Executor`.

`calls` says what can be asked, `sync` (over `links`) and `aio` ask it, `place` finds the server, `executor` runs
functions on a fleet.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairlead.client.calls import Problem
from fairlead.client.place import NotFound, Place, find_place

if TYPE_CHECKING:
    from fairlead.client.aio import AsyncClient
    from fairlead.client.executor import Executor
    from fairlead.client.sync import Client

__all__ = ["AsyncClient", "Client", "Executor", "NotFound", "Place", "Problem", "find_place"]

LATER = {"AsyncClient": "aio", "Client": "sync", "Executor": "executor"}
"""What is imported when somebody wants it: a server only looks here for where it is, and should start fast."""


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{LATER[name]}"), name)
