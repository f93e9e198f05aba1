"""Shared steps of changes: add and remove the pending tasks of a stage, with their asks."""

from __future__ import annotations

from fairlead.core.model import Ask, Asks, Stage
from fairlead.core.ranges import Ranges, count
from fairlead.core.state import Partition


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
    """Remove tasks from the pending ones of a kind. If none is left, drop their ask and return it."""
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
    """True if a stage of a whole job still has pending tasks that belong to the job's shared ask."""
    return any(stage.pending[whole.kind] is not None for stage in whole.stages)


def dropped(before: Asks, after: Asks) -> int:
    """Return the number of asks of a stage that were removed."""
    return sum(1 for old, new in zip(before, after, strict=True) if old is not None and new is None)
