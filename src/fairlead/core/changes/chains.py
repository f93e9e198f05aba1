"""Changes of chains: tasks wait behind others for their rooms, take them over, or are asked back.

Tasks in a chain have no devices, so that a part of an allocation is the same with other indices.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.core.changes.base import Change
from fairlead.core.changes.jobs import give_back, take
from fairlead.core.lifecycle import TASK
from fairlead.core.model import Allocation, Ask, Micros
from fairlead.core.ranges import difference
from fairlead.core.state import Partition


class Measured(Change, frozen=True, tag="measured"):
    """About how long the tasks of a stage run; None for those that are not quick."""

    job: str
    stage: int
    ran: Micros | None = None

    def apply(self, partition: Partition) -> Micros | None:
        stage = partition.jobs[self.job].stages[self.stage]
        before, stage.ran = stage.ran, self.ran
        return before

    def undo(self, partition: Partition, kept: Micros | None) -> None:
        partition.jobs[self.job].stages[self.stage].ran = kept


class Chained(Change, frozen=True, tag="chained"):
    """Pending tasks are assigned, under a new attempt, to wait behind an allocation for its chain's rooms."""

    allocation: int
    """One that has a room; if it is in no chain yet, it is the first of one."""
    kind: int
    indices: tuple[int, ...]
    attempt: int
    into: int
    """The number of the allocation of those that wait."""
    rooms: int
    """How many the chain has."""

    def apply(self, partition: Partition) -> tuple[Ask | None, Allocation, bool, int, Micros | None, int]:
        front = partition.allocations[self.allocation]
        stage = front.stage
        begins = not front.chain
        kept = (front, begins, stage.top, stage.short_since, partition.counters.allocation)
        TASK.check("pending", "assigned")
        if begins:
            front.chain = front.id
            partition.link(front)
        dropped = take(partition, stage, self.kind, self.indices)
        partition.book(
            Allocation(
                self.into,
                stage,
                front.node,
                self.indices,
                self.attempt,
                (),
                "assigned",
                partition.now,
                kind=self.kind,
                chain=front.chain,
                rooms=self.rooms,
            )
        )
        stage.top = max(stage.top, self.attempt)
        partition.counters.allocation = max(partition.counters.allocation, self.into + 1)
        partition.update_short(stage)
        return (dropped, *kept)

    def undo(self, partition: Partition, kept: tuple[Ask | None, Allocation, bool, int, Micros | None, int]) -> None:
        dropped, front, begins, top, short_since, partition.counters.allocation = kept
        front.stage.top = top
        partition.unbook(partition.allocations[self.into], moves=True)
        give_back(partition, front.stage, self.kind, self.indices, dropped)
        partition.mark_short(front.stage, short_since)
        if begins:
            partition.unlink(front)
            front.chain = 0


class RoomPassed(Change, frozen=True, tag="room passed"):
    """Tasks of a chain take over a room that became free, or turn out to wait (for one of so many `rooms`)."""

    allocation: int
    indices: tuple[int, ...]
    rooms: int = 0
    into: int = 0

    def apply(self, partition: Partition) -> tuple[Allocation, int]:
        before = partition.allocations[self.allocation]
        counter = partition.counters.allocation
        rest = difference(before.indices, self.indices)
        partition.unbook(before, moves=True)
        number = before.id
        if rest:
            partition.book(msgspec.structs.replace(before, indices=rest))
            number = self.into
            partition.counters.allocation = max(counter, number + 1)
        partition.book(
            msgspec.structs.replace(before, id=number, indices=self.indices, since=partition.now, rooms=self.rooms)
        )
        return before, counter

    def undo(self, partition: Partition, kept: tuple[Allocation, int]) -> None:
        before, partition.counters.allocation = kept
        if self.into:
            partition.unbook(partition.allocations[self.into], moves=True)
        partition.unbook(partition.allocations[self.allocation], moves=True)
        partition.book(before)


class CalledBack(Change, frozen=True, tag="called back"):
    """Tasks that wait in a chain are asked back. Those that their agent has started meanwhile go on."""

    allocation: int

    def apply(self, partition: Partition) -> Allocation:
        before = partition.allocations[self.allocation]
        TASK.check(before.state, "pending")
        partition.unbook(before, moves=True)
        partition.book(msgspec.structs.replace(before, since=partition.now, cause="return"))
        return before

    def undo(self, partition: Partition, kept: Allocation) -> None:
        partition.unbook(partition.allocations[self.allocation], moves=True)
        partition.book(kept)


CHANGES: tuple[type[Any], ...] = (Measured, Chained, RoomPassed, CalledBack)
