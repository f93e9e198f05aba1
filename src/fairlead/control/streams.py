"""The streams of the journal that this server leads or tries to lead: threads, work in progress, failures, retries.

If a writer or a journal fails, its thread is marked as failed. The next reconcile pass ends the thread. After a pause
this server tries to lead the stream again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from fairlead.control.dependencies import Dependencies
from fairlead.control.heartbeat import Heartbeat
from fairlead.journal.disk_space import DiskFull
from fairlead.journal.journal import Journal, PolicyMissing, TooNew
from fairlead.wire.unserved import Unserved
from fairlead.writer.loop import WriterThread
from fairlead.writer.writer import Stopped

Result = TypeVar("Result")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds from a failure of a stream to the next try to lead it. They double with each failure, up to the longest."""
GIVEN_UP = 1.0
"""Seconds in which a server does not take back a stream that it gave up."""
LAPSED = "the lease of this server ended before it could be renewed; another server may lead now"
CLOSING = "the server is closing"
STOPPED = "the journal failed and the server is recovering; its log says why"
DISK_FULL = "the server's disk is full; the server recovers when there is space"
UNABLE = (PolicyMissing, TooNew)
"""Problems of this server's installation, so that another server may be able to lead."""


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


class Streams:
    """The streams that this server leads or tries to lead."""

    def __init__(self, given: Dependencies, heartbeat: Heartbeat) -> None:
        self.threads: dict[str, JournalThread] = {}
        """Stream → its thread."""
        self.problems: dict[str, str] = {}
        """Stream → why this server does not lead it although it should."""
        self.wake = asyncio.Event()
        """Set to start the next reconcile pass at once."""
        self.started = False
        """True after the first reconcile pass. Later problems are logged and retried; earlier ones are raised."""
        self.closing = False
        self._given = given
        self._heartbeat = heartbeat
        self._reader: JournalThread | None = None
        self._work: dict[str, asyncio.Task[None]] = {}
        """Stream → the work in progress to lead it, follow it or give it up."""
        self._retries: dict[str, tuple[float, float]] = {}
        """Failed stream → when to try leading it again, and the length of the pause."""

    def thread(self, stream: str) -> JournalThread:
        """Return the thread of a stream that this server leads or is about to lead; create it if needed."""
        if stream not in self.threads:
            self.threads[stream] = JournalThread(self._given.open_journal, self._given.new_thread(), stream)
        return self.threads[stream]

    @property
    def reader(self) -> JournalThread:
        """The thread that reads the streams of other servers."""
        if self._reader is None:
            self._reader = JournalThread(self._given.open_journal, self._given.new_thread())
        return self._reader

    # -- work in progress ----------------------------------------------------------------------------------------

    def begin(self, stream: str, work: Coroutine[Any, Any, object]) -> None:
        """Run `work` on a stream in the background, unless other work on that stream is in progress."""
        if stream in self._work or self.closing:
            work.close()
            return

        async def run() -> None:
            try:
                await work
            except Exception as problem:
                if not self.started:
                    raise
                self._given.note(f"{stream}: {problem!r}")
            finally:
                del self._work[stream]

        self._work[stream] = asyncio.create_task(run())

    def busy(self, stream: str) -> bool:
        """True if work on a stream is in progress."""
        return stream in self._work

    async def finish(self, stream: str) -> None:
        """Wait until no work on a stream is in progress."""
        while (work := self._work.get(stream)) is not None:
            await asyncio.wait([work])

    async def finish_all(self) -> None:
        """Wait until the present work on all streams has ended. While the server starts, raise its errors."""
        works = list(self._work.values())
        if works:
            await asyncio.wait(works)  # unlike `gather`, it does not cancel the work if the caller is cancelled
            await asyncio.gather(*works)

    # -- failures ------------------------------------------------------------------------------------------------

    def may_try(self, stream: str) -> bool:
        return self._retries.get(stream, (0.0, 0.0))[0] <= self._given.steady()

    def until_retry(self) -> float:
        """Return the seconds until the next retry of a stream; infinite if there is none."""
        now = self._given.steady()
        return min((when - now for when, _ in self._retries.values() if when > now), default=float("inf"))

    def need(self, thread: JournalThread) -> None:
        """Raise `Stopped` if a thread has failed or ended, or if the server is closing."""
        if self.closing or thread.failure or self.threads.get(thread.stream) is not thread:
            raise Stopped(thread.failure or CLOSING)

    def fail(self, thread: JournalThread, problem: BaseException | str) -> None:
        """Mark a thread as failed. After a pause, this server tries to lead its stream again."""
        if isinstance(problem, UNABLE):
            self._heartbeat.able = False  # let the other servers lead
        if not thread.failure:
            thread.failure = str(problem) or repr(problem)
            self._given.note(f"the writer stopped: {thread.failure}")
            _, before = self._retries.get(thread.stream, (0.0, FIRST_PAUSE / 2))
            pause = min(2 * before, LONGEST_PAUSE)
            self._retries[thread.stream] = (self._given.steady() + pause, pause)
            self.problems[thread.stream] = DISK_FULL if isinstance(problem, DiskFull) else STOPPED
        self.wake.set()

    def succeed(self, stream: str) -> None:
        """Forget the failures of a stream, because this server leads it now."""
        self._retries.pop(stream, None)
        if self.problems.pop(stream, ""):
            self._given.inform("the control plane works again")

    def forget_problems(self) -> None:
        """Forget the problems of streams that another server leads."""
        membership = self._heartbeat.membership
        for stream in [stream for stream in self.problems if membership.holder(stream) not in ("", membership.me)]:
            del self.problems[stream]

    def not_led(self, stream: str, what: str) -> Unserved:
        """Return the error for a request that needs the leader of a stream."""
        membership = self._heartbeat.membership
        leader = "" if membership.leads(stream) else membership.leader(stream)
        if leader and stream not in self.problems:
            return Unserved("standby", f"{leader} leads {what}; send the request there", 1, leader)
        problem = self.problems.get(stream) or f"no server leads {what} now"
        return Unserved("unavailable", f"{problem}; ask again in a moment", 1)

    # -- ending --------------------------------------------------------------------------------------------------

    async def give_up(self, stream: str) -> None:
        """Stop leading a stream, so that another server leads it."""
        self._retries[stream] = (self._given.steady() + GIVEN_UP, FIRST_PAUSE)
        if stream in self.threads:
            await self.end(self.threads[stream])

    async def end(self, thread: JournalThread) -> None:
        """Close a thread, which releases the lease of its stream, unless it has been closed already."""
        if self.threads.get(thread.stream) is thread:
            del self.threads[thread.stream]
            await thread.close()

    async def end_failed(self) -> None:
        """Close the threads that failed, and those with a lease that has ended."""
        now = self._given.steady()
        for thread in self.threads.values():
            if not thread.failure and thread.lapsed(now):
                self.fail(thread, LAPSED)
        await asyncio.gather(*(self.end(thread) for thread in self.threads.values() if thread.failure))

    async def close(self) -> None:
        """Finish the work in progress, and close all threads."""
        self.closing = True
        await asyncio.gather(*self._work.values(), return_exceptions=True)
        for thread in list(self.threads.values()):
            await self.end(thread)
        if self._reader is not None:
            await self._reader.close()
            self._reader = None
