"""How much of a node's idle GPUs the usual work could use, and how much is left over in pieces that it cannot.

The usual work is a `Workload`: task shapes, each with a weight, such as how many tasks have it. Of a node, a shape
could use the free part of every device that has as much free as it asks of one; nothing, if there are too few such
devices or too little of anything else. What it could not use is a fragment to it. Everything is an exact sum.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import mul
from typing import NamedTuple

from fairlead.core.policy.fit import WHOLE

MOST_KEPT = 100_000


class Task(NamedTuple):
    """What one task asks for."""

    amounts: tuple[int, ...]
    """Of the resources other than GPUs: CPU first, then the others in one order for all tasks and nodes."""
    devices: int
    milli: int
    """How many devices, and how much of each: whole ones, or a part of one."""

    @property
    def gpu(self) -> int:
        return self.devices * self.milli


class Workload:
    """The usual work on nodes of one kind, made ready for many questions.

    `elsewhere` is the weight of work that may not run on this kind at all: all that is free here is a fragment to it.
    Answers depend on the arguments only; what is kept between calls saves time and nothing else.
    """

    def __init__(self, shapes: Iterable[tuple[Task, int]], elsewhere: int = 0) -> None:
        shapes = tuple(shapes)
        self.total = elsewhere + sum(weight for _, weight in shapes)
        # Work without GPUs could use none of them, whatever the node is like: it counts in the total alone.
        asking = [(task, weight) for task, weight in shapes if task.devices]
        self._demands = sorted({(task.devices, task.milli) for task, _ in asking})
        self._shapes = [(self._demands.index((task.devices, task.milli)), weight) for task, weight in asking]
        self._levels = [_levels(column) for column in zip(*(task.amounts for task, _ in asking), strict=True)]
        self._weights: dict[int, tuple[int, ...]] = {}
        """The shapes for which a node has enough but for GPUs, as bits → their weight, by demand."""
        self._parts: dict[tuple[int, ...], tuple[int, ...]] = {}
        """What is used of the devices → what is free on those that serve each demand."""

    def usable(self, free: Sequence[int], used: Sequence[int]) -> int:
        """The milli-GPU of a node that each shape could use, times its weight, added up."""
        if not self._demands:
            return 0
        enough = -1
        for have, (thresholds, fitting) in zip(free, self._levels, strict=True):
            enough &= fitting[bisect_right(thresholds, have)]
        ordered = tuple(sorted(used))
        if len(self._weights) + len(self._parts) > MOST_KEPT:
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
        """The idle milli-GPU of a node that each shape could not use, times its weight, added up.

        Divided by `total` it is what the next task, drawn from the workload, is expected to find useless.
        """
        idle = sum(WHOLE - each for each in used)
        return self.total * idle - self.usable(free, used)

    def _weigh(self, enough: int) -> tuple[int, ...]:
        weights = [0] * len(self._demands)
        for bit, (demand, weight) in enumerate(self._shapes):
            if enough >> bit & 1:
                weights[demand] += weight
        return tuple(weights)


def _levels(column: Sequence[int]) -> tuple[list[int], list[int]]:
    """The different amounts of one resource, and for each number of them that a node reaches, who has enough."""
    thresholds = sorted(set(column))
    fitting = [sum((amount < level) << bit for bit, amount in enumerate(column)) for level in thresholds]
    return thresholds, [*fitting, (1 << len(column)) - 1]


def _servable(used: Sequence[int], devices: int, milli: int) -> int:
    serving = [WHOLE - each for each in used if WHOLE - each >= milli]
    return sum(serving) if len(serving) >= devices else 0
