"""How long tasks run, and how many of them are worth sending ahead."""

from __future__ import annotations

MAX_CHAIN = 1_000
"""Tasks that may wait for one room, whatever was measured: no process is so quick that more would help, and this is
what a message, a loss or a wrong measure is bounded by."""


def measured(known: int | None, sample: int, chain: int) -> int | None:
    """What to take for the run time of tasks after another one was seen; None if they are not quick.

    They are quick if two of them fit into `chain`. What is known stands while samples are within half as much again
    of it, so that it is seldom written; else the truth is taken to lie in the middle.
    """
    if known is None:
        return sample if 2 * sample <= chain else None
    if 2 * sample <= 3 * known and 2 * known <= 3 * sample:
        return known
    middle = (known + min(sample, chain)) // 2
    return middle if 2 * middle <= chain else None


def ahead(ran: int | None, chain: int) -> int:
    """How many tasks should wait for each room, behind the one that has it: `chain` of work in all."""
    if ran is None:
        return 0
    return max(0, min(chain // max(ran, 1), MAX_CHAIN) - 1)
