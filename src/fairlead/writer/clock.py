"""The time of cycles: it never steps back and never leaps, whatever the wall clock does."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns, time_ns

from fairlead.core.model import Micros

Clock = Callable[[], Micros]


def cycle_clock(
    last_journaled: Micros, wall_ns: Callable[[], int] = time_ns, steady_ns: Callable[[], int] = monotonic_ns
) -> Clock:
    """A clock that starts at the later of the journal's and the wall's time, and then runs steadily."""
    start = max(last_journaled, wall_ns() // 1000)
    began = steady_ns()

    def now() -> Micros:
        return start + (steady_ns() - began) // 1000

    return now
