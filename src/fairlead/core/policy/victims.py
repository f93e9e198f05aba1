"""Whom to stop for somebody else, as arithmetic on plain values.

Tasks are taken back in units: one task beyond what its gang needs, or a gang whole. The order is: single tasks, then
gangs; the lowest priority; the newest. As few are taken as will do, none if not all that is asked for comes of it, and
no queue goes below what it is guaranteed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

Amounts = Mapping[str, int]


class Unit(NamedTuple):
    """Tasks that can be taken back only together."""

    gang: bool
    """Whether it is all of a gang; else a task that its gang can do without."""
    priority: int
    began: int
    number: int
    """Of the newest allocation: the higher, the newer."""
    task: int
    """Its index, if it is one."""
    of: tuple[str, int]
    """Which gang. Who takes all of it takes the tasks beyond what it needs with it."""
    queue: str
    amounts: tuple[tuple[str, int], ...]
    """What it uses."""


def in_order(units: Iterable[Unit]) -> list[Unit]:
    return sorted(units, key=lambda unit: (unit.gang, unit.priority, -unit.began, -unit.number, -unit.task))


def keeping_guarantees(units: Iterable[Unit], queues: Mapping[str, Sequence[tuple[Amounts, Amounts]]]) -> list[Unit]:
    """Those that can be taken one after the other so that every queue keeps its guarantee.

    `queues` has, for each queue, what is used and what is guaranteed there and in the queues above it that count. What
    was below its guarantee already must not lose anything of it.
    """
    taken: dict[str, dict[str, int]] = {}
    gangs: dict[tuple[str, int], dict[str, int]] = {}
    allowed: list[Unit] = []
    for unit in units:
        singles = gangs.get(unit.of, {})
        more = {name: amount - (singles.get(name, 0) if unit.gang else 0) for name, amount in unit.amounts}
        before = taken.get(unit.queue, {})
        # A level above is shared by several queues: what others lost there counts as well.
        if all(_keeps(used, guarantee, _shared(taken, queues, used), more) for used, guarantee in queues[unit.queue]):
            allowed.append(unit)
            taken[unit.queue] = _sum(before, more)
            if not unit.gang:
                gangs[unit.of] = _sum(singles, more)
    return allowed


def fewest(units: Sequence[Unit], enough: Callable[[Sequence[Unit]], bool]) -> list[Unit] | None:
    """As few of the first units as are enough, without any that is not needed; None if all of them are not enough."""
    if not enough(units):
        return None
    low, high = 0, len(units)
    while low < high:
        middle = (low + high) // 2
        if enough(units[:middle]):
            high = middle
        else:
            low = middle + 1
    chosen = list(units[:low])
    # Whoever was taken last is the first to be spared.
    for unit in reversed(units[:low]):
        without = [each for each in chosen if each is not unit]
        if enough(without):
            chosen = without
    return without_covered(chosen)


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


def _keeps(used: Amounts, guarantee: Amounts, taken: Amounts, more: Amounts) -> bool:
    return all(
        used.get(name, 0) - taken.get(name, 0) - amount >= guarantee[name]
        for name, amount in more.items()
        if amount and name in guarantee
    )


def _shared(
    taken: Mapping[str, Amounts], queues: Mapping[str, Sequence[tuple[Amounts, Amounts]]], level: Amounts
) -> dict[str, int]:
    """What was taken of all queues below a level, which is known by its use."""
    total: dict[str, int] = {}
    for queue, amounts in taken.items():
        if any(used is level for used, _ in queues[queue]):
            total = _sum(total, amounts)
    return total


def _sum(one: Amounts, other: Amounts) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
