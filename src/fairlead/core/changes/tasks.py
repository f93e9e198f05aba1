"""Changes of tasks: placed, acknowledged, told to stop, ended. All of them speak of blocks.

An allocation is in one state. When only some of its tasks move on, those that stay keep its id and those that move
get a new one (`into`).
"""

from __future__ import annotations

from copy import copy
from typing import Any, Literal

import msgspec

from fairlead.core.changes.base import Change
from fairlead.core.changes.jobs import give_back, grow, take
from fairlead.core.lifecycle import JOB, TASK
from fairlead.core.model import (
    NOTHING_PENDING,
    Allocation,
    Ask,
    History,
    JobState,
    Micros,
    Outcome,
    Stage,
    StopCause,
)
from fairlead.core.ranges import Ranges, count, difference, indices, split
from fairlead.core.state import Partition

Moved = tuple[Allocation, int, Micros | None]
"""What was before tasks moved on: their allocation, the next number of one, and since when the stage was short."""

NOT_AGAIN = -1
"""In place of a kind: the task is not asked for again."""


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The tasks of a block that go to one node, with the devices of each in turn."""

    node: int
    indices: tuple[int, ...]
    devices: tuple[int, ...] = ()


class Placed(Change, frozen=True, tag="placed"):
    """A block of pending tasks is assigned to nodes, under one new attempt; allocations are numbered from `first`.

    A resource manager's tasks run as soon as they are placed: it is told, not asked.
    """

    job: str
    stage: int
    kind: int
    attempt: int
    first: int
    parts: tuple[Part, ...]
    group: int = 0
    """Of a gang, the number of its first allocation: until all are acknowledged, one that fails takes the others back
    with it. A whole job is one gang, with a placement for each of its stages."""
    safe_until: Micros = 0

    def apply(self, partition: Partition) -> tuple[Any, ...]:
        job = partition.jobs[self.job]
        stage = job.stages[self.stage]
        kept_state = (job.state, stage.started, stage.top, stage.short_since, partition.counters.allocation)
        managed = bool(job.manager)
        dropped: Ask | None = None
        number = self.first
        for part in self.parts:
            # The last part to empty the pending set is the one that completes the ask.
            dropped = take(partition, stage, self.kind, part.indices) or dropped
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
                )
            )
            number += 1
        if stage.ran is not None:
            partition.touched.quick += range(self.first, number)
        if job.state == "pending":
            job.state = "running"
        stage.started = True
        stage.top = max(stage.top, self.attempt)
        partition.update_short(stage)
        partition.counters.allocation = max(partition.counters.allocation, number)
        return (dropped, *kept_state)

    def undo(self, partition: Partition, kept: tuple[Any, ...]) -> None:
        job = partition.jobs[self.job]
        stage = job.stages[self.stage]
        dropped, job.state, stage.started, stage.top, short_since, partition.counters.allocation = kept
        for offset, part in reversed(list(enumerate(self.parts))):
            partition.unbook(partition.allocations[self.first + offset])
            give_back(partition, stage, self.kind, part.indices, dropped)
            dropped = None
        partition.mark_short(stage, short_since)


class Acknowledged(Change, frozen=True, tag="acknowledged"):
    """The agent has started these tasks, some time ago."""

    allocation: int
    indices: tuple[int, ...]
    into: int = 0
    ran: Micros = 0

    def apply(self, partition: Partition) -> Moved:
        before = partition.allocations[self.allocation]
        TASK.check(before.state, "running")
        # Whatever a clock elsewhere says, nothing runs before it was placed.
        began = max(before.since, partition.now - self.ran)
        return _move(partition, before, self.indices, self.into, "running", "", began)

    def undo(self, partition: Partition, kept: Moved) -> None:
        _move_back(partition, self.allocation, self.into, kept)


class Stopped(Change, frozen=True, tag="stopped"):
    """These tasks are told to stop; they keep their room until their agent confirms."""

    allocation: int
    indices: tuple[int, ...]
    cause: StopCause
    into: int = 0

    def apply(self, partition: Partition) -> Moved:
        before = partition.allocations[self.allocation]
        TASK.check(before.state, "stopping")
        partition.stops += 1
        return _move(partition, before, self.indices, self.into, "stopping", self.cause, partition.now)

    def undo(self, partition: Partition, kept: Moved) -> None:
        _move_back(partition, self.allocation, self.into, kept)


class StopOverdue(Change, frozen=True, tag="stop overdue"):
    """Tasks that were told to stop have not stopped in time: their room is not expected any more."""

    allocation: int

    def apply(self, partition: Partition) -> Allocation:
        before = partition.allocations[self.allocation]
        if before.state != "stopping" or before.overdue:
            raise ValueError(f"allocation {self.allocation} is not expected to stop")
        after = copy(before)
        after.overdue = True
        partition.stops += 1
        partition.exchange(after)
        return before

    def undo(self, partition: Partition, kept: Allocation) -> None:
        partition.exchange(kept)


class Ended(Change, frozen=True, tag="ended"):
    """Attempts end and free their room. `again` is the kind under which the tasks are pending once more.

    The outcome `pending` takes back a launch that was refused, never acknowledged, or part of a gang that was.
    """

    allocation: int
    indices: tuple[int, ...]
    outcome: Outcome | Literal["pending"]
    again: int = NOT_AGAIN
    tried: bool = False
    launch_failed: bool = False
    reason: str = ""
    exit_code: int | None = None

    def apply(self, partition: Partition) -> tuple[Allocation, dict[int, History | None], JobState, Micros | None]:
        before = partition.allocations[self.allocation]
        stage = before.stage
        kept = (stage.job.state, stage.short_since)
        TASK.check(before.state, self.outcome)
        if self.again != NOT_AGAIN and self.outcome != "pending":
            TASK.check(self.outcome, "pending")
        rest = difference(before.indices, self.indices)
        partition.unbook(before)
        if rest:
            left = _part(before, rest, before.id, before.state, before.since, before.started, before.cause)
            left.overdue = before.overdue
            partition.book(left)
        past = _write_history(stage, self._histories(stage, before))
        # A removed task (see StageScaled) leaves no trace but the floor of the stage's attempts.
        known = _below(self.indices, stage.count)
        if known and self.again != NOT_AGAIN:
            grow(stage, self.again, known)
        elif known:
            _end(stage, self.outcome, known)
        partition.update_short(stage)
        _return_job(stage)
        return (before, past, *kept)

    def undo(
        self, partition: Partition, kept: tuple[Allocation, dict[int, History | None], JobState, Micros | None]
    ) -> None:
        before, past, state, short_since = kept
        stage = before.stage
        stage.job.state = state
        known = _below(self.indices, stage.count)
        if known and self.again != NOT_AGAIN:
            _ungrow(stage, self.again, known)
        elif known:
            _unend(stage, self.outcome, known)
        _write_history(stage, past)
        if before.id in partition.allocations:
            partition.unbook(partition.allocations[before.id])
        partition.book(before)
        partition.mark_short(stage, short_since)

    def _histories(self, stage: Stage, before: Allocation) -> dict[int, History | None]:
        # Most tasks succeed at their first attempt, and of those nothing needs to be kept.
        known = stage.history or {}
        plain = self.outcome == "succeeded" and before.attempt == 1
        if plain and not known:
            return {}
        return {
            index: self._history(stage, index, before) for index in indices(self.indices) if not plain or index in known
        }

    def _history(self, stage: Stage, index: int, before: Allocation) -> History | None:
        if index >= stage.count:
            return None
        past = stage.past(index)
        # Only an acknowledgement shows that the task can be launched.
        launches = past.launches_failed if before.started is None else 0
        return History(
            before.attempt,
            past.tries_used + self.tried,
            launches + self.launch_failed,
            self.reason,
            self.exit_code,
        )


class PendingEnded(Change, frozen=True, tag="pending ended"):
    """Tasks that were never (or not again) assigned end: killed, withdrawn, or failed for good."""

    job: str
    stage: int
    kind: int
    indices: tuple[int, ...]
    outcome: Outcome

    def apply(self, partition: Partition) -> tuple[Ask | None, Micros | None]:
        stage = partition.jobs[self.job].stages[self.stage]
        short_since = stage.short_since
        TASK.check("pending", self.outcome)
        dropped = take(partition, stage, self.kind, self.indices)
        _end(stage, self.outcome, self.indices)
        partition.update_short(stage)
        partition.touched.jobs[self.job] = None
        return dropped, short_since

    def undo(self, partition: Partition, kept: tuple[Ask | None, Micros | None]) -> None:
        stage = partition.jobs[self.job].stages[self.stage]
        dropped, short_since = kept
        _unend(stage, self.outcome, self.indices)
        give_back(partition, stage, self.kind, self.indices, dropped)
        partition.mark_short(stage, short_since)


class Revived(Change, frozen=True, tag="revived"):
    """Tasks that were withdrawn are wanted again."""

    job: str
    stage: int
    kind: int
    indices: tuple[int, ...]

    def apply(self, partition: Partition) -> None:
        stage = partition.jobs[self.job].stages[self.stage]
        _unend(stage, "killed", self.indices)
        grow(stage, self.kind, self.indices)
        partition.wake()
        partition.touched.jobs[self.job] = None

    def undo(self, partition: Partition, kept: None) -> None:
        stage = partition.jobs[self.job].stages[self.stage]
        _ungrow(stage, self.kind, self.indices)
        _end(stage, "killed", self.indices)


def _part(
    of: Allocation,
    block: tuple[int, ...],
    number: int,
    state: Any,
    since: int,
    started: int | None,
    cause: StopCause,
) -> Allocation:
    """A part of an allocation's tasks with the devices that are theirs."""
    per_task = len(of.devices) // count(of.indices) if of.devices else 0
    devices: tuple[int, ...] = ()
    if per_task:
        chosen = set(indices(block))
        for position, index in enumerate(indices(of.indices)):
            if index in chosen:
                devices += of.devices[position * per_task : (position + 1) * per_task]
    return Allocation(
        number,
        of.stage,
        of.node,
        block,
        of.attempt,
        devices,
        state,
        since,
        started,
        cause,
        of.kind,
        of.group,
        of.chain,
        of.rooms,
        of.safe_until,
    )


