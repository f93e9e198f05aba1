"""The Python client: `Client`, `AsyncClient` and `Executor`.

`calls` says what can be asked, `sync` and `aio` ask it, `place` finds the server, `executor` runs functions on a fleet.
"""

from fairlead.client.aio import AsyncClient
from fairlead.client.calls import Problem
from fairlead.client.executor import Executor
from fairlead.client.place import NotFound, Place, find_place
from fairlead.client.sync import Client

__all__ = ["AsyncClient", "Client", "Executor", "NotFound", "Place", "Problem", "find_place"]
