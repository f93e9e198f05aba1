"""The board of a partition: its nodes and queues for open web pages, refreshed at most once a second.

While pages are connected, one task waits for events of the partition, reads the rows of the changed nodes, and encodes
one message for all pages. So another page costs only the sending.
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
"""Seconds between two readings of all rows."""
KEPT = 60
"""Number of messages stored for pages that connect again."""
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
        """The last record that is part of the board."""
        self._version = -1
        self._whole = 0.0
        """When all rows were last read."""
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
        """Return the present map as JSON, compressed with gzip."""
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
        """Yield the changes after message `after` as server-sent events.

        The event `reset` says that the page has to read the map again.
        """
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
        """Refresh the rows of the `named` nodes, or of all if None. Return the message for pages, if any."""
        nodes, now, ready = state.nodes, self.served.now, state.readiness.ready
        self._now = now / SECOND
        self._seq = self.served.feed.seq
        before, self._queues = self._queues, map_queues(state, now)
        altered, self._version = nodes.version != self._version, nodes.version
        if (altered or named is None) and self._read_static(state):
            self._ready = ready
            return RESET
        if named is None:
            named = set(self._place)
            self._whole = monotonic()
        rows = self._changed_rows(state, named)
        queues = [queue for path, queue in self._queues.items() if before.get(path) != queue]
        if before.keys() - self._queues.keys():
            return RESET
        if not (rows or queues) and self._ready == ready:
            return None
        self._ready = ready
        return wire.MapChange(at="", now=self._now, ready=ready, rows=rows, queues=queues)

    def _read_static(self, state: Partition) -> bool:
        """Read all rows again if nodes or their fixed properties have changed; True if so."""
        nodes = state.nodes
        rows = ordered_rows(nodes)
        static = static_columns(nodes, rows)
        if static == self._static:
            return False
        self._static = static
        self._place = {nodes.name[row]: at for at, row in enumerate(rows)}
        self._rows = [node_row(state, row) for row in rows]
        self._held = set(nodes.held)
        self._whole = monotonic()
        return True

    def _changed_rows(self, state: Partition, named: set[str]) -> list[tuple[int, wire.NodeRow]]:
        """Refresh the rows of the `named` nodes and of those that a hold came to or left. Return the changed ones."""
        nodes, held = state.nodes, set(state.nodes.held)
        named |= {nodes.name[nodes.rows[node_id]] for node_id in held ^ self._held if node_id in nodes.rows}
        self._held = held
        changed: list[tuple[int, wire.NodeRow]] = []
        for name in sorted(named & self._place.keys()):
            at = self._place[name]
            row = node_row(state, nodes.rows[nodes.joins[name]])
            if row != self._rows[at]:
                self._rows[at] = row
                changed.append((at, row))
        return changed

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
    """Return the names of the nodes in the events after a record; None if these events are not stored any more."""
    try:
        return {event.node for batch in feed.after(seq) for event in batch.news if event.node}
    except Missed:
        return None
