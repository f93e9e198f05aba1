"""Shows users why pods wait: a `PodScheduled` condition and an event with the explanation of the partition.

The reason `Unschedulable` makes cluster autoscalers buy nodes, so it is written only if capacity is missing. A pod that
waits for a limit, a share, the rest of its gang or tasks that stop for it gets another reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from time import monotonic

import msgspec

from fairlead.client.async_pool import Http, Lost, Reply
from fairlead.kubernetes.adapter_state import State
from fairlead.kubernetes.partition_link import Link
from fairlead.kubernetes.units import Member, Unit
from fairlead.wire import api as wire

UNSCHEDULABLE = "Unschedulable"
REQUESTED = "ProvisioningRequested"
WARNINGS = (UNSCHEDULABLE, "Refused", "NotHonoured", "NotBound", "Preempted")
EACH = 0.5
"""Seconds between two rounds."""
FIRST_AFTER = 0.5
"""Seconds before the first explanation of a unit is requested. Most units are placed by then."""
AGAIN_AFTER = 30.0
MOST_UNITS = 500
MOST_PODS, MOST_PODS_BUSY = 100, 5
"""Pods to write to in one round. It is fewer while pods are being bound, because that is more urgent."""
AT_ONCE = 8

Entry = tuple[Member, str, str]
"""A pod, with the reason and the text to write to it."""

_encode = msgspec.json.Encoder().encode


class Reasons:
    """Writes conditions and events of waiting pods."""

    def __init__(
        self,
        state: State,
        link: Link,
        http: Http,
        reporter: str,
        busy: Callable[[], bool],
        note: Callable[[str, str], None],
        provision: Callable[[Unit], Awaitable[bool]],
    ) -> None:
        """Write reasons in the name of `reporter`. `busy` is true while pods are being bound, `note` logs a problem of
        a pod, and `provision` requests the nodes of a gang, if the cluster can."""
        self._state = state
        self._link = link
        self._http = http
        self._reporter = reporter
        self._busy = busy
        self._note = note
        self._provision = provision
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._number = 0

    async def run(self) -> None:
        """Write reasons until cancelled."""
        while True:
            await asyncio.sleep(EACH)
            if self._state.adopted:
                try:
                    await self.look()
                except Lost as lost:
                    self._note("", str(lost))

    async def look(self) -> None:
        """Request the oldest explanations again, and write those that changed."""
        now = monotonic()
        due = [unit for unit in self._state.units.values() if _is_due(unit, now)]
        due = sorted(due, key=lambda unit: unit.explained)[:MOST_UNITS]
        asked = [unit.job for unit in due if unit.sent and not unit.why[1]]
        answers = {answer.job: answer for answer in await self._link.waiting(asked)} if asked else {}
        most = MOST_PODS_BUSY if self._busy() else MOST_PODS
        writing: list[Entry] = []
        for unit in due:
            if len(writing) < most:
                unit.explained = now
                writing += await self._reasons_of(unit, answers.get(unit.job))
        nominated = self._state.nominated.values()
        writing += _unwritten((member, "NotBound", member.refused) for member in nominated)[:most]
        await asyncio.gather(*(self._write(*entry) for entry in writing))
        done = self._state.events
        await asyncio.gather(*(self._tell(*done.popleft()) for _ in range(min(len(done), most - len(writing)))))

    async def _reasons_of(self, unit: Unit, answer: wire.WaitingJob | None) -> list[Entry]:
        reason, text = await self._explain(unit, answer)
        waiting = (member for member in unit.members.values() if not member.live and not member.stopping)
        return _unwritten((member, reason, text) for member in waiting)

    async def _tell(self, member: Member, reason: str, text: str) -> None:
        async with self._slots:
            try:
                await self._event(member, reason, text)
            except Lost as lost:
                self._note(f"{member.namespace}/{member.name}", str(lost))

    async def _explain(self, unit: Unit, answer: wire.WaitingJob | None) -> tuple[str, str]:
        """Return the reason and the text for a unit. Request nodes for a gang that lacks capacity."""
        if unit.why[1] or answer is None:
            return unit.why
        unit.missing = answer.missing
        if not answer.missing:
            return _words(answer.code), answer.reason
        if unit.group is not None and unit.group.is_gang and await self._provision(unit):
            return REQUESTED, answer.reason  # the autoscaler buys nodes for the whole gang, not for single pods
        return UNSCHEDULABLE, answer.reason

    async def _write(self, member: Member, reason: str, text: str) -> None:
        async with self._slots:
            if (member.live and not member.refused) or member.uid not in self._state.members:
                return
            before, member.told = member.told[0], (reason, text)
            try:
                if not member.gated:  # the API server writes the condition of a gated pod itself
                    await self._condition(member, reason, text)
                if before != reason:
                    await self._event(member, reason, text)
            except Lost as lost:
                member.told = (before, "")
                self._note(f"{member.namespace}/{member.name}", str(lost))

    async def _condition(self, member: Member, reason: str, text: str) -> None:
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": text,
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        body = {"metadata": {"uid": member.uid}, "status": {"conditions": [condition]}}
        path = f"/api/v1/namespaces/{member.namespace}/pods/{member.name}/status"
        reply = await self._http.call("PATCH", path, _encode(body), "application/strategic-merge-patch+json")
        _check(reply)

    async def _event(self, member: Member, reason: str, text: str) -> None:
        self._number += 1
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{member.name[:200]}.{self._number:x}.{int(monotonic() * 1e6):x}"},
            "eventTime": now,
            "reportingController": "fairlead",
            "reportingInstance": self._reporter,
            "action": "Scheduling",
            "type": "Warning" if reason in WARNINGS else "Normal",
            "reason": "FailedScheduling" if reason == UNSCHEDULABLE else reason,
            "note": text[:1000],
            "regarding": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": member.namespace,
                "name": member.name,
                "uid": member.uid,
            },
        }
        path = f"/apis/events.k8s.io/v1/namespaces/{member.namespace}/events"
        _check(await self._http.call("POST", path, _encode(event)))


def _unwritten(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries with a text that was not written to their pods yet."""
    return [(member, reason, text) for member, reason, text in entries if text and member.told != (reason, text)]


def _check(reply: Reply) -> None:
    """Raise `Lost` if a write failed. A pod that is gone needs no reason."""
    if reply.status >= 300 and reply.status not in (404, 409):
        raise Lost(f"{reply.status} {reply.text}")


def _is_due(unit: Unit, now: float) -> bool:
    if unit.explained and now - unit.explained < AGAIN_AFTER:
        return False
    if unit.sent and now - unit.waiting_since < FIRST_AFTER:
        return False
    return any(not member.live for member in unit.members.values())


def _words(code: str) -> str:
    """Return the code of a reason in Kubernetes style: "over limit" becomes OverLimit."""
    return "".join(word.capitalize() for word in code.split()) or "Waiting"
