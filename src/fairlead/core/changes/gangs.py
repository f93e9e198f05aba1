"""Changes of gangs: a whole job has started, or a gang is taken back and must start again."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fairlead.core.changes.change import Change
from fairlead.core.changes.pending import dropped, grow, take
from fairlead.core.changes.tasks import joined
from fairlead.core.model import NEW, REPLACE, SCALE, Ask, Asks, Members, Micros, Pending, Stage
from fairlead.core.ranges import Ranges
from fairlead.core.state import Partition


class BeganUndo(msgspec.Struct, frozen=True, gc=False):
    stages: tuple[Stage, ...]
    started: list[bool]
    """For each stage, True if it had started."""
    whole: Ask | None
    """The ask of the whole job, which this change completes."""
    generations: list[tuple[int, Members]]
    """The generation and the members of each stage."""


class Began(Change[BeganUndo], frozen=True, tag="began"):
    """Marks a whole job as started: every stage has the tasks it needs. From now on each stage has asks of its own.

    This change follows the placements. If not all stages can be placed, it is not made, and the job keeps its position
    in the lane.
    """

    job: str

    def apply(self, partition: Partition) -> BeganUndo:
        stages = partition.jobs[self.job].stages
        whole = stages[0].asks[NEW]
        started = [stage.started for stage in stages]
        if whole is not None:
            partition.drop_ask(whole)
        generations = [(stage.generation, stage.members) for stage in stages]
        _begin_generation(stages)
        for stage in stages:
            stage.started = True
        partition.touched.jobs[self.job] = None
        return BeganUndo(stages, started, whole, generations)

    def undo(self, partition: Partition, before: BeganUndo) -> None:
        for stage, started in zip(before.stages, before.started, strict=True):
            stage.started = started
        for stage, (generation, members) in zip(before.stages, before.generations, strict=True):
            stage.generation, stage.members = generation, members
        if before.whole is not None:
            partition.add_ask(before.whole)

    def demand(self, before: BeganUndo) -> Iterable[tuple[Stage, int]]:
        return [(stage, 0) for stage in before.stages]

    def completed(self, before: BeganUndo) -> Iterable[Ask]:
        return () if before.whole is None else (before.whole,)


def _begin_generation(stages: tuple[Stage, ...]) -> None:
    """Give ranks to the tasks that a whole job starts with, by stage and index."""
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


class StageUndo(msgspec.Struct, frozen=True, gc=False):
    """The demand of one stage of a gang before the change."""

    stage: Stage
    pending: Pending
    asks: Asks
    started: bool
    short_since: Micros | None


class RegroupedUndo(msgspec.Struct, frozen=True, gc=False):
    gang: list[StageUndo]
    cancelled: int
    """The number of asks that were removed."""


class Regrouped(Change[RegroupedUndo], frozen=True, tag="regrouped"):
    """Takes a gang back: its pending tasks get the kind `new` and must start together again.

    Running tasks of the gang are told to stop and get the kind `new`, too. If the gang is a whole job, one ask for all
    stages replaces the asks of its stages.
    """

    job: str
    stage: int

    def apply(self, partition: Partition) -> RegroupedUndo:
        cancelled, gang = 0, []
        for stage in partition.jobs[self.job].stages[self.stage].gang():
            pending = tuple(None if ranges is None else ranges.copy() for ranges in stage.pending)
            before = StageUndo(stage, pending, stage.asks, stage.started, stage.short_since)
            gang.append(before)
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
            cancelled += dropped(before.asks, stage.asks)
            partition.update_short(stage)
        partition.wake()
        partition.touched.jobs[self.job] = None
        return RegroupedUndo(gang, cancelled)

    def undo(self, partition: Partition, before: RegroupedUndo) -> None:
        for stage_before in before.gang:
            stage = stage_before.stage
            stage.pending, stage.started = stage_before.pending, stage_before.started
            for ask in stage_before.asks:
                if ask is not None and stage.asks[ask.kind] is None:
                    partition.add_ask(ask)
            partition.mark_short(stage, stage_before.short_since)

    def demand(self, before: RegroupedUndo) -> Iterable[tuple[Stage, int]]:
        return [(stage_before.stage, 0) for stage_before in before.gang]

    def counts(self, partition: Partition, before: RegroupedUndo) -> Iterable[tuple[str, int]]:
        return (("cancelled", before.cancelled),)
