"""Changes of blocks of tasks: placed, acknowledged, told to stop, and not stopped in time.

An allocation has one state. When only some of its tasks change state, these tasks get a new allocation, whose number is
the field `into` of the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any

import msgspec

from fairlead.core.changes.change import NAMED, Change, Line, Names, TaskNews
from fairlead.core.changes.stages import give_back, take
from fairlead.core.lifecycle import TASK
from fairlead.core.model import KINDS, Allocation, Ask, JobState, Members, Micros, Stage, StopCause
from fairlead.core.ranges import count, difference, indices
from fairlead.core.state import Partition


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The tasks of a block that are placed on one node, and their devices in the order of the tasks."""

    node: int
    indices: tuple[int, ...]
    devices: tuple[int, ...] = ()


class PlacedUndo(msgspec.Struct, frozen=True, gc=False):
    stage: Stage
    completed_ask: Ask | None
    job_state: JobState
    started: bool
    top: int
    short_since: Micros | None
    next_allocation: int
    generation: int
    members: Members


class Placed(Change[PlacedUndo], frozen=True, tag="placed"):
    """Assigns a block of pending tasks to nodes, under one new attempt. Allocations are numbered from `first`.

    Tasks of a resource manager count as running immediately, because managers do not acknowledge launches.
    """

    job: str
    stage: int
    kind: int
    attempt: int
    first: int
    parts: tuple[Part, ...]
    group: int = 0
    """For a gang, the number of its first allocation. If a member fails before all are acknowledged, all start again.
    A whole job is one gang, with one `Placed` per stage."""
    safe_until: Micros = 0
    expected: Micros | None = None
    """The expected run time, if it was learned."""
    generation: int = 0
    """The generation of the gang that the tasks are members of; 0 without a gang."""

    def apply(self, partition: Partition) -> PlacedUndo:
        job = partition.jobs[self.job]
        stage = job.stages[self.stage]
        job_state, started, top = job.state, stage.started, stage.top
        short_since, counter = stage.short_since, partition.counters.allocation
        generation, members = stage.generation, stage.members
        managed = bool(job.manager)
        completed: Ask | None = None
        number = self.first
        for part in self.parts:
            # Only the part that places the last pending tasks completes the ask.
            completed = take(partition, stage, self.kind, part.indices) or completed
            partition.book(
                Allocation(
                    number,
                    stage,
                    part.node,
                    part.indices,
                    self.attempt,
                    part.devices,
                    "running" if managed else "assigned",
                    partition.now,
                    partition.now if managed else None,
                    "",
                    self.kind,
                    self.group,
                    safe_until=self.safe_until,
                    expected=self.expected,
                    generation=self.generation,
                )
            )
            number += 1
        if stage.ran is not None:
            partition.touched.quick += range(self.first, number)
        if job_state == "pending":
            job.state = "running"
        if self.generation and (started or not job.whole):  # a whole job gets its ranks when all stages are placed
            if self.generation != generation:
                stage.generation, stage.members = self.generation, ()
            stage.members = joined(stage, [part.indices for part in self.parts])
        stage.started = True
        stage.top = max(top, self.attempt)
        partition.update_short(stage)
        partition.counters.allocation = max(counter, number)
        return PlacedUndo(stage, completed, job_state, started, top, short_since, counter, generation, members)

    def undo(self, partition: Partition, before: PlacedUndo) -> None:
        stage = before.stage
        stage.job.state, stage.started, stage.top = before.job_state, before.started, before.top
        stage.generation, stage.members = before.generation, before.members
        partition.counters.allocation = before.next_allocation
        ask = before.completed_ask
        for offset, part in reversed(list(enumerate(self.parts))):
            partition.unbook(partition.allocations[self.first + offset])
            give_back(partition, stage, self.kind, part.indices, ask)
            ask = None
        partition.mark_short(stage, before.short_since)

    @property
    def tasks(self) -> int:
        """Return the number of tasks in the block."""
        parts = self.parts
        return count(parts[0].indices) if len(parts) == 1 else sum(count(part.indices) for part in parts)

    def allocations_to_send(self) -> Iterable[int]:
        return range(self.first, self.first + len(self.parts))

    def news(self, partition: Partition, before: PlacedUndo) -> Iterable[TaskNews]:
        return [
            TaskNews("placed", before.stage, part.indices, self.attempt, part.node, devices=part.devices)
            for part in self.parts
        ]

    def manager_to_notify(self, partition: Partition, before: PlacedUndo) -> str:
        return before.stage.job.manager

    def demand(self, before: PlacedUndo) -> Iterable[tuple[Stage, int]]:
        return ((before.stage, -self.tasks),)

    def counts(self, partition: Partition, before: PlacedUndo) -> Iterable[tuple[str, int]]:
        return (("placed", self.tasks),)

    def completed(self, before: PlacedUndo) -> Iterable[Ask]:
        return () if before.completed_ask is None else (before.completed_ask,)

    def lines(self, names: Names, before: PlacedUndo) -> Iterator[Line]:
        nodes = list(dict.fromkeys(part.node for part in self.parts))
        gang = self.group > 0
        yield placement(names, before.stage, self.kind, self.attempt, self.tasks, gang, nodes, before.completed_ask)


