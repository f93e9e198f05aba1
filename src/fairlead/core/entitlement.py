"""Entitlements of queues and their use, as integers that can be compared.

Both are computed from the configuration, the capacity and the accounts, and are never journaled. With `unit: slots`,
each node is one slot and each task uses one slot. Otherwise entitlement and use are parts of the whole capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fairlead.core.model import Account, Queue, Unit
from fairlead.core.policy.decay import TASKS
from fairlead.core.policy.shares import Measure, entitlements
from fairlead.core.resources import Vector, add


class Entitlements:
    """The entitlements of all queues for one capacity, computed on demand."""

    def __init__(self, unit: Unit, capacity: Mapping[str, int], nodes: int) -> None:
        self.slots = unit == "slots"
        self.capacity = dict(capacity)
        self.nodes = nodes
        self._measure = Measure(capacity)
        self.whole = nodes if self.slots else self._measure.whole
        self._of: dict[str, tuple[int, int]] = {"root": (1, self.whole)}
        """Queue path → weight among its siblings, and entitlement."""
        self._shared: dict[str, int] = {}

    def of(self, queue: Queue) -> int:
        """Return the entitlement of a queue: its part of the entitlement of its parent."""
        return self._look(queue)[1]

    def share(self, queue: Queue) -> int:
        """Return the weight of a queue among its siblings: its share; without one 0, or 1 if no sibling has a share."""
        return self._look(queue)[0]

    def shared(self, parent: Queue) -> int:
        """Return the sum of the weights of the children of a queue."""
        for child in parent.children.values():
            self._look(child)
            return self._shared[parent.path]
        return 0

    def used(self, queue: Queue) -> int:
        return self.measure(queue.account.used, queue.account.tasks)

    def measure(self, used: Mapping[str, int], tasks: int) -> int:
        """Return the use of resources and tasks as a number that can be compared with an entitlement."""
        return tasks if self.slots else self._measure.dominant_share(used)

    def measure_with_tasks(self, use: Mapping[str, int]) -> int:
        """Return the same number as `measure`, for a vector that has the number of tasks under the key `TASKS`."""
        if self.slots:
            return use.get(TASKS, 0)
        return self._measure.dominant_share({name: amount for name, amount in use.items() if name != TASKS})

    def parts(self, use: Mapping[str, int]) -> dict[str, int]:
        """Return the use of each resource as a part of the capacity; `measure_with_tasks` returns the largest part."""
        if self.slots:
            return {TASKS: use.get(TASKS, 0)}
        return self._measure.parts({name: amount for name, amount in use.items() if name != TASKS})

    def starts_below(self, entitled: int, used: Mapping[str, int], tasks: int, request: Vector, most: int) -> int:
        """Return how many equal tasks, at most `most`, may start one after the other.

        A task may start while the use is below `entitled`.
        """
        least = 0
        while least < most:
            middle = (least + most) // 2
            more = dict(used)
            add(more, request, middle)
            if self.measure(more, tasks + middle) < entitled:
                least = middle + 1
            else:
                most = middle
        return least

    def loaned(self, queue: Queue) -> int:
        return max(0, self.used(queue) - self.of(queue))

    def _look(self, queue: Queue) -> tuple[int, int]:
        cached = self._of.get(queue.path)
        if cached is None:
            assert queue.parent is not None
            self._divide(queue.parent)
            cached = self._of[queue.path]
        return cached

    def _divide(self, parent: Queue) -> None:
        shares = shares_of(parent)
        self._shared[parent.path] = sum(shares.values())
        owned = entitlements(self.of(parent), shares)
        for name, child in parent.children.items():
            self._of[child.path] = (shares[name], owned[name])


def has_shares(parent: Queue) -> bool:
    """True if loans between the children of a queue are taken back.

    That is so if a child, the queue itself or a queue above it has a share.
    """
    queues = (*parent.line(), *parent.children.values())
    return any(queue.settings.share is not None for queue in queues)


def shares_of(parent: Queue) -> dict[str, int]:
    """Return the weights of the children of a queue, by name."""
    shares = {name: child.settings.share for name, child in parent.children.items()}
    if all(share is None for share in shares.values()):
        return dict.fromkeys(shares, 1)
    return {name: share or 0 for name, share in shares.items()}


class Uses:
    """Measures the use by which turns are ordered: present use and, with `share_memory`, past use with equal weight.

    `weight` is the total weight of past time; 0 if past use does not count.
    """

    def __init__(self, rights: Entitlements, weight: int, past_of: Callable[[Account], Vector]) -> None:
        self.rights = rights
        self.weight = weight
        self.past_of = past_of

    def counted(self, used: Mapping[str, int], tasks: int, past: Mapping[str, int]) -> int:
        """Return the number by which turns are ordered, from present and past use."""
        if not self.weight:
            return self.rights.measure(used, tasks)
        return self.rights.measure_with_tasks(self._total(used, tasks, past))

    def parts(self, used: Mapping[str, int], tasks: int, past: Mapping[str, int]) -> dict[str, int]:
        """Return present and past use of each resource as a number; `counted` returns the largest of them."""
        return self.rights.parts(self._total(used, tasks, past))

    def _total(self, used: Mapping[str, int], tasks: int, past: Mapping[str, int]) -> Vector:
        total = dict(past)
        add(total, dict(used), self.weight or 1)
        total[TASKS] = total.get(TASKS, 0) + tasks * (self.weight or 1)
        return total
