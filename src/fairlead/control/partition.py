"""A partition that this server leads: its live writer, its events, and requests that wait for a job to end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec

from fairlead.control.feed import Feed
from fairlead.control.fork import fork, result_of
from fairlead.core.commands import Accepted, Command, Rejected
from fairlead.core.cycle import Cycle
from fairlead.core.effects import Effect, ForManager, ForNode, ForPool
from fairlead.core.errors import Refused
from fairlead.core.model import Job, Micros
from fairlead.core.settings import PartitionConfig
from fairlead.core.state import Partition
from fairlead.core.why.reasons import Reason
from fairlead.engines.engine import Busy, Engine
from fairlead.journal.journal import JournalError
from fairlead.pools.pool_service import PoolService
from fairlead.views.events import events_of
from fairlead.views.manager_answers import manager_state
from fairlead.wire.api import ManagerEvent, ManagerState
from fairlead.wire.unserved import Unserved
from fairlead.writer.clock import Clock, Steady
from fairlead.writer.cluster import try_configuration
from fairlead.writer.inbox import Inbox, Slot, Unavailable
from fairlead.writer.loop import LiveWriter, WriterThread
from fairlead.writer.writer import Writer

Result = TypeVar("Result")

REQUEST_USER: ContextVar[str] = ContextVar("REQUEST_USER", default="")
"""The user of the present request; empty for work of the server itself and for operators."""
BUSY_PAUSE = 0.05
COPIES = 2
"""Largest number of processes with a copy of a partition's state."""


class Revision:
    """The revision of the answer to one request; 0 if it concerns no partition."""

    def __init__(self) -> None:
        self.seq = 0

    def note(self, seq: int) -> None:
        """Note that the answer is as of record `seq` or a later one."""
        self.seq = max(self.seq, seq)


REVISION: ContextVar[Revision | None] = ContextVar("REVISION", default=None)
"""Where `note_revision` stores the revision of the present request's answer."""


def note_revision(seq: int) -> None:
    """Note that the answer to the present request is as of record `seq` or a later one."""
    revision = REVISION.get()
    if revision is not None:
        revision.note(seq)


AfterCycle = Callable[[str, int], None]
"""Called after new records, with the name of the partition and the number of its last record."""


