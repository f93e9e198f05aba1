"""The control plane of one server: the partitions that it leads, and those of other servers that it follows."""

from __future__ import annotations

import asyncio

from fairlead.control.configuration import ClusterConfiguration
from fairlead.control.configurator import Configurator
from fairlead.control.dependencies import Dependencies
from fairlead.control.follower import FollowedPartition, Follower
from fairlead.control.heartbeat import Heartbeat
from fairlead.control.leader import Leader
from fairlead.control.partition import PartitionService
from fairlead.control.streams import LAPSED, Streams
from fairlead.control.supervisor import Supervisor
from fairlead.core.errors import Refused
from fairlead.core.model import Micros
from fairlead.core.settings import PartitionConfig
from fairlead.journal.codec import restore_cluster, stream_of
from fairlead.journal.journal import Journal, JournalError
from fairlead.journal.roster import Membership
from fairlead.wire.unserved import Unserved

REVISION_SECONDS = 3.0
"""Seconds that a read waits for the requested revision."""
PAUSE = 0.02


class Control:
    """Leads partitions of a cluster, and follows those that other servers lead. The interface for requests."""

    def __init__(self, given: Dependencies) -> None:
        self._given = given
        self._heartbeat = Heartbeat(given)
        self._streams = Streams(given, self._heartbeat)
        self._configuration = ClusterConfiguration(given, self._heartbeat, self._streams)
        self._leader = Leader(given, self._streams, self._configuration)
        self._follower = Follower(given, self._heartbeat, self._streams, self._configuration)
        self._supervisor = Supervisor(
            given, self._heartbeat, self._streams, self._configuration, self._leader, self._follower
        )
        self._configurator = Configurator(
            given,
            self._heartbeat,
            self._streams,
            self._configuration,
            self._leader,
            self._follower,
            self._supervisor,
        )
        self.pools = given.pools
        self.names = self._configuration.names
        self.named = self._configuration.named
        self.start = self._supervisor.start
        self.close = self._supervisor.close
        self.configure = self._configurator.configure

    @property
    def now(self) -> Micros:
        """The time of the writers' clocks."""
        return self._leader.now

    @property
    def problem(self) -> str:
        """Why requests are not served now; empty if they are. Every caller may read it, so it names no file."""
        problems = self._streams.problems
        found = self._supervisor.problem or next((problems[stream] for stream in sorted(problems)), "")
        if not found and not self._leader.served:
            leases = self.membership.leases.values()
            leaders = sorted({lease.address or "another server" for lease in leases if lease.holder})
            found = f"this server stands by; {', '.join(leaders) or 'no server'} leads"
        return found

    @property
    def membership(self) -> Membership:
        """The members and leases, as of the last heartbeat."""
        return self._heartbeat.membership

    @property
    def configured(self) -> tuple[int, dict[str, PartitionConfig]]:
        """The version of the configuration, and the configuration."""
        self._supervisor.need_serving()
        return self._configuration.current.version, self._configuration.partitions

    @property
    def last_configured(self) -> dict[str, PartitionConfig]:
        """The configuration that was read last, even if this server cannot serve requests now."""
        return self._configuration.partitions

    def led(self) -> list[str]:
        """Return the names of the partitions that this server leads."""
        return sorted(self._leader.served)

    def readiness(self) -> dict[str, bool]:
        """Return the readiness of each partition that this server leads."""
        return {name: service.partition.readiness.ready for name, service in sorted(self._leader.served.items())}

    def leader(self, name: str) -> str:
        """Return the address of the server that leads a partition; empty if it has no leader or there is one server."""
        return self.membership.leader(stream_of(name))

    def find(self, name: str = "") -> PartitionService:
        """Return a partition by its name; without a name, the only one, or the one called default.

        Raises `Unserved` with the leader's address if another server leads it.
        """
        self._supervisor.need_serving()
        name = self.named(name)
        stream, service = stream_of(name), self._leader.served.get(name)
        if service is not None and not service.lapsed:
            return service
        if service is not None:
            self._streams.fail(self._streams.threads[stream], LAPSED)
        raise self._streams.not_led(stream, f"partition {name}")

    async def reader(self, name: str = "", min_revision: int = 0) -> PartitionService | FollowedPartition:
        """Return a partition that this server leads or follows, to read at `min_revision` or later.

        Waits at most `REVISION_SECONDS` for `min_revision`.
        """
        try:
            found: PartitionService | FollowedPartition = self.find(name)
        except Unserved:
            name = self.named(name)
            if self._supervisor.problem or name not in self._follower.followed:
                raise
            found = self._follower.followed[name]
        deadline = self._given.steady() + REVISION_SECONDS
        while found.seq < min_revision:
            if isinstance(found, PartitionService):
                raise Refused(
                    "min_revision",
                    f"partition {found.name} is at revision {found.seq}, and {min_revision} does not exist; give a "
                    "revision of this partition",
                    "conflict",
                )
            if self._given.steady() > deadline:
                raise self._behind(found, min_revision)
            try:
                await found.catch_up()
            except JournalError as problem:
                raise Unserved("unavailable", f"the records cannot be read: {problem}", 1) from None
            if found.seq < min_revision:
                await asyncio.sleep(PAUSE)
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

    async def removed(self, name: str) -> int:
        """Return an epoch above all epochs of a removed partition; 0 if no such partition ever existed."""
        self._supervisor.need_serving()
        if name in self.names():
            return 0

        def read(journal: Journal) -> tuple[int, bool]:
            epoch = journal.epoch(stream_of(name))
            # Read after the epoch: another server may have just added the partition, or may be removing it.
            configured, _ = restore_cluster(journal)
            return epoch, name in dict(configured.partitions) or stream_of(name) in journal.streams()

        try:
            epoch, exists = await self._streams.reader.run(read)
        except JournalError as problem:
            raise Unserved("unavailable", f"the records cannot be read: {problem}", 1) from None
        if exists:
            raise Unserved("unavailable", f"partition {name} is being added or removed; ask again in a moment", 1)
        return epoch

    async def drain(self, member: str, draining: bool) -> bool:
        """Drain a server, so that it leads nothing, or enable it again. False if no other server could lead."""
        self._supervisor.need_serving()
        try:
            done = await self._heartbeat.drain(member, draining)
        except JournalError as problem:
            raise Unserved("unavailable", f"nothing was done: {problem}", 1) from None
        self._streams.wake.set()
        return done
