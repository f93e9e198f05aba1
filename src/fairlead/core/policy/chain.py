"""Chains: the measured run time of quick tasks, and how many of them to send ahead."""

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