class PartitionService:
    """A partition that this server leads: its writer, its events, and requests that wait for a job to end."""

    def __init__(
        self,
        writer: Writer,
        clock: Clock,
        steady: Steady,
        thread: WriterThread,
        engine: Engine,
        pools: PoolService,
        after_cycle: AfterCycle,
        cores: int,
    ) -> None:
        self.name = writer.partition.name
        self.writer = writer
        self.feed = Feed(writer.seq)
        self.managers: dict[str, Feed] = {}
        self.live = LiveWriter(writer, Inbox(), self.dispatch, self.publish, thread, clock, steady, cores)
        self._clock = clock
        self._steady = steady
        self._engine = engine
        self._pools = pools
        self.thread = thread
        self._after_cycle = after_cycle
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._readers: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """User → lock held while a request of the user reads the state or waits to read it."""
        self._copies = asyncio.Semaphore(COPIES)

    @property
    def partition(self) -> Partition:
        return self.writer.partition

    @property
    def seq(self) -> int:
        """The number of the last record."""
        return self.writer.seq

    @property
    def reasons(self) -> dict[tuple[str, str, int], Reason]:
        """Why asks wait, as of the last cycle."""
        return self.writer.reasons

    @property
    def now(self) -> Micros:
        """The time of the writer's clock. `partition.now` is the time of the last change."""
        return self._clock()

    @property
    def epoch(self) -> int:
        return self.writer.epoch

    @property
    def skipped_epochs(self) -> range:
        return self.writer.skipped

    @property
    def leads(self) -> bool:
        return not self.live.over and not self.writer.stopped and not self.lapsed

    @property
    def lapsed(self) -> bool:
        """True if the lease has ended, so that another server may lead."""
        return self.writer.journal.leads_until() < self._steady()

    async def still_leads(self) -> bool:
        """True if the journal confirms that this writer's epoch is the newest, and its lease has not ended since."""
        journal, stream = self.writer.journal, self.writer.stream
        try:
            return self.leads and await self.thread.alone(lambda: journal.epoch(stream)) == self.epoch and self.leads
        except JournalError:
            return False

    def offer(self, command: Command) -> Slot:
        """Put a command into the inbox, and return the slot for its answer. Raise `Busy` if the inbox is full."""
        slot = self.live.inbox.offer(command)
        revision = REVISION.get()
        if revision is not None:
            slot.add_done_callback(lambda _: revision.note(self.seq))
        return slot

    async def execute(self, command: Command) -> Accepted:
        """Execute a command, and return when its changes are durable."""
        return await accepted_in(self.offer(command))

    async def execute_patiently(self, command: Command) -> object:
        """Execute a command of the server itself, and return its answer. Wait while the inbox is full."""
        while True:
            try:
                return await self.offer(command)
            except Busy:
                await asyncio.sleep(BUSY_PAUSE)

    async def try_configuration(self, config: PartitionConfig) -> None:
        """Raise `Refused` if the partition would reject a configuration."""
        await self.thread.alone(lambda: try_configuration(self.partition, config, self.now))

    async def read(self, query: Callable[[Partition], Result]) -> Result:
        """Call `query` with the state, between two cycles. It blocks the writer, so it must be quick.

        The requests of one user read one after the other, so that they do not delay other users.
        """
        user = REQUEST_USER.get()
        lock = self._readers.setdefault(user, asyncio.Lock()) if user else nullcontext()
        async with lock, self.thread.lock:
            note_revision(self.seq)
            return query(self.partition)

    async def on_copy(self, work: Callable[[Partition], bytes], seconds: float) -> bytes:
        """Call `work` with a copy of the state, in another process, and return its result.

        The result is empty if `work` fails or takes longer than `seconds`. The writer waits only for the fork.
        """
        async with self._copies:
            pid, pipe = await self.read(lambda state: fork(lambda: work(state), seconds))
            return await result_of(pid, pipe, seconds)

    def publish(self, decided: Cycle) -> None:
        """Publish the events of a cycle to watchers, waiting requests and pools."""
        if not decided.changes:
            return
        events = events_of(decided)
        self.feed.add(self.writer.seq, events)
        if self._waiters:
            for event in events:
                if event.what == "state":
                    self._wake(event.job)
        self._pools.follow(self.name, self.partition)
        if not self.partition.removed:  # the removal of a partition has no record
            self._after_cycle(self.name, self.writer.seq)

    def dispatch(self, effects: Sequence[Effect]) -> None:
        messages = [effect for effect in effects if isinstance(effect, ForNode)]
        if messages:
            self._engine.dispatch(self.name, messages)
        orders = [effect for effect in effects if isinstance(effect, ForPool)]
        if orders:
            self._pools.dispatch(self.name, orders)
        for effect in effects:
            if isinstance(effect, ForManager):
                events = msgspec.convert(effect.events, tuple[ManagerEvent, ...], from_attributes=True)
                self.manager(effect.manager).add(self.writer.seq, events)

    def manager(self, name: str) -> Feed:
        """Return the feed of a resource manager. A new leader starts it empty: managers then send their state again."""
        if name not in self.managers:
            self.managers[name] = Feed(self.writer.seq)
        return self.managers[name]

    async def state_of_manager(self, name: str, check: Callable[[Partition], object]) -> ManagerState:
        """Return the state of a resource manager; its feed has all later events. `check` may refuse the state."""

        def look(state: Partition) -> ManagerState:
            check(state)
            self.manager(name).reach(self.writer.seq)
            return manager_state(state, name, self.writer.seq)

        return await self.read(look)

    def end_manager(self, name: str) -> None:
        """End the streams of a resource manager that was removed."""
        feed = self.managers.pop(name, None)
        if feed is not None:
            feed.close()

    def when_moved(self, job: Job) -> asyncio.Future[None]:
        """Return a future that is resolved when the job's state changes or this service closes."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(job.id, []).append(future)
        return future

    def close(self) -> None:
        self.feed.close()
        for feed in self.managers.values():
            feed.close()
        for job in list(self._waiters):
            self._wake(job)

    def _wake(self, job: str) -> None:
        for future in self._waiters.pop(job, ()):
            if not future.done():
                future.set_result(None)


async def accepted_in(slot: Slot) -> Accepted:
    """Wait for the answer to a command, and return it. Raise `Refused` or `Unserved` if it was not accepted."""
    reply = await slot
    if isinstance(reply, Accepted):
        return reply
    if isinstance(reply, Rejected):
        raise Refused(reply.field, reply.problem, reply.code)
    assert isinstance(reply, Unavailable)
    raise Unserved("unavailable", str(reply), 1)
