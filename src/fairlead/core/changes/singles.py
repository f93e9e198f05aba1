"""Changes of single tasks, many jobs at a time: a flood of jobs of one task each must not cost a change each."""

from __future__ import annotations

from typing import Any

from fairlead.core.changes.base import Change
from fairlead.core.lifecycle import JOB, TASK
from fairlead.core.model import (
    NEW,
    NO_RESERVATIONS,
    NOTHING_PENDING,
    Allocation,
    JobState,
    Reservation,
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

    def apply(self, p: Partition) -> tuple[list[tuple[Reservation, JobState]], int]:
        kept: list[tuple[Reservation, JobState]] = []
        allocations: list[Allocation] = []
        number, now, node, jobs = self.first, p.now, self.node, p.jobs
        devices: tuple[int, ...] = ()
        per_task = len(self.devices) // len(self.tasks)
        for job_id, position in self.tasks:
            job = jobs[job_id]
            stage = job.stages[position]
            reservation = stage.reservations[NEW]
            assert reservation is not None
            kept.append((reservation, job.state))
            stage.reservations = NO_RESERVATIONS
            stage.pending = NOTHING_PENDING
            stage.started = True
            stage.top = 1
            job.state = "running"
            if per_task:
                at = (number - self.first) * per_task
                devices = self.devices[at : at + per_task]
            allocations.append(Allocation(number, stage, node, ONLY, 1, devices, "assigned", now))
            number += 1
        p.drop_new(job.queue, stage.shape, len(kept))
        p.book_singles(allocations, self.devices)
        before = p.counters.allocation
        p.counters.allocation = max(before, number)
        return kept, before

    def undo(self, p: Partition, kept: tuple[list[tuple[Reservation, JobState]], int]) -> None:
        placed, p.counters.allocation = kept
        for offset in reversed(range(len(self.tasks))):
            reservation, state = placed[offset]
            stage = reservation.stage
            p.unbook(p.allocations[self.first + offset])
            stage.job.state = state
            stage.started, stage.top = False, 0
            stage.pending = all_pending(1)
            p.add_reservation(reservation)


class SinglesEnded(Change, frozen=True, tag="singles ended"):
    """The only tasks of jobs succeed at their first attempt, and so do their jobs."""

    allocations: tuple[int, ...]

    def apply(self, p: Partition) -> list[Allocation]:
        ended = [p.allocations[number] for number in self.allocations]
        for allocation in ended:
            TASK.check(allocation.state, "succeeded")
            JOB.check(allocation.stage.job.state, "succeeded")
        p.unbook_singles(ended)
        for allocation in ended:
            stage = allocation.stage
            stage.ended = ALL_WELL
            job = stage.job
            job.state = "succeeded"
            job.ended_at = p.now
            p.settle(job)
        return ended

    def undo(self, p: Partition, kept: list[Allocation]) -> None:
        for allocation in reversed(kept):
            stage = allocation.stage
            stage.ended = None
            stage.job.state = "running"
            stage.job.ended_at = None
            p.book(allocation)


CHANGES: tuple[type[Any], ...] = (SinglesPlaced, SinglesEnded)
