"""Backfill: the planned start of the first ask without capacity, and which later asks may start before it.

Only the first ask has a planned time, which is computed again on each use. A later ask may start if it fits now, and if
it either ends by that time or takes no more than the capacity to spare then.
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
    """Return the time at which `wanted` tasks fit, given the tasks that fit now and those that each coming end adds.

    `ends` is sorted by time. `gain` is called only for ends up to the planned time; all of these count for the spare
    capacity. None if the known ends never free enough.
    """
    when: int | None = None
    for end, ending in ends:
        if fitting >= wanted and when is not None and end > when:
            break
        fitting += gain(ending)
        when = end
    return None if when is None or fitting < wanted else Planned(when, fitting - wanted)


def spare_at(when: int, fitting: int, wanted: int, ends: Iterable[tuple[int, T]], gain: Callable[[T], int]) -> int:
    """Return the capacity to spare at a time, beyond `wanted`; below 0 if `wanted` does not fit by then."""
    for end, ending in ends:
        if end > when:
            break
        fitting += gain(ending)
    return fitting - wanted


def ends_in_time(now: int, estimate: int | None, planned: int) -> bool:
    """True if a task that starts now is expected to end by the planned time."""
    return estimate is not None and now + estimate <= planned
