"""Changes of gangs: the stages of a whole job have started together, or a gang is taken back to start once more."""

from __future__ import annotations

from typing import Any

from fairlead.core.changes.base import Change
from fairlead.core.changes.jobs import dropped, grow, take
from fairlead.core.model import NEW, REPLACE, SCALE, Ask, Asks, Pending
from fairlead.core.state import Partition


class Began(Change, frozen=True, tag="began"):
    """What a whole job needs of every stage has been placed; from here on each stage asks for itself.

    It comes after the placements, so that a job that could be placed only in part never left its lane.
    """

    job: str

    def apply(self, partition: Partition) -> tuple[Ask | None, list[bool]]:
        job = partition.jobs[self.job]
        whole = job.stages[0].asks[NEW]
        started = [stage.started for stage in job.stages]
        if whole is not None:
            partition.drop_ask(whole)
        for stage in job.stages:
            stage.started = True
        partition.touched.jobs[self.job] = None
        return whole, started

    def undo(self, partition: Partition, kept: tuple[Ask | None, list[bool]]) -> None:
        job = partition.jobs[self.job]
        whole, started = kept
        for stage, before in zip(job.stages, started, strict=True):
            stage.started = before
        if whole is not None:
            partition.add_ask(whole)


class Regrouped(Change, frozen=True, tag="regrouped"):
    """A gang is taken back: whatever its stages wait for they want as new, and it has to start together once more.

    What runs of it is told to stop, and comes back as new, too. A whole job gives up the places that its stages have
    for themselves; it asks for all of them at once.
    """

    job: str
    stage: int

    def apply(self, partition: Partition) -> tuple[int, list[tuple[Pending, Asks, bool, int | None]]]:
        gang = partition.jobs[self.job].stages[self.stage].gang()
        gone, kept = 0, []
        for stage in gang:
            pending = tuple(None if ranges is None else ranges.copy() for ranges in stage.pending)
            kept.append((pending, stage.asks, stage.started, stage.short_since))
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
            gone += dropped(kept[-1][1], stage.asks)
            partition.update_short(stage)
        partition.wake()
        partition.touched.jobs[self.job] = None
        return gone, kept

    def undo(self, partition: Partition, kept: tuple[int, list[tuple[Pending, Asks, bool, int | None]]]) -> None:
        gang = partition.jobs[self.job].stages[self.stage].gang()
        for stage, (pending, asks, started, short_since) in zip(gang, kept[1], strict=True):
            stage.pending, stage.started = pending, started
            for ask in asks:
                if ask is not None and stage.asks[ask.kind] is None:
                    partition.add_ask(ask)
            partition.mark_short(stage, short_since)


CHANGES: tuple[type[Any], ...] = (Began, Regrouped)
