"""The board of a partition: a shared cache of its nodes and queues for open web pages, refreshed at most once a second.

While pages are connected, one task waits for events of the partition, reads the rows of the nodes that changed, and
sends one message, encoded once, to every page. A further page only costs the sending.
"""

from __future__ import annotations

import asyncio
import contextvars
import gzip
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from secrets import token_hex
from time import monotonic, thread_time
from typing import Any

import msgspec

from fairlead.control.feed import HEARTBEAT, Feed, Missed, event_lines
from fairlead.control.partition import PartitionService
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition
from fairlead.views.nodemap import STATES, map_queues, node_row, ordered_rows, static_columns
from fairlead.wire import api as wire

PAUSE = 1.0
"""Seconds between two refreshes."""
WHOLE = 30.0
"""Seconds after which all rows are read again."""
KEPT = 60
"""Messages that are kept for pages that connect again."""
COST, LONGEST_PAUSE = 30, 5.0
"""After a slow refresh, pause for `COST` times its CPU time, at most `LONGEST_PAUSE` seconds."""

RESET = wire.Done(note="the nodes have changed; read the map again")


class Board:
    """Nodes and queues of one running partition."""

    def __init__(self, served: PartitionService) -> None:
        self.served = served
        self._id = token_hex(4)
        self._number = 0
        """The number of the last message."""
        self._seq = -1
        """The last record of the partition that was read."""
        self._version = -1
        self._whole = 0.0
        """When all rows were read last."""
        self._looked = 0.0
        self._took = 0.0
        self._static: dict[str, Any] = {}
        self._place: dict[str, int] = {}
        self._rows: list[wire.NodeRow] = []
        self._held: set[int] = set()
        self._queues: dict[str, wire.Queue] = {}
        self._ready = False
        self._now = 0.0
        self._messages: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._map: tuple[int, bytes] = (-1, b"")
        self._pages = 0
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._looking = asyncio.Lock()

    @property
    def at(self) -> str:
        return f"{self._id}-{self._number}"

    async def map(self) -> bytes:
        """Return the map as JSON, compressed with gzip."""
        await self._look()
        number, packed = self._map
        if number != self._number or not packed:
            answer = wire.NodeMap(
                at=self.at,
                partition=self.served.name,
                now=self._now,
                ready=self._ready,
                states=list(STATES),
                rows=self._rows,
                queues=list(self._queues.values()),
                **self._static,
            )
            number = self._number
            packed = await asyncio.to_thread(lambda: gzip.compress(msgspec.json.encode(answer), 5))
            self._map = (number, packed)
        return packed

    async def lines(self, after: str) -> AsyncGenerator[bytes]:
        """Yield changes after the message `after` as server-sent events; `reset` if the map has to be read again."""
        yield b"retry: 1000\n\n"
        name, _, number = after.partition("-")
        last = int(number) if name == self._id and number.isascii() and number.isdigit() else -1
        oldest = self._messages[0][0] if self._messages else self._number + 1
        if not oldest - 1 <= last <= self._number:
            yield event_lines("reset", RESET, None)
            last = self._number
        self._pages += 1
        if self._task is None:
            # The task serves all pages, so it must not count against the user who opened the first one.
            self._task = asyncio.create_task(self._run(), context=contextvars.Context())
        try:
            while not self.served.feed.closed:
                news = self._news
                for number_, message in list(self._messages):
                    if number_ > last:
                        last = number_
                        yield message
                if news.is_set():
                    continue
                try:
                    async with asyncio.timeout(HEARTBEAT):
                        await news.wait()
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self._pages -= 1
            if not self._pages and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _run(self) -> None:
        feed = self.served.feed
        while not feed.closed:
            with suppress(TimeoutError):
                async with asyncio.timeout(WHOLE / 3):
                    await feed.grown(self._seq)
            await asyncio.sleep(max(PAUSE, min(LONGEST_PAUSE, COST * self._took)))
            await self._look()
        self._tell(None)

    async def _look(self) -> None:
        """Read the changes since the last refresh, unless that was less than `PAUSE` ago."""
        async with self._looking:
            if self._static and monotonic() - self._looked < PAUSE:
                return
            named = _named(self.served.feed, self._seq)
            began = monotonic()
            if began - self._whole > WHOLE:
                named = None

            def look(state: Partition) -> wire.MapChange | wire.Done | None:
                busy = thread_time()
                change = self._read(state, named)
                self._took = thread_time() - busy
                return change

            change = await self.served.read(look)
            self._looked = monotonic()
            self._tell(change)

    def _read(self, state: Partition, named: set[str] | None) -> wire.MapChange | wire.Done | None:
        """Refresh the rows of the `named` nodes, or of all if None; return the message for pages, if any."""
        nodes, now = state.nodes, self.served.now
        self._now = now / SECOND
        self._seq = self.served.feed.seq
        altered = nodes.version != self._version
        self._version = nodes.version
        if altered or named is None:
            rows = ordered_rows(nodes)
            static = static_columns(nodes, rows)
            if static != self._static:
                self._static = static
                self._place = {nodes.name[row]: at for at, row in enumerate(rows)}
                self._rows = [node_row(state, row) for row in rows]
                self._held, self._queues = set(nodes.held), map_queues(state, now)
                self._ready, self._whole = state.readiness.ready, monotonic()
                return RESET
            if named is None:
                named = set(self._place)
                self._whole = monotonic()
        held = set(nodes.held)
        for node_id in held ^ self._held:
            if node_id in nodes.rows:
                named.add(nodes.name[nodes.rows[node_id]])
        self._held = held
        changed: list[tuple[int, wire.NodeRow]] = []
        for name in sorted(named & self._place.keys()):
            at = self._place[name]
            row = node_row(state, nodes.rows[nodes.joins[name]])
            if row != self._rows[at]:
                self._rows[at] = row
                changed.append((at, row))
        queues = map_queues(state, now)
        other = [queue for path, queue in queues.items() if self._queues.get(path) != queue]
        gone = self._queues.keys() - queues.keys()
        self._queues = queues
        if gone:
            return RESET
        if not (changed or other) and self._ready == state.readiness.ready:
            return None
        self._ready = state.readiness.ready
        return wire.MapChange(at="", now=self._now, ready=self._ready, rows=changed, queues=other)

    def _tell(self, change: wire.MapChange | wire.Done | None) -> None:
        if change is not None:
            self._number += 1
            if isinstance(change, wire.MapChange):
                change = msgspec.structs.replace(change, at=self.at)
            kind = "change" if isinstance(change, wire.MapChange) else "reset"
            self._messages.append((self._number, event_lines(kind, change, None)))
        self._news.set()
        self._news = asyncio.Event()


class Boards:
    """The boards of all partitions, created on first use."""

    def __init__(self) -> None:
        self._boards: dict[str, Board] = {}

    def of(self, served: PartitionService) -> Board:
        board = self._boards.get(served.name)
        if board is None or board.served is not served:
            board = self._boards[served.name] = Board(served)
        return board


def _named(feed: Feed, seq: int) -> set[str] | None:
    """Return the names of the nodes in the events after a record; None if those events are no longer kept."""
    try:
        return {event.node for batch in feed.after(seq) for event in batch.news if event.node}
    except Missed:
        return None
