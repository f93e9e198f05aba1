"""The change that begins an era: older data were restored, so that some used numbers may not be recorded."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import ClassVar

import msgspec

from fairlead.core.changes.change import Change, Line, Names
from fairlead.core.model import Allocation, Micros
from fairlead.core.state import Partition

SKIPPED = 1_000_000
"""The numbers that an era skips: more than the records that were lost can have given."""


class EraBegunUndo(msgspec.Struct, frozen=True, gc=False):
    era: int
    next_job: int
    next_order: int
    stages: dict[tuple[str, int], tuple[int, tuple[int, ...]]]
    """(Job id, position) of each stage → its earlier `floor` and `earlier`."""
    allocations: list[Allocation]


class EraBegun(Change[EraBegunUndo], frozen=True, tag="era begun"):
    """Skips job, order and attempt numbers that lost records may have given. Nodes report live attempts anew."""

    era: int
    skipped: int
    reached: Micros = 0
    """The time of the last record that was kept; 0 in records of earlier versions."""

    warns: ClassVar[bool] = True

    def apply(self, partition: Partition) -> EraBegunUndo:
        counters, stages = partition.counters, dict[tuple[str, int], tuple[int, tuple[int, ...]]]()
        before = EraBegunUndo(partition.era, counters.job, counters.order, stages, [])
        partition.era = self.era
        partition.skipped.add((counters.job, counters.job + self.skipped))
        counters.job += self.skipped
        counters.order += self.skipped
        for job in partition.jobs.values():
            for stage in job.stages:
                stages[job.id, stage.position] = (stage.floor, stage.earlier)
                raised = max(stage.floor, stage.top) + self.skipped
                stage.floor, stage.earlier = raised, (stage.floor, stage.top, raised)
        for allocation in list(partition.allocations.values()) if self.reached else ():
            if not allocation.stage.job.manager:
                before.allocations.append(allocation)
                after = copy(allocation)
                after.known_until = allocation.known_until or self.reached
                partition.exchange(after)
        return before

    def undo(self, partition: Partition, before: EraBegunUndo) -> None:
        partition.era = before.era
        partition.skipped.remove((before.next_job, before.next_job + self.skipped))
        partition.counters.job, partition.counters.order = before.next_job, before.next_order
        for (job, position), (floor, earlier) in before.stages.items():
            stage = partition.jobs[job].stages[position]
            stage.floor, stage.earlier = floor, earlier
        for allocation in before.allocations:
            partition.exchange(allocation)

    def lines(self, names: Names, before: EraBegunUndo) -> Iterator[Line]:
        fields = {"era": self.era, "first_lost": before.next_job, "next": before.next_job + self.skipped}
        yield Line("warning", "data were set back", fields)
