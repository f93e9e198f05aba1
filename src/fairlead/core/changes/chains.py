"""Changes of chains: tasks wait behind others for their rooms, take them over, or are asked back.

Tasks in a chain have no devices, so that a part of an allocation is the same with other indices.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.core.changes.base import Change
from fairlead.core.changes.jobs import give_back, take
from fairlead.core.lifecycle import TASK
from fairlead.core.model import Allocation, Micros, Reservation
from fairlead.core.ranges import difference
from fairlead.core.state import Partition


class Measured(Change, frozen=True, tag="measured"):
    """About how long the tasks of a stage run; None for those that are not quick."""

    job: str
    stage: int
    ran: Micros | None = None

    def apply(self, p: Partition) -> Micros | None:
        stage = p.jobs[self.job].stages[self.stage]
        before, stage.ran = stage.ran, self.ran
        return before

    def undo(self, p: Partition, kept: Micros | None) -> None:
        p.jobs[self.job].stages[self.stage].ran = kept


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

    def apply(self, p: Partition) -> tuple[Reservation | None, Allocation, bool, int, Micros | None, int]:
        front = p.allocations[self.allocation]
        stage = front.stage
        begins = not front.chain
        kept = (front, begins, stage.top, stage.short_since, p.counters.allocation)
        TASK.check("pending", "assigned")
        if begins:
            front.chain = front.id
            p.link(front)
        dropped = take(p, stage, self.kind, self.indices)
        p.book(
            Allocation(
                self.into,
                stage,
                front.node,
                self.indices,
                self.attempt,
                (),
                "assigned",
                p.now,
                kind=self.kind,
                chain=front.chain,
                rooms=self.rooms,
            )
        )
        stage.top = max(stage.top, self.attempt)
        p.counters.allocation = max(p.counters.allocation, self.into + 1)
        p.look_short(stage)
        return (dropped, *kept)

    def undo(self, p: Partition, kept: tuple[Reservation | None, Allocation, bool, int, Micros | None, int]) -> None:
        dropped, front, begins, top, short_since, p.counters.allocation = kept
        front.stage.top = top
        p.unbook(p.allocations[self.into], moves=True)
        give_back(p, front.stage, self.kind, self.indices, dropped)
        p.mark_short(front.stage, short_since)
        if begins:
            p.unlink(front)
            front.chain = 0


class RoomPassed(Change, frozen=True, tag="room passed"):
    """Tasks of a chain take over a room that became free, or turn out to wait (for one of so many `rooms`)."""

    allocation: int
    indices: tuple[int, ...]
    rooms: int = 0
    into: int = 0

    def apply(self, p: Partition) -> tuple[Allocation, int]:
        before = p.allocations[self.allocation]
        counter = p.counters.allocation
        rest = difference(before.indices, self.indices)
        p.unbook(before, moves=True)
        number = before.id
        if rest:
            p.book(msgspec.structs.replace(before, indices=rest))
            number = self.into
            p.counters.allocation = max(counter, number + 1)
        p.book(msgspec.structs.replace(before, id=number, indices=self.indices, since=p.now, rooms=self.rooms))
        return before, counter

    def undo(self, p: Partition, kept: tuple[Allocation, int]) -> None:
        before, p.counters.allocation = kept
        if self.into:
            p.unbook(p.allocations[self.into], moves=True)
        p.unbook(p.allocations[self.allocation], moves=True)
        p.book(before)


class CalledBack(Change, frozen=True, tag="called back"):
    """Tasks that wait in a chain are asked back. Those that their agent has started meanwhile go on."""

    allocation: int

    def apply(self, p: Partition) -> Allocation:
        before = p.allocations[self.allocation]
        TASK.check(before.state, "pending")
        p.unbook(before, moves=True)
        p.book(msgspec.structs.replace(before, since=p.now, cause="return"))
        return before

    def undo(self, p: Partition, kept: Allocation) -> None:
        p.unbook(p.allocations[self.allocation], moves=True)
        p.book(kept)


CHANGES: tuple[type[Any], ...] = (Measured, Chained, RoomPassed, CalledBack)
