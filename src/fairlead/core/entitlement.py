"""What each queue may call its own, and what it uses, as numbers that can be compared.

Derived from the configuration, the capacity and the accounts, and made anew when one of them is another; nothing about
it is ever written down. In `slots` a node is one, and so is a task; otherwise they are parts of the whole capacity.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.core.model import Queue, Unit
from fairlead.core.policy.shares import Measure, entitlements
from fairlead.core.resources import Vector, add


class Entitlements:
    def __init__(self, unit: Unit, capacity: Mapping[str, int], nodes: int) -> None:
        self.slots = unit == "slots"
        self.capacity = dict(capacity)
        self.nodes = nodes
        self._measure = Measure(capacity)
        self.whole = nodes if self.slots else self._measure.whole
        self._of: dict[str, tuple[int, int]] = {"root": (1, self.whole)}
        """Path → the share among its siblings, and the entitlement."""
        self._shared: dict[str, int] = {}

    def of(self, queue: Queue) -> int:
        """What a queue is entitled to: its part of what its parent is entitled to."""
        return self._look(queue)[1]

    def share(self, queue: Queue) -> int:
        """Its weight among its siblings. If none of them has a share, all are alike; else who has none has 0."""
        return self._look(queue)[0]

    def shared(self, parent: Queue) -> int:
        """The weights of its children together."""
        for child in parent.children.values():
            self._look(child)
            return self._shared[parent.path]
        return 0

    def used(self, queue: Queue) -> int:
        return self.measure(queue.account.used, queue.account.tasks)

    def measure(self, used: Mapping[str, int], tasks: int) -> int:
        """What some use is in all, to compare with an entitlement."""
        return tasks if self.slots else self._measure.dominant_share(used)

    def starts_below(self, entitled: int, used: Mapping[str, int], tasks: int, each: Vector, most: int) -> int:
        """How many equal tasks may start, up to a number, so that before each of them there is something left."""
        least = 0
        while least < most:
            middle = (least + most) // 2
            more = dict(used)
            add(more, each, middle)
            if self.measure(more, tasks + middle) < entitled:
                least = middle + 1
            else:
                most = middle
        return least

    def loaned(self, queue: Queue) -> int:
        return max(0, self.used(queue) - self.of(queue))

    def _look(self, queue: Queue) -> tuple[int, int]:
        known = self._of.get(queue.path)
        if known is None:
            assert queue.parent is not None
            self._divide(queue.parent)
            known = self._of[queue.path]
        return known

    def _divide(self, parent: Queue) -> None:
        shares = shares_of(parent)
        self._shared[parent.path] = sum(shares.values())
        owned = entitlements(self.of(parent), shares)
        for name, child in parent.children.items():
            self._of[child.path] = (shares[name], owned[name])


def shares_of(parent: Queue) -> dict[str, int]:
    """The shares that count among the children of a queue, by name."""
    given = {name: child.settings.share for name, child in parent.children.items()}
    if all(share is None for share in given.values()):
        return dict.fromkeys(given, 1)
    return {name: share or 0 for name, share in given.items()}
