"""A worker of an executor, as its client sees it: the calls that it was given, and the connection to it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fairlead.client.calls import Problem
from fairlead.client.function_worker import (
    BACK,
    CALL,
    CANCEL,
    DIED,
    END,
    ERROR,
    EXPECT,
    LEAVE,
    LISTENS,
    NUMBER,
    RECALL,
    SEEN,
    Forged,
    Link,
)
from fairlead.client.tunnel import NearEnd
from fairlead.wire import operations as op
from fairlead.wire.tunnel_frames import CLOSE, CONNECTIONS, DATA, OPEN, PAIR, PIECE
from fairlead.wire.tunnel_frames import END as END_OF_CHANNEL

if TYPE_CHECKING:
    from fairlead.client.worker_group import WorkerGroup

PAUSE = 0.1
"""Seconds before a closed connection is opened again."""


class Remote(Exception):
    """The traceback of a function on its node, as text. It is the cause of the exception raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Lost(Exception):
    """Raised for a call without a result: its process ended, or its worker was lost or never started."""


class CallFuture(Future[Any]):
    """The future of a call. Cancelling it ends the call, even while it runs."""

    def __init__(self, cancelled: Callable[[CallFuture], None]) -> None:
        super().__init__()
        self._cancelled = cancelled
        self.job = ""
        """The id of the job whose task has the call; empty until there is one."""

    def cancel(self) -> bool:
        if not super().cancel():
            return False
        self.set_running_or_notify_cancel()
        self._cancelled(self)
        return True

    def settle(self, result: Any = None, error: BaseException | None = None) -> None:
        """Set the outcome, unless the future was cancelled meanwhile."""
        with suppress(InvalidStateError):
            if error is not None:
                self.set_exception(error)
            else:
                self.set_result(result)


class PackedCall:
    """A call on its way to a result."""

    def __init__(self, number: int, content: bytes, tries: int, again: bool, future: CallFuture) -> None:
        self.number = number
        self.content = content
        self.tries = tries
        """How often its process may end before the call is lost."""
        self.again = again
        """True if it runs again when its worker is lost."""
        self.future = future
        self.recalled = False


