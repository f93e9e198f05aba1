"""Orders of queues. An order maps the `Standing` of an ask to a sort key; the lowest key goes first.

To add an order, write a function and a row in `ORDERS`. To make the order total, the lane appends the ask's place among
asks of the same instant (its sequence number, or that of the earlier ask whose place it has) and its sequence number. A
lane moves an ask when its priority changes, or another value that the order's row names.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fairlead.core.policy.registry import Registry

Key = tuple[int, ...]


class Standing(msgspec.Struct, frozen=True, gc=False):
    """The properties of an ask that an order may use."""

    kind: int
    """0 replaces lost tasks, 1 scales a job up (2 if the queue has `scale_first: false`), 2 is new."""
    priority: int
    """The priority of the job."""
    running: int
    """The live tasks of the job; 0 unless the order is `by_running`."""
    asked: int
    """When it was asked, in microseconds. Preempted tasks keep the time of their first ask."""
    below_min: bool
    """True if a started gang needs its tasks to reach `min`; False unless the order is `by_min`."""


def by_priority(ask: Standing) -> Key:
    return (not ask.below_min, -ask.priority, ask.kind, ask.asked)


def first_in_first_out(ask: Standing) -> Key:
    return (ask.kind, ask.asked)


def by_fewest_running(ask: Standing) -> Key:
    return (ask.kind, ask.running, ask.asked)


class Order(msgspec.Struct, frozen=True):
    key: Callable[[Standing], Key]
    by_running: bool = False
    """True if the key depends on `running`, which is 0 otherwise. Places then change with every start and end."""
    by_min: bool = False
    """True if the key depends on `below_min`, which is False otherwise."""
    longest_first: bool = False
    """True if the stages of a job with the longest expected run times are asked for first."""
    by_user: bool = False
    """True if the users of the queue take turns by use, the least first; then the key orders the asks of one user."""

    @property
    def moves(self) -> bool:
        """True if starts move asks to other places."""
        return self.by_running or self.by_user


ORDERS: Registry[Order] = Registry(
    "order",
    {
        "priority": Order(by_priority, by_min=True),
        "fifo": Order(first_in_first_out),
        "fair": Order(by_fewest_running, by_running=True, longest_first=True, by_user=True),
        "jobs": Order(by_fewest_running, by_running=True, longest_first=True),
    },
)

MISSING = Order(first_in_first_out)
"""Stands in for an order that is not installed, during replay, which evaluates no policy."""
