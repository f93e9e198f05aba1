"""Changes of holds: nodes are kept for a starving reservation, and let go again."""

from __future__ import annotations

from typing import Any

from fairlead.core.changes.base import Change
from fairlead.core.model import Hold, Micros, Place
from fairlead.core.state import Partition


class Held(Change, frozen=True, tag="held"):
    """Nodes get no new work but that of a reservation, from now on."""

    job: str
    stage: int
    kind: int
    places: tuple[Place, ...]
    large: bool = False

    def apply(self, p: Partition) -> int:
        reservation = p.jobs[self.job].stages[self.stage].reservations[self.kind]
        if reservation is None or reservation.seq in p.holds:
            raise ValueError(f"job {self.job} asks for nothing of kind {self.kind}, or has nodes already")
        p.add_hold(Hold(reservation.seq, self.job, self.stage, self.kind, self.places, p.now, self.large))
        p.touched.jobs[self.job] = None
        return reservation.seq

    def undo(self, p: Partition, kept: int) -> None:
        p.drop_hold(kept)


class Released(Change, frozen=True, tag="released"):
    """The nodes of a hold are there for everybody again. Above 0, `until` is when there may be another for the same."""

    hold: int
    why: str
    until: Micros = 0

    def apply(self, p: Partition) -> tuple[Hold, Micros]:
        hold = p.drop_hold(self.hold)
        reservation = p.held_for(hold)
        before = 0
        if reservation is not None and self.until:
            before, reservation.unheld_until = reservation.unheld_until, self.until
        return hold, before

    def undo(self, p: Partition, kept: tuple[Hold, Micros]) -> None:
        hold, before = kept
        reservation = p.held_for(hold)
        if reservation is not None and self.until:
            reservation.unheld_until = before
        p.add_hold(hold)


CHANGES: tuple[type[Any], ...] = (Held, Released)
