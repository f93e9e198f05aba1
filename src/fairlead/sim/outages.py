"""Random outages of nodes, drawn from a seed, for simulations of traces."""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random
from typing import Literal

import msgspec

from fairlead.core.model import Micros
from fairlead.core.resources import DAY, HOUR, MINUTE

What = Literal["fails", "returns", "refuses", "accepts"]


class Profile(msgspec.Struct, frozen=True):
    """How often a node has an outage, and for how long."""

    between: Micros
    """The mean time from the end of an outage to the next one."""
    lasts: Micros
    """The mean length of an outage."""
    refusing: int = 0
    """The percentage of outages in which the node stays up but refuses launches."""


PROFILES = {"light": Profile(30 * DAY, HOUR), "heavy": Profile(2 * DAY, 30 * MINUTE, refusing=25)}


class Outages:
    def __init__(self, nodes: list[str], profile: Profile, seed: int) -> None:
        self.profile = profile
        self.count = 0
        self.out: set[str] = set()
        """Nodes with an outage now."""
        self._rng = Random(seed)
        self._due: list[tuple[Micros, str, What]] = []
        for node in nodes:
            self._plan(0, node)

    def next_due(self) -> Micros | None:
        return self._due[0][0] if self._due else None

    def happen(self, now: Micros) -> list[tuple[str, What]]:
        """Return the events that are due, and draw the next event of each of these nodes."""
        events: list[tuple[str, What]] = []
        while self._due and self._due[0][0] <= now:
            when, node, what = heappop(self._due)
            events.append((node, what))
            if what in ("fails", "refuses"):
                self.count += 1
                self.out.add(node)
                over: What = "returns" if what == "fails" else "accepts"
                heappush(self._due, (when + self._draw(self.profile.lasts), node, over))
            else:
                self.out.discard(node)
                self._plan(when, node)
        return events

    def _plan(self, now: Micros, node: str) -> None:
        refuses = self._rng.randrange(100) < self.profile.refusing
        heappush(self._due, (now + self._draw(self.profile.between), node, "refuses" if refuses else "fails"))

    def _draw(self, mean: Micros) -> Micros:
        return max(1, round(self._rng.expovariate(1 / mean)))
