"""Read-only copies of the partitions that other servers lead, replayed from the journal."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from fairlead.control.configuration import ClusterConfiguration
from fairlead.control.dependencies import Dependencies
from fairlead.control.heartbeat import Heartbeat
from fairlead.control.partition import note_revision
from fairlead.control.streams import JournalThread, Streams
from fairlead.control.walltime import Nanoseconds
from fairlead.core.model import Micros
from fairlead.core.settings import PartitionConfig
from fairlead.core.state import Partition, Touched
from fairlead.core.why.reasons import Reason
from fairlead.journal.codec import replay, restore, stream_of
from fairlead.journal.journal import Damaged, Journal, JournalError
from fairlead.wire.unserved import Unserved
from fairlead.writer.cluster import try_configuration

Result = TypeVar("Result")


class Follower:
    """The partitions that this server follows. One thread replays all of them."""

    def __init__(
        self, given: Dependencies, heartbeat: Heartbeat, streams: Streams, configuration: ClusterConfiguration
    ) -> None:
        self.followed: dict[str, FollowedPartition] = {}
        self.damaged: set[str] = set()
        """Partitions whose journal was found to be damaged when it was read last."""
        self._problems: dict[str, str] = {}
        """Partition → why it cannot be followed at present."""
        self._given = given
        self._heartbeat = heartbeat
        self._streams = streams
        self._configuration = configuration

    def follow(self, led: Collection[str]) -> None:
        """Bring the copies of all partitions up to date, except those in `led`, which this server leads."""
        names, leases = self._configuration.names(), self._heartbeat.membership.leases
        for name in [name for name in self.followed if name in led or name not in names]:
            del self.followed[name]
            self.damaged.discard(name)
        for name in names:
            stream = stream_of(name)
            if name in led or self._streams.busy(stream) or stream not in leases:
                continue
            if name not in self.followed:
                self.followed[name] = FollowedPartition(name, self._streams.reader, self._given.wall)
            followed = self.followed[name]
            if followed.partition is None or followed.seq != leases[stream].seq:
                self._streams.begin(stream, self._catch_up(followed))

    async def _catch_up(self, followed: FollowedPartition) -> None:
        try:
            await followed.catch_up()
        except JournalError as problem:
            if self._problems.get(followed.name) != str(problem):  # it is tried again with each heartbeat
                self._given.note(f"partition {followed.name} is not followed: {problem}")
            self._problems[followed.name] = str(problem)
            if isinstance(problem, Damaged):
                self.damaged.add(followed.name)
        else:
            self._problems.pop(followed.name, None)
            self.damaged.discard(followed.name)


class FollowedPartition:
    """A copy of a partition that another server leads. Its thread's lock is held by each replay and each reader."""

    def __init__(self, name: str, journal: JournalThread, wall: Nanoseconds) -> None:
        self.name = name
        self.seq = 0
        """The number of the last replayed record."""
        self.reasons: dict[tuple[str, str, int], Reason] = {}
        """Empty, because reasons are not in the journal."""
        self._wall = wall
        self._journal = journal
        self._state: Partition | None = None

    @property
    def partition(self) -> Partition | None:
        """The state; None if it has not been read yet."""
        return self._state

    @property
    def now(self) -> Micros:
        return max(self._wall() // 1000, 0 if self._state is None else self._state.now)

    async def read(self, query: Callable[[Partition], Result]) -> Result:
        """Call `query` with the state. It blocks the replay of all partitions, so it must be quick."""
        async with self._journal.thread.lock:
            if self._state is None:
                raise Unserved("unavailable", f"this server does not follow partition {self.name} now; ask again", 1)
            note_revision(self.seq)
            return query(self._state)

    async def catch_up(self) -> None:
        """Replay all records that were written before this call. Raise `JournalError` if they cannot be read."""
        await self._journal.run(self._replay)

    async def try_configuration(self, config: PartitionConfig) -> None:
        """Raise `Refused` if the partition, as of its last record, rejects a configuration."""
        await self._journal.run(lambda journal: try_configuration(self._replay(journal), config, self.now))

    def _replay(self, journal: Journal) -> Partition:
        state, self._state = self._state, None  # after an error, start again from the newest snapshot
        if state is None:
            state, self.seq = restore(journal, self.name)
        else:
            stream = stream_of(self.name)
            try:
                for record in journal.read(stream, self.seq):
                    replay(state, record.payload, f"record {record.seq} of {stream}")
                    self.seq = record.seq
            except JournalError:
                # Records before the newest snapshot are deleted, and a stream may have been dropped and created again.
                state, self.seq = restore(journal, self.name)
            state.touched = Touched()
        self._state = state
        return state
