"""Changes of stages: added to a job, and scaled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from fairlead.core.changes.change import Change
from fairlead.core.changes.jobs import new_stage
from fairlead.core.changes.lines import Line, Names
from fairlead.core.changes.pending import dropped, grow, still_asks
from fairlead.core.model import NEW, Asks, History, Micros, Pending, Stage, StageSpec
from fairlead.core.ranges import Ranges, difference
from fairlead.core.state import Partition


class StageAdded(Change[Stage], frozen=True, tag="stage added"):
    """Adds a stage to a job of a resource manager, made from the manager's ask."""

    job: str
    spec: StageSpec

    def apply(self, partition: Partition) -> Stage:
        job = partition.jobs[self.job]
        stage = new_stage(partition, job, len(job.stages), self.spec, "", own=True)
        job.stages = (*job.stages, stage)
        partition.touched.jobs[self.job] = None
        return stage

    def undo(self, partition: Partition, before: Stage) -> None:
        job = partition.jobs[self.job]
        partition.leave_shape(before.shape)
        job.stages = job.stages[:-1]

    def demand(self, before: Stage) -> Iterable[tuple[Stage, int]]:
        return ((before, self.spec.count),)


class StageScaledUndo(msgspec.Struct, frozen=True, gc=False):
    stage: Stage
    count: int
    floor: int
    short_since: Micros | None
    pending: Pending
    asks: Asks
    ended: dict[str, Ranges] | None
    history: dict[int, History] | None
    grown: int
    """The increase of the pending tasks; negative if they became fewer."""
    cancelled: int
    """The number of asks that were removed."""


class StageScaled(Change[StageScaledUndo], frozen=True, tag="stage scaled"):
    """Sets the number of tasks of a stage.

    Added tasks are pending under `kind`. Of the removed tasks, those that are live were told to stop before and are
    forgotten when they end; the others are forgotten now.
    """

    job: str
    stage: int
    count: int
    kind: int = NEW

    def apply(self, partition: Partition) -> StageScaledUndo:
        stage = partition.jobs[self.job].stages[self.stage]
        tasks, floor, short_since, asks = stage.count, stage.floor, stage.short_since, stage.asks
        pending = tuple(None if ranges is None else ranges.copy() for ranges in stage.pending)
        ended = None if stage.ended is None else {name: ranges.copy() for name, ranges in stage.ended.items()}
        history = None if stage.history is None else dict(stage.history)
        waiting = stage.waiting()
        if self.count > tasks:
            # Some of these tasks may still be stopping after an earlier scale-down. They become pending when their
            # attempts end.
            stopping = Ranges.from_indices(index for index in stage.live or () if index >= tasks)
            added = difference((tasks, self.count), stopping.flat())
            if added:
                grow(stage, self.kind, added)
        else:
            _shrink(partition, stage, self.count)
        stage.count = self.count
        partition.update_short(stage)
        partition.wake_lanes(stage)
        partition.touched.jobs[self.job] = None
        grown, cancelled = stage.waiting() - waiting, dropped(asks, stage.asks)
        return StageScaledUndo(stage, tasks, floor, short_since, pending, asks, ended, history, grown, cancelled)

    def undo(self, partition: Partition, before: StageScaledUndo) -> None:
        stage = before.stage
        stage.count, stage.floor, stage.pending = before.count, before.floor, before.pending
        stage.ended, stage.history = before.ended, before.history
        for ask in before.asks:
            if ask is not None and stage.asks[ask.kind] is None:
                partition.add_ask(ask)
        partition.mark_short(stage, before.short_since)
        partition.wake_lanes(stage)

    def demand(self, before: StageScaledUndo) -> Iterable[tuple[Stage, int]]:
        return ((before.stage, before.grown),)

    def counts(self, partition: Partition, before: StageScaledUndo) -> Iterable[tuple[str, int]]:
        return (("cancelled", before.cancelled),)

    def lines(self, names: Names, before: StageScaledUndo) -> Iterator[Line]:
        fields = {"job": self.job, "stage": before.stage.name, "before": before.count, "tasks": self.count}
        yield Line("info", "stage scaled", fields)


def _shrink(partition: Partition, stage: Stage, count: int) -> None:
    for kind in range(len(stage.pending)):
        wanted = stage.alter_pending(kind)
        if wanted is None:
            continue
        wanted.discard_from(count)
        if not wanted:
            stage.set_pending(kind, None)
            ask = stage.asks[kind]
            if ask is not None and not (ask.whole and still_asks(ask)):
                partition.drop_ask(ask)
    if stage.ended is not None:
        for ranges in stage.ended.values():
            ranges.discard_from(count)
        stage.ended = {name: ranges for name, ranges in stage.ended.items() if ranges} or None
    if stage.history is not None:
        stage.history = {index: past for index, past in stage.history.items() if index < count} or None
    stage.floor = stage.top
