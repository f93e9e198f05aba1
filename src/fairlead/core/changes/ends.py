"""Changes of tasks that end: attempts, tasks that were pending, and tasks that are wanted again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from fairlead.core.changes.base import Change
from fairlead.core.changes.lines import Line, Names
from fairlead.core.changes.news import TaskNews
from fairlead.core.changes.pending import give_back, grow, take, ungrow
from fairlead.core.changes.tasks import part_of
from fairlead.core.lifecycle import JOB, TASK
from fairlead.core.model import (
    KINDS,
    NOTHING_PENDING,
    Allocation,
    Ask,
    History,
    JobState,
    Micros,
    Outcome,
    Stage,
)
from fairlead.core.ranges import Ranges, count, difference, indices, split
from fairlead.core.state import Partition

__all__ = ["NOT_AGAIN", "Ended", "EndedUndo", "PendingEnded", "PendingEndedUndo", "Revived"]

NOT_AGAIN = -1
"""In place of a kind: the task is not asked for again."""


class EndedUndo(msgspec.Struct, frozen=True, gc=False):
    allocation: Allocation
    """The allocation that the tasks were in."""
    histories: dict[int, History | None]
    """What was known of the pasts of tasks, by index."""
    job_state: JobState
    short_since: Micros | None
    again: int
    """How many of the tasks are pending once more."""


class Ended(Change[EndedUndo], frozen=True, tag="ended"):
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

    warns = True

    def apply(self, partition: Partition) -> EndedUndo:
        before = partition.allocations[self.allocation]
        stage = before.stage
        job_state, short_since = stage.job.state, stage.short_since
        TASK.check(before.state, self.outcome)
        if self.again != NOT_AGAIN and self.outcome != "pending":
            TASK.check(self.outcome, "pending")
        rest = difference(before.indices, self.indices)
        partition.unbook(before)
        if rest:
            left = part_of(before, rest, before.id, before.state, before.since, before.started, before.cause)
            left.overdue = before.overdue
            partition.book(left)
        past = _write_history(stage, self._histories(stage, before))
        # A removed task (see StageScaled) leaves no trace but the floor of the stage's attempts.
        known = _below(self.indices, stage.count)
        again = 0
        if known and self.again != NOT_AGAIN:
            grow(stage, self.again, known)
            again = count(known)
        elif known:
            _end(stage, self.outcome, known)
        partition.update_short(stage)
        _return_job(stage)
        return EndedUndo(before, past, job_state, short_since, again)

    def undo(self, partition: Partition, before: EndedUndo) -> None:
        allocation = before.allocation
        stage = allocation.stage
        stage.job.state = before.job_state
        known = _below(self.indices, stage.count)
        if known and self.again != NOT_AGAIN:
            ungrow(stage, self.again, known)
        elif known:
            _unend(stage, self.outcome, known)
        _write_history(stage, before.histories)
        if allocation.id in partition.allocations:
            partition.unbook(partition.allocations[allocation.id])
        partition.book(allocation)
        partition.mark_short(stage, before.short_since)

    def news(self, partition: Partition, before: EndedUndo) -> Iterable[TaskNews]:
        of = before.allocation
        return (
            TaskNews(
                "ended",
                of.stage,
                self.indices,
                of.attempt,
                of.node,
                self.outcome,
                self.reason,
                self.exit_code,
                of.started,
            ),
        )

    def heard_by(self, partition: Partition, before: EndedUndo) -> str:
        return before.allocation.stage.job.manager

    def demand(self, before: EndedUndo) -> Iterable[tuple[Stage, int]]:
        return ((before.allocation.stage, before.again),) if self.again != NOT_AGAIN else ()

    def counts(self, partition: Partition, before: EndedUndo) -> Iterable[tuple[str, int]]:
        tasks = count(self.indices)
        if self.outcome == "pending":
            return ()  # the launch that was taken back is noted for itself
        if self.outcome == "lost" and before.allocation.state == "assigned":
            return (("lost", tasks), ("lost launch", tasks))
        return ((self.outcome, tasks),)

    def lines(self, names: Names, before: EndedUndo) -> Iterator[Line]:
        event = {"pending": "launch taken back", "lost": "tasks lost", "failed": "tasks failed"}.get(self.outcome)
        if event is None:
            return
        allocation = before.allocation
        # A task that returns from a chain went wrong in nothing.
        returned = self.outcome == "pending" and bool(allocation.rooms or allocation.cause)
        fields = {
            "job": allocation.stage.job.id,
            "stage": allocation.stage.name,
            "attempt": allocation.attempt,
            "tasks": count(self.indices),
            "node": names.node(allocation.node),
            "again": KINDS[self.again] if self.again >= 0 else None,
            "reason": self.reason,
        }
        yield Line("info", "tasks returned", fields) if returned else Line("warning", event, fields)

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


class PendingEndedUndo(msgspec.Struct, frozen=True, gc=False):
    stage: Stage
    cancelled: Ask | None
    """The ask whose last tasks these were."""
    short_since: Micros | None


class PendingEnded(Change[PendingEndedUndo], frozen=True, tag="pending ended"):
    """Tasks that were never (or not again) assigned end: killed, withdrawn, or failed for good."""

    job: str
    stage: int
    kind: int
    indices: tuple[int, ...]
    outcome: Outcome

    def apply(self, partition: Partition) -> PendingEndedUndo:
        stage = partition.jobs[self.job].stages[self.stage]
        short_since = stage.short_since
        TASK.check("pending", self.outcome)
        cancelled = take(partition, stage, self.kind, self.indices)
        _end(stage, self.outcome, self.indices)
        partition.update_short(stage)
        partition.touched.jobs[self.job] = None
        return PendingEndedUndo(stage, cancelled, short_since)

    def undo(self, partition: Partition, before: PendingEndedUndo) -> None:
        stage = before.stage
        _unend(stage, self.outcome, self.indices)
        give_back(partition, stage, self.kind, self.indices, before.cancelled)
        partition.mark_short(stage, before.short_since)

    def demand(self, before: PendingEndedUndo) -> Iterable[tuple[Stage, int]]:
        return ((before.stage, -count(self.indices)),)

    def counts(self, partition: Partition, before: PendingEndedUndo) -> Iterable[tuple[str, int]]:
        return () if before.cancelled is None else (("cancelled", 1),)


class Revived(Change[Stage], frozen=True, tag="revived"):
    """Tasks that were withdrawn are wanted again."""

    job: str
    stage: int
    kind: int
    indices: tuple[int, ...]

    def apply(self, partition: Partition) -> Stage:
        stage = partition.jobs[self.job].stages[self.stage]
        _unend(stage, "killed", self.indices)
        grow(stage, self.kind, self.indices)
        partition.wake()
        partition.touched.jobs[self.job] = None
        return stage

    def undo(self, partition: Partition, before: Stage) -> None:
        ungrow(before, self.kind, self.indices)
        _end(before, "killed", self.indices)

    def demand(self, before: Stage) -> Iterable[tuple[Stage, int]]:
        return ((before, count(self.indices)),)


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
