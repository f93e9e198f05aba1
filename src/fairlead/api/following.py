"""A read-only copy of a partition that another server leads, replayed from the journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fairlead.api.problems import Unserved
from fairlead.api.service import note_revision
from fairlead.core.model import Micros
from fairlead.core.reasons import Reason
from fairlead.core.state import Partition, Touched
from fairlead.journal.base import Journal, JournalError
from fairlead.journal.codec import replay, restore, stream_of
from fairlead.writer.clock import Clock
from fairlead.writer.loop import WriterThread

Result = TypeVar("Result")


class FollowedPartition:
    """Replays the records of a partition. `thread` uses the journal; its lock keeps replays and readers apart."""

    def __init__(self, name: str, journal: Callable[[], Journal], thread: WriterThread, now: Clock) -> None:
        self.name = name
        self.seq = 0
        """The last record that was replayed."""
        self.reasons: dict[tuple[str, str, int], Reason] = {}
        """Always empty: reasons are not journaled, and only the leader knows them."""
        self._now = now
        self._journal = journal
        self._state: Partition | None = None
        self.thread = thread

    @property
    def partition(self) -> Partition | None:
        """The state; None if it could not be read yet."""
        return self._state

    @property
    def now(self) -> Micros:
        return max(self._now(), 0 if self._state is None else self._state.now)

    async def read(self, look: Callable[[Partition], Result]) -> Result:
        """Call `look` with the state. It must be quick, because it delays all followed partitions."""
        async with self.thread.lock:
            if self._state is None:
                raise Unserved("unavailable", f"this server does not follow partition {self.name} now; ask again", 1)
            note_revision(self.seq)
            return look(self._state)

    async def catch_up(self) -> None:
        """Replay all records that were written before this call. Raises `JournalError`."""
        await self.thread.alone(self.replay_new)

    def replay_new(self) -> None:
        """Replay new records, in the thread."""
        state, self._state = self._state, None  # after an error, start again from the newest snapshot
        if state is None:
            state, self.seq = restore(self._journal(), self.name)
        else:
            stream = stream_of(self.name)
            try:
                for record in self._journal().read(stream, self.seq):
                    replay(state, record.payload, f"record {record.seq} of {stream}")
                    self.seq = record.seq
            except JournalError:
                # Records before the newest snapshot are deleted, and a stream may have been dropped and created again.
                state, self.seq = restore(self._journal(), self.name)
            state.touched = Touched()
        self._state = state