class MovedUndo(msgspec.Struct, frozen=True, gc=False):
    """State before tasks of an allocation changed state."""

    allocation: Allocation
    next_allocation: int
    short_since: Micros | None


class Acknowledged(Change[MovedUndo], frozen=True, tag="acknowledged"):
    """Records an agent's report that tasks run and have done so for `ran` microseconds.

    Tasks that ran already are acknowledged anew after data were set back.
    """

    allocation: int
    indices: tuple[int, ...]
    into: int = 0
    ran: Micros = 0

    def apply(self, partition: Partition) -> MovedUndo:
        before = partition.allocations[self.allocation]
        if before.state == "running" and before.known_until and before.started is not None:
            return _move(partition, before, self.indices, self.into, "running", "", before.started)
        TASK.check(before.state, "running")
        # The agent's clock may be wrong: no task runs before it was placed.
        began = max(before.since, partition.now - self.ran)
        return _move(partition, before, self.indices, self.into, "running", "", began)

    def undo(self, partition: Partition, before: MovedUndo) -> None:
        _move_back(partition, self.allocation, self.into, before)

    def news(self, partition: Partition, before: MovedUndo) -> Iterable[TaskNews]:
        allocation = before.allocation
        if allocation.state == "running":
            return ()
        return (TaskNews("running", allocation.stage, self.indices, allocation.attempt, allocation.node),)

    def counts(self, partition: Partition, before: MovedUndo) -> Iterable[tuple[str, int]]:
        return () if before.allocation.state == "running" else (("acknowledged", count(self.indices)),)


class Stopped(Change[MovedUndo], frozen=True, tag="stopped"):
    """Tells tasks to stop. They keep their capacity until their agent confirms that they have stopped."""

    allocation: int
    indices: tuple[int, ...]
    cause: StopCause
    into: int = 0
    stopped_for: str = ""

    def apply(self, partition: Partition) -> MovedUndo:
        before = partition.allocations[self.allocation]
        TASK.check(before.state, "stopping")
        partition.derived.stops_version += 1
        now = partition.now
        return _move(partition, before, self.indices, self.into, "stopping", self.cause, now, self.stopped_for)

    def undo(self, partition: Partition, before: MovedUndo) -> None:
        _move_back(partition, self.allocation, self.into, before)

    def allocations_to_send(self) -> Iterable[int]:
        return (self.into or self.allocation,)

    def news(self, partition: Partition, before: MovedUndo) -> Iterable[TaskNews]:
        stage, attempt, node = before.allocation.stage, before.allocation.attempt, before.allocation.node
        return (TaskNews("stopping", stage, self.indices, attempt, node, reason=self.cause),)

    def manager_to_notify(self, partition: Partition, before: MovedUndo) -> str:
        return before.allocation.stage.job.manager

    def lines(self, names: Names, before: MovedUndo) -> Iterator[Line]:
        if self.cause != "gang":  # `views.decision_log` has one line for the whole gang
            stage = before.allocation.stage
            fields = {
                "job": stage.job.id,
                "stage": stage.name,
                "cause": self.cause,
                "for": self.stopped_for,
                "tasks": count(self.indices),
                "nodes": 1,
                "on": [names.node(before.allocation.node)],
            }
            yield Line("info", "tasks stopped", fields)


