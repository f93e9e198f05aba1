"""Calls to the API server that carry out decisions: bind a pod, admit it, evict it, or delete it.

Actions run in the order given, many at a time. Those of one gang begin together, before any of the next gang, so that
a gang is bound within milliseconds. An action that may succeed later is retried with growing pauses. When an action
ends, `done` or `refused` is called.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Literal

import msgspec

from fairlead.client.async_pool import Http, Lost, Reply
from fairlead.kubernetes.objects import Pod, message_of
from fairlead.kubernetes.reflector import pause_after

Verb = Literal["bind", "admit", "evict", "delete"]
AT_ONCE = 16
"""Calls in progress at a time. With more, each call takes longer, and so does a gang."""
BIND_WITHIN = 30.0
"""Seconds to retry a binding that the API server refuses for now, before the task is reported as lost."""
EVICT_WITHIN = 60.0
"""Seconds to retry an eviction that a disruption budget forbids. Later nothing may need it any more."""
RETRIED = (408, 429, 500, 502, 503, 504)

_pod = msgspec.json.Decoder(Pod).decode
_encode = msgspec.json.Encoder().encode


class Target(msgspec.Struct, eq=False):
    """An action on a pod."""

    verb: Verb
    namespace: str
    name: str
    uid: str
    owner: object
    """Passed back with the result."""
    node: str = ""
    gang: str = ""
    """The job whose actions begin together with this one; empty if none."""
    body: bytes = b""
    """The patch of an `admit`."""
    begun: bool = False
    """True once the call may have been sent."""
    cancelled: bool = False
    since: float = 0.0
    tries: int = 0
    confirmed: bool = False
    """True if the API server has executed the call."""

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"


class Performer:
    """Executes actions, with at most `at_once` calls in progress."""

    def __init__(
        self,
        http: Http,
        done: Callable[[Target], None],
        refused: Callable[[Target, str], None],
        note: Callable[[Target, str], None] = lambda target, problem: None,
        at_once: int = AT_ONCE,
    ) -> None:
        self._http = http
        self._done = done
        self._refused = refused
        self._note = note
        self._at_once = at_once
        self._under_way = 0
        self._waiting: deque[Target] = deque()
        self._news = asyncio.Event()
        """Set when an action was added or a call has ended."""
        self.counts: dict[tuple[str, str], int] = {}
        """Verb and result → number of calls."""

    def add(self, target: Target) -> None:
        target.since = target.since or monotonic()
        self._waiting.append(target)
        self._news.set()

    def waiting(self) -> int:
        """Return the number of actions that wait for their first call or for a retry."""
        return len(self._waiting)

    async def run(self) -> None:
        """Execute actions until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._news.wait()
                self._news.clear()
                while targets := self._next():
                    self._under_way += len(targets)
                    for target in targets:
                        target.begun = True
                        group.create_task(self._work(target))

    def _next(self) -> list[Target]:
        """Return the actions to begin now: those of the next gang, or a single one, or none if calls in progress leave
        too few places.

        A gang with more actions than `at_once` waits until no call is in progress, and then begins `at_once` of them.
        """
        waiting, free = self._waiting, self._at_once - self._under_way
        found: list[Target] = []
        while waiting and len(found) < self._at_once:
            if waiting[0].cancelled:
                waiting.popleft()
            elif not found or (waiting[0].gang and waiting[0].gang == found[0].gang):
                found.append(waiting.popleft())
            else:
                break
        if len(found) > free:
            waiting.extendleft(reversed(found))
            return []
        return found

    async def _work(self, target: Target) -> None:
        try:
            await self._carry_out(target)
        except Lost as lost:
            # The API server may have executed the call: repeat it until there is an answer.
            self._again(target, str(lost), gives_up=False)
        finally:
            self._under_way -= 1
            self._news.set()

    async def _carry_out(self, target: Target) -> None:
        if target.verb == "admit":
            # kube-scheduler tries the nominated node first. It is only a hint, so a refusal does not matter.
            body = _encode({"metadata": {"uid": target.uid}, "status": {"nominatedNodeName": target.node}})
            await self._http.call("PATCH", f"{target.path}/status", body, "application/merge-patch+json")
        method, path, body, kind = _request(target)
        reply = await self._http.call(method, path, body, kind)
        self._count(target, str(reply.status))
        if reply.status < 300:
            target.confirmed = True
            self._done(target)
        elif reply.status == 404:
            self._done(target)  # the pod is gone, and the watch reports that
        elif reply.status in RETRIED:
            self._again(target, _text(reply), reply.retry_after)
        elif reply.status == 409:
            await self._resolve(target, reply)
        else:
            self._refused(target, _text(reply))

    async def _resolve(self, target: Target, conflict: Reply) -> None:
        """Read the pod after a conflict, because the call may have succeeded before."""
        reply = await self._http.call("GET", target.path)
        if reply.status == 404:
            self._done(target)
            return
        if reply.status != 200:
            self._again(target, _text(reply), reply.retry_after)
            return
        pod = _pod(reply.content)
        if pod.metadata.uid != target.uid or pod.metadata.deletion_timestamp:
            self._done(target)
        elif target.verb == "bind" and pod.spec.node_name:
            self._done(target)  # the watch reports the node
        elif target.verb == "bind":
            self._refused(target, _text(conflict))
        else:
            self._again(target, _text(conflict))

    def _again(self, target: Target, problem: str, after: float = 0.0, gives_up: bool = True) -> None:
        target.tries += 1
        self._count(target, "retried")
        within = EVICT_WITHIN if target.verb == "evict" else BIND_WITHIN
        if gives_up and target.verb != "delete" and monotonic() - target.since > within:
            self._refused(target, problem)
            return
        if target.tries in (1 if target.verb == "evict" else 3, 10):
            self._note(target, problem)
        asyncio.get_running_loop().call_later(max(after, pause_after(target.tries)), self.add, target)

    def _count(self, target: Target, result: str) -> None:
        key = (target.verb, result)
        self.counts[key] = self.counts.get(key, 0) + 1


def _request(target: Target) -> tuple[str, str, bytes, str]:
    kind = "application/json"
    if target.verb == "bind":
        # The uid makes the API server refuse the binding if another pod has this name by now.
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": target.name, "uid": target.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": target.node},
        }
        return "POST", f"{target.path}/binding", _encode(body), kind
    if target.verb == "admit":
        return "PATCH", target.path, target.body, "application/json-patch+json"
    options = {"preconditions": {"uid": target.uid}}
    if target.verb == "evict":
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": target.name, "namespace": target.namespace},
            "deleteOptions": options,
        }
        return "POST", f"{target.path}/eviction", _encode(eviction), kind
    return "DELETE", target.path, _encode({"kind": "DeleteOptions", "apiVersion": "v1", **options}), kind


def _text(reply: Reply) -> str:
    return message_of(reply.content) or str(reply.status)
