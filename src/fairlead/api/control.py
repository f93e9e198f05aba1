"""The control plane of one server: the partitions that it leads, and those of other servers that it follows.

`Control` is its interface for requests. `Looking` decides which partitions this server leads, `Leading` starts and
stops leading, `Configuring` applies configurations; they share the state in `Plane`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from fairlead.api.configuring import Configuring
from fairlead.api.following import FollowedPartition
from fairlead.api.leading import Leading
from fairlead.api.looking import Looking
from fairlead.api.plane import LAPSED, LOOK_AGAIN, Plane
from fairlead.api.problems import Unserved
from fairlead.api.service import AfterCycle, PartitionService, accepted_in, offered
from fairlead.core.commands import Accepted, AnyCommand
from fairlead.core.errors import Refused
from fairlead.core.model import Micros
from fairlead.core.settings import PartitionConfig
from fairlead.engines.base import Engine
from fairlead.journal.base import Journal, JournalError
from fairlead.journal.codec import restore_cluster, stream_of
from fairlead.journal.roster import Roster, Standing
from fairlead.pools.service import PoolService
from fairlead.writer.clock import Steady
from fairlead.writer.loop import WriterThread
from fairlead.writer.observer import Observer

REVISION_SECONDS = 3.0
"""Seconds that a read waits for the requested revision."""


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
        """Take the parts. `first` is the configuration of a new journal; `note` is called with texts for operators.

        `leads` is called in a writer's thread after this server has taken over a partition and before it serves it.
        With a `roster`, several servers share the journal, and each stream is led through its own journal object.
        """
        self._plane = Plane(
            open_journal, engine, observers, first, after_cycle, note, pools, wall, steady, thread, leads, roster
        )
        self._leading = Leading(self._plane)
        self._looking = Looking(self._plane, self._leading)
        self._configuring = Configuring(self._plane, self._leading, self._looking)
        self.pools = self._plane.pools
        self.names = self._plane.names
        self.named = self._plane.named
        self.start = self._looking.start
        self.close = self._looking.close
        self.configure = self._configuring.configure

    @property
    def now(self) -> Micros:
        """The time of the writers' clocks."""
        return self._plane.now

    @property
    def problem(self) -> str:
        """Why requests are not served now; empty if they are. Every caller may read it, so it names no file."""
        found = self._plane.unserved() or next(
            (self._plane.problems[stream] for stream in sorted(self._plane.problems)), ""
        )
        if not found and not self._plane.served:
            leaders = sorted(
                {lease.address or "another server" for lease in self._plane.standing.leases.values() if lease.holder}
            )
            found = f"this server stands by; {', '.join(leaders) or 'no server'} leads"
        return found

    def led(self) -> list[str]:
        """Return the names of the partitions that this server leads."""
        return sorted(self._plane.served)

    def readiness(self) -> dict[str, bool]:
        """Return the readiness of each partition that this server leads."""
        return {name: service.partition.reign.ready for name, service in sorted(self._plane.served.items())}

    def find(self, name: str = "") -> PartitionService:
        """Return a partition by its name; without a name, the only one, or the one called default.

        Raises `Unserved` with the leader's address if another server leads it.
        """
        self._plane.need_serving()
        name = self._plane.named(name)
        service = self._plane.served.get(name)
        if service is not None and service.lapsed:
            self._leading.break_seat(self._plane.seats[stream_of(name)], LAPSED)
        elif service is not None:
            return service
        raise self._plane.not_led(stream_of(name), f"partition {name}")

    async def reader(self, name: str = "", min_revision: int = 0) -> PartitionService | FollowedPartition:
        """Return a partition that this server leads or follows, to read at `min_revision` or later.

        Waits at most `REVISION_SECONDS` for `min_revision`.
        """
        try:
            found: PartitionService | FollowedPartition = self.find(name)
        except Unserved:
            name = self._plane.named(name)
            if self._plane.unserved() or name not in self._plane.followed:
                raise
            found = self._plane.followed[name]
        deadline = self._plane.steady() + REVISION_SECONDS
        while found.seq < min_revision:
            if isinstance(found, PartitionService):
                raise Refused(
                    "min_revision",
                    f"partition {found.name} is at revision {found.seq}, and {min_revision} does not exist; give a "
                    "revision of this partition",
                    "conflict",
                )
            if self._plane.steady() > deadline:
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

    def leader(self, name: str) -> str:
        """Return the address of the server that leads a partition; empty if it has no leader or there is one server."""
        return self._plane.standing.leader(stream_of(name))

    async def removed(self, name: str) -> int:
        """Return an epoch above all epochs of a removed partition; 0 if no such partition ever existed."""
        self._plane.need_serving()
        if name in self._plane.names():
            return 0
        seat = self._leading.reading_seat()

        def look() -> tuple[int, bool]:
            journal = seat.opened(self._plane.open_journal)
            epoch = journal.epoch(stream_of(name))
            # Read after the epoch: another server may have just added the partition, or may be removing it.
            configured, _ = restore_cluster(journal)
            return epoch, name in dict(configured.partitions) or stream_of(name) in journal.streams()

        epoch, exists = await seat.thread.alone(look)
        if exists:
            raise Unserved("unavailable", f"partition {name} is being added or removed; ask again in a moment", 1)
        return epoch

    async def execute(self, service: PartitionService, command: AnyCommand) -> Accepted:
        """Execute a command. When this returns, the command is done and durable."""
        return await accepted_in(offered(service, command))

    @property
    def standing(self) -> Standing:
        """The members and leases, as of the last heartbeat."""
        return self._plane.standing

    async def drain(self, member: str, draining: bool) -> bool:
        """Drain a server, so that it leads nothing, or enable it again. False if no other server could lead."""
        self._plane.need_serving()
        seat = self._plane.roster_seat
        try:
            done = seat is not None and await seat.thread.alone(lambda: self._plane.roster.drain(member, draining))
        except JournalError as problem:
            raise Unserved("unavailable", f"nothing was done: {problem}", 1) from None
        self._plane.woken.set()
        return done

    @property
    def configured(self) -> tuple[int, dict[str, PartitionConfig]]:
        """The version of the configuration, and the configuration."""
        self._plane.need_serving()
        return self._plane.configured.version, dict(self._plane.configured.partitions)

    @property
    def last_configured(self) -> dict[str, PartitionConfig]:
        """The configuration that was read last, even if this server cannot serve requests now."""
        return dict(self._plane.configured.partitions)
