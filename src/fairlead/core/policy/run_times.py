"""Expected run times and ends of tasks, and chains: how many quick tasks to send ahead.

If a task runs longer than its estimate, the estimate is doubled until the end is in the future. A learned estimate is
first replaced by the given one.
"""

from __future__ import annotations

MAX_CHAIN = 1_000
"""Maximum number of tasks that wait for one slot. It bounds the size of a message and the effect of a wrong
measurement."""


def measured(estimate: int | None, sample: int, chain: int) -> int | None:
    """Return the estimated run time of tasks after a new sample; None if they are not quick.

    Tasks are quick if two of them take at most `chain`. A sample within a factor of 1.5 leaves the estimate as it is,
    so that it is seldom journaled. Another sample moves it halfway.
    """
    if estimate is None:
        return sample if 2 * sample <= chain else None
    if 2 * sample <= 3 * estimate and 2 * estimate <= 3 * sample:
        return estimate
    middle = (estimate + min(sample, chain)) // 2
    return middle if 2 * middle <= chain else None


def ahead(ran: int | None, chain: int) -> int:
    """Return how many tasks should wait for each slot, so that with the running task they take about `chain`."""
    if ran is None:
        return 0
    return max(0, min(chain // max(ran, 1), MAX_CHAIN) - 1)


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
