"""Changes of holds and promises: nodes are kept for a reservation, and let go again."""

from __future__ import annotations

from typing import Any

from fairlead.core.changes.base import Change
from fairlead.core.model import ClaimCause, Hold, Micros, Place, Promise, Reservation
from fairlead.core.state import Partition


class Held(Change, frozen=True, tag="held"):
    """Nodes get no new work but that of a starving reservation, from now on."""

    job: str
    stage: int
    kind: int
    places: tuple[Place, ...]
    large: bool = False

    def apply(self, p: Partition) -> Hold:
        seq = _unserved(p, self.job, self.stage, self.kind).seq
        hold = Hold(seq, self.job, self.stage, self.kind, self.places, p.now, large=self.large)
        p.keep(hold)
        p.touched.jobs[self.job] = None
        return hold

    def undo(self, p: Partition, kept: Hold) -> None:
        p.let_go(kept)


class Promised(Change, frozen=True, tag="promised"):
    """Room is being made on nodes for a reservation, by allocations that stop: only it may take that.

    Or nodes came that were ordered for it, and are kept until the rest of them is there.
    """

    job: str
    stage: int
    kind: int
    places: tuple[Place, ...]
    victims: tuple[int, ...]
    cause: ClaimCause

    def apply(self, p: Partition) -> Promise:
        seq = _unserved(p, self.job, self.stage, self.kind).seq
        promise = Promise(
            seq,
            self.job,
            self.stage,
            self.kind,
            self.places,
            p.now,
            victims=self.victims,
            ordered=self.cause == "order",
        )
        p.keep(promise)
        p.touched.jobs[self.job] = None
        return promise

    def undo(self, p: Partition, kept: Promise) -> None:
        p.let_go(kept)


class Trimmed(Change, frozen=True, tag="trimmed"):
    """Some of the nodes kept for a reservation cannot serve any more. The others stay kept, as long as before."""

    reservation: int
    places: tuple[Place, ...]
    """What is left."""
    why: str

    def apply(self, p: Partition) -> tuple[Hold | Promise, tuple[Place, ...]]:
        kept = p.kept(self.reservation)
        if kept is None or not self.places:
            raise ValueError(f"nothing is kept for reservation {self.reservation}, or nothing is left of it")
        before = kept.places
        p.keep_other(kept, self.places)
        p.touched.jobs[kept.job] = None
        return kept, before

    def undo(self, p: Partition, kept: tuple[Hold | Promise, tuple[Place, ...]]) -> None:
        p.keep_other(*kept)


class Released(Change, frozen=True, tag="released"):
    """Nodes that were kept are there for everybody again. Above 0, `until` is when there may be some for the same."""

    reservation: int
    why: str
    until: Micros = 0

    def apply(self, p: Partition) -> tuple[Hold | Promise, Micros]:
        kept = p.kept(self.reservation)
        if kept is None:
            raise ValueError(f"nothing is kept for reservation {self.reservation}")
        p.let_go(kept)
        return kept, self._bar(p, kept, self.until) if self.until else 0

    def undo(self, p: Partition, kept: tuple[Hold | Promise, Micros]) -> None:
        before, until = kept
        if self.until:
            self._bar(p, before, until)
        p.keep(before)

    def _bar(self, p: Partition, kept: Hold | Promise, until: Micros) -> Micros:
        """Say until when there is nothing for the same reservation, and return what was said before."""
        reservation = p.kept_for(kept)
        if reservation is None:
            return 0
        if isinstance(kept, Hold):
            before, reservation.unheld_until = reservation.unheld_until, until
        else:
            before, reservation.unclaimed_until = reservation.unclaimed_until, until
        return before


def _unserved(p: Partition, job: str, stage: int, kind: int) -> Reservation:
    reservation = p.jobs[job].stages[stage].reservations[kind]
    if reservation is None or p.kept(reservation.seq) is not None:
        raise ValueError(f"job {job} asks for nothing of kind {kind}, or has nodes already")
    return reservation


CHANGES: tuple[type[Any], ...] = (Held, Promised, Trimmed, Released)