def _move(
    partition: Partition,
    before: Allocation,
    block: tuple[int, ...],
    into: int,
    state: Any,
    cause: StopCause,
    since: Micros,
) -> Moved:
    counter, short_since = partition.counters.allocation, before.stage.short_since
    started = since if state == "running" else before.started
    if block == before.indices:
        after = copy(before)
        after.state, after.since, after.started, after.cause = state, since, started, cause
        partition.exchange(after)
    else:
        partition.unbook(before, moves=True)
        rest = difference(before.indices, block)
        partition.book(_part(before, rest, before.id, before.state, before.since, before.started, before.cause))
        partition.book(_part(before, block, into, state, since, started, cause))
        partition.counters.allocation = max(counter, into + 1)
    partition.update_short(before.stage)
    return before, counter, short_since


def _move_back(partition: Partition, number: int, into: int, kept: Moved) -> None:
    before, partition.counters.allocation, short_since = kept
    if into:
        partition.unbook(partition.allocations[into], moves=True)
        partition.unbook(partition.allocations[number], moves=True)
        partition.book(before)
    else:
        partition.exchange(before)
    partition.mark_short(before.stage, short_since)


def _write_history(stage: Stage, entries: dict[int, History | None]) -> dict[int, History | None]:
    """Set what is known of tasks' pasts, and return what was known before."""
    if not entries:
        return {}
    history = stage.history or {}
    before = {index: history.get(index) for index in entries}
    for index, entry in entries.items():
        if entry is None:
            history.pop(index, None)
        else:
            history[index] = entry
    stage.history = history or None
    return before


