"""The network of a trial: connections that can be slow, stall and break.

A connection behaves like a WebSocket: whole messages in order, each at most once, until an end closes it or it breaks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random

from fairlead.wire.agent_messages import Reports, decode_from_agent
from tests.chaos.loop import Process, VirtualLoop

QUICK, SLOW = 0.02, 8.0
"""The most seconds that a message takes, usually and on a slow network. Launch timeouts are longer."""
LATE = 0.5
"""The most seconds that a message takes if its sender reconnects meanwhile."""
OFTEN = 0.5
"""Fraction of the report messages that are hit by `resend` and `overtake`."""


class End:
    """One end of a connection, with the interfaces of the hub and of an agent's session."""

    def __init__(self, wire: Wire, owner: Process, gone: type[Exception]) -> None:
        self.owner = owner
        self.other: End
        self.closed = False
        self.waiting: deque[bytes | None] = deque()
        """Messages that have arrived; `None` is the end of the connection."""
        self.under_way = 0
        self.last = 0.0
        """Arrival time of the last message: later messages arrive after it."""
        self._wire = wire
        self._gone = gone
        self._reader: asyncio.Future[None] | None = None

    async def send(self, data: bytes) -> None:
        if self.closed:
            raise self._gone("the connection is closed")
        self._wire.carry(self.other, data)

    async def recv(self) -> bytes:
        while not self.waiting:
            if self.closed:
                raise self._gone("the connection is closed")
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        data = self.waiting.popleft()
        if data is None:
            self.closed = True
            raise self._gone("the connection was closed by the other end")
        return data

    def trust(self) -> None:
        """Do nothing: the size of messages is not limited."""

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self.hang_up()

    def hang_up(self) -> None:
        """Close the connection, as the operating system does for a dead process."""
        if not self.closed:
            self.closed = True
            self._wire.carry(self.other, None)
            self._wake()

    def arrive(self, data: bytes | None) -> None:
        if not self.closed:
            self.waiting.append(data)
            self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class Line:
    """Network faults of a machine."""

    def __init__(self) -> None:
        self.stands_still_until = 0.0
        self.has: Callable[[str], bool] = lambda fault: False


class Wire:
    """A connection between an agent and a server."""

    def __init__(
        self, loop: VirtualLoop, rng: Random, line: Line, agent: Process, server: Process, lost: type[Exception],
        closed: type[Exception],
    ) -> None:  # fmt: skip
        self.agent, self.server = End(self, agent, lost), End(self, server, closed)
        self.agent.other, self.server.other = self.server, self.agent
        self._loop = loop
        self._rng = rng
        self._line = line
        self._cut = False

    @property
    def is_quiet(self) -> bool:
        """True if no message is under way or unread."""
        return not any(end.under_way or end.waiting for end in (self.agent, self.server))

    @property
    def is_over(self) -> bool:
        return self._cut or (self.agent.closed and self.server.closed)

    def cut(self) -> None:
        """Drop all messages from now on without notifying the ends: the machine has no power."""
        self._cut = True

    def reset(self) -> None:
        """Drop all messages and notify both ends."""
        self.cut()
        for end in (self.agent, self.server):
            end.waiting.clear()
            end.arrive(None)

    def carry(self, to: End, data: bytes | None) -> None:
        line, loop, rng = self._line, self._loop, self._rng
        when = loop.time() + rng.random() * (SLOW if line.has("slow") else QUICK)
        if to is self.server and data is not None and self._strikes("overtake", data):
            # The sender closes the connection while this message is under way.
            when = loop.time() + rng.random() * LATE
            loop.world_at(loop.time(), self.agent.hang_up)
        to.under_way += 1
        to.last = max(when, to.last + 1e-6)
        loop.world_at(to.last, self._arrive, to, data)

    def _arrive(self, to: End, data: bytes | None) -> None:
        line = self._line
        if line.stands_still_until > self._loop.time() and not self._cut:
            to.last = max(to.last + 1e-6, line.stands_still_until)
            self._loop.world_at(to.last, self._arrive, to, data)
            return
        to.under_way -= 1
        if self._cut or not to.owner.alive:
            return
        to.arrive(data)
        if to is self.server and data is not None and self._strikes("resend", data):
            # The server has the message, and its confirmation is lost.
            self.cut()
            self.agent.arrive(None)
            self.server.arrive(None)

    def _strikes(self, fault: str, data: bytes) -> bool:
        """True if a fault of report messages hits this message."""
        return self._line.has(fault) and isinstance(decode_from_agent(data), Reports) and self._rng.random() < OFTEN
