"""Feeds: news in the order of the journal, kept for a while, so that whoever was cut off can go on where it was.

News have the number of the record that brought them. Who missed more than is kept is told so and has to look anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec

from fairlead.wire.api import Event, ManagerEvent

KEPT = 20_000
HEARTBEAT = 15.0
"""Seconds after which a quiet stream says that it is alive."""


News = Event | ManagerEvent


class Batch(NamedTuple):
    """The news of one record."""

    seq: int
    news: tuple[News, ...]


class Missed(Exception):
    """What is asked for is not kept any more; `seq` is where the feed stands."""

    def __init__(self, seq: int) -> None:
        super().__init__(seq)
        self.seq = seq


class Feed:
    """The news of a partition, or of a resource manager in it."""

    def __init__(self, seq: int, kept: int = KEPT) -> None:
        """It begins after record `seq`."""
        self.seq = seq
        self.closed = False
        self._since = seq
        self._kept = kept
        self._size = 0
        self._batches: deque[Batch] = deque()
        self._news = asyncio.Event()

    def add(self, seq: int, news: tuple[News, ...]) -> None:
        """What record `seq` brought, which may be nothing."""
        self.seq = seq
        if not news:
            return
        self._batches.append(Batch(seq, news))
        self._size += len(news)
        while self._size > self._kept and len(self._batches) > 1:
            old = self._batches.popleft()
            self._size -= len(old.news)
            self._since = old.seq
        self._wake()

    def close(self) -> None:
        self.closed = True
        self._wake()

    def after(self, seq: int) -> list[Batch]:
        if seq < self._since or seq > self.seq:
            raise Missed(self.seq)
        if not self._batches or self._batches[-1].seq <= seq:
            return []
        found: list[Batch] = []
        for batch in reversed(self._batches):
            if batch.seq <= seq:
                break
            found.append(batch)
        return found[::-1]

    async def follow(self, seq: int) -> AsyncIterator[Batch | None]:
        """The batches behind `seq`, as they come; None now and then when nothing does. Ends when the feed is closed."""
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

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


_encode = msgspec.json.Encoder().encode


def event_lines(kind: str, data: msgspec.Struct, seq: int | None) -> bytes:
    """One server-sent event. Only the last of a record carries its number: to go on from there misses none."""
    number = b"" if seq is None else b"id: %d\n" % seq
    return b"%sevent: %s\ndata: %s\n\n" % (number, kind.encode(), _encode(data))
