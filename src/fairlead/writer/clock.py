"""The clock of cycles, which never steps back or jumps even if the wall clock does, and a stopwatch for their parts."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns, perf_counter, time_ns

from fairlead.core.model import Micros

Clock = Callable[[], Micros]
Seconds = Callable[[], float]
"""The time in seconds since 1970."""
Steady = Callable[[], float]
"""A steady number of seconds, such as `time.monotonic`."""


def cycle_clock(
    last_journaled: Micros, wall_ns: Callable[[], int] = time_ns, steady_ns: Callable[[], int] = monotonic_ns
) -> Clock:
    """Return a steady clock that starts at the last time in the journal or at the wall time, whichever is later."""
    start = max(last_journaled, wall_ns() // 1000)
    began = steady_ns()

    def now() -> Micros:
        return start + (steady_ns() - began) // 1000

    return now


class Stopwatch:
    """Measures the parts of a cycle, in seconds. Call it with the name of the part that has just ended."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = perf_counter()

    def __call__(self, part: str) -> None:
        now = perf_counter()
        self.seconds[part] = now - self._since
        self._since = now
