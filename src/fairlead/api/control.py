"""The running control plane: a journal, the cluster on it, and a live writer for each partition.

`PartitionService` serves one partition. `Control` has the requests to the control plane first, then its reigns. All of
it runs in one asyncio loop. If a writer stops, the control plane recovers from the journal; requests get an error
until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from time import monotonic
from typing import TypeVar
from weakref import WeakValueDictionary

from fairlead.api.copies import fork, result_of
from fairlead.api.feed import Feed
from fairlead.api.problems import Unserved
from fairlead.api.walltime import steady_wall
from fairlead.core.commands import Accepted, AnyCommand, Rejected
from fairlead.core.cycle import Cycle
from fairlead.core.effects import Effect, Event, ForManager, ForNode, ForPool
from fairlead.core.errors import Refused
from fairlead.core.model import Job, Micros
from fairlead.core.reader import suggestion
from fairlead.core.resources import shown
from fairlead.core.settings import DEFAULT_CONFIG, PartitionConfig
from fairlead.core.state import Partition
from fairlead.engines.base import Busy, Engine
from fairlead.journal.base import Held, Journal
from fairlead.journal.codec import stream_of
from fairlead.journal.room import NoRoom
from fairlead.pools.service import PoolService
from fairlead.views.events import events_of
from fairlead.views.managers import manager_state
from fairlead.wire.api import ManagerEvent, ManagerState
from fairlead.writer.clock import Clock, Steady, cycle_clock
from fairlead.writer.cluster import Cluster
from fairlead.writer.inbox import Full, Inbox, Slot, Unavailable
from fairlead.writer.loop import LiveWriter, WriterThread
from fairlead.writer.observer import Observer
from fairlead.writer.writer import Stopped, Writer

Result = TypeVar("Result")

REQUEST_USER: ContextVar[str] = ContextVar("REQUEST_USER", default="")
"""The user of the request that is served; empty for the server itself."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds before a stopped control plane starts again: after the first failure, and at most."""
BUSY_PAUSE = 0.05
COPIES = 2
"""Processes with a copy of a partition's state that run at a time."""
STOPPED = "the journal failed and the server is recovering; its log says why"
LAPSED = "the lease of this server ended before it could be renewed; another server may lead now"
STANDBY_PAUSE = 0.25
"""Seconds at most between two looks of a server that stands by."""
NO_ROOM = "the server's disk is full; the server recovers when there is space"


AfterCycle = Callable[[str, int], None]
"""Called with a partition's name and its last record when it has grown."""


