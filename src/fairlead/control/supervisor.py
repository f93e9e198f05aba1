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
    """Decides which partitions this server leads and follows."""

    def __init__(
        self,
        given: Dependencies,
        heartbeat: Heartbeat,
        streams: Streams,
        configuration: ClusterConfiguration,
        leader: Leader,
        follower: Follower,
    ) -> None:
        self._given = given
        self._heartbeat = heartbeat
        self._streams = streams
        self._configuration = configuration
        self._leader = leader
        self._follower = follower
        self._reconciled = False
        """True if a reconcile pass has been completed."""
        self._reconciling = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def problem(self) -> str:
        """Why this server cannot answer requests; empty if it can."""
        if self._streams.closing:
            return CLOSING
        if not self._reconciled:
            return STARTING
        return SILENT if self._heartbeat.silent else ""

    def need_serving(self) -> None:
        """Raise `Unserved` if this server cannot answer requests."""
        problem = self.problem
        if problem:
            raise Unserved("unavailable", f"{problem}; ask again in a moment", 1)

    async def start(self) -> None:
        """Start the control plane: lead the partitions that no other server leads, and follow the others.

        Raise if it cannot start, for example because the journal is damaged.
        """
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(self._streams.wake.set)

        self._heartbeat.start(wake)
        try:
            await self.reconcile()
            await self._streams.finish_all()
        except BaseException:
            await self._end_all()
            raise
        self._streams.started = True
        self._tasks = [asyncio.create_task(self._watch_leases()), asyncio.create_task(self._supervise())]

    async def close(self) -> None:
        self._streams.closing = True
        for task in self._tasks:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._end_all()
        await self._given.pools.close()

    async def reconcile(self) -> None:
        """Run one reconcile pass: heartbeat, configuration, then start or stop leading and following."""
        async with self._reconciling:
            await self._streams.end_failed()
            if self._streams.closing:
                return
            await self._heartbeat.send(self._configuration.current.version)
            self._streams.forget_problems()
            await self._configuration.refresh()
            if self._configuration.usable:
                self._reconciled = True
                self._assign()
                self._follower.follow(self._leader.served)

    async def _supervise(self) -> None:
        pause = FIRST_PAUSE
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(self._heartbeat.seconds, self._streams.until_retry())):
                    await self._streams.wake.wait()
            self._streams.wake.clear()
            try:
                await self.reconcile()
                pause = FIRST_PAUSE
            except Exception as problem:  # the next attempt may succeed, whatever the problem is
                self._given.note(f"the control plane cannot look: {problem}")
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _watch_leases(self) -> None:
        """Stop leading under a lease that has ended, even while the database does not answer."""
        while True:
            await asyncio.sleep(self._heartbeat.seconds)
            await self._streams.end_failed()

    def _assign(self) -> None:
        """Start leading streams assigned to this server, give up others, and let partitions adopt the configuration."""
        leader, streams, membership = self._leader, self._streams, self._heartbeat.membership
        names = self._configuration.names()
        partitions = {stream_of(name): name for name in (*names, *self._configuration.left_over())}
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
            if service.partition.config_version < self._configuration.current.version or name not in names:
                streams.begin(stream_of(name), leader.adopt(name))

    async def _end_all(self) -> None:
        self._streams.closing = True
        await self._heartbeat.close()
        await self._streams.close()
        self._follower.followed = {}
        self._configuration.current = NOTHING