class StopOverdue(Change[Allocation], frozen=True, tag="stop overdue"):
    """Marks tasks that did not stop in time. Nothing counts on their capacity any more."""

    allocation: int

    warns = True

    def apply(self, partition: Partition) -> Allocation:
        before = partition.allocations[self.allocation]
        if before.state != "stopping" or before.overdue:
            raise ValueError(f"allocation {self.allocation} is not expected to stop")
        after = copy(before)
        after.overdue = True
        partition.derived.stops_version += 1
        partition.exchange(after)
        return before

    def undo(self, partition: Partition, before: Allocation) -> None:
        partition.exchange(before)

    def lines(self, names: Names, before: Allocation) -> Iterator[Line]:
        fields = {
            **names.where(before),
            "attempt": before.attempt,
            "tasks": count(before.indices),
            "indices": list(indices(before.indices))[:NAMED],
            "cause": before.cause,
            "after": names.seconds_since(before.since),
        }
        yield Line("warning", "tasks did not stop", fields)


def joined(stage: Stage, blocks: Iterable[tuple[int, ...]]) -> Members:
    """Return the members of a stage's gang with further blocks of tasks. New members get the next free ranks."""
    members = list(stage.members)
    free = 0
    for other in stage.gang():
        for rank, first, last in other.members:
            free = max(free, rank + last - first)
    for block in blocks:
        new = block
        for _, first, last in stage.members:
            new = difference(new, (first, last))
        for at in range(0, len(new), 2):
            start, end = new[at], new[at + 1]
            rank, first, last = members[-1] if members else (0, 0, -1)
            if start == last and free == rank + last - first:
                members[-1] = (rank, first, end)
            else:
                members.append((free, start, end))
            free += end - start
    return tuple(members)


def placement(
    names: Names, stage: Stage, kind: int, attempt: int, tasks: int, gang: bool, nodes: list[int], completed: Ask | None
) -> Line:
    """Return the log line of placed tasks."""
    fields = {
        "job": stage.job.id,
        "stage": stage.name,
        "queue": stage.job.queue.path,
        "kind": KINDS[kind],
        "attempt": attempt,
        "tasks": tasks,
        "gang": gang,
        "nodes": len(nodes),
        "on": names.nodes(nodes),
        "waited_seconds": None if completed is None else names.seconds_since(completed.waiting_since),
    }
    return Line("info", "tasks placed", fields)


def part_of(
    whole: Allocation,
    block: tuple[int, ...],
    number: int,
    state: Any,
    since: int,
    started: int | None,
    cause: StopCause,
) -> Allocation:
    """Return an allocation of some tasks of `whole`, with the devices of these tasks."""
    per_task = len(whole.devices) // count(whole.indices) if whole.devices else 0
    devices: tuple[int, ...] = ()
    if per_task:
        chosen = set(indices(block))
        for position, index in enumerate(indices(whole.indices)):
            if index in chosen:
                devices += whole.devices[position * per_task : (position + 1) * per_task]
    return Allocation(
        number,
        whole.stage,
        whole.node,
        block,
        whole.attempt,
        devices,
        state,
        since,
        started,
        cause,
        whole.kind,
        whole.group,
        whole.chain,
        whole.slots,
        whole.safe_until,
        stopped_for=whole.stopped_for,
        expected=whole.expected,
        generation=whole.generation,
        known_until=whole.known_until,
    )


def _move(
    partition: Partition,
    before: Allocation,
    block: tuple[int, ...],
    into: int,
    state: Any,
    cause: StopCause,
    since: Micros,
    stopped_for: str = "",
) -> MovedUndo:
    counter, short_since = partition.counters.allocation, before.stage.short_since
    started = since if state == "running" else before.started
    if block == before.indices:
        after = copy(before)
        after.state, after.since, after.started, after.cause = state, since, started, cause
        after.stopped_for = stopped_for
        after.known_until = 0 if state == "running" else before.known_until
        partition.exchange(after)
    else:
        partition.unbook(before, moves=True)
        rest = difference(before.indices, block)
        partition.book(part_of(before, rest, before.id, before.state, before.since, before.started, before.cause))
        moved = part_of(before, block, into, state, since, started, cause)
        moved.stopped_for = stopped_for
        moved.known_until = 0 if state == "running" else before.known_until
        partition.book(moved)
        partition.counters.allocation = max(counter, into + 1)
    partition.update_short(before.stage)
    return MovedUndo(before, counter, short_since)


def _move_back(partition: Partition, number: int, into: int, before: MovedUndo) -> None:
    partition.counters.allocation = before.next_allocation
    allocation = before.allocation
    if into:
        partition.unbook(partition.allocations[into], moves=True)
        partition.unbook(partition.allocations[number], moves=True)
        partition.book(allocation)
    else:
        partition.exchange(allocation)
    partition.mark_short(allocation.stage, before.short_since)
