"""The reconcile loop: decides which partitions this server leads, from heartbeats, leases and the configuration."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fairlead.control.configuration import ClusterConfiguration
from fairlead.control.dependencies import Dependencies
from fairlead.control.follower import Follower
from fairlead.control.heartbeat import Heartbeat
from fairlead.control.leader import Leader
from fairlead.control.streams import CLOSING, FIRST_PAUSE, LONGEST_PAUSE, Streams
from fairlead.core.cluster_config import NOTHING
from fairlead.journal.codec import stream_of
from fairlead.journal.roster import spread
from fairlead.wire.unserved import Unserved

STARTING = "starting"
SILENT = "the database does not answer this server"


class Supervisor:
    """The parts of the control plane, and the loop that has partitions led and followed."""

    def __init__(self, given: Dependencies) -> None:
        self.heartbeat = Heartbeat(given)
        self.streams = Streams(given, self.heartbeat)
        self.configuration = ClusterConfiguration(given, self.heartbeat, self.streams)
        self.leader = Leader(given, self.streams, self.configuration)
        self.follower = Follower(given, self.heartbeat, self.streams, self.configuration)
        self._given = given
        self._reconciled = False
        """True if a reconcile pass has been completed."""
        self._reconciling = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def problem(self) -> str:
        """Why this server cannot answer requests; empty if it can."""
        if self.streams.closing:
            return CLOSING
        if not self._reconciled:
            return STARTING
        return SILENT if self.heartbeat.silent else ""

    def need_serving(self) -> None:
        """Raise `Unserved` if this server cannot answer requests."""
        problem = self.problem
        if problem:
            raise Unserved("unavailable", f"{problem}; ask again in a moment", 1)

    async def start(self) -> None:
        """Lead the partitions that no other server leads, and follow the others.

        Raise if the control plane cannot start, for example because the journal is damaged.
        """
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(self.streams.wake.set)

        self.heartbeat.start(wake)
        try:
            await self.reconcile()
            await self.streams.finish_all()
        except BaseException:
            await self._end_all()
            raise
        self.streams.started = True
        self._tasks = [asyncio.create_task(self._watch_leases()), asyncio.create_task(self._supervise())]

    async def close(self) -> None:
        self.streams.closing = True
        for task in self._tasks:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._end_all()
        await self._given.pools.close()

    async def reconcile(self) -> None:
        """Run one reconcile pass: heartbeat, configuration, then start or stop leading and following."""
        async with self._reconciling:
            await self.streams.end_failed()
            if self.streams.closing:
                return
            await self.heartbeat.send(self.configuration.current.version)
            self.streams.forget_problems()
            await self.configuration.refresh()
            if self.configuration.usable:
                self._reconciled = True
                self._assign()
                self.follower.follow(self.leader.served)

    async def _supervise(self) -> None:
        pause = FIRST_PAUSE
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(self.heartbeat.seconds, self.streams.until_retry())):
                    await self.streams.wake.wait()
            self.streams.wake.clear()
            try:
                await self.reconcile()
                pause = FIRST_PAUSE
            except Exception as problem:  # the next pass may succeed, whatever the problem is
                self._given.note(f"the control plane cannot reconcile: {problem}")
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _watch_leases(self) -> None:
        """Stop leading under a lease that has ended, even while the database does not answer."""
        while True:
            await asyncio.sleep(self.heartbeat.seconds)
            await self.streams.end_failed()

    def _assign(self) -> None:
        """Start and stop leading partitions as `spread` assigns them, and let led ones adopt the configuration."""
        leader, streams, membership = self.leader, self.streams, self.heartbeat.membership
        names = self.configuration.names()
        partitions = {stream_of(name): name for name in (*names, *self.configuration.left_over())}
        take, give = spread(membership, list(partitions))
        again = [
            stream for stream, name in partitions.items() if membership.leads(stream) and name not in leader.served
        ]
        for stream in give:
            if stream not in again:
                streams.begin(stream, leader.resign(partitions[stream]))
        for stream in (*take, *again):
            if partitions[stream] not in leader.served and streams.may_try(stream):
                streams.begin(stream, leader.lead(partitions[stream]))
        for name, service in leader.served.items():
            if service.partition.config_version < self.configuration.current.version or name not in names:
                streams.begin(stream_of(name), leader.adopt(name))

    async def _end_all(self) -> None:
        self.streams.closing = True
        await self.heartbeat.close()
        await self.streams.close()
        self.follower.followed = {}
        self.configuration.current = NOTHING
