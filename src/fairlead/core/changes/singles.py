"""Changes of many one-task jobs at once, so that a flood of such jobs does not need a change for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from fairlead.core.changes.change import Change, JobNews, Line, Names, News, TaskNews
from fairlead.core.changes.jobs import job_over
from fairlead.core.changes.tasks import placement
from fairlead.core.lifecycle import JOB, TASK
from fairlead.core.model import NEW, NO_ASKS, NOTHING_PENDING, Allocation, Ask, JobState, Micros, Stage, all_pending
from fairlead.core.ranges import Ranges, SharedRanges
from fairlead.core.state import Partition

ONLY = (0, 1)
"""The indices of a stage with one task."""

ALL_WELL: dict[str, Ranges] = {"succeeded": SharedRanges(ONLY)}
"""`Stage.ended` of a stage with one task that succeeded: one object shared by all such stages, never altered."""


class SinglesPlacedUndo(msgspec.Struct, frozen=True, gc=False):
    asks: list[Ask]
    job_states: list[JobState]
    next_allocation: int


class SinglesPlaced(Change[SinglesPlacedUndo], frozen=True, tag="singles placed"):
    """Assigns tasks of one lane to one node. Each is the only task of its stage and starts for the first time.

    The allocations are numbered from `first`, and the attempt of every task is 1.
    """

    node: int
    first: int
    tasks: tuple[tuple[str, int], ...]
    """Job id and position of the stage."""
    devices: tuple[int, ...] = ()

    def apply(self, partition: Partition) -> SinglesPlacedUndo:
        asks: list[Ask] = []
        states: list[JobState] = []
        allocations: list[Allocation] = []
        number, now, node, jobs = self.first, partition.now, self.node, partition.jobs
        devices: tuple[int, ...] = ()
        per_task = len(self.devices) // len(self.tasks)
        for job_id, position in self.tasks:
            job = jobs[job_id]
            stage = job.stages[position]
            ask = stage.asks[NEW]
            assert ask is not None
            asks.append(ask)
            states.append(job.state)
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
        partition.leave_lane((job.queue.path, stage.shape), len(asks))
        partition.book_singles(allocations, self.devices)
        before = partition.counters.allocation
        partition.counters.allocation = max(before, number)
        return SinglesPlacedUndo(asks, states, before)

    def undo(self, partition: Partition, before: SinglesPlacedUndo) -> None:
        partition.counters.allocation = before.next_allocation
        for offset in reversed(range(len(self.tasks))):
            ask = before.asks[offset]
            stage = ask.stage
            partition.unbook(partition.allocations[self.first + offset])
            stage.job.state = before.job_states[offset]
            stage.started, stage.top = False, 0
            stage.pending = all_pending(1)
            partition.add_ask(ask)

    def allocations_to_send(self) -> Iterable[int]:
        return range(self.first, self.first + len(self.tasks))

    def news(self, partition: Partition, before: SinglesPlacedUndo) -> Iterator[TaskNews]:
        per_task = len(self.devices) // len(self.tasks)
        for offset, ask in enumerate(before.asks):
            devices = self.devices[offset * per_task : (offset + 1) * per_task]
            yield TaskNews("placed", ask.stage, ONLY, 1, self.node, devices=devices)

    def demand(self, before: SinglesPlacedUndo) -> Iterable[tuple[Stage, int]]:
        return [(ask.stage, -1) for ask in before.asks]

    def counts(self, partition: Partition, before: SinglesPlacedUndo) -> Iterable[tuple[str, int]]:
        return (("placed", len(self.tasks)),)

    def completed(self, before: SinglesPlacedUndo) -> Iterable[Ask]:
        return before.asks

    def lines(self, names: Names, before: SinglesPlacedUndo) -> Iterator[Line]:
        asks = before.asks
        if len(asks) == 1:
            yield placement(names, asks[0].stage, asks[0].kind, 1, 1, False, [self.node], asks[0])
            return
        fields = {
            "queue": asks[0].stage.job.queue.path,
            "tasks": len(asks),
            "first": asks[0].stage.job.id,
            "last": asks[-1].stage.job.id,
            "nodes": 1,
            "on": [names.node(self.node)],
            "waited_seconds": names.seconds_since(min(ask.waiting_since for ask in asks)),
        }
        yield Line("info", "single tasks placed", fields)


class SinglesEnded(Change[list[Allocation]], frozen=True, tag="singles ended"):
    """Ends the tasks of one-task jobs that succeeded at their first attempt, and with them their jobs."""

    allocations: tuple[int, ...]
    ran: tuple[Micros, ...] = ()
    """The run time of each task, as `Ended` has it. Empty in records of earlier versions."""

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

    def undo(self, partition: Partition, before: list[Allocation]) -> None:
        for allocation in reversed(before):
            stage = allocation.stage
            stage.ended = None
            stage.job.state = "running"
            stage.job.ended_at = None
            partition.book(allocation)

    def news(self, partition: Partition, before: list[Allocation]) -> Iterator[News]:
        for allocation, ran in zip(before, self.ran or [0] * len(before), strict=True):
            stage, attempt, node, began = allocation.stage, allocation.attempt, allocation.node, allocation.started
            yield TaskNews("ended", stage, allocation.indices, attempt, node, "succeeded", "", 0, began, ran=ran)
            yield JobNews("state", stage.job, "succeeded")

    def counts(self, partition: Partition, before: list[Allocation]) -> Iterable[tuple[str, int]]:
        return (("succeeded", len(self.allocations)),)

    def lines(self, names: Names, before: list[Allocation]) -> Iterator[Line]:
        first, last = before[0].stage.job, before[-1].stage.job
        if first is last:
            yield job_over(names, first, "succeeded", "")
        else:
            fields = {"jobs": len(before), "first": first.id, "last": last.id, "state": "succeeded"}
            yield Line("info", "single jobs over", fields)
