"""Which tasks to stop for an ask, as arithmetic on plain values.

Tasks are taken back in units: one task beyond what its gang needs, or a gang whole. Of the sets of units that let the
ask start, the one is taken whose highest priority is the lowest; then the one with the fewest tasks; then the one that
breaks the fewest gangs; then the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

Amounts = Mapping[str, int]

FEW = 8
"""Up to this many units all sets of them are compared."""


class Unit(NamedTuple):
    """Tasks that can be taken back only together."""

    gang: bool
    """True if it is all of a gang; else it is a task that its gang can do without."""
    priority: int
    began: int
    number: int
    """Of the newest allocation: the higher, the newer."""
    task: int
    """Its index, if it is one task."""
    of: tuple[str, int]
    """The gang. Taking it whole takes the tasks beyond what it needs with it."""
    queue: str
    amounts: tuple[tuple[str, int], ...]
    """What it uses."""
    tasks: int = 1
    """How many tasks stop."""


Cost = tuple[int, int, int, tuple[tuple[int, int, int], ...]]


def cost_of(units: Iterable[Unit]) -> Cost:
    """What it costs to stop all of these: the lower, the better. Priorities come after the number of tasks.

    That is the order among sets of one highest priority, or of priorities up to a level.
    """
    units = list(units)
    ages = sorted([(-unit.began, -unit.number, -unit.task) for unit in units], reverse=True)
    highest = max([unit.priority for unit in units], default=0)
    gangs = sum([unit.gang and unit.tasks > 1 for unit in units])
    return sum([unit.tasks for unit in units]), highest, gangs, tuple(ages)


def best_of_few(units: Sequence[Unit], enough: Callable[[Sequence[Unit]], bool]) -> Sequence[Unit] | None:
    """The best set of units that is enough, by comparing all sets; None if there is none. For at most `FEW` units."""
    sets = [
        some
        for size in range(1, len(units) + 1)
        for some in combinations(units, size)
        if len(without_covered(some)) == size
    ]
    sets.sort(key=lambda some: (max(unit.priority for unit in some), cost_of(some)))
    return next((some for some in sets if enough(some)), None)


def lowest_level(levels: Sequence[int], enough: Callable[[int], bool]) -> int | None:
    """The lowest of ascending levels up to which there is enough; None if there is not at the highest.

    `enough` was last asked about the level that is returned.
    """
    if not levels or not enough(levels[-1]):
        return None
    low, high, last = 0, len(levels) - 1, len(levels) - 1
    while low < high:
        last = (low + high) // 2
        if enough(levels[last]):
            high = last
        else:
            low = last + 1
    if last != low:
        enough(levels[low])
    return levels[low]


def without_covered(units: Sequence[Unit]) -> list[Unit]:
    """Leave out single tasks of gangs that are taken whole."""
    gangs = {unit.of for unit in units if unit.gang}
    return [unit for unit in units if unit.gang or unit.of not in gangs]


def is_unmet(used: Amounts, asked: Amounts, guarantee: Amounts) -> bool:
    """Whether what is asked for is within a guarantee: then it is somebody's right, and nobody's to take back."""
    guaranteed = [name for name in asked if name in guarantee]
    return bool(guaranteed) and all(used.get(name, 0) + asked[name] <= guarantee[name] for name in guaranteed)


def surplus(running: int, needed: int) -> int:
    """How many tasks a gang can lose and go on."""
    return max(0, running - needed)


def keeps(used: Amounts, guarantee: Amounts, lost: Amounts) -> bool:
    """True if a queue keeps its guarantee of all that it would lose some of."""
    return all(
        used.get(name, 0) - amount >= guarantee[name] for name, amount in lost.items() if amount and name in guarantee
    )