class PartitionService:
    """One running partition: its writer, its events, and requests that wait for a job to end."""

    def __init__(
        self,
        writer: Writer,
        clock: Clock,
        steady: Steady,
        thread: WriterThread,
        engine: Engine,
        pools: PoolService,
        after_cycle: AfterCycle,
    ) -> None:
        self.name = writer.partition.name
        self.writer = writer
        self.feed = Feed(writer.seq)
        self.managers: dict[str, Feed] = {}
        self.live = LiveWriter(writer, Inbox(steady=steady), self.dispatch, self.publish, clock, thread)
        self._clock = clock
        self._engine = engine
        self._pools = pools
        self._thread = thread
        self._after_cycle = after_cycle
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._readers: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """User → lock held while one of its requests reads the state or waits to read it."""
        self._copies = asyncio.Semaphore(COPIES)

    @property
    def partition(self) -> Partition:
        return self.writer.partition

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
    def reigns(self) -> bool:
        return not self.live.over and not self.writer.stopped

    def offer(self, command: AnyCommand) -> Slot:
        """Put a command into the inbox and return the slot of its answer. Raise `Busy` if the inbox is full."""
        try:
            return self.live.offer(command)
        except Full as full:
            raise Busy(str(full)) from None

    async def settle(self, command: AnyCommand) -> object:
        """Carry out a command of the server itself; wait as long as the inbox is full."""
        while True:
            try:
                return await self.offer(command)
            except Busy:
                await asyncio.sleep(BUSY_PAUSE)

    async def read(self, look: Callable[[Partition], Result]) -> Result:
        """Call `look` with the state, between two cycles. It blocks the writer, so it must be quick.

        Only one request of a user waits here at a time, so that many requests of one user do not delay other users.
        """
        user = REQUEST_USER.get()
        if not user:
            async with self._thread.lock:
                return look(self.partition)
        lock = self._readers.get(user)
        if lock is None:
            lock = self._readers[user] = asyncio.Lock()
        async with lock, self._thread.lock:
            return look(self.partition)

    async def on_copy(self, work: Callable[[Partition], bytes], seconds: float) -> bytes:
        """Return the result of work on a copy of the state, in a second process; empty if it fails or takes too long.

        The writer waits only until the process has begun, and a few such processes run at a time.
        """
        async with self._copies:
            pid, pipe = await self.read(lambda state: fork(lambda: work(state), seconds))
            return await result_of(pid, pipe, seconds)

    def publish(self, decided: Cycle) -> None:
        """Publish the events of a cycle. Called after each cycle."""
        if not decided.changes:
            return
        events = events_of(decided)
        self.feed.add(self.writer.seq, events)
        if self._waiters:
            for event in events:
                if event.what == "state":
                    self._wake(event.job)
        self._pools.follow(self.name, self.partition)
        if not self.partition.removed:  # the removal of a partition is in no record
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
                self.manager(effect.manager).add(self.writer.seq, tuple(map(_manager_event, effect.events)))

    def manager(self, name: str) -> Feed:
        """Return the feed of a resource manager. It starts with this reign, after which managers replay their state."""
        if name not in self.managers:
            self.managers[name] = Feed(self.writer.seq)
        return self.managers[name]

    async def state_of_manager(self, name: str, check: Callable[[Partition], object]) -> ManagerState:
        """Return the state of a resource manager. Its events after that state can be followed from now on."""

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


