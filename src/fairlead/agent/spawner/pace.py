"""How often to speak. Who is told late has rooms that stand empty, and who is told often has no time for anything else.

So all is said at once while little is going on, after a pause that is the shorter the fewer tasks keep the machine busy
meanwhile, and in large batches while more tasks wait here for their rooms already.
"""

from __future__ import annotations

SHORT, MIDDLE, LONG = 0.002, 0.010, 0.015
"""Seconds between two messages: while somebody may wait to fill rooms at least and at most, and while tasks wait here
for them."""
MANY = 20
"""So many tasks at work have enough to do for the middle pause."""
BURST = 4
"""So many may follow each other at once after a longer time."""


class Pace:
    __slots__ = ("_credit", "_last")

    def __init__(self) -> None:
        self._credit = float(BURST)
        self._last = 0.0

    def wait(self, now: float, at_work: int, waiting: bool) -> float:
        """The seconds until the next message may be sent, while so many tasks run and some wait here or not."""
        if (at_work <= 1 and not waiting) or self._credit_at(now) >= 1:
            return 0.0
        pause = LONG if waiting else max(SHORT, min(at_work, MANY) * MIDDLE / MANY)
        return max(0.0, self._last + pause - now)

    def sent(self, now: float) -> None:
        self._credit = max(0.0, self._credit_at(now) - 1)
        self._last = now

    def _credit_at(self, now: float) -> float:
        return min(BURST, self._credit + (now - self._last) / LONG)
