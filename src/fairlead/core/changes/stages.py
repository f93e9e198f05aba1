"""Changes of stages: added to a job, and scaled; and steps of several changes, which add and remove pending tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from fairlead.core.changes.change import Change, Line, Names
from fairlead.core.changes.jobs import new_stage
from fairlead.core.model import NEW, Ask, Asks, History, Micros, Pending, Stage, StageSpec
from fairlead.core.ranges import Ranges, count, difference
from fairlead.core.state import Partition


class DemandBefore(msgspec.Struct, frozen=True, gc=False):
    """The demand of a stage before a change."""

    stage: Stage
    pending: Pending
    asks: Asks
    short_since: Micros | None

    def restore(self, partition: Partition) -> None:
        stage = self.stage
        stage.pending = self.pending
        for ask in self.asks:
            if ask is not None and stage.asks[ask.kind] is None:
                partition.add_ask(ask)
        partition.mark_short(stage, self.short_since)

    def cancelled(self) -> int:
        """Return the number of asks of the stage that have been removed since."""
        return sum(old is not None and new is None for old, new in zip(self.asks, self.stage.asks, strict=True))


def demand_of(stage: Stage) -> DemandBefore:
    pending = tuple(None if ranges is None else ranges.copy() for ranges in stage.pending)
    return DemandBefore(stage, pending, stage.asks, stage.short_since)


def grow(stage: Stage, kind: int, block: tuple[int, ...]) -> None:
    """Make tasks pending, in the ask of this kind: replace, scale or new."""
    wanted = stage.alter_pending(kind)
    if wanted is None:
        stage.set_pending(kind, Ranges(block))
    else:
        wanted.add(block)


def ungrow(stage: Stage, kind: int, block: tuple[int, ...]) -> None:
    """Undo `grow`."""
    wanted = stage.alter_pending(kind)
    assert wanted is not None
    wanted.remove(block)
    if not wanted:
        stage.set_pending(kind, None)


def take(partition: Partition, stage: Stage, kind: int, block: tuple[int, ...]) -> Ask | None:
    """Make tasks of a kind no longer pending. If none is left, drop their ask and return it."""
    wanted = stage.pending[kind]
    if wanted is None:
        raise ValueError(f"no {kind} tasks are pending")
    if len(wanted) != count(block) or wanted.flat() != block:
        (stage.alter_pending(kind) or wanted).remove(block)
        return None
    stage.set_pending(kind, None)
    ask = stage.asks[kind]
    if ask is None or (ask.whole and still_asks(ask)):
        return None
    partition.drop_ask(ask)
    return ask


def give_back(partition: Partition, stage: Stage, kind: int, block: tuple[int, ...], ask: Ask | None) -> None:
    """Undo `take`."""
    grow(stage, kind, block)
    if ask is not None:
        partition.add_ask(ask)


def still_asks(whole: Ask) -> bool:
    """True if any stage of a whole job still has pending tasks, so that the job's shared ask must stay."""
    return any(stage.pending[whole.kind] is not None for stage in whole.stages)


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
    demand: DemandBefore
    count: int
    floor: int
    ended: dict[str, Ranges] | None
    history: dict[int, History] | None
    grown: int
    """The increase of the pending tasks; negative if they became fewer."""
    cancelled_asks: int


class StageScaled(Change[StageScaledUndo], frozen=True, tag="stage scaled"):
    """Sets the number of tasks of a stage. Added tasks are pending under `kind`.

    Removed tasks are forgotten. Those that are still live were told to stop before, and are forgotten when they end.
    """

    job: str
    stage: int
    count: int
    kind: int = NEW

    def apply(self, partition: Partition) -> StageScaledUndo:
        stage = partition.jobs[self.job].stages[self.stage]
        before, count, floor, waiting = demand_of(stage), stage.count, stage.floor, stage.waiting()
        ended = None if stage.ended is None else {name: ranges.copy() for name, ranges in stage.ended.items()}
        history = None if stage.history is None else dict(stage.history)
        if self.count > count:
            # Some of these tasks may still be stopping after an earlier scale-down. They become pending when their
            # attempts end.
            stopping = Ranges.from_indices(index for index in stage.live or () if index >= count)
            added = difference((count, self.count), stopping.flat())
            if added:
                grow(stage, self.kind, added)
        else:
            _shrink(partition, stage, self.count)
        stage.count = self.count
        partition.mark_short(stage, stage.short_since)  # a stage that is no strict gang any more has another `on_loss`
        partition.update_short(stage)
        partition.wake_lanes(stage)
        partition.touched.jobs[self.job] = None
        grown = stage.waiting() - waiting
        return StageScaledUndo(before, count, floor, ended, history, grown, before.cancelled())

    def undo(self, partition: Partition, before: StageScaledUndo) -> None:
        stage = before.demand.stage
        stage.count, stage.floor, stage.ended, stage.history = before.count, before.floor, before.ended, before.history
        before.demand.restore(partition)
        partition.wake_lanes(stage)

    def demand(self, before: StageScaledUndo) -> Iterable[tuple[Stage, int]]:
        return ((before.demand.stage, before.grown),)

    def counts(self, partition: Partition, before: StageScaledUndo) -> Iterable[tuple[str, int]]:
        return (("cancelled", before.cancelled_asks),)

    def lines(self, names: Names, before: StageScaledUndo) -> Iterator[Line]:
        fields = {"job": self.job, "stage": before.demand.stage.name, "before": before.count, "tasks": self.count}
        yield Line("info", "stage scaled", fields)


def _shrink(partition: Partition, stage: Stage, count: int) -> None:
    for kind in range(len(stage.pending)):
        wanted = stage.alter_pending(kind)
        if wanted is not None:
            wanted.discard_from(count)
            if not wanted:
                _drop_pending(partition, stage, kind)
    if stage.ended is not None:
        for ranges in stage.ended.values():
            ranges.discard_from(count)
        stage.ended = {name: ranges for name, ranges in stage.ended.items() if ranges} or None
    if stage.history is not None:
        stage.history = {index: past for index, past in stage.history.items() if index < count} or None
    stage.floor = max(stage.floor, stage.top)


def _drop_pending(partition: Partition, stage: Stage, kind: int) -> None:
    stage.set_pending(kind, None)
    ask = stage.asks[kind]
    if ask is not None and not (ask.whole and still_asks(ask)):
        partition.drop_ask(ask)
