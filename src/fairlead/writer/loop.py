"""The live loop: messages, timers and unfinished work become cycles of a writer, one after the other.

From the top: the thread in which turns are made, the loop, when a cycle starts, one pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import msgspec

from fairlead.core.commands import Report
from fairlead.core.cycle import Cycle, due
from fairlead.core.effects import Effect, standing_effects
from fairlead.core.model import Micros
from fairlead.core.resources import SECOND
from fairlead.core.settings import PartitionSettings
from fairlead.journal.base import JournalError, UnknownOutcome
from fairlead.writer.clock import Clock, cycle_clock
from fairlead.writer.inbox import Inbox, Message, Unavailable
from fairlead.writer.writer import Stopped, Writer

Result = TypeVar("Result")

FRACTION = 5
"""Under load cycles start at least this part of `batch_window` apart: 10 ms with the default."""
BURST = 4
"""So many cycles of several messages may follow each other at once after a quiet time: a lone task's end is one."""
TIMER_PAUSE = 0.01
"""Seconds between two cycles that time alone starts, if the first altered nothing."""


class Phase(msgspec.Struct):
    """How long something took, in seconds."""

    count: int = 0
    total: float = 0.0
    last: float = 0.0
    most: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        self.last = seconds
        self.most = max(self.most, seconds)


Given = tuple[Callable[[], Any], asyncio.Future[Any]]
Give = Callable[[Given | None], None]