def _return_job(stage: Stage) -> None:
    """A job whose last live task went back to waiting waits again itself. A manager's runs until it is removed."""
    job = stage.job
    if job.manager:
        return
    if job.state != "running" or job.allocations:
        return
    if any(each.pending != NOTHING_PENDING for each in job.stages):
        JOB.check(job.state, "pending")
        job.state = "pending"


def _below(block: tuple[int, ...], limit: int) -> tuple[int, ...]:
    """The indices of a block below a limit."""
    if not block or block[-1] <= limit:
        return block
    return split(block, sum(1 for index in indices(block) if index < limit))[0]


def _end(stage: Stage, outcome: str, block: tuple[int, ...]) -> None:
    if stage.ended is None:
        stage.ended = {}
    ranges = stage.ended.get(outcome)
    if ranges is None:
        stage.ended[outcome] = Ranges(block)
    else:
        ranges.add(block)


def _unend(stage: Stage, outcome: str, block: tuple[int, ...]) -> None:
    assert stage.ended is not None
    stage.ended[outcome].remove(block)
    if not stage.ended[outcome]:
        del stage.ended[outcome]
    if not stage.ended:
        stage.ended = None


def _ungrow(stage: Stage, kind: int, block: tuple[int, ...]) -> None:
    wanted = stage.alter_pending(kind)
    assert wanted is not None
    wanted.remove(block)
    if not wanted:
        stage.set_pending(kind, None)


CHANGES: tuple[type[Any], ...] = (Placed, Acknowledged, Stopped, StopOverdue, Ended, PendingEnded, Revived)