class Worker:
    """A worker, and the connection to it. It lives as long as its attempt of a task."""

    def __init__(self, group: WorkerGroup, job: str, index: int, attempt: int) -> None:
        self._group = group
        self._shared = group.shared
        self.job, self.index, self.attempt = job, index, attempt
        self.open: dict[int, PackedCall] = {}
        """Calls that it was given, in order."""
        self.ready = False
        """True while it is connected and takes calls."""
        self.met = False
        """True once it was connected."""
        self.busy_since = 0.0
        """When it got the call that it runs, as far as is known here."""
        self._link = Link(b"", False)
        self._outgoing: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._gone = asyncio.Event()
        """Set when its attempt has ended."""
        self._closed = asyncio.Event()
        """Set when the connection was closed by the worker."""
        self.ended = ""
        """Why it has ended; empty while it lives."""
        self.outcome = ""

    def give(self, call: PackedCall) -> None:
        if not self.open:
            self.busy_since = monotonic()
        self.open[call.number] = call
        call.recalled = False
        call.future.job = self.job
        self._send(CALL, call.number, call.content)

    def recall(self, call: PackedCall) -> None:
        """Ask for a call that does not run yet."""
        call.recalled = True
        self._send(RECALL, call.number)

    def cancel(self, call: PackedCall) -> None:
        del self.open[call.number]
        self._send(CANCEL, call.number)

    def leave(self) -> None:
        self._send(LEAVE)

    def end(self, why: str, outcome: str) -> None:
        """Note that the attempt has ended."""
        self.ended, self.outcome = why, outcome
        self._gone.set()

    def _send(self, kind: int, call: int = 0, content: bytes = b"") -> None:
        if self._link.proven:
            self._outgoing.extend(self._link.message(kind, call, content))
            self._wake.set()

    # -- the connection ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the connection until the attempt has ended. Then give back what is open."""
        gone = asyncio.create_task(self._gone.wait())
        work = asyncio.create_task(self._work())
        try:
            await asyncio.wait((gone, work), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():  # what it sent before its end may still be on the way
                await asyncio.wait((work,), timeout=1.0)
        finally:
            self.ready = False
            work.cancel()
            gone.cancel()
            await self._group.lost(self)

    async def _work(self) -> None:
        port = await self._shared.in_thread(self._find_port)
        while port and not self.ended:
            try:
                await self._converse(port)
            except (Problem, Forged) as problem:
                if isinstance(problem, Forged):
                    self._group.fail(list(self.open.values()), problem)
                    self.open.clear()
                    return
            finally:
                self.ready = False
            await asyncio.sleep(PAUSE)

    def _find_port(self) -> int:
        """Return the port that the worker names in the first line of its output; 0 if it has ended before."""
        text = b""
        with suppress(Problem):
            for part in self._shared.client.log(self.job, index=self.index, attempt=self.attempt, follow=True):
                text += part
                if b"\n" in text:
                    break
        return int(text.split(b"\n")[0].removeprefix(LISTENS)) if text.startswith(LISTENS) else 0

    async def _converse(self, port: int) -> None:
        """Carry messages over one connection until it is closed."""
        wanted = op.OpenTunnel(job=self.job, tunnel=uuid4().hex, kind="ports", index=self.index, attempt=self.attempt)
        near = NearEnd(self._shared.client, wanted, lambda kind, channel, data: self._take(near, kind, channel, data))
        self._link = Link(self._shared.key, False)
        self._closed.clear()
        self._outgoing.clear()
        near.send(OPEN, CONNECTIONS, PAIR.pack(port, 0))
        self._outgoing.append(self._link.greeting)
        self._wake.set()
        parts = [asyncio.create_task(part) for part in (near.run(), self._carry(near), self._closed.wait())]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in parts[:2]:
                if part.done():
                    part.result()
        finally:
            near.leave()
            for part in parts[1:]:
                part.cancel()
            with suppress(Problem, TimeoutError):
                await asyncio.wait_for(parts[0], 1.0)

    async def _carry(self, near: NearEnd) -> None:
        """Send what there is to send, as the windows of the tunnel allow."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._outgoing:
                data = self._outgoing.popleft()
                while self._outgoing and len(data) + len(self._outgoing[0]) <= PIECE:
                    data += self._outgoing.popleft()
                view = memoryview(data)
                while view:
                    room = await near.room(CONNECTIONS)
                    near.send(DATA, CONNECTIONS, bytes(view[:room]))
                    view = view[room:]

    def _take(self, near: NearEnd, kind: int, channel: int, data: bytes) -> None:
        if channel != CONNECTIONS:
            return
        if kind == DATA:
            near.use(channel, len(data))
            self._link.feed(data)
            if proof := self._link.greet():
                self._outgoing.append(proof)
                self._wake.set()
            met = self._link.proven
            try:
                for message in self._link.messages():
                    self._handle(*message)
            except Forged as problem:
                self._group.fail(list(self.open.values()), problem)
                self.open.clear()
                self._closed.set()
                return
            if self._link.proven and not met:
                self._send(EXPECT, 0, b"".join(NUMBER.pack(number) for number in self.open))
                self.ready = self.met = True
                self._group.connected(self)
        elif kind in (CLOSE, END_OF_CHANNEL):
            self._closed.set()

    def _handle(self, kind: int, number: int, content: bytes) -> None:
        if kind == END:
            self.ended = "it had nothing to do"
            self.ready = False
            return
        call = self.open.pop(number, None)
        if kind != BACK:
            self._send(SEEN, number)
        if call is None:
            return  # it was cancelled
        now = monotonic()
        if kind == BACK:
            self._group.waiting.appendleft(call)
        elif kind == DIED:
            self._group.retry(call, f"{content.decode('utf-8', 'replace')}, in task {self.index} of job {self.job}")
        elif kind == ERROR and call.tries > 1:
            self._group.retry(call, "its function failed")
        else:
            self._group.measure(now - self.busy_since)
            self._shared.settle(call.future, kind, content)
        self.busy_since = now
        self._group.balance()
