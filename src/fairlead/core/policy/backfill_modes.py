"""Arithmetic of backfill: the planned start of an ask without capacity, and the capacity to spare at that time.

A later ask may start before it if it fits now, and if it either ends by the planned time or takes no more than the
capacity to spare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Planned(NamedTuple):
    when: int
    spare: int
    """The capacity to spare at that time, beyond the planned ask."""


def plan_start(fitting: int, wanted: int, ends: Iterable[tuple[int, T]], gain: Callable[[T], int]) -> Planned | None:
    """Return the time at which `wanted` tasks fit; None if the known ends do not free enough.

    `fitting` tasks fit now, and `gain` returns how many more fit after an end. `ends` is sorted by time. All ends up to
    the planned time count for the spare capacity.
    """
    when: int | None = None
    for end, ending in ends:
        if fitting >= wanted and when is not None and end > when:
            break
        fitting += gain(ending)
        when = end
    return None if when is None or fitting < wanted else Planned(when, fitting - wanted)


def spare_at(when: int, fitting: int, wanted: int, ends: Iterable[tuple[int, T]], gain: Callable[[T], int]) -> int:
    """Return the capacity to spare at a time beside `wanted` tasks; below 0 if these do not fit by then."""
    for end, ending in ends:
        if end > when:
            break
        fitting += gain(ending)
    return fitting - wanted


def ends_in_time(now: int, estimate: int | None, planned: int) -> bool:
    """True if a task that starts now is expected to end by the planned time."""
    return estimate is not None and now + estimate <= planned
