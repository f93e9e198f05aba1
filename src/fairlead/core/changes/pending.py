"""Pending tasks of a stage, and the asks that ask for them: what several changes do with them."""

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
    """The reverse of `grow`."""
    wanted = stage.alter_pending(kind)
    assert wanted is not None
    wanted.remove(block)
    if not wanted:
        stage.set_pending(kind, None)


def take(partition: Partition, stage: Stage, kind: int, block: tuple[int, ...]) -> Ask | None:
    """Tasks are pending under a kind no longer; the ask that this completes is dropped and returned."""
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
    """The reverse of `take`."""
    grow(stage, kind, block)
    if ask is not None:
        partition.add_ask(ask)


def still_asks(whole: Ask) -> bool:
    """Whether some stage of a job still wants something of the ask that all of them share."""
    return any(stage.pending[whole.kind] is not None for stage in whole.stages)


def dropped(before: Asks, now: Asks) -> int:
    """How many asks of a stage there are no longer."""
    return sum(1 for was, each in zip(before, now, strict=True) if was is not None and each is None)
