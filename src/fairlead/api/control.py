"""The running control plane: the partitions that this server leads, and those of other servers that it follows.

`Control` has the requests to the control plane first, then the configuration, then which partitions this server leads
(`_look`), then the beginning and the end of leading one. All of it runs in one asyncio loop. If a writer stops, its
partition recovers from the journal; requests get an error until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from fairlead.api.following import FollowedPartition
from fairlead.api.problems import Unserved
from fairlead.api.service import AfterCycle, PartitionService, accepted_in, offered
from fairlead.api.walltime import steady_wall
from fairlead.core.cluster import NOTHING, ClusterConfigured
from fairlead.core.commands import Accepted, AnyCommand, Configure, Rejected
from fairlead.core.cycle import Cycle
from fairlead.core.errors import Refused
from fairlead.core.model import Micros
from fairlead.core.reader import suggestion
from fairlead.core.resources import shown
from fairlead.core.settings import DEFAULT_CONFIG, PartitionConfig
from fairlead.core.state import Partition
from fairlead.engines.base import Engine
from fairlead.journal.base import Held, Journal, JournalError, PolicyMissing, TooNew
from fairlead.journal.codec import CLUSTER_STREAM, restore_cluster, stream_of
from fairlead.journal.room import NoRoom
from fairlead.journal.roster import Alone, Lease, Roster, Standing, spread
from fairlead.pools.service import PoolService
from fairlead.writer.clock import Clock, Steady, cycle_clock
from fairlead.writer.cluster import Configuration, check_policies, try_configuration
from fairlead.writer.loop import WriterThread
from fairlead.writer.observer import Observer
from fairlead.writer.writer import Stopped, Writer

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds before a stopped control plane starts again: after the first failure, and at most."""
STOPPED = "the journal failed and the server is recovering; its log says why"
LAPSED = "the lease of this server ended before it could be renewed; another server may lead now"
NO_ROOM = "the server's disk is full; the server recovers when there is space"
CLOSING = "the server is closing"
SILENT = "the database does not answer this server"
FOLLOWED = 10.0
"""Seconds for which an applied configuration waits until all servers and partitions follow it."""
LOOK_AGAIN = 0.02
REVISION_SECONDS = 3.0
"""Seconds that a read waits for a revision."""
GIVEN = 1.0
"""Seconds for which a server does not take back what it gave up."""
UNABLE = (PolicyMissing, TooNew)
"""Problems of this installation, which another server may not have."""


class Seat:
    """A journal object, the thread that uses it, and what is led through it. If it breaks, all of that ends."""

    def __init__(self, thread: WriterThread) -> None:
        self.thread = thread
        self.journal: Journal | None = None
        self.led: set[str] = set()
        """Streams."""
        self.cause = ""
        """Why it broke."""
        self.ended = False

    def opened(self, open_journal: Callable[[], Journal]) -> Journal:
        """Return the journal; open it if it is not open. This is called in the thread."""
        if self.journal is None:
            self.journal = open_journal()
        return self.journal


