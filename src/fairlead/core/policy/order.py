"""The order of a lane: a small object that turns a reservation's plain values into a sort key, lowest first.

Another order is another function of this signature in `ORDERS`. The key is followed by the reservation's sequence
number, so that the order is total.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Key = tuple[int, ...]


class Place(msgspec.Struct, frozen=True):
    """What an order may look at. `kind` is already merged with `new` where a queue says `scale_first: false`."""

    kind: int
    priority: int
    running: int
    asked: int


def by_priority(place: Place) -> Key:
    return (place.kind, -place.priority, place.asked)


def first_in_first_out(place: Place) -> Key:
    return (place.kind, place.asked)


def fair(place: Place) -> Key:
    return (place.kind, place.running, place.asked)


ORDERS: dict[str, Callable[[Place], Key]] = {
    "priority": by_priority,
    "fifo": first_in_first_out,
    "fair": fair,
}
