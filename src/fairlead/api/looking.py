"""The reconcile loop: decides which partitions this server leads, from heartbeats, leases and the configuration."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fairlead.api.following import FollowedPartition
from fairlead.api.leading import Leading
from fairlead.api.plane import CLOSING, FIRST_PAUSE, LAPSED, LONGEST_PAUSE, Plane, Seat
from fairlead.core.cluster import NOTHING
from fairlead.core.state import Partition
from fairlead.journal.base import Held, JournalError, PolicyMissing
from fairlead.journal.codec import CLUSTER_STREAM, restore_cluster, stream_of
from fairlead.journal.roster import Lease, spread
from fairlead.writer.cluster import Configuration, check_policies, try_configuration


class Looking:
    """Decides which partitions this server leads and follows."""

    def __init__(self, plane: Plane, leading: Leading) -> None:
        self._plane = plane
        self._leading = leading
        self._known = 0
        """The last record read from the configuration stream."""
        self._looking = asyncio.Lock()
        self._supervisor: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the control plane: lead the partitions that no other server leads, and follow the others.

        Raise if it cannot start, for example because the journal is damaged.
        """
        loop = asyncio.get_running_loop()

        def woken() -> None:
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(self._plane.woken.set)

        self._plane.roster.listen(woken)
        try:
            await self.look()
            await asyncio.gather(*self._plane.at_work.values())
        except BaseException:
            await self._end_all()
            raise
        self._plane.started = True
        self._supervisor = asyncio.create_task(self._supervise())
        self._watcher = asyncio.create_task(self._watch_leases())

    async def close(self) -> None:
        self._plane.problem = CLOSING
        for task in filter(None, (self._watcher, self._supervisor)):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._end_all()
        await self._plane.pools.close()

    async def _supervise(self) -> None:
        failed = FIRST_PAUSE
        while True:
            now = self._plane.steady()
            retries = [when - now for when, _ in self._leading.retry.values() if when > now]
            with suppress(TimeoutError):
                async with asyncio.timeout(min([self._plane.roster.every, *retries])):
                    await self._plane.woken.wait()
            self._plane.woken.clear()
            try:
                await self.look()
                failed = FIRST_PAUSE
            except Exception as problem:  # the next attempt may succeed, whatever the problem is
                self._plane.note(f"the control plane cannot look: {problem}")
                await asyncio.sleep(failed)
                failed = min(2 * failed, LONGEST_PAUSE)

    async def look(self) -> None:
        """Run one reconcile pass: heartbeat, configuration, then start or stop leading and following."""
        async with self._looking:
            await self._end_broken()
            if self._plane.problem == CLOSING:
                return
            await self._hear()
            await self._learn()
            if self._plane.configured is NOTHING or (self._plane.configuration is None and not self._plane.apart):
                return
            self._plane.problem = ""
            self._spread()
            self._follow()

    async def _watch_leases(self) -> None:
        """Stop leading under a lease that has ended, even while the database does not answer."""
        while True:
            await asyncio.sleep(self._plane.roster.every)
            await self._end_broken()

    async def _end_broken(self) -> None:
        seats = list(self._plane.seats.values())
        for seat in seats:
            lapsed = seat.journal is not None and seat.journal.leads_until() < self._plane.steady()
            if lapsed and not seat.cause:
                self._leading.break_seat(seat, LAPSED)
        await asyncio.gather(*(self._leading.end(seat) for seat in seats if seat.cause))

    async def _hear(self) -> None:
        """Send a heartbeat; read members and leases."""
        version, able, began = self._plane.configured.version, self._plane.able, self._plane.steady()
        if self._plane.apart and self._plane.roster_seat is None:
            self._plane.roster_seat = Seat(self._plane.new_thread())
        if self._plane.roster_seat is None:
            self._plane.standing = self._plane.roster.look(version, able)
        else:
            self._plane.standing = await self._plane.roster_seat.thread.alone(
                lambda: self._plane.roster.look(version, able)
            )
        self._plane.heard = began
        mine = ("", self._plane.standing.me)
        for stream in [stream for stream in self._plane.problems if self._plane.standing.holder(stream) not in mine]:
            del self._plane.problems[stream]  # another server leads it

    async def _learn(self) -> None:
        """Lead the configuration stream, or read it."""
        standing = self._plane.standing
        takes = any(member.takes for member in standing.members if member.id == standing.me)
        others = any(member.takes for member in standing.members if member.id != standing.me)
        if self._plane.configuration is not None:
            deposed = self._plane.apart and standing.holder(CLUSTER_STREAM) != standing.me
            if not deposed and (takes or not others):
                return
            await self._leading.end(self._plane.seats[CLUSTER_STREAM])
            if not deposed:
                return
        if standing.holder(CLUSTER_STREAM) in ("", standing.me) and takes and self._leading.may_try(CLUSTER_STREAM):
            await self._lead_configuration()
        elif self._plane.apart and standing.leases.get(CLUSTER_STREAM, Lease()).seq != self._known:
            seat = self._leading.reading_seat()
            self._plane.configured, self._known = await seat.thread.alone(
                lambda: restore_cluster(seat.opened(self._plane.open_journal))
            )
            self._check_policies()

    def _check_policies(self) -> None:
        try:
            check_policies(self._plane.configured)
        except PolicyMissing as problem:
            self._plane.note(f"this server cannot lead: {problem}")
            self._plane.able = False

    async def _lead_configuration(self) -> None:
        seat = self._leading.seat_for(CLUSTER_STREAM)

        def take_over() -> Configuration:
            journal = seat.opened(self._plane.open_journal)
            configuration = Configuration(journal)
            self._plane.found = journal.streams()
            if configuration.current is NOTHING:
                for name, config in self._plane.first.items():
                    try_configuration(Partition(name), config, 0)
                configuration.write(self._plane.first)
            return configuration

        try:
            self._plane.configuration = await seat.thread.alone(take_over)
        except Held:
            await self._leading.end(seat)
        except Exception as problem:
            self._leading.fail(CLUSTER_STREAM, seat, problem)
            if not self._plane.started:
                raise
        else:
            seat.led = CLUSTER_STREAM
            self._plane.configured, self._known = self._plane.configuration.current, self._plane.configuration.seq
            self._leading.succeeded(CLUSTER_STREAM)

    def _spread(self) -> None:
        """Start leading streams assigned to this server, give up others, and let partitions adopt the configuration."""
        streams = {stream_of(name): name for name in (*self._plane.names(), *self._plane.left_over())}
        take, give = spread(self._plane.standing, list(streams))
        again = [
            stream
            for stream, name in streams.items()
            if self._plane.standing.holder(stream) == self._plane.standing.me and name not in self._plane.served
        ]
        for stream in give:
            if stream not in again:
                self._leading.begin(stream, self._leading.resign(streams[stream]))
        for stream in (*take, *again):
            if streams[stream] not in self._plane.served and self._leading.may_try(stream):
                self._leading.begin(stream, self._leading.lead(streams[stream]))
        for name, service in self._plane.served.items():
            if service.partition.config_version < self._plane.configured.version or name not in self._plane.names():
                self._leading.begin(stream_of(name), self._leading.obey(name))

    def _follow(self) -> None:
        """Start reading the partitions that other servers lead."""
        if not self._plane.apart:
            return
        seat, leases = self._leading.reading_seat(), self._plane.standing.leases
        for name in [
            name for name in self._plane.followed if name in self._plane.served or name not in self._plane.names()
        ]:
            del self._plane.followed[name]
        for name in self._plane.names():
            stream = stream_of(name)
            if name in self._plane.served or stream in self._plane.at_work or stream not in leases:
                continue
            if name not in self._plane.followed:
                self._plane.followed[name] = FollowedPartition(
                    name, lambda: seat.opened(self._plane.open_journal), seat.thread, lambda: self._plane.wall() // 1000
                )
            followed = self._plane.followed[name]
            if followed.partition is None or followed.seq != leases[stream].seq:
                self._leading.begin(stream, self._catch_up(followed))

    async def _catch_up(self, followed: FollowedPartition) -> None:
        try:
            await followed.catch_up()
        except JournalError as problem:
            self._plane.note(f"partition {followed.name} is not followed: {problem}")

    async def _end_all(self) -> None:
        self._plane.problem = CLOSING
        if self._plane.roster_seat is not None:
            await self._plane.roster_seat.thread.alone(self._plane.roster.close)
        await asyncio.gather(*self._plane.at_work.values(), return_exceptions=True)
        for seat in list(self._plane.seats.values()):
            await self._leading.end(seat)
        await self._leading.close_seat(self._plane.reader)
        await self._leading.close_seat(self._plane.roster_seat)
        self._plane.followed, self._plane.reader, self._plane.roster_seat = {}, None, None
        self._plane.configured = NOTHING
