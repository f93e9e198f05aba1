"""Backfill, as arithmetic: when does the first who found no room fit, and who may start before it does (EASY).

Only the first has a planned time, and it is worked out anew each time somebody looks. Whoever comes after it may start
if it fits now and either ends by that time, or takes no more than what will be to spare then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Planned(NamedTuple):
    when: int
    spare: int
    """How much more there is room for then, besides what it was planned for."""


def plan_start(room: int, wanted: int, ends: Iterable[tuple[int, T]], gain: Callable[[T], int]) -> Planned | None:
    """When so much is wanted that there is not room for now, from what ends when and how much room that gives.

    Ends come in the order of time, and the gain is asked for only of what has ended by the planned time. All of that
    counts for what is to spare. None if it is not known that there ever will be room.
    """
    when: int | None = None
    for end, each in ends:
        if room >= wanted and when is not None and end > when:
            break
        room += gain(each)
        when = end
    return None if when is None or room < wanted else Planned(when, room - wanted)


def ends_in_time(now: int, estimate: int | None, planned: int) -> bool:
    """Whether what starts now is expected to be over by then."""
    return estimate is not None and now + estimate <= planned
