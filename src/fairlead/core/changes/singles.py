"""Changes of single tasks, many jobs at a time: a flood of jobs of one task each must not cost a change each."""

from __future__ import annotations

from typing import Any

from fairlead.core.changes.base import Change
from fairlead.core.lifecycle import JOB, TASK
from fairlead.core.model import (
    NEW,
    NO_ASKS,
    NOTHING_PENDING,
    Allocation,
    Ask,
    JobState,
    all_pending,
)
from fairlead.core.ranges import Ranges, SharedRanges
from fairlead.core.state import Partition

ONLY = (0, 1)
"""The block of the only task of a stage."""

ALL_WELL: dict[str, Ranges] = {"succeeded": SharedRanges(ONLY)}
"""What became of the tasks of a stage whose only one succeeded: one object for all of them, never altered."""


class SinglesPlaced(Change, frozen=True, tag="singles placed"):
    """The only tasks of stages that never started, all of one lane, are assigned to one node: a change for many jobs.

    Allocations are numbered from `first`; the attempts are the first ones.
    """

    node: int
    first: int
    tasks: tuple[tuple[str, int], ...]
    """Job and position of the stage."""
    devices: tuple[int, ...] = ()

    def apply(self, partition: Partition) -> tuple[list[tuple[Ask, JobState]], int]:
        kept: list[tuple[Ask, JobState]] = []
        allocations: list[Allocation] = []
        number, now, node, jobs = self.first, partition.now, self.node, partition.jobs
        devices: tuple[int, ...] = ()
        per_task = len(self.devices) // len(self.tasks)
        for job_id, position in self.tasks:
            job = jobs[job_id]
            stage = job.stages[position]
            ask = stage.asks[NEW]
            assert ask is not None
            kept.append((ask, job.state))
            stage.asks = NO_ASKS
            stage.pending = NOTHING_PENDING
            stage.started = True
            stage.top = 1
            job.state = "running"
            if per_task:
                at = (number - self.first) * per_task
                devices = self.devices[at : at + per_task]
            allocations.append(Allocation(number, stage, node, ONLY, 1, devices, "assigned", now))
            number += 1
        partition.drop_new(job.queue, stage.shape, len(kept))
        partition.book_singles(allocations, self.devices)
        before = partition.counters.allocation
        partition.counters.allocation = max(before, number)
        return kept, before

    def undo(self, partition: Partition, kept: tuple[list[tuple[Ask, JobState]], int]) -> None:
        placed, partition.counters.allocation = kept
        for offset in reversed(range(len(self.tasks))):
            ask, state = placed[offset]
            stage = ask.stage
            partition.unbook(partition.allocations[self.first + offset])
            stage.job.state = state
            stage.started, stage.top = False, 0
            stage.pending = all_pending(1)
            partition.add_ask(ask)


class SinglesEnded(Change, frozen=True, tag="singles ended"):
    """The only tasks of jobs succeed at their first attempt, and so do their jobs."""

    allocations: tuple[int, ...]

    def apply(self, partition: Partition) -> list[Allocation]:
        ended = [partition.allocations[number] for number in self.allocations]
        for allocation in ended:
            TASK.check(allocation.state, "succeeded")
            JOB.check(allocation.stage.job.state, "succeeded")
        partition.unbook_singles(ended)
        for allocation in ended:
            stage = allocation.stage
            stage.ended = ALL_WELL
            job = stage.job
            job.state = "succeeded"
            job.ended_at = partition.now
            partition.list_or_unlist(job)
        return ended

    def undo(self, partition: Partition, kept: list[Allocation]) -> None:
        for allocation in reversed(kept):
            stage = allocation.stage
            stage.ended = None
            stage.job.state = "running"
            stage.job.ended_at = None
            partition.book(allocation)


CHANGES: tuple[type[Any], ...] = (SinglesPlaced, SinglesEnded)
