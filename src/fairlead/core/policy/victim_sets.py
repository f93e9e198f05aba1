"""Chooses the tasks to stop for an ask: arithmetic on plain values.

Tasks are stopped in units: a single task of a stage that can spare it, or a whole gang. Of the sets of units that let
the ask start, the best one has the lowest highest priority, then the fewest tasks, then the fewest broken gangs, then
the lowest ranks. By default, newer units have lower ranks; a policy can rank them otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from fairlead.core.policy.registry import Registry

Key = tuple[int, ...]
Amounts = Mapping[str, int]

FEW = 8
"""Up to this number of units, all sets of them are compared."""


class Unit(NamedTuple):
    """Tasks that can only be stopped together."""

    gang: bool
    """True for a whole gang; False for a single task that its stage can spare."""
    priority: int
    began: int
    number: int
    """The number of its newest allocation."""
    task: int
    """The index of a single task."""
    of: tuple[str, int]
    """The gang, which also has the single task of this unit."""
    queue: str
    amounts: tuple[tuple[str, int], ...]
    """The resources it uses."""
    tasks: int = 1
    """The number of tasks that stop."""
    stage: int = 0
    """The position of the stage of a single task."""
    spare: int = 0
    """The number of single tasks that the stage can spare."""


StageKey = tuple[tuple[str, int], int]
"""The gang and the position of a stage."""

NONE_LOST: Mapping[StageKey, int] = {}

Cost = tuple[int, int, int, tuple[Key, ...]]


def newest(unit: Unit) -> Key:
    """Rank the newest unit first."""
    return -unit.began, -unit.number, -unit.task


Rank = Callable[[Unit], Key]
"""Returns the rank of a unit. Of sets that are equal otherwise, the one with the lowest ranks is stopped."""

VICTIMS: Registry[Rank] = Registry("victims", {"newest": newest})


def cost_of(units: Iterable[Unit], rank: Rank = newest) -> Cost:
    """Return the cost of stopping all these units, by number of tasks, priority, gangs and ranks; the lowest is best.

    It compares sets with the same highest priority, or with priorities up to the same level.
    """
    units = list(units)
    ranks = sorted([rank(unit) for unit in units], reverse=True)
    highest = max([unit.priority for unit in units], default=0)
    gangs = sum([unit.gang and unit.tasks > 1 for unit in units])
    return sum([unit.tasks for unit in units]), highest, gangs, tuple(ranks)


def best_of_few(
    units: Sequence[Unit], enough: Callable[[Sequence[Unit]], bool], rank: Rank = newest
) -> Sequence[Unit] | None:
    """Return the best set of units that is enough, or None, by comparing all sets of at most `FEW` units."""
    choices = [
        choice
        for size in range(1, len(units) + 1)
        for choice in combinations(units, size)
        if are_apart(choice) and not overdrawn(choice)
    ]
    choices.sort(key=lambda choice: (max(unit.priority for unit in choice), cost_of(choice, rank)))
    return next((choice for choice in choices if enough(choice)), None)


def lowest_level(levels: Sequence[int], enough: Callable[[int], bool]) -> int | None:
    """Return the lowest of the ascending levels that is enough, or None.

    The last call of `enough` is for the returned level.
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
    """Return the units without single tasks of gangs that stop whole."""
    gangs = {unit.of for unit in units if unit.gang}
    return [unit for unit in units if unit.gang or unit.of not in gangs]


def are_apart(units: Sequence[Unit]) -> bool:
    """True if no unit is a part of another one."""
    return len(without_covered(units)) == len(units)


def overdrawn(units: Iterable[Unit], lost: Mapping[StageKey, int] = NONE_LOST) -> bool:
    """True if a stage would lose more single tasks than it can spare. `lost` are those that stop already."""
    more: dict[StageKey, int] = {}
    for unit in units:
        if not unit.gang:
            key = (unit.of, unit.stage)
            more[key] = more.get(key, lost.get(key, 0)) + 1
            if more[key] > unit.spare:
                return True
    return False


def is_unmet(used: Amounts, asked: Amounts, guarantee: Amounts) -> bool:
    """True if a request is within a guarantee that its queue does not use yet."""
    guaranteed = [name for name in asked if name in guarantee]
    return bool(guaranteed) and all(used.get(name, 0) + asked[name] <= guarantee[name] for name in guaranteed)


def surplus(running: int, needed: int) -> int:
    """Return how many of its running tasks a gang can spare."""
    return max(0, running - needed)


def keeps(used: Amounts, guarantee: Amounts, lost: Amounts) -> bool:
    """True if a queue keeps its guarantee of every resource that it would lose."""
    return all(
        used.get(name, 0) - amount >= guarantee[name] for name, amount in lost.items() if amount and name in guarantee
    )
