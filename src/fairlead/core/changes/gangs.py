"""Changes of gangs: a whole job has started, or a gang is taken back and must start again."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fairlead.core.changes.change import Change
from fairlead.core.changes.stages import DemandBefore, demand_of, grow, take
from fairlead.core.changes.tasks import joined
from fairlead.core.model import NEW, REPLACE, SCALE, Ask, Members, Stage
from fairlead.core.ranges import Ranges
from fairlead.core.state import Partition


class BeganUndo(msgspec.Struct, frozen=True, gc=False):
    stages: tuple[Stage, ...]
    stages_before: list[tuple[bool, int, Members]]
    """For each stage: True if it had started, its generation and its members."""
    whole: Ask | None
    """The ask of the whole job, which this change completes."""


class Began(Change[BeganUndo], frozen=True, tag="began"):
    """Marks a whole job as started, after each stage was placed. From now on each stage has asks of its own."""

    job: str

    def apply(self, partition: Partition) -> BeganUndo:
        stages = partition.jobs[self.job].stages
        whole = stages[0].asks[NEW]
        before = [(stage.started, stage.generation, stage.members) for stage in stages]
        if whole is not None:
            partition.drop_ask(whole)
        _begin_generation(stages)
        for stage in stages:
            stage.started = True
        partition.touched.jobs[self.job] = None
        return BeganUndo(stages, before, whole)

    def undo(self, partition: Partition, before: BeganUndo) -> None:
        for stage, stage_before in zip(before.stages, before.stages_before, strict=True):
            stage.started, stage.generation, stage.members = stage_before
        if before.whole is not None:
            partition.add_ask(before.whole)

    def demand(self, before: BeganUndo) -> Iterable[tuple[Stage, int]]:
        return [(stage, 0) for stage in before.stages]

    def completed(self, before: BeganUndo) -> Iterable[Ask]:
        return () if before.whole is None else (before.whole,)


def _begin_generation(stages: tuple[Stage, ...]) -> None:
    """Give the tasks that a whole job starts with ranks, in the order of stages and indices."""
    placed = [
        [(index, task.generation) for index, task in sorted((stage.live or {}).items()) if task.state != "stopping"]
        for stage in stages
    ]
    generation = max((number for tasks in placed for _, number in tasks), default=0)
    if not generation:
        return  # the journal was written before gangs had generations
    for stage in stages:
        stage.generation, stage.members = generation, ()
    for stage, tasks in zip(stages, placed, strict=True):
        stage.members = joined(stage, [Ranges.from_indices(index for index, _ in tasks).flat()])


class RegroupedUndo(msgspec.Struct, frozen=True, gc=False):
    gang: list[tuple[DemandBefore, bool]]
    """The demand of each stage of the gang, and True if the stage had started."""
    cancelled_asks: int


class Regrouped(Change[RegroupedUndo], frozen=True, tag="regrouped"):
    """Takes a gang back: its pending tasks get the kind `new`, so that all must start together again.

    Its running tasks are told to stop by other changes, and become pending when they have ended. In a whole job, the
    stages lose their asks; the job gets one ask for all of them.
    """

    job: str
    stage: int

    def apply(self, partition: Partition) -> RegroupedUndo:
        cancelled, gang = 0, []
        for stage in partition.jobs[self.job].stages[self.stage].gang():
            before = demand_of(stage)
            gang.append((before, stage.started))
            for kind in (REPLACE, SCALE):
                wanted = stage.pending[kind]
                if wanted is not None:
                    block = wanted.flat()
                    take(partition, stage, kind, block)
                    grow(stage, NEW, block)
            ask = stage.asks[NEW]
            if ask is not None and stage.job.whole and not ask.whole:
                partition.drop_ask(ask)
            stage.started = False
            cancelled += before.cancelled()
            partition.update_short(stage)
        partition.wake()
        partition.touched.jobs[self.job] = None
        return RegroupedUndo(gang, cancelled)

    def undo(self, partition: Partition, before: RegroupedUndo) -> None:
        for demand, started in before.gang:
            demand.stage.started = started
            demand.restore(partition)

    def demand(self, before: RegroupedUndo) -> Iterable[tuple[Stage, int]]:
        return [(demand.stage, 0) for demand, _ in before.gang]

    def counts(self, partition: Partition, before: RegroupedUndo) -> Iterable[tuple[str, int]]:
        return (("cancelled", before.cancelled_asks),)
