"""Orders of lanes: an order is a function that turns plain values of an ask into a sort key, lowest first.

To add an order, write a function of this signature and a row in `ORDERS`. The arguments are the kind (scale counts as
new if the queue has `scale_first: false`), the job's priority, its number of running tasks, when it was asked for, and
whether these are replacements that a started gang needs to reach `min`. The lane appends the ask's place among asks of
the same instant (its sequence number, or that of the earlier ask to which it came back) and its sequence number, so
that the order is total. All of these values but the kind may change: the priority when it is set, the others only
matter if the order's row says so; see `Lane`.
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
    """True if the stages of a job with the longest estimates are asked for first."""


ORDERS: Registry[Order] = Registry(
    "order",
    {
        "priority": Order(by_priority, by_min=True),
        "fifo": Order(first_in_first_out),
        "fair": Order(fair, by_running=True, longest_first=True),
    },
)

MISSING = Order(first_in_first_out)
"""Stand-in for an order that is not installed, used during replay, which evaluates no policy."""
