"""Lets controllers make pods that they make only when a scheduler says so: Kueue's suspended Jobs and Volcano's Jobs.

The pods then wait in Fairlead's queues. Only objects whose pods Fairlead schedules are touched, each once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import msgspec

from fairlead.client.async_pool import Http, Lost
from fairlead.kubernetes.groups import VOLCANO_GROUPS, GroupObjects
from fairlead.kubernetes.names import GATE, SCHEDULER
from fairlead.kubernetes.objects import PodSpec

EACH = 0.5

_encode = msgspec.json.Encoder().encode


class GroupStarts:
    """The objects of one cluster that wait to be started."""

    def __init__(
        self,
        http: Http,
        objects: GroupObjects,
        note: Callable[[str, str], None],
        schedulers: Collection[str] = (SCHEDULER,),
        gate: str = GATE,
    ) -> None:
        """Start objects whose pods name one of `schedulers` or have the gate. `note` logs a problem of an object."""
        self._http = http
        self._objects = objects
        self._note = note
        self._schedulers = schedulers
        self._gate = gate
        self._started: dict[str, None] = {}
        """Uids of what was started. It is not started again if another controller suspends it."""

    async def run(self) -> None:
        """Start objects until cancelled."""
        while True:
            await asyncio.sleep(EACH)
            for uid, (path, namespace, name, spec) in list(self._objects.suspended.items()):
                if uid not in self._started and self._is_ours(spec):
                    await self._patch(uid, path, namespace, name, {"spec": {"suspend": False}})
            for uid, (namespace, name) in list(self._objects.pending.items()):
                if uid not in self._started and self._objects.volcano_jobs.get(uid) in self._schedulers:
                    await self._patch(uid, VOLCANO_GROUPS, namespace, name, {"status": {"phase": "Inqueue"}})

    def _is_ours(self, spec: PodSpec) -> bool:
        return spec.scheduler_name in self._schedulers or any(
            gate.name == self._gate for gate in spec.scheduling_gates or ()
        )

    async def _patch(self, uid: str, path: str, namespace: str, name: str, body: object) -> None:
        folder, _, resource = path.rpartition("/")
        try:
            reply = await self._http.call(
                "PATCH",
                f"{folder}/namespaces/{namespace}/{resource}/{name}",
                _encode(body),
                "application/merge-patch+json",
            )
        except Lost as lost:
            self._note(f"{namespace}/{name}", str(lost))
            return
        if reply.status in (409, 429) or reply.status >= 500:
            return  # it is tried again
        self._started[uid] = None
        if reply.status >= 300 and reply.status != 404:
            self._note(f"{namespace}/{name}", f"{reply.status} {reply.text}")
