"""The order of a lane: a function that turns an ask's plain values into a sort key, lowest first.

Another order is another function of this signature and a row in `ORDERS`: of the kind (already merged with `new` where
a queue says `scale_first: false`), the job's priority, how many of its tasks run, when it was asked for, and whether
these are replacements that a started gang needs to reach `min`. The key is followed by the ask's place among
those of one instant (its sequence number, or that of the ask whose place it came back to) and by its sequence number,
so that the order is total. A place may change with each of these values but the kind: the priority of a job when it is
set, the others if the order says so in its row; see `Lane`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fairlead.core.policy.registry import Registry

Key = tuple[int, ...]


def by_priority(kind: int, priority: int, running: int, asked: int, below_min: bool) -> Key:
    return (not below_min, -priority, kind, asked)


def first_in_first_out(kind: int, priority: int, running: int, asked: int, below_min: bool) -> Key:
    return (kind, asked)


def fair(kind: int, priority: int, running: int, asked: int, below_min: bool) -> Key:
    return (kind, running, asked)


class Order(msgspec.Struct, frozen=True):
    key: Callable[[int, int, int, int, bool], Key]
    by_running: bool = False
    """True if the key depends on `running`, which is 0 otherwise. Then places move with every start and every end."""
    by_min: bool = False
    """True if the key depends on `below_min`, which is False otherwise."""
    longest_first: bool = False
    """True if of the stages of a job those that take longest are asked for first, so that they end first."""


ORDERS: Registry[Order] = Registry(
    "order",
    {
        "priority": Order(by_priority, by_min=True),
        "fifo": Order(first_in_first_out),
        "fair": Order(fair, by_running=True, longest_first=True),
    },
)

MISSING = Order(first_in_first_out)
"""Stands in for an order that is not installed while a journal is replayed, which asks no policy."""
