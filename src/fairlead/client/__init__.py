"""The Python client: `Client`, `AsyncClient` and `Executor`.

`calls` says what can be asked, `sync` (over `links`) and `aio` ask it, `place` finds the server, `executor` runs
functions on a fleet.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairlead.client.calls import Problem
from fairlead.client.endpoint import Endpoint, NotFound, find_endpoint

if TYPE_CHECKING:
    from fairlead.client.aio import AsyncClient
    from fairlead.client.executor import Executor
    from fairlead.client.sync import Client

__all__ = ["AsyncClient", "Client", "Endpoint", "Executor", "NotFound", "Problem", "find_endpoint"]

LATER = {"AsyncClient": "aio", "Client": "sync", "Executor": "executor"}
"""What is imported when somebody wants it: a server only looks here for where it is, and should start fast."""


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{LATER[name]}"), name)
