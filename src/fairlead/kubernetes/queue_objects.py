"""Shows the queues of Fairlead as objects of the cluster, for `kubectl get queues.fairlead.dev`.

Fairlead's configuration is the only source: the objects are copies, and are written again if they are changed. Nothing
is written in a cluster without their definition, `crds/queues.yaml` of the chart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from fairlead.client.async_pool import Http, Lost
from fairlead.kubernetes.adapter_state import State
from fairlead.kubernetes.objects import Named
from fairlead.kubernetes.partition_link import Link
from fairlead.wire import api as wire

PATH = "/apis/fairlead.dev/v1/queues"
EACH = 5.0
"""Seconds between two looks at the queues."""
LISTED_EACH = 12
"""Rounds after which the objects are listed again, so that changes by others do not last."""

_encode = msgspec.json.Encoder(order="deterministic").encode


class _Queues(msgspec.Struct):
    items: list[Named] = []


class QueueObjects:
    """The objects of one cluster."""

    def __init__(self, state: State, link: Link, http: Http, note: Callable[[str], None]) -> None:
        self._state = state
        self._link = link
        self._http = http
        self._note = note
        self._written: dict[str, bytes] = {}
        """Name → what was last written."""
        self._rounds = 0

    async def run(self) -> None:
        """Write what has changed until cancelled."""
        while True:
            await asyncio.sleep(EACH)
            if self._state.adopted:
                try:
                    await self.look()
                except Lost as lost:
                    self._written.clear()
                    self._note(str(lost))

    async def look(self) -> None:
        """Write the queues that have changed, and delete the objects of those that are gone."""
        if self._rounds % LISTED_EACH == 0 or not self._written:
            reply = await self._http.call("GET", PATH)
            if reply.status != 200:
                return  # the cluster does not have them
            found = msgspec.json.decode(reply.content, type=_Queues).items
            self._written = {each.metadata.name: b"" for each in found}
        self._rounds += 1
        wanted = {queue.path.lower(): _encode(_object(queue)) for queue in await self._link.queues()}
        for name, body in wanted.items():
            if self._written.get(name) != body:
                path = f"{PATH}/{name}?fieldManager=fairlead&force=true"
                await self._call("PATCH", path, body, "application/apply-patch+yaml")
                self._written[name] = body
        for name in self._written.keys() - wanted.keys():
            await self._call("DELETE", f"{PATH}/{name}")
            del self._written[name]

    async def _call(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> None:
        reply = await self._http.call(method, path, body, kind)
        if reply.status >= 300 and reply.status != 404:
            raise Lost(f"{reply.status} {reply.text}")


def _object(queue: wire.Queue) -> dict[str, Any]:
    """Return a queue as an object. Names of objects have no capital letters; `path` is the true one."""
    status = {
        "path": queue.path,
        "state": queue.state,
        "share": "" if queue.share is None else f"{queue.share}%",
        "entitlement": f"{queue.entitlement_percent:.0f}%",
        "use": f"{queue.use_percent:.0f}%",
        "jobs": queue.jobs,
        "running": queue.running,
        "used": _amounts(queue.used),
        "guarantee": _amounts(queue.guarantee),
        "limit": _amounts(queue.limit or {}),
    }
    metadata = {"name": queue.path.lower()}
    return {"apiVersion": "fairlead.dev/v1", "kind": "Queue", "metadata": metadata, "status": status}


def _amounts(amounts: dict[str, int | float]) -> dict[str, str]:
    return {name: f"{amount:g}" for name, amount in amounts.items()}
