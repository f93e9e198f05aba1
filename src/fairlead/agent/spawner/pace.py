"""Limits how often a spawner reports to its agent, and an agent to the server.

Late reports leave capacity idle; frequent ones take CPU time from tasks. After a quiet period a report is sent at once.
Otherwise there is a pause between two reports. It is shorter the fewer tasks run and the more cores there are, and
longest while chained tasks wait on the node, because they fill free slots without the server.
"""

from __future__ import annotations

SHORT, MIDDLE, LONG = 0.002, 0.010, 0.015
"""Seconds between two reports: the shortest and longest pause without waiting chained tasks, and the pause with
some."""
FEW_CORES = 4
"""With more cores, the middle pause is shorter: one process takes a smaller part of them."""
MANY = 20
"""Number of running tasks from which the middle pause applies."""
BURST = 4
"""Burst allowance: reports that may follow each other without a pause after a quiet period."""


class Pace:
    __slots__ = ("_credit", "_last", "_middle")

    def __init__(self, cores: int) -> None:
        self._middle = MIDDLE * min(1.0, FEW_CORES / cores)
        self._credit = float(BURST)
        self._last = 0.0

    def wait(self, now: float, running: int, waiting: bool) -> float:
        """Return the seconds until the next report may be sent. `waiting` is True if chained tasks wait here."""
        if (running <= 1 and not waiting) or self._credit_at(now) >= 1:
            return 0.0
        pause = LONG if waiting else max(SHORT, min(running, MANY) * self._middle / MANY)
        return max(0.0, self._last + pause - now)

    def sent(self, now: float) -> None:
        self._credit = max(0.0, self._credit_at(now) - 1)
        self._last = now

    def _credit_at(self, now: float) -> float:
        return min(BURST, self._credit + (now - self._last) / LONG)
