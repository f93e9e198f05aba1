"""Fragmentation: how much of a node's idle GPU capacity typical tasks can use, and how much is too fragmented for them.

Typical tasks are a `Workload`: task shapes with weights, such as their numbers of tasks. A shape can use the free part
of each device that has enough free for it. It can use nothing if the node has too few such devices or too little of
another resource. The rest is fragmented for the shape. All sums are exact.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import mul
from typing import NamedTuple

from fairlead.core.policy.fit import WHOLE

MAX_KEPT = 100_000


class Task(NamedTuple):
    """The request of one task."""

    amounts: tuple[int, ...]
    """Amounts of resources other than GPUs: CPU first, then the others in the same order for all tasks and nodes."""
    devices: int
    milli: int
    """Milli-GPU that the task takes of each of its `devices`."""

    @property
    def gpu(self) -> int:
        return self.devices * self.milli


class Workload:
    """The typical tasks for nodes of one kind, prepared for many evaluations.

    `elsewhere` is the weight of tasks that may not run on this kind, so that all free capacity here is fragmented for
    them.
    """

    def __init__(self, shapes: Iterable[tuple[Task, int]], elsewhere: int = 0) -> None:
        shapes = tuple(shapes)
        self.total = elsewhere + sum(weight for _, weight in shapes)
        # Tasks without GPUs use no idle GPU on any node, so they count in the total only.
        asking = [(task, weight) for task, weight in shapes if task.devices]
        self._demands = sorted({(task.devices, task.milli) for task, _ in asking})
        self._shapes = [(self._demands.index((task.devices, task.milli)), weight) for task, weight in asking]
        self._levels = [_levels(column) for column in zip(*(task.amounts for task, _ in asking), strict=True)]
        self._weights: dict[int, tuple[int, ...]] = {}
        """Shapes that fit apart from GPUs, as bits → their weights by GPU demand."""
        self._parts: dict[tuple[int, ...], tuple[int, ...]] = {}
        """Use of the devices → free capacity on the devices that fit each GPU demand."""

    def usable(self, free: Sequence[int], used: Sequence[int]) -> int:
        """Return the idle milli-GPU of a node that each shape can use, multiplied by its weight and summed up."""
        if not self._demands:
            return 0
        enough = -1
        for available, (thresholds, fitting) in zip(free, self._levels, strict=True):
            enough &= fitting[bisect_right(thresholds, available)]
        ordered = tuple(sorted(used))
        if len(self._weights) + len(self._parts) > MAX_KEPT:
            self._weights.clear()
            self._parts.clear()
        weights = self._weights.get(enough)
        if weights is None:
            weights = self._weights[enough] = self._weigh(enough)
        parts = self._parts.get(ordered)
        if parts is None:
            parts = self._parts[ordered] = tuple(_servable(ordered, *demand) for demand in self._demands)
        return sum(map(mul, weights, parts))

    def fragmentation(self, free: Sequence[int], used: Sequence[int]) -> int:
        """Return the idle milli-GPU of a node that each shape cannot use, multiplied by its weight and summed up.

        Divided by `total`, it is the idle GPU capacity that a random task of the workload cannot use, on average.
        """
        idle = sum(WHOLE - device for device in used)
        return self.total * idle - self.usable(free, used)

    def _weigh(self, enough: int) -> tuple[int, ...]:
        weights = [0] * len(self._demands)
        for bit, (demand, weight) in enumerate(self._shapes):
            if enough >> bit & 1:
                weights[demand] += weight
        return tuple(weights)


def _levels(column: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the sorted different amounts of a resource, and for each position the shapes that fit there, as bits."""
    thresholds = sorted(set(column))
    fitting = [sum((amount < level) << bit for bit, amount in enumerate(column)) for level in thresholds]
    return thresholds, [*fitting, (1 << len(column)) - 1]


def _servable(used: Sequence[int], devices: int, milli: int) -> int:
    serving = [WHOLE - device for device in used if WHOLE - device >= milli]
    return sum(serving) if len(serving) >= devices else 0
