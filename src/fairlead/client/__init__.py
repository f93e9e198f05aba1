"""The Python client: `Client`, `AsyncClient` and `Executor`.

`calls` makes requests of operations. `sync` (over `http_pool`) and `aio` (over `async_pool`) send them. `methods` and
`shortcuts` have the methods of both clients, `endpoint` finds the server, and `executor` runs functions on the cluster.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairlead.client.calls import NeverRuns, Problem
from fairlead.client.endpoint import Endpoint, NotFound, find_endpoint

if TYPE_CHECKING:
    from fairlead.client.aio import AsyncClient
    from fairlead.client.executor import Executor
    from fairlead.client.sync import Client

__all__ = ["AsyncClient", "Client", "Endpoint", "Executor", "NeverRuns", "NotFound", "Problem", "find_endpoint"]

LATER = {"AsyncClient": "aio", "Client": "sync", "Executor": "executor"}
"""Names imported on first use. The server imports this package only for `endpoint`, and should start fast."""


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{LATER[name]}"), name)
