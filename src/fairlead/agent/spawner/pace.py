"""How often to speak: at once while little is going on, and else in batches."""

from __future__ import annotations

GATHER = 0.008
"""Seconds between two messages while much is going on."""
BURST = 4
"""So many may follow each other at once after a pause."""


class Pace:
    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 0.0

    def wait(self, now: float, at_work: int) -> float:
        """The seconds until the next message may be sent, while so many tasks are at work."""
        return max(0.0, self._next - now) if at_work > 1 else 0.0

    def sent(self, now: float) -> None:
        self._next = max(self._next, now - BURST * GATHER) + GATHER