class Control:
    """Leads partitions of a cluster, and follows those that other servers lead."""

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
        leads: Callable[[str], None] = lambda partition: None,
        roster: Roster | None = None,
    ) -> None:
        """`first` is the configuration of a journal that has none yet; `note` is called with texts for operators.

        `leads` is called in a writer's thread when this server has begun to lead a partition, before it is served.
        With a `roster` several servers share the journal, and each stream is led through an object of its own.
        """
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
        self._apart = roster is not None
        self._roster = roster or Alone()
        self._served: dict[str, PartitionService] = {}
        self._followed: dict[str, FollowedPartition] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Partition → its live loop."""
        self._at_work: dict[str, asyncio.Task[None]] = {}
        """Stream → what is being done to lead it, follow it or give it up."""
        self._seats: dict[str, Seat] = {}
        """Stream that is led here, or will be → its seat."""
        self._reader: Seat | None = None
        """The seat through which other servers' streams are read."""
        self._roster_seat: Seat | None = None
        self._configuration: Configuration | None = None
        """The log of configurations, if this server leads it."""
        self._configured: ClusterConfigured = NOTHING
        self._known = 0
        """The last record of the log of configurations that was read."""
        self._found: list[str] = []
        """The streams of a journal that only this server uses, as of its opening."""
        self._standing = Standing("", (), {})
        self._heard = 0.0
        """When the last look began."""
        self._able = True
        """False if this server cannot lead: a journal cannot be used with this installation."""
        self._problem = "starting"
        self._problems: dict[str, str] = {}
        """Stream → why it is not led here, although it should be."""
        self._retry: dict[str, tuple[float, float]] = {}
        """Stream → when to try to lead it again, and the pause before that."""
        self._woken = asyncio.Event()
        self._looking = asyncio.Lock()
        self._configuring = asyncio.Lock()
        self._obeying = asyncio.Lock()
        self._supervisor: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None

    # -- requests ------------------------------------------------------------------------------------------------

    @property
    def now(self) -> Micros:
        """The time of the writers' clocks."""
        return max((service.now for service in self._served.values()), default=self._wall() // 1000)

    @property
    def problem(self) -> str:
        """Why requests are not served now; empty when they are. Every caller may read it, so it names no file."""
        found = self._unserved() or next((self._problems[stream] for stream in sorted(self._problems)), "")
        if not found and not self._served:
            leaders = sorted(
                {lease.address or "another server" for lease in self._standing.leases.values() if lease.holder}
            )
            found = f"this server stands by; {', '.join(leaders) or 'no server'} leads"
        return found

    def _unserved(self) -> str:
        """Return why this server can answer nothing; empty if it can."""
        return self._problem or (SILENT if self._steady() > self._heard + self._roster.lasts else "")

    def _need_serving(self) -> None:
        problem = self._unserved()
        if problem:
            raise Unserved("unavailable", f"{problem}; ask again in a moment", 1)

    def names(self) -> list[str]:
        """Return the names of all partitions."""
        return [name for name, _ in self._configured.partitions]

    def led(self) -> list[str]:
        """Return the names of the partitions that this server leads."""
        return sorted(self._served)

    def readiness(self) -> dict[str, bool]:
        """Return the partitions that this server leads, and whether each is ready."""
        return {name: service.partition.reign.ready for name, service in sorted(self._served.items())}

    def find(self, name: str = "") -> PartitionService:
        """Return a partition by its name; without a name, the only one, or the one called default.

        Raises `Unserved` with the leader's address if another server leads it.
        """
        self._need_serving()
        name = self.named(name)
        service = self._served.get(name)
        if service is not None and service.lapsed:
            self._break(self._seats[stream_of(name)], LAPSED)
        elif service is not None:
            return service
        raise self._not_led(stream_of(name), f"partition {name}")

    async def reader(self, name: str = "", min_revision: int = 0) -> PartitionService | FollowedPartition:
        """Return a partition to read from, at `min_revision` or later, if this server leads it or follows it.

        Waits for `min_revision` for a bounded time.
        """
        try:
            found: PartitionService | FollowedPartition = self.find(name)
        except Unserved:
            name = self.named(name)
            if self._unserved() or name not in self._followed:
                raise
            found = self._followed[name]
        deadline = self._steady() + REVISION_SECONDS
        while found.seq < min_revision:
            if isinstance(found, PartitionService):
                raise Refused(
                    "min_revision",
                    f"partition {found.name} is at revision {found.seq}, and {min_revision} does not exist; give a "
                    "revision of this partition",
                    "conflict",
                )
            if self._steady() > deadline:
                raise self._behind(found, min_revision)
            try:
                await found.catch_up()
            except JournalError as problem:
                raise Unserved("unavailable", f"the records cannot be read: {problem}", 1) from None
            if found.seq < min_revision:
                await asyncio.sleep(LOOK_AGAIN)
        return found

    def _behind(self, found: FollowedPartition, wanted: int) -> Unserved:
        leader = self.leader(found.name)
        return Unserved(
            "behind",
            f"partition {found.name} is at revision {found.seq} here, and {wanted} is wanted; ask again in a moment, "
            f"or ask {leader or 'the leader'}",
            1,
            leader,
        )

    def named(self, name: str = "") -> str:
        """Return the name of a partition that exists; without a name, the only one, or the one called default."""
        names = self.names()
        if not name:
            name = names[0] if len(names) == 1 else "default"
        if name not in names:
            raise Refused(
                "partition",
                f"there is no partition {shown(name)}{suggestion(name, names)}; name one of {', '.join(names[:20])}",
                "missing",
            )
        return name

    def _not_led(self, stream: str, what: str) -> Unserved:
        standing = self._standing
        leader = standing.leader(stream) if standing.holder(stream) != standing.me else ""
        if leader and stream not in self._problems:
            return Unserved("standby", f"{leader} leads {what}; send the request there", 1, leader)
        problem = self._problems.get(stream) or f"no server leads {what} now"
        return Unserved("unavailable", f"{problem}; ask again in a moment", 1)

    def leader(self, name: str) -> str:
        """Return the address of the server that leads a partition; empty if there is none, or only this server."""
        return self._standing.leader(stream_of(name))

    async def removed(self, name: str) -> int:
        """Return an epoch above all epochs of a removed partition; 0 if there never was such a partition."""
        self._need_serving()
        if name in self.names():
            return 0
        seat = self._reading_seat()

        def look() -> tuple[int, bool]:
            journal = seat.opened(self._open)
            epoch = journal.epoch(stream_of(name))
            # Read behind the epoch: another server may have just added the partition, or may be removing it.
            configured, _ = restore_cluster(journal)
            return epoch, name in dict(configured.partitions) or stream_of(name) in journal.streams()

        epoch, exists = await seat.thread.alone(look)
        if exists:
            raise Unserved("unavailable", f"partition {name} is being added or removed; ask again in a moment", 1)
        return epoch

    async def execute(self, service: PartitionService, command: AnyCommand) -> Accepted:
        """Carry out a command. When this returns, the command is done and durable."""
        return await accepted_in(offered(service, command))

    @property
    def standing(self) -> Standing:
        """The servers and the leases, as of the last look."""
        return self._standing

    async def drain(self, member: str, draining: bool) -> bool:
        """Tell a server to lead nothing, or to lead again. False if no other server would lead."""
        self._need_serving()
        seat = self._roster_seat
        try:
            done = seat is not None and await seat.thread.alone(lambda: self._roster.drain(member, draining))
        except JournalError as problem:
            raise Unserved("unavailable", f"nothing was done: {problem}", 1) from None
        self._woken.set()
        return done

    # -- the configuration ---------------------------------------------------------------------------------------

    @property
    def configured(self) -> tuple[int, dict[str, PartitionConfig]]:
        """The version of the configuration, and the configuration."""
        self._need_serving()
        return self._configured.version, dict(self._configured.partitions)

    @property
    def last_configured(self) -> dict[str, PartitionConfig]:
        """The configuration that was read last, even if this server cannot serve now."""
        return dict(self._configured.partitions)

    async def configure(self, configs: dict[str, PartitionConfig], user: str = "") -> None:
        """Apply a configuration of a user, all of it or nothing.

        It is tried on all partitions, written, and then followed by each. If a partition has changed in between so
        that it refuses, it follows as soon as it can; the error says so.
        """
        async with self._configuring:
            self._need_serving()
            configuration = self._configuration
            if configuration is None:
                raise self._not_led(CLUSTER_STREAM, "the configuration")
            if tuple(sorted(configs.items())) == configuration.current.partitions:
                return
            for name, config in sorted(configs.items()):
                await self._try(name, config)
            seat = self._seats.get(CLUSTER_STREAM)
            if seat is None or self._configuration is not configuration:
                raise self._not_led(CLUSTER_STREAM, "the configuration")
            try:
                await seat.thread.alone(lambda: configuration.write(configs))
            except Stopped as stopped:
                self._break(seat, str(stopped))
                raise Unserved("unavailable", f"{stopped}; ask again in a moment", 1) from None
            self._configured = configuration.current
            self._roster.call()
            refusals = [await self._obey(name, user) for name in self.led()]
            await self._until_followed()
            for refusal in filter(None, refusals):
                raise Refused(
                    refusal.field,
                    f"{refusal.problem}; the configuration was written, and this partition "
                    "follows it as soon as it can",
                    refusal.code,
                )

    async def _try(self, name: str, config: PartitionConfig) -> None:
        if name not in self.names():
            return try_configuration(Partition(name), config, self.now)
        followed = self._followed.get(name)
        if name in self._served:
            service = self._served[name]
            await service.thread.alone(lambda: try_configuration(service.partition, config, service.now))
        elif followed is not None:

            def attempt() -> None:
                followed.replay_new()
                assert followed.partition is not None
                try_configuration(followed.partition, config, self.now)

            try:
                await followed.thread.alone(attempt)
            except JournalError as problem:
                raise Unserved("unavailable", f"nothing was done: {problem}", 1) from None
        else:
            raise self._not_led(stream_of(name), f"partition {name}")

    async def _obey(self, name: str, user: str = "") -> Rejected | None:
        """Let a partition that is led here follow the configuration; return its refusal."""
        async with self._obeying:
            return await self._obeyed(name, user)

    async def _obeyed(self, name: str, user: str) -> Rejected | None:
        service, version = self._served.get(name), self._configured.version
        config = dict(self._configured.partitions).get(name)
        if service is None or service.partition.config_version >= version:
            return None
        if config is None:
            await self._remove(name)
            return None
        answer = await service.settle(Configure(config=config, version=version, user=user, operator=True))
        if isinstance(answer, Rejected):
            self._note(f"partition {name} does not follow configuration {version} yet: {answer.problem}")
            field = f"partitions.{name}.{answer.field}"
            return Rejected(field, answer.problem, answer.code)
        return None

    async def _until_followed(self) -> None:
        """Wait until all servers and partitions follow the configuration, for a bounded time."""
        deadline = self._steady() + FOLLOWED
        while True:
            try:
                await self._look()
            except (JournalError, OSError) as problem:
                raise Unserved("unavailable", f"{problem}; ask again in a moment", 1) from None
            await asyncio.gather(*self._at_work.values(), return_exceptions=True)
            self._need_serving()
            if self._is_followed() or self._steady() > deadline:
                return
            await asyncio.sleep(LOOK_AGAIN)

    def _is_followed(self) -> bool:
        version, names = self._configured.version, self.names()
        states = {name: followed.partition for name, followed in self._followed.items()}
        states.update({name: service.partition for name, service in self._served.items()})
        led = all((state := states.get(name)) is not None and state.config_version >= version for name in names)
        gone = not any(name not in names for name in (*self._left_over(), *self._served))
        return led and gone and all(member.version >= version for member in self._standing.members)

    def _left_over(self) -> list[str]:
        """Return partitions with records that are not in the configuration: they have to be removed."""
        prefix, names = stream_of(""), self.names()
        streams = (
            [stream for stream, lease in self._standing.leases.items() if lease.seq] if self._apart else self._found
        )
        found = [stream.removeprefix(prefix) for stream in streams if stream.startswith(prefix)]
        return [name for name in found if name not in names]

    # -- which partitions this server leads ----------------------------------------------------------------------

    async def start(self) -> None:
        """Start the control plane: lead the partitions that no other server leads, and follow the others.

        Raise if it cannot start, for example because the journal is damaged.
        """
        loop = asyncio.get_running_loop()

        def woken() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._woken.set)

        self._roster.listen(woken)
        try:
            await self._look()
            await asyncio.gather(*self._at_work.values())
        except BaseException:
            await self._end_all()
            raise
        self._supervisor = asyncio.create_task(self._supervise())
        self._watcher = asyncio.create_task(self._watch_leases())

    async def close(self) -> None:
        self._problem = CLOSING
        for task in filter(None, (self._watcher, self._supervisor)):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._end_all()
        await self.pools.close()

    async def _supervise(self) -> None:
        failed = FIRST_PAUSE
        while True:
            now = self._steady()
            retries = [when - now for when, _ in self._retry.values() if when > now]
            with suppress(TimeoutError):
                async with asyncio.timeout(min([self._roster.every, *retries])):
                    await self._woken.wait()
            self._woken.clear()
            try:
                await self._look()
                failed = FIRST_PAUSE
            except Exception as problem:  # the next attempt may succeed, whatever the problem is
                self._note(f"the control plane cannot look: {problem}")
                await asyncio.sleep(failed)
                failed = min(2 * failed, LONGEST_PAUSE)

    async def _look(self) -> None:
        """Look at the other servers and the configuration, and begin to do what follows from them."""
        async with self._looking:
            await self._end_broken()
            if self._problem == CLOSING:
                return
            await self._hear()
            await self._learn()
            if self._configured is NOTHING or (self._configuration is None and not self._apart):
                return
            self._problem = ""
            self._spread()
            self._follow()

    async def _watch_leases(self) -> None:
        """End what is led under a lease that has ended, even while the database does not answer."""
        while True:
            await asyncio.sleep(self._roster.every)
            await self._end_broken()

    async def _end_broken(self) -> None:
        seats = {id(seat): seat for seat in self._seats.values()}.values()
        for seat in seats:
            lapsed = seat.journal is not None and seat.journal.leads_until() < self._steady()
            if lapsed and not seat.cause:
                self._break(seat, LAPSED)
        await asyncio.gather(*(self._end(seat) for seat in seats if seat.cause))

    async def _hear(self) -> None:
        """Tell the other servers that this one is up, and read what they told."""
        version, able, began = self._configured.version, self._able, self._steady()
        if self._apart and self._roster_seat is None:
            self._roster_seat = Seat(self._new_thread())
        if self._roster_seat is None:
            self._standing = self._roster.look(version, able)
        else:
            self._standing = await self._roster_seat.thread.alone(lambda: self._roster.look(version, able))
        self._heard = began
        mine = ("", self._standing.me)
        for stream in [stream for stream in self._problems if self._standing.holder(stream) not in mine]:
            del self._problems[stream]  # another server leads it

    async def _learn(self) -> None:
        """Lead the log of configurations, or read it."""
        standing = self._standing
        takes = any(member.takes for member in standing.members if member.id == standing.me)
        others = any(member.takes for member in standing.members if member.id != standing.me)
        if self._configuration is not None:
            deposed = self._apart and standing.holder(CLUSTER_STREAM) != standing.me
            if not deposed and (takes or not others):
                return
            await self._end(self._seats[CLUSTER_STREAM])
            if not deposed:
                return
        if standing.holder(CLUSTER_STREAM) in ("", standing.me) and takes and self._may_try(CLUSTER_STREAM):
            await self._lead_configuration()
        elif self._apart and standing.leases.get(CLUSTER_STREAM, Lease()).seq != self._known:
            seat = self._reading_seat()
            self._configured, self._known = await seat.thread.alone(lambda: restore_cluster(seat.opened(self._open)))
            self._check_policies()

    def _check_policies(self) -> None:
        try:
            check_policies(self._configured)
        except PolicyMissing as problem:
            self._note(f"this server cannot lead: {problem}")
            self._able = False

    async def _lead_configuration(self) -> None:
        seat = self._seat_for(CLUSTER_STREAM)

        def take_over() -> Configuration:
            journal = seat.opened(self._open)
            configuration = Configuration(journal)
            self._found = journal.streams()
            if configuration.current is NOTHING:
                for name, config in self._first.items():
                    try_configuration(Partition(name), config, 0)
                configuration.write(self._first)
            return configuration

        try:
            self._configuration = await seat.thread.alone(take_over)
        except Held:
            await self._end(seat)
        except Exception as problem:
            self._fail(CLUSTER_STREAM, seat, problem)
            if self._supervisor is None:
                raise
        else:
            seat.led.add(CLUSTER_STREAM)
            self._configured, self._known = self._configuration.current, self._configuration.seq
            self._succeeded(CLUSTER_STREAM)

    def _spread(self) -> None:
        """Begin to lead streams that should be led here, and to give up others."""
        streams = {stream_of(name): name for name in (*self.names(), *self._left_over())}
        take, give = spread(self._standing, list(streams))
        again = [
            stream
            for stream, name in streams.items()
            if self._standing.holder(stream) == self._standing.me and name not in self._served
        ]
        for stream in give:
            if stream not in again:
                self._begin(stream, self._resign(streams[stream]))
        for stream in (*take, *again):
            if streams[stream] not in self._served and self._may_try(stream):
                self._begin(stream, self._lead(streams[stream]))
        for name, service in self._served.items():
            if service.partition.config_version < self._configured.version or name not in self.names():
                self._begin(stream_of(name), self._obey(name))

    def _follow(self) -> None:
        """Begin to read what other servers have written."""
        if not self._apart:
            return
        seat, leases = self._reading_seat(), self._standing.leases
        for name in [name for name in self._followed if name in self._served or name not in self.names()]:
            del self._followed[name]
        for name in self.names():
            stream = stream_of(name)
            if name in self._served or stream in self._at_work or stream not in leases:
                continue
            if name not in self._followed:
                self._followed[name] = FollowedPartition(
                    name, lambda: seat.opened(self._open), seat.thread, lambda: self._wall() // 1000
                )
            followed = self._followed[name]
            if followed.partition is None or followed.seq != leases[stream].seq:
                self._begin(stream, self._catch_up(followed))

    async def _catch_up(self, followed: FollowedPartition) -> None:
        try:
            await followed.catch_up()
        except JournalError as problem:
            self._note(f"partition {followed.name} is not followed: {problem}")

    def _begin(self, stream: str, work: Coroutine[Any, Any, object]) -> None:
        """Do something with a stream in the background; one thing at a time."""
        if stream in self._at_work or self._problem == CLOSING:
            work.close()
            return

        async def do() -> None:
            try:
                await work
            except Exception as problem:
                if self._supervisor is None:
                    raise
                self._note(f"{stream}: {problem!r}")
            finally:
                del self._at_work[stream]

        self._at_work[stream] = asyncio.create_task(do())

    def _may_try(self, stream: str) -> bool:
        return self._retry.get(stream, (0.0, 0.0))[0] <= self._steady()

    # -- leading a partition -------------------------------------------------------------------------------------

    def _seat_for(self, stream: str) -> Seat:
        if stream not in self._seats:
            shared = None if self._apart else next(iter(self._seats.values()), None)
            self._seats[stream] = shared or Seat(self._new_thread())
        return self._seats[stream]

    def _reading_seat(self) -> Seat:
        if not self._apart:
            return self._seat_for(CLUSTER_STREAM)
        if self._reader is None:
            self._reader = Seat(self._new_thread())
        return self._reader

    async def _lead(self, name: str) -> None:
        """Take a partition over, and serve it. If it left the configuration, remove it."""
        stream, configured = stream_of(name), self._configured
        seat = self._seat_for(stream)
        config = dict(configured.partitions).get(name)

        def take_over() -> tuple[Writer, Clock] | None:
            journal = seat.opened(self._open)
            writer = Writer(journal, name, self._observers)
            clock = cycle_clock(writer.partition.now, self._wall, lambda: int(self._steady() * 1e9))
            if config is None:
                if name in dict(restore_cluster(journal)[0].partitions):
                    raise Stopped(f"partition {name} was just added by another server")
                # No agent is connected yet: agents of removed partitions are dismissed on connecting; see `removed`.
                writer.remove(clock())
                journal.drop(stream)
                return None
            if writer.partition.config_version < configured.version:
                writer.cycle([Configure(config=config, version=configured.version, operator=True)], clock())
            self._leads(name)
            return writer, clock

        try:
            led = await seat.thread.alone(take_over)
            if self._seats.get(stream) is not seat or seat.cause or self._problem == CLOSING:
                raise Stopped(seat.cause or CLOSING)
        except Held:
            await self._end(seat)
        except Exception as problem:
            self._fail(stream, seat, problem)
            if self._supervisor is None:
                raise
        else:
            seat.led.add(stream)
            self._succeeded(stream)
            if led is not None:
                self._serve(*led, seat.thread)
            else:
                await self._leave(stream)

    def _serve(self, writer: Writer, clock: Clock, thread: WriterThread) -> None:
        service = PartitionService(writer, clock, self._steady, thread, self._engine, self.pools, self._after_cycle)
        self._served[service.name] = service
        self._followed.pop(service.name, None)
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
        seat = self._seats.get(stream_of(service.name))
        if cause and seat is not None:
            self._break(seat, cause)

    def _fail(self, stream: str, seat: Seat, problem: BaseException) -> None:
        """Handle that a stream could not be led. The next attempt follows after a pause."""
        if self._apart and isinstance(problem, UNABLE):
            self._able = False  # the other servers lead what this one cannot
        seat.led.add(stream)
        self._break(seat, str(problem) or repr(problem), isinstance(problem, NoRoom))

    def _succeeded(self, stream: str) -> None:
        self._retry.pop(stream, None)
        if self._problems.pop(stream, ""):
            self._note("the control plane works again")

    def _break(self, seat: Seat, cause: str, no_room: bool = False) -> None:
        """Mark a seat whose journal or writer has failed. The next look ends all that is led through it."""
        if not seat.cause:
            self._note(f"the writer stopped: {cause}")
        seat.cause = seat.cause or cause
        for stream in seat.led:
            _, before = self._retry.get(stream, (0.0, FIRST_PAUSE / 2))
            pause = min(2 * before, LONGEST_PAUSE)
            self._retry[stream] = (self._steady() + pause, pause)
            self._problems[stream] = NO_ROOM if no_room else STOPPED
        self._woken.set()

    async def _resign(self, name: str) -> None:
        """Give a partition up, so that another server leads it."""
        seat = self._seats.get(stream_of(name))
        if seat is not None:
            self._note(f"partition {name} is given to another server")
            self._retry[stream_of(name)] = (self._steady() + GIVEN, FIRST_PAUSE)
            await self._end(seat)

    async def _remove(self, name: str) -> None:
        """End a partition that left the configuration. Its agents get the effects of its last cycle."""
        service, stream = self._served[name], stream_of(name)
        seat = self._seats[stream]

        def send(decided: Cycle) -> None:
            service.publish(decided)
            service.dispatch(decided.effects)

        def drop() -> None:
            assert seat.journal is not None
            seat.journal.drop(stream)

        await seat.thread.alone(lambda: service.writer.remove(service.now), send)
        await self._close_service(name)
        try:
            await seat.thread.alone(drop)
        except JournalError as problem:
            return self._break(seat, f"the journal of partition {name} was not dropped: {problem}")
        await self._leave(stream)

    async def _leave(self, stream: str) -> None:
        """Forget a stream that was dropped."""
        seat = self._seats.pop(stream)
        seat.led.discard(stream)
        self._found = [other for other in self._found if other != stream]
        if not seat.led:
            await self._end(seat)

    async def _end(self, seat: Seat) -> None:
        """End all that is led through a seat, and give its leases back."""
        if seat.ended:
            return
        seat.ended = True
        for stream in [stream for stream, other in self._seats.items() if other is seat]:
            del self._seats[stream]
        for name in [name for name in self._served if stream_of(name) in seat.led]:
            await self._close_service(name)
        if CLUSTER_STREAM in seat.led:
            self._configuration = None
        await self._close_seat(seat)

    async def _close_service(self, name: str) -> None:
        service = self._served.pop(name, None)
        if service is None:
            return
        running = self._tasks.pop(name)
        await service.live.close()
        await asyncio.gather(running, return_exceptions=True)
        service.close()
        if name not in self._served:  # else it is led here again, which has ended the work for the service before
            self._engine.end(name)
            self.pools.end(name)

    async def _close_seat(self, seat: Seat | None) -> None:
        if seat is None:
            return

        def close() -> None:
            if seat.journal is not None:
                seat.journal.close()

        await seat.thread.alone(close)
        seat.thread.close()

    async def _end_all(self) -> None:
        self._problem = CLOSING
        if self._roster_seat is not None:
            await self._roster_seat.thread.alone(self._roster.close)
        await asyncio.gather(*self._at_work.values(), return_exceptions=True)
        for seat in {id(seat): seat for seat in self._seats.values()}.values():
            await self._end(seat)
        await self._close_seat(self._reader)
        await self._close_seat(self._roster_seat)
        self._followed, self._reader, self._roster_seat = {}, None, None
        self._configured = NOTHING
