"""The adapter's link to a Fairlead partition: the manager interface, over the API or inside the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import msgspec

from fairlead.client.async_pool import Http, Lost, Reply, lines
from fairlead.wire import api as wire

Items = dict[str, Any]
"""The document of an update: lists of nodes, jobs, recover, asks and releases, and `more`."""

QUIET = 60.0
"""Seconds after which a silent stream of events counts as broken. The server sends a heartbeat every 15 s."""
UPDATE_TIMEOUT = 120.0


class Refusal(Exception):
    """Raised if the server refuses the adapter for good: a wrong token, or a partition that does not exist."""


class Link(Protocol):
    """A partition as seen by its manager. Every method raises `Lost` if the server cannot be reached now."""

    async def register(self) -> None:
        """Register the manager, which then sends its state."""

    async def state(self) -> wire.ManagerState:
        """Return what the partition knows of the manager."""

    async def update(self, items: Items) -> list[wire.UpdateItem]:
        """Send an update and return the answers of its items."""

    async def waiting(self, jobs: list[str]) -> list[wire.WaitingJob]:
        """Return why jobs wait."""

    async def queues(self) -> list[wire.Queue]:
        """Return all queues with their use."""

    def events(self, after: int) -> AsyncIterator[list[wire.ManagerEvent]]:
        """Yield the events after a record. The stream ends if events were missed: then read the state again."""


_encode = msgspec.json.Encoder().encode
_state = msgspec.json.Decoder(wire.ManagerState).decode
_updated = msgspec.json.Decoder(wire.Updated).decode
_waiting = msgspec.json.Decoder(wire.WaitingJobs).decode
_queues = msgspec.json.Decoder(wire.Queues).decode
_event = msgspec.json.Decoder(wire.ManagerEvent).decode


class ApiLink:
    """The link over the API of a server. The token needs the role `manager`."""

    def __init__(self, http: Http, name: str, partition: str = "") -> None:
        self._http = http
        self._path = f"/api/v1/managers/{quote(name, safe='')}"
        self._query = f"?{urlencode({'partition': partition})}" if partition else ""

    async def register(self) -> None:
        await self._call("POST", "")

    async def state(self) -> wire.ManagerState:
        return _state(await self._call("GET", "/state"))

    async def update(self, items: Items) -> list[wire.UpdateItem]:
        return _updated(await self._call("POST", "/updates", _encode(items))).items

    async def waiting(self, jobs: list[str]) -> list[wire.WaitingJob]:
        return _waiting(await self._call("POST", "/waiting", _encode({"jobs": jobs}))).jobs

    async def queues(self) -> list[wire.Queue]:
        return _queues(await self._call("GET", "/queues")).queues

    async def events(self, after: int) -> AsyncIterator[list[wire.ManagerEvent]]:
        query = f"{self._query}&" if self._query else "?"
        batch: list[wire.ManagerEvent] = []
        kind = b""
        async with self._http.stream(f"{self._path}/events{query}after={after}", QUIET) as (reply, parts):
            if reply.status != 200:
                raise _problem(reply)
            async for line in lines(parts):
                if line.startswith(b"event: "):
                    kind = line[7:]
                elif line.startswith(b"data: "):
                    if kind == b"reset":
                        return
                    batch.append(_event(line[6:]))
                elif not line and batch:
                    yield batch
                    batch = []

    async def _call(self, method: str, path: str, body: bytes = b"") -> bytes:
        reply = await self._http.call(method, f"{self._path}{path}{self._query}", body, timeout=UPDATE_TIMEOUT)
        if reply.status >= 300:
            raise _problem(reply)
        return reply.content


def _problem(reply: Reply) -> Exception:
    """Return the error of an answer: `Lost` if a retry may succeed."""
    text = f"the Fairlead server answers {reply.status}: {reply.text}"
    # 404: the server does not know the manager (removed, or the server's data is new), so it has to register again.
    return Lost(text) if reply.status in (404, 408, 409, 425, 429) or reply.status >= 500 else Refusal(text)
