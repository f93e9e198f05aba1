"""Expected ends of running tasks. An estimate that was overrun is doubled until the end is in the future."""

from __future__ import annotations

LEAST = 1_000_000
"""Microseconds; replaces an estimate of 0 that was overrun, because doubling 0 has no effect."""


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
