"""Feeds: recent events in the order of the journal, so that a reader can resume after a broken connection.

An event has the number of the record that caused it. A reader that asks for events that are no longer stored gets
`Missed`, and has to read the state again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from itertools import takewhile
from typing import NamedTuple

import msgspec

from fairlead.wire.api import Event, ManagerEvent

KEPT = 20_000
"""Number of events that a feed stores."""
HEARTBEAT = 15.0
"""Seconds after which a stream without events sends a heartbeat."""

News = Event | ManagerEvent


class Batch(NamedTuple):
    """The events of one record."""

    seq: int
    news: tuple[News, ...]


class Missed(Exception):
    """Raised if requested events are no longer stored. `seq` is the last record of the feed."""

    def __init__(self, seq: int) -> None:
        super().__init__(seq)
        self.seq = seq


class Feed:
    """The events of a partition, or of a resource manager in it."""

    def __init__(self, seq: int, kept: int = KEPT) -> None:
        """Start a feed after record `seq`."""
        self.seq = seq
        self.closed = False
        self._since = seq
        self._kept = kept
        self._size = 0
        self._batches: deque[Batch] = deque()
        self._news = asyncio.Event()

    def add(self, seq: int, news: tuple[News, ...]) -> None:
        """Add the events of record `seq`, which may have none."""
        self.seq = max(self.seq, seq)
        if not news:
            return
        self._batches.append(Batch(seq, news))
        self._size += len(news)
        while self._size > self._kept and len(self._batches) > 1:
            old = self._batches.popleft()
            self._size -= len(old.news)
            self._since = old.seq
        self._wake()

    def reach(self, seq: int) -> None:
        """Allow readers to start after record `seq`, although its events may not have been added yet."""
        self.seq = max(self.seq, seq)

    def close(self) -> None:
        self.closed = True
        self._wake()

    def after(self, seq: int) -> list[Batch]:
        """Return the batches after record `seq`. Raise `Missed` if some are no longer stored."""
        if seq < self._since or seq > self.seq:
            raise Missed(self.seq)
        return list(takewhile(lambda batch: batch.seq > seq, reversed(self._batches)))[::-1]

    async def follow(self, seq: int) -> AsyncIterator[Batch | None]:
        """Yield the batches after `seq` as they arrive, and None as a heartbeat, until the feed is closed."""
        while True:
            news, last = self._news, self.closed
            for batch in self.after(seq):
                seq = batch.seq
                yield batch
            if last:
                return
            if news.is_set():
                continue
            try:
                async with asyncio.timeout(HEARTBEAT):
                    await news.wait()
            except TimeoutError:
                yield None

    async def grown(self, seq: int) -> None:
        """Wait until there are events after record `seq`, or the feed is closed."""
        while not self.closed and not (self._batches and self._batches[-1].seq > seq):
            await self._news.wait()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


_encode = msgspec.json.Encoder().encode


def event_lines(kind: str, data: msgspec.Struct, seq: int | None) -> bytes:
    """Return one server-sent event. Its id is `seq`, which only the last event of a record has.

    So a reader that resumes after an id misses no event.
    """
    number = b"" if seq is None else b"id: %d\n" % seq
    return b"%sevent: %s\ndata: %s\n\n" % (number, kind.encode(), _encode(data))
