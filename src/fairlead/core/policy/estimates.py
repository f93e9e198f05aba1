"""When what runs is expected to end. An estimate that was overrun doubles, until it lies ahead again."""

from __future__ import annotations

LEAST = 1_000_000
"""Microseconds: nothing doubled would be nothing, so that is taken for an estimate of nothing that was overrun."""


def expected_end(began: int, estimate: int | None, now: int) -> int | None:
    """None if nothing is known. What is estimated to take no time at all ends as soon as it can."""
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
