"""The change for tasks that run on a node although this journal has no record of their attempts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec

from fairlead.core.changes.change import Change
from fairlead.core.changes.lines import Line, Names
from fairlead.core.model import Stage, Strange
from fairlead.core.ranges import Ranges, count
from fairlead.core.state import Partition


class StrangeFoundUndo(msgspec.Struct, frozen=True, gc=False):
    found: Strange | None
    next_job: int
    floor: int
    top: int


class StrangeFound(Change[StrangeFoundUndo], frozen=True, tag="strange found"):
    """Records tasks on a node that this journal never started. Their job and attempt numbers are not used again."""

    node: str
    job: str
    number: int
    stage: str
    attempt: int
    indices: tuple[int, ...]

    warns: ClassVar[bool] = True

    def apply(self, partition: Partition) -> StrangeFoundUndo:
        key, stage = (self.number, self.stage), self._stage(partition)
        found = partition.strange.get(key)
        before = StrangeFoundUndo(found, partition.counters.job, stage.floor if stage else 0, stage.top if stage else 0)
        tasks = dict(found.tasks) if found is not None else {}
        ranges = Ranges(tasks.get(self.attempt, ()))
        ranges.add(self.indices)
        tasks[self.attempt] = ranges.flat()
        partition.strange[key] = Strange(before.floor if found is None else found.floor, tasks)
        partition.counters.job = max(before.next_job, self.number + 1)
        if stage is not None:
            stage.floor, stage.top = max(stage.floor, self.attempt), max(stage.top, self.attempt)
            partition.touched.jobs[self.job] = None
        return before

    def undo(self, partition: Partition, before: StrangeFoundUndo) -> None:
        key, stage = (self.number, self.stage), self._stage(partition)
        if before.found is None:
            del partition.strange[key]
        else:
            partition.strange[key] = before.found
        partition.counters.job = before.next_job
        if stage is not None:
            stage.floor, stage.top = before.floor, before.top

    def _stage(self, partition: Partition) -> Stage | None:
        job = partition.jobs.get(self.job)
        return job.stage(self.stage) if job is not None and job.number == self.number else None

    def lines(self, names: Names, before: StrangeFoundUndo) -> Iterator[Line]:
        fields = {"node": self.node, "job": self.job, "stage": self.stage, "attempt": self.attempt}
        yield Line("warning", "unknown tasks found", {**fields, "tasks": count(self.indices)})
