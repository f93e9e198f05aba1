"""How often to speak: at once when there is little to say, and else in batches."""

from __future__ import annotations

GATHER = 0.008
"""Seconds between two messages while there are many."""
BURST = 4
"""So many may follow each other at once after a pause."""


class Pace:
    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 0.0

    def wait(self, now: float) -> float:
        """The seconds until the next message may be sent."""
        return max(0.0, self._next - now)

    def sent(self, now: float) -> None:
        self._next = max(self._next, now - BURST * GATHER) + GATHER
