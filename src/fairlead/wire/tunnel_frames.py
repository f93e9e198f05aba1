"""The two ends of a tunnel between a client and processes of a task. All hops in between only copy bytes.

A tunnel has numbered channels. A channel carries bytes both ways: the standard streams of a process, its terminal, or a
connection to a port. Each end keeps what it has sent until the other end confirms it, so a tunnel outlasts its
connections: after a new one, both ends say how many frames they have, and the rest is sent again. An end sends at most
`WINDOW` bytes of a channel that the other end has not used yet, so a slow reader slows the writer down, and both ends
need bounded memory.

A frame is its kind, its channel, the length of its content, and the content. Spawners load this module, so it imports
little.
"""

from __future__ import annotations

from collections import deque
from struct import Struct, error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

WINDOW = 1 << 20
"""Bytes of a channel that may be on their way in one direction."""
PIECE = 1 << 16
"""Largest number of bytes of a frame's content."""
MAX_KEPT = 100_000
"""Frames that an end keeps until they are confirmed."""
CHANNELS = 256
"""Open connections to ports of one tunnel."""
MAX_KEPT_BYTES = 64 * WINDOW
"""Bytes that an end keeps until they are confirmed, beside two windows of each open channel."""
STANDARD, ERRORS, CONNECTIONS = 1, 2, 16
"""The channel of a process or its terminal; that of its standard error; and the first one of connections to ports."""

HELLO, CONFIRM, DATA, USED, END, CLOSE, OPEN, SIZE, SIGNAL, EXIT = range(10)
"""Kinds of frames.

`HELLO` begins each connection, with the number of frames received so far. `CONFIRM` has that number too. Both are not
counted. `DATA` has bytes, `USED` the number of bytes that the reader used, `END` the end of
one direction of a channel. `CLOSE` ends a channel, with the reason; channel 0 stands for the tunnel. `OPEN` connects a
channel to a port, `SIZE` has rows and columns of a terminal, `SIGNAL` the number of a signal for the process, `EXIT`
its exit code and, in text, what else is to say.
"""
HEAD = Struct("<BII")
COUNT = Struct("<Q")
NUMBER = Struct("<I")
PAIR = Struct("<HH")
CODE = Struct("<i")

Frame = tuple[int, int, bytes]
"""Kind, channel, content."""


class Broken(Exception):
    """Raised if the other end breaks the rules or lacks what is needed to go on; the tunnel has to end."""


