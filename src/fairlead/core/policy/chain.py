"""Chains: the measured run time of quick tasks, and how many of them to send ahead."""

from __future__ import annotations

MAX_CHAIN = 1_000
"""At most this number of tasks wait for one slot. More would not help even the quickest tasks, and the bound limits the
size of a message, a loss or the effect of a wrong measurement."""


def measured(estimate: int | None, sample: int, chain: int) -> int | None:
    """Return the estimated run time of tasks after a new sample; None if they are not quick.

    Tasks are quick if two of them fit into `chain`. The estimate stays while samples are within a factor of 1.5 of it,
    so that it is seldom journaled; otherwise it moves halfway to the sample.
    """
    if estimate is None:
        return sample if 2 * sample <= chain else None
    if 2 * sample <= 3 * estimate and 2 * estimate <= 3 * sample:
        return estimate
    middle = (estimate + min(sample, chain)) // 2
    return middle if 2 * middle <= chain else None


def ahead(ran: int | None, chain: int) -> int:
    """Return how many tasks should wait for each slot: with the running task, they take about the time `chain`."""
    if ran is None:
        return 0
    return max(0, min(chain // max(ran, 1), MAX_CHAIN) - 1)
