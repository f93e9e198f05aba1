"""Expected run times and ends of tasks.

An overrun estimate is doubled until the end is in the future. An overrun learned estimate is first replaced by the
given one, a bound that users mostly keep.
"""

from __future__ import annotations

LEAST = 1_000_000
"""Microseconds; replaces an estimate of 0 that was overrun, because doubling 0 has no effect."""


def learned_run(last: int, before: int | None, given: int | None) -> int:
    """Return the expected run time: the mean of the last two runs, at most the given estimate."""
    mean = max(LEAST, last if before is None else (last + before) // 2)
    return mean if given is None else min(mean, given)


def learned_end(began: int, learned: int, given: int | None, now: int) -> int | None:
    """Return the expected end by a learned estimate or, once that is overrun, by the given estimate."""
    if began + learned > now:
        return began + learned
    return expected_end(began, learned if given is None else given, now)


def expected_end(began: int, estimate: int | None, now: int) -> int | None:
    """Return the expected end, None without an estimate. An estimate of 0 that is not overrun ends now."""
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
