"""Orders of queues. An order maps the `Standing` of an ask to a sort key; the lowest key is first.

To add an order, write a function and a row in `ORDERS`. Equal keys are ordered by the sequence numbers of the asks. A
lane moves an ask when its priority changes, or a value on which the order depends according to its row.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fairlead.core.policy.registry import Registry

Key = tuple[int, ...]


class Standing(msgspec.Struct, frozen=True, gc=False):
    """The properties of an ask that an order may use."""

    kind: int
    """0 for tasks that replace others, 1 for tasks that scale a job up, 2 for new ones and, with `scale_first: false`,
    for those that scale up."""
    priority: int
    """The priority of the job."""
    running: int
    """The live tasks of the job; 0 unless the order is `by_running`."""
    asked: int
    """The time of the ask in microseconds. Preempted tasks keep the time of their first ask."""
    below_min: bool
    """True if a started gang needs its tasks to reach `min`; False unless the order is `by_min`."""


def by_priority(ask: Standing) -> Key:
    return (not ask.below_min, -ask.priority, ask.kind, ask.asked)


def first_in_first_out(ask: Standing) -> Key:
    return (ask.kind, ask.asked)


def by_fewest_running(ask: Standing) -> Key:
    return (ask.kind, ask.running, ask.asked)


def by_priority_and_fewest_running(ask: Standing) -> Key:
    return (not ask.below_min, -ask.priority, *by_fewest_running(ask))


class Order(msgspec.Struct, frozen=True):
    key: Callable[[Standing], Key]
    by_running: bool = False
    """True if the key depends on `running`. Asks then move with every start and end."""
    by_min: bool = False
    """True if the key depends on `below_min`."""
    longest_first: bool = False
    """True if a job asks first for the stages with the longest expected run times."""
    by_user: bool = False
    """True if users take turns, the one with the least use first. The key then orders the asks of one user."""

    @property
    def by_priority(self) -> bool:
        """True if the key depends on `priority`."""
        low = Standing(kind=2, priority=0, running=0, asked=0, below_min=False)
        return self.key(low) != self.key(msgspec.structs.replace(low, priority=1))

    @property
    def moves(self) -> bool:
        """True if a start can change the order of other asks."""
        return self.by_running or self.by_user


ORDERS: Registry[Order] = Registry(
    "order",
    {
        "priority": Order(by_priority, by_min=True),
        "fifo": Order(first_in_first_out),
        "fair": Order(by_priority_and_fewest_running, by_running=True, by_min=True, longest_first=True, by_user=True),
        "jobs": Order(by_fewest_running, by_running=True, longest_first=True),
    },
)

MISSING = Order(first_in_first_out)
"""Used during replay if the order is not installed. Replay evaluates no policy."""
