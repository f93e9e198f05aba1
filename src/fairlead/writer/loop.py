"""The live loop: runs a cycle of the writer when messages wait, a timer is due, or the last cycle left work.

Order of the code: the thread in which cycles run, the loop, when a cycle starts, one pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, TypeVar

from fairlead.core.commands import Report
from fairlead.core.cycle import Cycle, due
from fairlead.core.effects import Effect, outstanding_effects
from fairlead.core.model import Micros
from fairlead.core.resources import SECOND
from fairlead.core.settings import PartitionSettings
from fairlead.journal.journal import JournalError, UnknownOutcome
from fairlead.writer.clock import Clock, Steady, cycle_clock
from fairlead.writer.inbox import Inbox, Message, Unavailable
from fairlead.writer.writer import Stopped, Writer

Result = TypeVar("Result")

FRACTION = 5
"""Under load, the starts of two cycles are at least `batch_window` / FRACTION apart: 10 ms with the default."""
FEW_CORES, TWO = 4, 2
"""With more cores than these, the least pause is shorter, and cycles may take more than half of the time: they take a
smaller part of the machine from tasks."""
BURST = 4
"""Burst allowance: cycles with several messages that may run back to back after a quiet period."""
TIMER_PAUSE = 0.01
"""Seconds from a cycle that changed nothing to the next cycle that a timer starts."""


Given = tuple[Callable[[], Any], asyncio.Future[Any]]
"""Work for the thread, and the future for its result."""
Give = Callable[[Given | None], None]
"""Queues work for the thread; None ends the thread."""


class WriterThread:
    """The thread that uses a journal object, and a lock for it. All writers on that object share both."""

    def __init__(self, give: Give | None = None) -> None:
        """Start the thread. Tests pass `give`, which runs work without a thread."""
        self.lock = asyncio.Lock()
        self._give = give or _start_thread()
        self._closed = False

    def start(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        """Run `work` in the thread, after the work that is already queued there.

        Raises `JournalError` if the thread has ended.
        """
        if self._closed:
            raise JournalError("the journal is closed here")
        # An executor would take three times as long for the round trip.
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._give((work, future))
        return future

    async def alone(self, work: Callable[[], Result], then: Callable[[Result], None] = lambda result: None) -> Result:
        """Run `work` in the thread while no cycle runs, then call `then` with its result before the next cycle.

        Call `LiveWriter.wake` afterwards if `work` changed the state.
        """
        async with self.lock:
            future = self.start(work)
            cancelled = await _ended(future)
            if future.exception() is None:
                then(future.result())
        if cancelled is not None:
            raise cancelled
        return future.result()

    def close(self) -> None:
        """End the thread when its queued work is done."""
        self._closed = True
        self._give(None)


def _start_thread() -> Give:
    queue: SimpleQueue[Given | None] = SimpleQueue()
    Thread(target=_run_queue, args=(queue,), name="writer", daemon=True).start()
    return queue.put


def _run_queue(queue: SimpleQueue[Given | None]) -> None:
    while (item := queue.get()) is not None:
        _do(*item)
        del item  # frees the batch and its results before the next item arrives


def _do(work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
    try:
        settle = partial(future.set_result, work())
    except BaseException as problem:
        settle = partial(future.set_exception, problem)
    with suppress(RuntimeError):  # the loop has ended, so nothing waits for the result
        future.get_loop().call_soon_threadsafe(settle)


class LiveWriter:
    """Runs a writer inside an asyncio loop.

    **When a cycle starts.** An idle loop sleeps until a message arrives or a timer is due, then runs a cycle at once. A
    cycle takes all due timers and up to `max_batch` waiting messages. After `BURST` cycles with two or more messages
    each, in a short time, the loop collects messages: the next cycle starts when `max_batch` messages wait, or after a
    pause. The pause, from start to start, is a fifth of `batch_window`; if cycles are slow, it is twice the duration of
    a cycle, but at most `batch_window`. With many cores it is shorter. If a cycle left work, the next one starts
    without a pause.

    **Threads.** A cycle, which is a call of the core and a durable write, runs in its own thread. Messages that arrive
    meanwhile wait for the next cycle. No other code may read the state while a cycle runs. `publish` and `dispatch` are
    called in the loop's thread, after the write and before the next cycle. `publish` may read the state, to update the
    views. Both must be quick and must not raise: they have to handle unreachable nodes themselves.
    """

    def __init__(
        self,
        writer: Writer,
        inbox: Inbox,
        dispatch: Callable[[Sequence[Effect]], None],
        publish: Callable[[Cycle], None],
        thread: WriterThread,
        clock: Clock | None = None,
        steady: Steady = monotonic,
        cores: int = 1,
    ) -> None:
        """`clock` is the time of cycles, `steady` measures pauses. `cores` are those of the machine."""
        self.writer = writer
        self.inbox = inbox
        self.stopped = ""
        """Why the writer stopped by itself; empty if it did not. A new writer must recover from the journal."""
        self._dispatch = dispatch
        self._publish = publish
        self._steady = steady
        self._clock = clock or cycle_clock(writer.partition.now)
        self._thread = thread
        self._least = min(1.0, FEW_CORES / cores) / FRACTION
        """The least pause, as a part of `batch_window`."""
        self._slow = 1.0 + min(1.0, TWO / cores)
        """The least pause after a slow cycle, as a multiple of its duration."""
        self._settings: PartitionSettings = writer.partition.settings
        self._due: Micros | None = None
        self._not_before = 0.0
        self._credit, self._credited = float(BURST), 0.0
        """The number of cycles that may run back to back, and when it was computed."""
        self._timers_not_before = 0.0
        self._last_duration = 0.0
        self._enough = 1
        self._wake = asyncio.Event()
        self._woken = False
        self._closing = False
        self._running = False
        self._over = asyncio.Event()
        self._cancelled: asyncio.CancelledError | None = None
        inbox.listen(self._arrived)

    async def run(self) -> str:
        """Run until the loop is closed or the writer stops; return why the writer stopped.

        A cancellation is raised after the running cycle, an unexpected error at once. All waiting messages get a reply.
        """
        if self._over.is_set():
            return self.stopped
        self._running = True
        why = "the writer was closed"
        try:
            await self._begin()
            while self._cancelled is None and await self._wait():
                async with self._thread.lock:
                    await self._pass()
        except Stopped as stopped:
            why = self.stopped = str(stopped)
        except BaseException as fault:
            why = f"the writer ended: {fault!r}"
            raise
        finally:
            self._end(why)
        if self._cancelled is not None:
            raise self._cancelled
        return self.stopped

    async def close(self) -> None:
        """Refuse new messages, serve those already accepted, and end."""
        self._closing = True
        self.inbox.close("the writer is closing")
        self._wake.set()
        if self._running:
            await self._over.wait()
        else:
            self._end("the writer was closed")

    @property
    def over(self) -> bool:
        """True if the loop has ended. Then the state may have changes that are not in the journal."""
        return self._over.is_set()

    def wake(self) -> None:
        """Start a cycle now, also without messages. Call it after code outside the loop changed the state."""
        self._woken = True
        self._wake.set()

    async def _begin(self) -> None:
        async with self._thread.lock:
            standing, self._due = await self._in_thread(self._survey)
        # The last writer may have ended after a write and before it sent the effects. Agents ignore repeated messages.
        if standing:
            self._dispatch(standing)

    def _end(self, why: str) -> None:
        self.inbox.give_up(why)
        self._running = False
        self._over.set()

    # -- when a cycle starts -------------------------------------------------------------------------------------

    async def _wait(self) -> bool:
        """Sleep until a cycle should start; return False if the loop should end instead."""
        while not self._closing:
            enough = self._settings.max_batch
            if self.writer.more or self._woken or self.inbox.waiting >= enough:
                return True
            rest = self._not_before - self._steady()
            timer = self._until_timer()
            if self.inbox.waiting or (timer is not None and timer <= 0):
                if rest <= 0:
                    return True
                await self._sleep(rest, enough)
            else:
                await self._sleep(timer, 1)
        return self.inbox.waiting > 0

    def _until_timer(self) -> float | None:
        if self._due is None:
            return None
        return max((self._due - self._clock()) / SECOND, self._timers_not_before - self._steady())

    async def _sleep(self, seconds: float | None, enough: int) -> None:
        """Sleep until `enough` messages wait, `seconds` have passed, or the loop is woken."""
        self._enough = enough
        self._wake.clear()
        alarm = None
        if seconds is not None:
            alarm = asyncio.get_running_loop().call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if alarm is not None:
                alarm.cancel()

    def _arrived(self) -> None:
        # While messages are collected, a single one does not wake the loop.
        if self.inbox.waiting >= self._enough:
            self._wake.set()

    # -- one pass ------------------------------------------------------------------------------------------------

    async def _pass(self) -> None:
        self._woken = False
        batch = self.inbox.drain(self._settings.max_batch)
        began = self._steady()
        try:
            decided, self._due = await self._in_thread(partial(self._cycle, batch))
            duration = self._steady() - began
            # Views first: a caller that reads after its answer sees the result.
            self._publish(decided)
            # Agents next: they get confirmations of their reports together with work.
            answers = list(zip(batch, decided.answers, strict=True))
            for message, answer in answers:
                if isinstance(message.command, Report):
                    message.reply(answer)
            if decided.effects:
                self._dispatch(decided.effects)
            for message, answer in answers:
                if not isinstance(message.command, Report):
                    message.reply(answer)
        except BaseException as problem:
            _refuse(batch, problem)
            raise
        # The shorter of the last two durations, so that a single slow cycle causes no pause.
        slow, self._last_duration = min(self._last_duration, duration), duration
        self._settings = self.writer.partition.settings
        self._not_before = began + self._pause(len(batch), slow, began)
        # A timer may stay due because its work cannot be done yet.
        self._timers_not_before = 0.0 if batch or decided.changes else self._steady() + TIMER_PAUSE

    def _pause(self, messages: int, duration: float, now: float) -> float:
        """Return the seconds from the start of a cycle, which is `now`, to the earliest start of the next one."""
        if messages <= 1:
            return 0.0
        window = self._settings.batch_window / SECOND
        pause = min(window, max(window * self._least, duration * self._slow))
        self._credit = min(BURST, self._credit + (now - self._credited) / pause) if pause else BURST
        self._credited = now
        if self._credit >= 1:
            self._credit -= 1
            return 0.0
        return pause

    def _cycle(self, batch: Sequence[Message]) -> tuple[Cycle, Micros | None]:
        decided = self.writer.cycle([message.command for message in batch], self._clock())
        return decided, self._next_due()

    def _survey(self) -> tuple[Sequence[Effect], Micros | None]:
        return outstanding_effects(self.writer.partition), self._next_due()

    def _next_due(self) -> Micros | None:
        return None if self.writer.partition.removed else due(self.writer.partition)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        future = self._thread.start(work)
        self._cancelled = await _ended(future) or self._cancelled
        return future.result()


async def _ended(future: asyncio.Future[Result]) -> asyncio.CancelledError | None:
    """Wait until work in the thread has ended, then return a cancellation that arrived meanwhile.

    A cycle cannot be interrupted, and its messages need answers.
    """
    cancelled = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as cancellation:
            cancelled = cancellation
        except BaseException:
            break  # raised by the work; the caller gets it from the future
    return cancelled


def _refuse(batch: Sequence[Message], problem: BaseException) -> None:
    """Answer the messages of a failed cycle: not carried out, or doubtful if the record may have been written."""
    cause = problem.__cause__ if isinstance(problem, Stopped) else None
    certain = isinstance(cause, JournalError) and not isinstance(cause, UnknownOutcome)
    why = str(problem) if isinstance(problem, Stopped) else f"the writer ended: {problem!r}"
    for message in batch:
        message.reply(Unavailable(why, doubtful=not certain))
