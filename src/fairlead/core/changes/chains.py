"""Changes of chains: tasks wait on a node for a slot (the capacity of one task), take one over, or are recalled.

Tasks in a chain have no devices, so a part of an allocation is known by its indices alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from fairlead.core.changes.change import Change, Line, Names, TaskNews
from fairlead.core.changes.stages import give_back, take
from fairlead.core.lifecycle import TASK
from fairlead.core.model import KINDS, Allocation, Ask, Micros, Stage
from fairlead.core.ranges import count, difference
from fairlead.core.state import Partition


class Measured(Change[Micros | None], frozen=True, tag="measured"):
    """Sets the measured run time of the tasks of a stage; None if they run too long for chains."""

    job: str
    stage: int
    ran: Micros | None = None

    def apply(self, partition: Partition) -> Micros | None:
        stage = partition.jobs[self.job].stages[self.stage]
        before, stage.ran = stage.ran, self.ran
        return before

    def undo(self, partition: Partition, before: Micros | None) -> None:
        partition.jobs[self.job].stages[self.stage].ran = before


class ChainedUndo(msgspec.Struct, frozen=True, gc=False):
    front: Allocation
    """The allocation behind which the tasks wait."""
    completed_ask: Ask | None
    begins_chain: bool
    top: int
    short_since: Micros | None
    next_allocation: int


class Chained(Change[ChainedUndo], frozen=True, tag="chained"):
    """Assigns pending tasks to a node, under a new attempt. There they wait for slots of a running allocation."""

    allocation: int
    """The running allocation. If it is in no chain yet, this change begins one."""
    kind: int
    indices: tuple[int, ...]
    attempt: int
    into: int
    """The number of the new allocation of the waiting tasks."""
    slots: int
    """The number of slots for which the tasks wait."""

    def apply(self, partition: Partition) -> ChainedUndo:
        front = partition.allocations[self.allocation]
        stage = front.stage
        begins = not front.chain
        top, short_since, counter = stage.top, stage.short_since, partition.counters.allocation
        TASK.check("pending", "assigned")
        if begins:
            front.chain = front.id
            partition.link(front)
        completed = take(partition, stage, self.kind, self.indices)
        if completed is not None and partition.backfills:
            partition.wake()  # other asks may have been kept back for it
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
                slots=self.slots,
            )
        )
        stage.top = max(top, self.attempt)
        partition.counters.allocation = max(counter, self.into + 1)
        partition.update_short(stage)
        return ChainedUndo(front, completed, begins, top, short_since, counter)

    def undo(self, partition: Partition, before: ChainedUndo) -> None:
        front = before.front
        partition.counters.allocation = before.next_allocation
        front.stage.top = before.top
        partition.unbook(partition.allocations[self.into], moves=True)
        give_back(partition, front.stage, self.kind, self.indices, before.completed_ask)
        partition.mark_short(front.stage, before.short_since)
        if before.begins_chain:
            partition.unlink(front)
            front.chain = 0

    def allocations_to_send(self) -> Iterable[int]:
        return (self.into,)

    def news(self, partition: Partition, before: ChainedUndo) -> Iterable[TaskNews]:
        return (TaskNews("placed", before.front.stage, self.indices, self.attempt, before.front.node),)

    def demand(self, before: ChainedUndo) -> Iterable[tuple[Stage, int]]:
        return ((before.front.stage, -count(self.indices)),)

    def counts(self, partition: Partition, before: ChainedUndo) -> Iterable[tuple[str, int]]:
        return (("placed", count(self.indices)),)

    def completed(self, before: ChainedUndo) -> Iterable[Ask]:
        return () if before.completed_ask is None else (before.completed_ask,)

    def lines(self, names: Names, before: ChainedUndo) -> Iterator[Line]:
        fields = {"kind": KINDS[self.kind], "attempt": self.attempt, "tasks": count(self.indices)}
        yield Line("info", "tasks sent ahead", {**names.where(before.front), **fields, "slots": self.slots})


class SlotPassedUndo(msgspec.Struct, frozen=True, gc=False):
    allocation: Allocation
    next_allocation: int


class SlotPassed(Change[SlotPassedUndo], frozen=True, tag="room passed"):
    """Gives free slots of a chain to its waiting tasks (`slots` is 0), or sets for how many slots tasks wait."""

    allocation: int
    indices: tuple[int, ...]
    slots: int = 0
    into: int = 0

    def apply(self, partition: Partition) -> SlotPassedUndo:
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
            msgspec.structs.replace(before, id=number, indices=self.indices, since=partition.now, slots=self.slots)
        )
        return SlotPassedUndo(before, counter)

    def undo(self, partition: Partition, before: SlotPassedUndo) -> None:
        partition.counters.allocation = before.next_allocation
        if self.into:
            partition.unbook(partition.allocations[self.into], moves=True)
        partition.unbook(partition.allocations[self.allocation], moves=True)
        partition.book(before.allocation)


class Recalled(Change[Allocation], frozen=True, tag="called back"):
    """Asks an agent to give back tasks that wait in a chain. Tasks that it has already started keep running."""

    allocation: int

    def apply(self, partition: Partition) -> Allocation:
        before = partition.allocations[self.allocation]
        TASK.check(before.state, "pending")
        partition.unbook(before, moves=True)
        partition.book(msgspec.structs.replace(before, since=partition.now, cause="return"))
        return before

    def undo(self, partition: Partition, before: Allocation) -> None:
        partition.unbook(partition.allocations[self.allocation], moves=True)
        partition.book(before)

    def allocations_to_send(self) -> Iterable[int]:
        return (self.allocation,)

    def lines(self, names: Names, before: Allocation) -> Iterator[Line]:
        yield Line("info", "tasks recalled", {**names.where(before), "tasks": count(before.indices)})
