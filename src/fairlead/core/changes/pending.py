"""Shared steps of changes: add and remove the pending tasks of a stage, with their asks."""

from __future__ import annotations

import msgspec

from fairlead.core.model import Ask, Asks, Micros, Pending, Stage
from fairlead.core.ranges import Ranges, count
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
    """Make tasks pending under a kind."""
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
