"""Changes of tasks that end: attempts end, pending tasks are given up, and withdrawn tasks become pending again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from fairlead.core.changes.change import Change, Line, Names, TaskNews
from fairlead.core.changes.stages import give_back, grow, take, ungrow
from fairlead.core.changes.tasks import part_of
from fairlead.core.lifecycle import JOB, TASK
from fairlead.core.model import KINDS, NEW, NOTHING_PENDING, Allocation, Ask, History, JobState, Micros, Outcome, Stage
from fairlead.core.ranges import Flat, Ranges, count, difference, indices, split
from fairlead.core.state import Partition

NOT_AGAIN = -1
"""The value of `Ended.again` for tasks that do not become pending again."""


class EndedUndo(msgspec.Struct, frozen=True, gc=False):
    allocation: Allocation
    histories: dict[int, History | None]
    """Index of a task → its earlier history."""
    job_state: JobState
    short_since: Micros | None
    again: int
    """The number of tasks that became pending again."""


class Ended(Change[EndedUndo], frozen=True, tag="ended"):
    """Ends attempts and frees their capacity. If the tasks wait again, `again` is the kind of their ask.

    The outcome `pending` is for tasks that never ran: their launch was refused or never acknowledged, or they waited in
    a chain.
    """

    allocation: int
    indices: tuple[int, ...]
    outcome: Outcome | Literal["pending"]
    again: int = NOT_AGAIN
    tried: bool = False
    launch_failed: bool = False
    reason: str = ""
    exit_code: int | None = None
    ran: Micros = 0
    """Average run time of the tasks, as their node measured it; 0 if that is not known."""

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
        self._count_failure(stage, 1)
        # Tasks that a scale-down removed (see StageScaled) only raise the floor of the stage's attempts.
        remaining = _below(self.indices, stage.count)
        again = 0
        if remaining and self.again != NOT_AGAIN:
            grow(stage, self.again, remaining)
            again = count(remaining)
        elif remaining:
            _end(stage, self.outcome, remaining)
        partition.update_short(stage)
        _return_job(stage)
        return EndedUndo(before, past, job_state, short_since, again)

    def undo(self, partition: Partition, before: EndedUndo) -> None:
        allocation = before.allocation
        stage = allocation.stage
        stage.job.state = before.job_state
        remaining = _below(self.indices, stage.count)
        if remaining and self.again != NOT_AGAIN:
            ungrow(stage, self.again, remaining)
        elif remaining:
            _unend(stage, self.outcome, remaining)
        _write_history(stage, before.histories)
        self._count_failure(stage, -1)
        if allocation.id in partition.allocations:
            partition.unbook(partition.allocations[allocation.id])
        partition.book(allocation)
        partition.mark_short(stage, before.short_since)

    def news(self, partition: Partition, before: EndedUndo) -> Iterable[TaskNews]:
        allocation = before.allocation
        ran = self.ran
        if not ran and allocation.known_until and allocation.started is not None:
            ran = max(1, allocation.known_until - allocation.started)  # no node knows when it ended
        return (
            TaskNews(
                "ended",
                allocation.stage,
                self.indices,
                allocation.attempt,
                allocation.node,
                self.outcome,
                self.reason,
                self.exit_code,
                allocation.started,
                ran=ran,
            ),
        )

    def manager_to_notify(self, partition: Partition, before: EndedUndo) -> str:
        return before.allocation.stage.job.manager

    def demand(self, before: EndedUndo) -> Iterable[tuple[Stage, int]]:
        return ((before.allocation.stage, before.again),) if self.again != NOT_AGAIN else ()

    def counts(self, partition: Partition, before: EndedUndo) -> Iterable[tuple[str, int]]:
        tasks = count(self.indices)
        if self.outcome == "pending":
            return ()  # a launch that was taken back is counted as a note of the plan
        if self.outcome == "lost" and before.allocation.state == "assigned":
            return (("lost", tasks), ("lost launch", tasks))
        return ((self.outcome, tasks),)

    def lines(self, names: Names, before: EndedUndo) -> Iterator[Line]:
        event = {"pending": "launch undone", "lost": "tasks lost", "failed": "tasks failed"}.get(self.outcome)
        if event is None:
            return
        allocation = before.allocation
        # A task that returns from a chain has not failed: no warning.
        returned = self.outcome == "pending" and bool(allocation.slots or allocation.cause)
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

    def _count_failure(self, stage: Stage, more: int) -> None:
        """Count a failure of a gang that restarts: one for each of its stages, however many tasks failed.

        A failure for good counts for its task alone: the others may go on without it.
        """
        ends_generation = self.again != NOT_AGAIN or (stage.strict and not stage.job.over)
        if self.tried and ends_generation and stage.on_failure == "restart":
            for member in stage.gang():
                member.failures += more

    def _histories(self, stage: Stage, before: Allocation) -> dict[int, History | None]:
        # Most tasks succeed at their first attempt and need no history.
        history = stage.history or {}
        plain = self.outcome == "succeeded" and before.attempt == 1
        if plain and not history:
            return {}
        return {
            index: self._history(stage, index, before)
            for index in indices(self.indices)
            if not plain or index in history
        }

    def _history(self, stage: Stage, index: int, before: Allocation) -> History | None:
        if index >= stage.count:
            return None
        past = stage.past(index)
        # Only an acknowledged launch resets the count of failed launches.
        launches = past.launches_failed if before.started is None else 0
        return History(
            before.attempt, past.tries_used + self.tried, launches + self.launch_failed, self.reason, self.exit_code
        )


class PendingEndedUndo(msgspec.Struct, frozen=True, gc=False):
    stage: Stage
    cancelled_ask: Ask | None
    short_since: Micros | None


class PendingEnded(Change[PendingEndedUndo], frozen=True, tag="pending ended"):
    """Ends pending tasks that are killed, withdrawn, or out of tries."""

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
        if cancelled is not None and partition.backfills:
            partition.wake()  # other asks may have been kept back for it
        _end(stage, self.outcome, self.indices)
        partition.update_short(stage)
        partition.touched.jobs[self.job] = None
        return PendingEndedUndo(stage, cancelled, short_since)

    def undo(self, partition: Partition, before: PendingEndedUndo) -> None:
        stage = before.stage
        _unend(stage, self.outcome, self.indices)
        give_back(partition, stage, self.kind, self.indices, before.cancelled_ask)
        partition.mark_short(stage, before.short_since)

    def demand(self, before: PendingEndedUndo) -> Iterable[tuple[Stage, int]]:
        return ((before.stage, -count(self.indices)),)

    def counts(self, partition: Partition, before: PendingEndedUndo) -> Iterable[tuple[str, int]]:
        return () if before.cancelled_ask is None else (("cancelled", 1),)

    def lines(self, names: Names, before: PendingEndedUndo) -> Iterator[Line]:
        stage = before.stage
        if not stage.job.over:  # otherwise the log line of the job is enough
            fields = {"kind": KINDS[self.kind], "tasks": count(self.indices)}
            yield Line("info", "tasks cancelled", {"job": stage.job.id, "stage": stage.name, **fields})


class UnblockedUndo(msgspec.Struct, frozen=True, gc=False):
    stage: Stage
    blocked: Flat
    histories: dict[int, History | None]


class Unblocked(Change[UnblockedUndo], frozen=True, tag="unblocked"):
    """Makes blocked tasks pending. With an outcome, ends them instead."""

    job: str
    stage: int
    indices: tuple[int, ...]
    outcome: Outcome | Literal[""] = ""
    reason: str = ""

    def apply(self, partition: Partition) -> UnblockedUndo:
        stage = partition.jobs[self.job].stages[self.stage]
        blocked = stage.blocked
        if Ranges(blocked).overlap(self.indices) != self.indices:
            raise ValueError("some of the tasks are not blocked")
        stage.blocked = difference(blocked, self.indices)
        histories: dict[int, History | None] = {}
        if not self.outcome:
            grow(stage, NEW, self.indices)
        else:
            _end(stage, self.outcome, self.indices)
            if self.reason:
                histories = dict.fromkeys(indices(self.indices), History(reason=self.reason))
        partition.touched.jobs[self.job] = None
        return UnblockedUndo(stage, blocked, _write_history(stage, histories))

    def undo(self, partition: Partition, before: UnblockedUndo) -> None:
        stage = before.stage
        _write_history(stage, before.histories)
        if self.outcome:
            _unend(stage, self.outcome, self.indices)
        else:
            ungrow(stage, NEW, self.indices)
        stage.blocked = before.blocked

    def demand(self, before: UnblockedUndo) -> Iterable[tuple[Stage, int]]:
        return ((before.stage, -count(self.indices) if self.outcome else 0),)

    def lines(self, names: Names, before: UnblockedUndo) -> Iterator[Line]:
        if self.outcome and not before.stage.job.over:
            fields = {"job": self.job, "stage": before.stage.name, "tasks": count(self.indices), "reason": self.reason}
            yield Line("info", "tasks given up", fields)


class RevivedUndo(msgspec.Struct, frozen=True, gc=False):
    stage: Stage
    outcome: str
    short_since: Micros | None
    floor: int


class Revived(Change[RevivedUndo], frozen=True, tag="revived"):
    """Makes withdrawn or ended tasks of one outcome pending again."""

    job: str
    stage: int
    kind: int
    indices: tuple[int, ...]
    above: bool = False
    """True if the new attempts must be above all earlier ones of the stage, because a task that succeeded with its
    first attempt has no history."""

    def apply(self, partition: Partition) -> RevivedUndo:
        stage = partition.jobs[self.job].stages[self.stage]
        first = self.indices[0]
        outcome = next(name for name, ranges in (stage.ended or {}).items() if first in ranges)
        short_since, floor = stage.short_since, stage.floor
        if self.above:
            stage.floor = max(stage.floor, stage.top)
        _unend(stage, outcome, self.indices)
        grow(stage, self.kind, self.indices)
        partition.update_short(stage)
        partition.wake()
        partition.touched.jobs[self.job] = None
        return RevivedUndo(stage, outcome, short_since, floor)

    def undo(self, partition: Partition, before: RevivedUndo) -> None:
        before.stage.floor = before.floor
        ungrow(before.stage, self.kind, self.indices)
        _end(before.stage, before.outcome, self.indices)
        partition.mark_short(before.stage, before.short_since)

    def demand(self, before: RevivedUndo) -> Iterable[tuple[Stage, int]]:
        return ((before.stage, count(self.indices)),)

    def lines(self, names: Names, before: RevivedUndo) -> Iterator[Line]:
        fields = {"job": before.stage.job.id, "stage": before.stage.name, "tasks": count(self.indices)}
        yield Line("info", "tasks asked again", fields)


def _write_history(stage: Stage, entries: dict[int, History | None]) -> dict[int, History | None]:
    """Set or remove (None) the histories of tasks, and return the earlier ones, all by index."""
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
    """Set a running job without live tasks back to pending. A resource manager's job runs until it is removed."""
    job = stage.job
    if job.manager or job.state != "running" or job.allocations:
        return
    if any(stage.pending != NOTHING_PENDING or stage.blocked for stage in job.stages):
        JOB.check(job.state, "pending")
        job.state = "pending"


def _below(block: tuple[int, ...], limit: int) -> tuple[int, ...]:
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
