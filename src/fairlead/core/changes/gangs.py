"""Changes of gangs: the stages of a whole job have started together, or a gang is taken back to start once more."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fairlead.core.changes.base import Change
from fairlead.core.changes.pending import dropped, grow, take
from fairlead.core.model import NEW, REPLACE, SCALE, Ask, Asks, Micros, Pending, Stage
from fairlead.core.state import Partition

__all__ = ["Began", "BeganUndo", "Regrouped", "RegroupedUndo", "StageUndo"]


class BeganUndo(msgspec.Struct, frozen=True, gc=False):
    stages: tuple[Stage, ...]
    started: list[bool]
    """Of each stage, whether it had started."""
    whole: Ask | None
    """The ask of the whole job, which is complete now."""


class Began(Change[BeganUndo], frozen=True, tag="began"):
    """What a whole job needs of every stage has been placed; from here on each stage asks for itself.

    It comes after the placements, so that a job that could be placed only in part never left its lane.
    """

    job: str

    def apply(self, partition: Partition) -> BeganUndo:
        stages = partition.jobs[self.job].stages
        whole = stages[0].asks[NEW]
        started = [stage.started for stage in stages]
        if whole is not None:
            partition.drop_ask(whole)
        for stage in stages:
            stage.started = True
        partition.touched.jobs[self.job] = None
        return BeganUndo(stages, started, whole)

    def undo(self, partition: Partition, before: BeganUndo) -> None:
        for stage, started in zip(before.stages, before.started, strict=True):
            stage.started = started
        if before.whole is not None:
            partition.add_ask(before.whole)

    def demand(self, before: BeganUndo) -> Iterable[tuple[Stage, int]]:
        return [(stage, 0) for stage in before.stages]

    def completed(self, before: BeganUndo) -> Iterable[Ask]:
        return () if before.whole is None else (before.whole,)


class StageUndo(msgspec.Struct, frozen=True, gc=False):
    """What a stage of a gang was waiting for."""

    stage: Stage
    pending: Pending
    asks: Asks
    started: bool
    short_since: Micros | None


class RegroupedUndo(msgspec.Struct, frozen=True, gc=False):
    gang: list[StageUndo]
    cancelled: int
    """Asks that there are no longer."""


class Regrouped(Change[RegroupedUndo], frozen=True, tag="regrouped"):
    """A gang is taken back: whatever its stages wait for they want as new, and it has to start together once more.

    What runs of it is told to stop, and comes back as new, too. A whole job gives up the places that its stages have
    for themselves; it asks for all of them at once.
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
            own = stage.asks[NEW]
            if own is not None and stage.job.whole and not own.whole:
                partition.drop_ask(own)
            stage.started = False
            cancelled += dropped(before.asks, stage.asks)
            partition.update_short(stage)
        partition.wake()
        partition.touched.jobs[self.job] = None
        return RegroupedUndo(gang, cancelled)

    def undo(self, partition: Partition, before: RegroupedUndo) -> None:
        for was in before.gang:
            stage = was.stage
            stage.pending, stage.started = was.pending, was.started
            for ask in was.asks:
                if ask is not None and stage.asks[ask.kind] is None:
                    partition.add_ask(ask)
            partition.mark_short(stage, was.short_since)

    def demand(self, before: RegroupedUndo) -> Iterable[tuple[Stage, int]]:
        return [(was.stage, 0) for was in before.gang]

    def counts(self, partition: Partition, before: RegroupedUndo) -> Iterable[tuple[str, int]]:
        return (("cancelled", before.cancelled),)