class Tunnel:
    """One end of a tunnel. It does no I/O: it makes the bytes to send, and frames of the received bytes."""

    def __init__(self) -> None:
        self.greeted = False
        """True while a connection is open on which the other end has greeted."""
        self.met = False
        """True once the other end has greeted."""
        self._got = 0
        """Frames that have arrived."""
        self._confirmed = 0
        """Frames of which the other end has been told that they arrived."""
        self._kept: deque[bytes] = deque()
        """Frames that were sent or wait to be sent, and are not confirmed."""
        self._first = 0
        """The number of the first of them."""
        self._kept_bytes = 0
        self._unsent: deque[bytes] = deque()
        self._rest = bytearray()
        self._room: dict[int, int] = {}
        """Channel → bytes that may be sent."""
        self._allowed: dict[int, int] = {}
        """Channel → bytes that may still arrive."""
        self._used: dict[int, int] = {}
        """Channel → bytes that were used, but not reported."""

    # -- connections ---------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Begin a connection. The first bytes that are sent greet the other end."""
        self.greeted = False
        self._rest.clear()
        self._unsent = deque((_frame(HELLO, 0, COUNT.pack(self._got)),))

    def disconnect(self) -> None:
        """End the connection. What is unconfirmed is sent again after the next one has begun."""
        self.greeted = False
        self._unsent.clear()

    @property
    def unsent(self) -> bool:
        """True if there are bytes to send now."""
        return bool(self._unsent)

    @property
    def kept_bytes(self) -> int:
        """Return the number of bytes that the other end has not confirmed."""
        return self._kept_bytes

    @property
    def settled(self) -> bool:
        """True if the other end has confirmed everything."""
        return not self._kept

    def take(self, most: int = 4 * PIECE) -> bytes:
        """Return about `most` of the bytes to send now, in order."""
        parts: list[bytes] = []
        size = 0
        while self._unsent and size < most:
            parts.append(self._unsent.popleft())
            size += len(parts[-1])
        return b"".join(parts)

    def receive(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete now: those that concern the users of channels."""
        rest = self._rest
        rest += data
        at, end = 0, len(rest)
        try:
            while end - at >= HEAD.size:
                kind, channel, size = HEAD.unpack_from(rest, at)
                if size > PIECE:
                    raise Broken(f"a frame of {size} bytes is too large")
                if end - at - HEAD.size < size:
                    break
                at += HEAD.size + size
                content = bytes(memoryview(rest)[at - size : at])
                if self._handle(kind, channel, content):
                    yield kind, channel, content
        except error as problem:
            raise Broken(f"a frame is malformed: {problem}") from None
        finally:
            del rest[:at]
        if self._got != self._confirmed and self.greeted:
            self._confirmed = self._got
            self._unsent.append(_frame(CONFIRM, 0, COUNT.pack(self._got)))

    def _handle(self, kind: int, channel: int, content: bytes) -> bool:
        """Handle what concerns the tunnel itself. Return True if the frame is for the users of channels."""
        if kind == HELLO:
            self._drop(COUNT.unpack(content)[0])
            self.greeted = self.met = True
            self._confirmed = self._got
            self._unsent.extend(self._kept)
            return False
        if not self.greeted:
            raise Broken("the other end has not greeted")
        if kind == CONFIRM:
            self._drop(COUNT.unpack(content)[0])
            return False
        self._got += 1
        if kind == USED:
            if channel in self._room:
                self._room[channel] += NUMBER.unpack(content)[0]
                if self._room[channel] > WINDOW:
                    raise Broken("the other end used more bytes of a channel than it got")
            return False
        if kind == DATA:
            if not content:
                return False  # it would take memory, but no room
            left = self._allowed.get(channel, WINDOW) - len(content)
            if left < 0:
                raise Broken("more bytes arrive than the window of a channel allows")
            self._allowed[channel] = left
        return True

    def _drop(self, got: int) -> None:
        if not self._first <= got <= self._first + len(self._kept):
            raise Broken("the other end has lost a part of this tunnel")
        for _ in range(got - self._first):
            self._kept_bytes -= len(self._kept.popleft())
        self._first = got

    # -- channels ------------------------------------------------------------------------------------------------

    def room(self, channel: int) -> int:
        """Return the number of bytes that may be sent now."""
        return self._room.setdefault(channel, WINDOW)

    def send(self, kind: int, channel: int, content: bytes = b"") -> None:
        """Send a frame; data must fit into a frame, and into the room of its channel."""
        if kind == DATA:
            self._room[channel] = self.room(channel) - len(content)
        frame = _frame(kind, channel, content)
        if len(self._kept) >= MAX_KEPT or self._kept_bytes > MAX_KEPT_BYTES + 2 * WINDOW * len(self._room):
            raise Broken("the other end confirms nothing")
        self._kept.append(frame)
        self._kept_bytes += len(frame)
        if self.greeted:
            self._unsent.append(frame)

    def use(self, channel: int, size: int) -> None:
        """Note that received bytes were used, so that more may come."""
        used = self._used.get(channel, 0) + size
        if used >= WINDOW // 4:
            self.send(USED, channel, NUMBER.pack(used))
            self._allowed[channel] = self._allowed.get(channel, WINDOW) + used
            used = 0
        self._used[channel] = used

    def forget(self, channel: int) -> None:
        """Forget a channel that both ends have closed."""
        for numbers in (self._room, self._allowed, self._used):
            numbers.pop(channel, None)


def _frame(kind: int, channel: int, content: bytes) -> bytes:
    return HEAD.pack(kind, channel, len(content)) + content
