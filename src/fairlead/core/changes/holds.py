"""Changes of holds and promises: nodes are kept for an ask, and let go again."""

from __future__ import annotations

from typing import Any

from fairlead.core.changes.base import Change
from fairlead.core.model import Ask, ClaimCause, Hold, Micros, Place, Promise
from fairlead.core.state import Partition


class Held(Change, frozen=True, tag="held"):
    """Nodes get no new work but that of a starving ask, from now on."""

    job: str
    stage: int
    kind: int
    places: tuple[Place, ...]
    large: bool = False

    def apply(self, partition: Partition) -> Hold:
        seq = _unserved(partition, self.job, self.stage, self.kind).seq
        hold = Hold(seq, self.job, self.stage, self.kind, self.places, partition.now, large=self.large)
        partition.keep(hold)
        partition.touched.jobs[self.job] = None
        return hold

    def undo(self, partition: Partition, kept: Hold) -> None:
        partition.let_go(kept)


class Promised(Change, frozen=True, tag="promised"):
    """Room is being made on nodes for an ask, by allocations that stop: only it may take that.

    Or nodes came that were ordered for it, and are kept until the rest of them is there.
    """

    job: str
    stage: int
    kind: int
    places: tuple[Place, ...]
    victims: tuple[int, ...]
    cause: ClaimCause

    def apply(self, partition: Partition) -> Promise:
        seq = _unserved(partition, self.job, self.stage, self.kind).seq
        promise = Promise(
            seq,
            self.job,
            self.stage,
            self.kind,
            self.places,
            partition.now,
            victims=self.victims,
            ordered=self.cause == "order",
        )
        partition.keep(promise)
        partition.touched.jobs[self.job] = None
        return promise

    def undo(self, partition: Partition, kept: Promise) -> None:
        partition.let_go(kept)


class Trimmed(Change, frozen=True, tag="trimmed"):
    """Some of the nodes kept for an ask cannot serve any more. The others stay kept, as long as before."""

    ask: int
    places: tuple[Place, ...]
    """What is left."""
    why: str

    def apply(self, partition: Partition) -> tuple[Hold | Promise, tuple[Place, ...]]:
        kept = partition.kept(self.ask)
        if kept is None or not self.places:
            raise ValueError(f"nothing is kept for ask {self.ask}, or nothing is left of it")
        before = kept.places
        partition.keep_other(kept, self.places)
        partition.touched.jobs[kept.job] = None
        return kept, before

    def undo(self, partition: Partition, kept: tuple[Hold | Promise, tuple[Place, ...]]) -> None:
        partition.keep_other(*kept)


class Released(Change, frozen=True, tag="released"):
    """Nodes that were kept are there for everybody again. Above 0, `until` is when there may be some for the same."""

    ask: int
    why: str
    until: Micros = 0

    def apply(self, partition: Partition) -> tuple[Hold | Promise, Micros]:
        kept = partition.kept(self.ask)
        if kept is None:
            raise ValueError(f"nothing is kept for ask {self.ask}")
        partition.let_go(kept)
        return kept, self._bar(partition, kept, self.until) if self.until else 0

    def undo(self, partition: Partition, kept: tuple[Hold | Promise, Micros]) -> None:
        before, until = kept
        if self.until:
            self._bar(partition, before, until)
        partition.keep(before)

    def _bar(self, partition: Partition, kept: Hold | Promise, until: Micros) -> Micros:
        """Say until when there is nothing for the same ask, and return what was said before."""
        ask = partition.kept_for(kept)
        if ask is None:
            return 0
        if isinstance(kept, Hold):
            before, ask.unheld_until = ask.unheld_until, until
        else:
            before, ask.unclaimed_until = ask.unclaimed_until, until
        return before


def _unserved(partition: Partition, job: str, stage: int, kind: int) -> Ask:
    ask = partition.jobs[job].stages[stage].asks[kind]
    if ask is None or partition.kept(ask.seq) is not None:
        raise ValueError(f"job {job} asks for nothing of kind {kind}, or has nodes already")
    return ask


CHANGES: tuple[type[Any], ...] = (Held, Promised, Trimmed, Released)
