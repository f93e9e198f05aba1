"""Changes of shares: the time since which queues are too far from their shares, and the landmark of past use."""

from __future__ import annotations

import msgspec

from fairlead.core.changes.change import Change
from fairlead.core.model import Micros
from fairlead.core.policy.decay import after_shift
from fairlead.core.resources import Vector
from fairlead.core.state import Partition


class SpreadSeen(Change[Micros | None], frozen=True, tag="spread seen"):
    """Records since when the use of a queue's children has been too far from their shares; None if it no longer is."""

    queue: str
    since: Micros | None

    def apply(self, partition: Partition) -> Micros | None:
        before = partition.queues[self.queue].uneven_since
        partition.mark_uneven(partition.queues[self.queue], self.since)
        return before

    def undo(self, partition: Partition, before: Micros | None) -> None:
        partition.mark_uneven(partition.queues[self.queue], before)


class LandmarkMovedUndo(msgspec.Struct, frozen=True, gc=False):
    landmark: Micros
    booked: dict[tuple[str, str], Vector]
    """Queue path and user → `Account.booked`."""


class LandmarkMoved(Change[LandmarkMovedUndo], frozen=True, tag="landmark moved"):
    """Moves the landmark, the time from which the weights of past use count, by whole half-lives.

    Past use grows in weight with the time since the landmark. Moving it keeps the numbers small.
    """

    landmark: Micros

    def apply(self, partition: Partition) -> LandmarkMovedUndo:
        doublings, rest = divmod(self.landmark - partition.landmark, partition.settings.share_memory)
        if rest or doublings < 0 or self.landmark > partition.now:
            raise ValueError(f"the landmark cannot move from {partition.landmark} to {self.landmark}")
        before = LandmarkMovedUndo(partition.landmark, {})
        for path, user, account in partition.remembered():
            before.booked[path, user] = account.booked or {}
            account.booked = after_shift(account.booked or {}, doublings)
        partition.landmark = self.landmark
        return before

    def undo(self, partition: Partition, before: LandmarkMovedUndo) -> None:
        partition.landmark = before.landmark
        for (path, user), booked in before.booked.items():
            queue = partition.queues[path]
            account = partition.account_of(queue, user) if user else queue.account
            account.booked = booked