class Control:
    """Runs all partitions of a cluster on one journal."""

    def __init__(
        self,
        open_journal: Callable[[], Journal],
        engine: Engine,
        observers: Sequence[Observer] = (),
        first: Mapping[str, PartitionConfig] | None = None,
        after_cycle: AfterCycle = lambda partition, seq: None,
        note: Callable[[str], None] = lambda text: None,
        pools: PoolService | None = None,
        wall: Callable[[], int] | None = None,
        steady: Steady = monotonic,
        thread: Callable[[], WriterThread] = WriterThread,
        leads: Callable[[], None] = lambda: None,
    ) -> None:
        """`first` is the configuration of a journal that has none yet; `note` is called with texts for operators.

        `leads` is called in the writer's thread when this server has begun to lead, before requests are served.
        """
        self.problem = "starting"
        """Why requests are not served now; empty when they are. Every caller may read it, so it names no file."""
        self.leader: str | None = None
        """While this server stands by: the address of the server that leads, as that server gave it."""
        self._leads = leads
        self._wall = wall or steady_wall()
        self._steady = steady
        self._new_thread = thread
        self._open = open_journal
        self._engine = engine
        self._observers = observers
        self._first = dict(first) if first else {"default": DEFAULT_CONFIG}
        self._after_cycle = after_cycle
        self._note = note
        self.pools = pools or PoolService()
        """By default a service without providers: ordered nodes never arrive."""
        self._served: dict[str, PartitionService] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._journal: Journal | None = None
        self._cluster: Cluster | None = None
        self._thread: WriterThread | None = None
        self._clock: Clock = lambda: 0
        self._broken = asyncio.Event()
        self._cause = ""
        self._supervisor: asyncio.Task[None] | None = None

    # -- requests ------------------------------------------------------------------------------------------------

    @property
    def now(self) -> Micros:
        """The time of the writers' clock."""
        return self._clock()

    def names(self) -> list[str]:
        return sorted(self._served)

    def find(self, name: str = "") -> PartitionService:
        """Return a partition by its name; without a name, the only one, or the one called default."""
        if not self.problem and self._lapsed():
            self._break(LAPSED)
        if self.problem:
            raise Unserved("unavailable", f"{self.problem}; ask again in a moment", 1)
        if not name:
            name = next(iter(self._served)) if len(self._served) == 1 else "default"
        service = self._served.get(name)
        if service is None:
            names = ", ".join(self.names()[:20])
            raise Refused(
                "partition",
                f"there is no partition {shown(name)}{suggestion(name, self._served)}; name one of {names}",
                "missing",
            )
        return service

    async def removed(self, name: str) -> int:
        """Return an epoch above all epochs of a removed partition; 0 if there never was such a partition."""
        journal, thread = self._journal, self._thread
        if self.problem or journal is None or thread is None:
            raise Unserved("unavailable", f"{self.problem}; ask again in a moment", 1)
        if name in self._served:
            return 0
        return await thread.alone(lambda: journal.epoch(stream_of(name)))

    async def execute(self, service: PartitionService, command: AnyCommand) -> Accepted:
        """Carry out a command. When this returns, the command is done and durable."""
        return await accepted_in(offered(service, command))

    @property
    def configured(self) -> tuple[int, dict[str, PartitionConfig]]:
        """The version of the configuration, and the configuration."""
        if self.problem or self._cluster is None:
            raise Unserved("unavailable", f"{self.problem}; ask again in a moment", 1)
        return self._cluster.configured.version, dict(self._cluster.configured.partitions)

    async def configure(self, configs: dict[str, PartitionConfig], user: str = "") -> None:
        """Apply a configuration of a user, all of it or nothing."""
        self.find(next(iter(self._served), ""))
        cluster, thread = self._cluster, self._thread
        assert cluster is not None and thread is not None
        try:
            cycles = await thread.alone(lambda: cluster.configure(configs, self._clock(), user), self._send)
        except Stopped as stopped:
            self._break(str(stopped))
            raise Unserved("unavailable", f"{stopped}; ask again in a moment", 1) from None
        self._need_leading(cluster)
        for name in [name for name in self._served if name not in cluster.writers]:
            await self._drop(name)
            self._need_leading(cluster)
        try:
            await thread.alone(cluster.drop_removed)
        except Stopped as stopped:
            self._break(str(stopped))
        self._need_leading(cluster)
        for name in cluster.writers:
            if name not in self._served:
                self._serve(cluster.writers[name])
                self._send({name: cycles[name]})
            self._served[name].live.look()

    def _need_leading(self, cluster: Cluster) -> None:
        """Raise `Unserved` if the writers of a cluster have ended meanwhile: the next ones follow its configuration."""
        if self.problem or self._cluster is not cluster:
            raise Unserved("unavailable", f"{self.problem or STOPPED}; ask again in a moment", 1)

    # -- reigns --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the control plane, or stand by if another server leads.

        Raise if it cannot start, for example because the journal is damaged.
        """
        try:
            await self._begin()
        except Held as held:
            self._stand_by(held)
        self._supervisor = asyncio.create_task(self._supervise())

    async def close(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            with suppress(asyncio.CancelledError):
                await self._supervisor
        self.problem = "the server is closing"
        await self._end()
        await self.pools.close()

    async def _supervise(self) -> None:
        pause = FIRST_PAUSE
        while True:
            await self._until_broken()
            if self.leader is None:
                self._note(f"the writer stopped: {self._cause}")
            await self._end()
            await asyncio.sleep(pause)
            try:
                await self._begin()
                pause = FIRST_PAUSE
                self._note("the control plane works again")
            except Held as held:
                self._stand_by(held)
                pause = min(max(held.seconds, BUSY_PAUSE), STANDBY_PAUSE)
            except Exception as problem:  # the next attempt may succeed, whatever the problem is
                self._break(str(problem) or repr(problem), isinstance(problem, NoRoom))
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _until_broken(self) -> None:
        """Wait until a writer has stopped, or the lease of this server has ended."""
        while not self._broken.is_set():
            if self._lapsed():
                return self._break(LAPSED)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._broken.wait(), STANDBY_PAUSE)

    def _lapsed(self) -> bool:
        """True if another server may lead by now. The clock of this machine only ends a lease early."""
        return self._journal is not None and self._journal.leads_until() < monotonic()

    def _stand_by(self, held: Held) -> None:
        leader = held.leader or "another server"
        if self.leader != held.leader:
            self._note(f"this server stands by; {leader} leads")
        self._break(str(held))
        self.leader = held.leader
        self.problem = f"this server stands by; {leader} leads"

    async def _begin(self) -> None:
        self._broken.clear()
        thread = self._thread = self._new_thread()

        def take_over() -> tuple[Journal, Cluster, Clock]:
            journal = self._open()
            try:
                cluster = Cluster(journal, self._observers)
                clock = cycle_clock(
                    max((writer.partition.now for writer in cluster.writers.values()), default=0),
                    self._wall,
                    lambda: int(self._steady() * 1e9),
                )
                # No agent is connected yet: agents of removed partitions are dismissed on connecting; see `removed`.
                cluster.begin(clock())
                cluster.drop_removed()
                if not cluster.writers:
                    cluster.configure(self._first, clock())
                self._leads()
            except BaseException:
                journal.close()
                raise
            return journal, cluster, clock

        try:
            self._journal, cluster, self._clock = await thread.alone(take_over)
        except BaseException:
            thread.close()
            self._thread = None
            raise
        self._cluster = cluster
        for writer in cluster.writers.values():
            self._serve(writer)
        self.problem = ""
        self.leader = None

    def _serve(self, writer: Writer) -> None:
        assert self._thread is not None
        service = PartitionService(
            writer, self._clock, self._steady, self._thread, self._engine, self.pools, self._after_cycle
        )
        self._served[service.name] = service
        self._engine.begin(service.name, service)
        self.pools.begin(service.name, service)
        self._tasks[service.name] = asyncio.create_task(self._run(service))
        service.live.look()

    async def _run(self, service: PartitionService) -> None:
        try:
            cause = await service.live.run()
        except asyncio.CancelledError:
            raise
        except Exception as fault:  # an internal error, not a failure of the journal
            cause = f"{fault!r}"
            self._note(f"partition {service.name}: {fault!r}")
        if cause:
            self._break(cause)

    def _break(self, cause: str, no_room: bool = False) -> None:
        self._cause = cause
        self.leader = None
        self.problem = NO_ROOM if no_room else STOPPED
        self._broken.set()

    def _send(self, cycles: Mapping[str, Cycle]) -> None:
        """Publish and dispatch cycles that were decided outside of the live loops, before the next ones."""
        for name, decided in cycles.items():
            service = self._served.get(name)
            if service is not None:
                service.publish(decided)
                service.dispatch(decided.effects)

    async def _drop(self, name: str) -> None:
        """End the service of a removed partition. Its agents have the effects of its last cycle."""
        service = self._served.pop(name)
        await service.live.close()
        await self._tasks.pop(name)
        service.close()
        self._detach(name)

    def _detach(self, name: str) -> None:
        self._engine.end(name)
        self.pools.end(name)

    async def _end(self) -> None:
        for service in self._served.values():
            await service.live.close()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for service in self._served.values():
            service.close()
            self._detach(service.name)
        self._served, self._tasks = {}, {}
        journal, thread = self._journal, self._thread
        self._journal, self._thread, self._cluster = None, None, None
        if thread is not None:
            if journal is not None:
                await thread.alone(journal.close)
            thread.close()


def offered(service: PartitionService, command: AnyCommand) -> Slot:
    """Offer a command and return the slot of its answer. Raise `Unserved` if the inbox is full."""
    try:
        return service.offer(command)
    except Busy as busy:
        raise Unserved("too many", str(busy), 1) from None


async def accepted_in(slot: Slot) -> Accepted:
    """Wait for the answer in a slot and return it if the command was accepted; raise otherwise."""
    reply = await slot
    if isinstance(reply, Accepted):
        return reply
    if isinstance(reply, Rejected):
        raise Refused(reply.field, reply.problem, reply.code)
    assert isinstance(reply, Unavailable)
    raise Unserved("unavailable", str(reply), 1)


def _manager_event(event: Event) -> ManagerEvent:
    return ManagerEvent(
        what=event.what,
        job=event.job,
        ask=event.ask,
        indices=list(event.indices),
        attempt=event.attempt,
        node=event.node,
        devices=list(event.devices),
        reason=event.reason,
    )
