"""The control plane of one server: the partitions that it leads, and those of other servers that it follows."""

from __future__ import annotations

import asyncio

from fairlead.control.configurator import Configurator
from fairlead.control.dependencies import Dependencies
from fairlead.control.follower import FollowedPartition
from fairlead.control.partition import PartitionService
from fairlead.control.streams import LAPSED
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
    """The control plane as requests use it: finds, reads and configures partitions."""

    def __init__(self, given: Dependencies) -> None:
        self._given = given
        self._supervisor = supervisor = Supervisor(given)
        self._streams = supervisor.streams
        self._configuration = supervisor.configuration
        self._leader = supervisor.leader
        self.pools = given.pools
        self.names = self._configuration.names
        self.named = self._configuration.named
        self.start = supervisor.start
        self.close = supervisor.close
        self.configure = Configurator(supervisor, given.steady).configure

    @property
    def now(self) -> Micros:
        """The time of the writers' clocks."""
        return self._leader.now

    @property
    def problem(self) -> str:
        """Why requests are not served now; empty if they are. It names no file, because every caller may read it."""
        problems = self._streams.problems
        found = self._supervisor.problem or next((problems[stream] for stream in sorted(problems)), "")
        if not found and not self._leader.served:
            leases = self.membership.leases.values()
            leaders = sorted({lease.address or "another server" for lease in leases if lease.holder})
            found = f"this server stands by; {', '.join(leaders) or 'no server'} leads"
        return found

    @property
    def membership(self) -> Membership:
        """The servers of the cluster and their leases, as of the last heartbeat."""
        return self._supervisor.heartbeat.membership

    @property
    def configured(self) -> tuple[int, dict[str, PartitionConfig]]:
        """The version of the configuration, and the configuration."""
        self._supervisor.need_serving()
        return self._configuration.current.version, self._configuration.partitions

    @property
    def last_configured(self) -> dict[str, PartitionConfig]:
        """The configuration that was read last, even if this server serves no requests now."""
        return self._configuration.partitions

    @property
    def damaged(self) -> list[str]:
        """The partitions that this server follows, and whose journal is damaged."""
        return sorted(self._supervisor.follower.damaged)

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
        """Return a partition that this server leads. If `name` is empty, it is the only one, or the one called default.

        Raise `Unserved`, with the leader's address, if another server leads it.
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
        """Return a partition that this server leads or follows, when it has reached `min_revision`.

        Raise `Unserved` if it has not after `REVISION_SECONDS`.
        """
        try:
            found: PartitionService | FollowedPartition = self.find(name)
        except Unserved:
            name = self.named(name)
            if self._supervisor.problem or name not in self._supervisor.follower.followed:
                raise
            found = self._supervisor.follower.followed[name]
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
        """Return an epoch above all epochs of a removed partition; 0 if the partition exists or never existed."""
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
        """Drain a server, so that it leads nothing, or enable it again. Return False if no other server can lead."""
        self._supervisor.need_serving()
        try:
            done = await self._supervisor.heartbeat.drain(member, draining)
        except JournalError as problem:
            raise Unserved("unavailable", f"nothing was done: {problem}", 1) from None
        self._streams.wake.set()
        return done
