"""Changes of shares: the time since which queues are too far from their shares."""

from __future__ import annotations

from fairlead.core.changes.base import Change
from fairlead.core.model import Micros
from fairlead.core.state import Partition

__all__ = ["SpreadSeen"]


class SpreadSeen(Change[Micros | None], frozen=True, tag="spread seen"):
    """The children of a queue are further from their shares than the threshold, since a time; None: not any more."""

    queue: str
    since: Micros | None

    def apply(self, partition: Partition) -> Micros | None:
        before = partition.queues[self.queue].uneven_since
        partition.mark_uneven(partition.queues[self.queue], self.since)
        return before

    def undo(self, partition: Partition, before: Micros | None) -> None:
        partition.mark_uneven(partition.queues[self.queue], before)