class WriterThread:
    """The thread in which a journal is used, and whose turn it is. Writers on one journal object share one."""

    def __init__(self, give: Give | None = None) -> None:
        """`give` takes work and does it, one after the other; without it a thread does."""
        self.lock = asyncio.Lock()
        self._give = give or start_thread()

    def start(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        # Through an executor the way there and back takes three times as long.
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._give((work, future))
        return future

    async def alone(self, work: Callable[[], Result], then: Callable[[Result], None] = lambda result: None) -> Result:
        """Do something while no writer has its turn, such as following a configuration; `look()` comes after it.

        `then` is called with what came of it before any other turn begins.
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
        """What was started is still done."""
        self._give(None)


def start_thread() -> Give:
    """Start a thread, and return what gives it work; `None` ends it."""
    given: SimpleQueue[Given | None] = SimpleQueue()
    Thread(target=_work_off, args=(given,), name="writer", daemon=True).start()
    return given.put


def _work_off(given: SimpleQueue[Given | None]) -> None:
    while (each := given.get()) is not None:
        _do(*each)
        del each  # a batch and all that came of it would stay until the next one


def _do(work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
    try:
        settle = partial(future.set_result, work())
    except BaseException as problem:
        settle = partial(future.set_exception, problem)
    with suppress(RuntimeError):  # the loop is over, and nobody waits any more
        future.get_loop().call_soon_threadsafe(settle)


class LiveWriter:
    """Runs a writer inside an asyncio loop.

    **When a cycle starts.** Everything that asks for one (messages, a timer that is due, work that the last cycle left)
    is served by the same pass. An idle loop sleeps, and the first message starts a cycle at once. After a few cycles of
    two messages or more in a short time the writer counts as busy, and lets others gather: the next one starts when
    `max_batch` messages wait, or a fifth of `batch_window` after the last one started. Where turns are slow, so that
    they would take more than half of the time, it waits for twice as long as turns take, but never for more than
    `batch_window`. Work that a cycle left because it reached its bounds is never waited for.

    **Threads.** A turn, core and durable write together, is made in a thread of its own, and what arrives meanwhile is
    the next batch. Nobody else may look at the state meanwhile. `publish` and `dispatch` are called in the loop's
    thread, after the commit and before the next turn: `publish` may read the state, and what it makes of it is what
    readers get. Both must be quick and must not raise: a node that cannot be reached is theirs to deal with.
    """

    def __init__(
        self,
        writer: Writer,
        inbox: Inbox,
        dispatch: Callable[[Sequence[Effect]], None],
        publish: Callable[[Cycle], None],
        clock: Clock | None = None,
        thread: WriterThread | None = None,
    ) -> None:
        self.writer = writer
        self.inbox = inbox
        self.offer = inbox.offer
        self.stopped = ""
        """Why the writer stopped, if it did by itself. Another one has to start from the journal."""
        self.intake_wait = Phase()
        """From the arrival of the oldest message of a batch to its turn."""
        self.cycle = Phase()
        self.after_cycle = Phase()
        """Publishing, answering and dispatching."""
        self._dispatch = dispatch
        self._publish = publish
        self._steady = inbox.steady
        self._clock = clock or cycle_clock(writer.partition.now)
        self._thread = thread or WriterThread()
        self._own_thread = thread is None
        self._settings: PartitionSettings = writer.partition.settings
        self._due: Micros | None = None
        self._not_before = 0.0
        self._credit, self._credited = float(BURST), 0.0
        """So many cycles may follow each other at once, as of then."""
        self._timers_not_before = 0.0
        self._enough = 1
        self._wake = asyncio.Event()
        self._looked_for = False
        self._closing = False
        self._running = False
        self._over = asyncio.Event()
        self._cancelled: asyncio.CancelledError | None = None
        inbox.listen(self._arrived)

    async def run(self) -> str:
        """Work until closed, or until the writer stops; says why it stopped.

        A cancellation ends it after the turn that is under way, and a fault of ours ends it at once; both are raised.
        However it ends, everybody who waits gets a reply.
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
        """Take nothing more, do what was taken, and end."""
        self._closing = True
        self.inbox.close("the writer is closing")
        self._wake.set()
        if self._running:
            await self._over.wait()
        else:
            self._end("the writer was closed")

    @property
    def over(self) -> bool:
        """Whether it has ended, for whatever reason: what the state has now may never have been written."""
        return self._over.is_set()

    def look(self) -> None:
        """Have a cycle now, with or without messages: the state was altered outside of the loop."""
        self._looked_for = True
        self._wake.set()

    async def _begin(self) -> None:
        async with self._thread.lock:
            standing, self._due = await self._in_thread(self._survey)
        # An earlier writer may have ended between a commit and its effects. Agents know what they have had before.
        if standing:
            self._dispatch(standing)

    def _end(self, why: str) -> None:
        self.inbox.give_up(why)
        if self._own_thread:
            self._thread.close()
        self._running = False
        self._over.set()

    # -- when a cycle starts -------------------------------------------------------------------------------------

    async def _wait(self) -> bool:
        """Sleep until a cycle should start; False if the loop is to end instead."""
        while not self._closing:
            enough = self._settings.max_batch
            if self.writer.more or self._looked_for or self.inbox.waiting >= enough:
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
        """Until so many messages wait, the time is over, or somebody calls."""
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
        # While others gather nobody is woken for each of them.
        if self.inbox.waiting >= self._enough:
            self._wake.set()

    # -- one pass ------------------------------------------------------------------------------------------------

    async def _pass(self) -> None:
        self._looked_for = False
        batch = self.inbox.drain(self._settings.max_batch)
        began = self._steady()
        if batch:
            self.intake_wait.add(began - min(message.arrived for message in batch))
        try:
            decided, self._due = await self._in_thread(partial(self._cycle, batch))
            turned = self._steady()
            # Views first: who has an answer and then reads finds what was answered.
            self._publish(decided)
            # Then agents: what confirms their reports travels with their work, and that waits for nobody's answer.
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
        ended = self._steady()
        # One turn may stall; two in a row are slow.
        slow = min(self.cycle.last, turned - began)
        self.cycle.add(turned - began)
        self.after_cycle.add(ended - turned)
        self._settings = self.writer.partition.settings
        self._not_before = began + self._pause(len(batch), slow, began)
        # A timer may ask again at once for what cannot be done yet.
        self._timers_not_before = 0.0 if batch or decided.changes else ended + TIMER_PAUSE

    def _pause(self, messages: int, turns: float, now: float) -> float:
        """How long after the start of a cycle the next should start, as the class says."""
        if messages <= 1:
            return 0.0
        window = self._settings.batch_window / SECOND
        pause = min(window, max(window / FRACTION, 2 * turns))
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
        return standing_effects(self.writer.partition), self._next_due()

    def _next_due(self) -> Micros | None:
        return None if self.writer.partition.removed else due(self.writer.partition)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        future = self._thread.start(work)
        self._cancelled = await _ended(future) or self._cancelled
        return future.result()


async def _ended(future: asyncio.Future[Result]) -> asyncio.CancelledError | None:
    """Wait for work in the thread. A cancellation is kept for later: a turn cannot be interrupted, and has answers."""
    cancelled = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as asked:
            cancelled = asked
        except BaseException:
            break  # it is the work's, and whoever started it asks for it
    return cancelled


def _refuse(batch: Sequence[Message], problem: BaseException) -> None:
    """No answer came of the turn. Only if the journal says so it is certain that nothing did."""
    cause = problem.__cause__ if isinstance(problem, Stopped) else None
    certain = isinstance(cause, JournalError) and not isinstance(cause, UnknownOutcome)
    why = str(problem) if isinstance(problem, Stopped) else f"the writer ended: {problem!r}"
    for message in batch:
        message.reply(Unavailable(why, doubtful=not certain))
