"""A thread with a journal object of its own, which only this thread uses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from fairlead.journal.journal import Journal
from fairlead.writer.loop import WriterThread

Result = TypeVar("Result")


class JournalThread:
    """A thread and its journal object, for one stream that this server leads, or for all streams that it reads."""

    def __init__(self, open_journal: Callable[[], Journal], thread: WriterThread, stream: str = "") -> None:
        self.thread = thread
        self.stream = stream
        """The stream that this server leads, or tries to lead, in this thread; empty if the thread only reads."""
        self.failure = ""
        """Why the journal or the writer failed; empty if both work."""
        self.release: Callable[[], Awaitable[None]] | None = None
        """Stops serving the partition or configuration of the stream. Awaited before the journal is closed."""
        self._open_journal = open_journal
        self._journal: Journal | None = None

    async def run(self, work: Callable[[Journal], Result]) -> Result:
        """Call `work` with the journal, in the thread, between two cycles. The first call opens the journal."""
        return await self.thread.alone(lambda: work(self._opened()))

    def lapsed(self, now: float) -> bool:
        """True if the lease has ended, so that another server may lead the stream."""
        return self._journal is not None and self._journal.leads_until() < now

    async def close(self) -> None:
        if self.release is not None:
            await self.release()
        await self.thread.alone(lambda: None if self._journal is None else self._journal.close())
        self.thread.close()

    def _opened(self) -> Journal:
        if self._journal is None:
            self._journal = self._open_journal()
        return self._journal
