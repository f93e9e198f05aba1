"""Expected run times and ends of tasks.

If a task runs longer than its estimate, the estimate is doubled until the end is in the future. A learned estimate is
first replaced by the given one.
"""

from __future__ import annotations

LEAST = 1_000_000
"""Microseconds. Replaces an estimate of 0 that was too short, because doubling 0 has no effect."""


def learned_run(last: int, before: int | None, given: int | None) -> int:
    """Return the expected run time: the mean of the last two runs, at most the given estimate."""
    mean = max(LEAST, last if before is None else (last + before) // 2)
    return mean if given is None else min(mean, given)


def learned_end(began: int, learned: int, given: int | None, now: int) -> int | None:
    """Return the expected end by a learned estimate or, once that has passed, by the given estimate."""
    if began + learned > now:
        return began + learned
    return expected_end(began, learned if given is None else given, now)


def expected_end(began: int, estimate: int | None, now: int) -> int | None:
    """Return the expected end; None without an estimate."""
    if estimate is None:
        return None
    overrun = now - began
    if not estimate:
        if overrun <= 0:
            return now
        estimate = LEAST
    while estimate <= overrun:
        estimate *= 2
    return began + estimate
