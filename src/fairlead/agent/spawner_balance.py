"""Spreads tasks over spawners.

The tasks of a chain run one after another in a number of slots, which are divided among the spawners of its user.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence


class Chain:
    __slots__ = ("left", "slots")

    def __init__(self) -> None:
        self.slots: defaultdict[int, int] = defaultdict(int)
        """The slots of the chain, by spawner."""
        self.left: defaultdict[int, int] = defaultdict(int)
        """Its tasks that have not ended, by spawner."""


class SpawnerBalance:
    """Chooses a spawner for each task, and counts the tasks and slots of each spawner."""

    def __init__(self, missing: Collection[int] = ()) -> None:
        """Start with no tasks. Spawners in `missing` get no tasks, unless their user has no other spawner."""
        self._load: defaultdict[int, int] = defaultdict(int)
        self._missing = missing
        self._chains: defaultdict[int, Chain] = defaultdict(Chain)

    def restore(self, spawner: int, chain: int) -> None:
        """Count a task that a spawner already has."""
        self._load[spawner] += 1
        if chain:
            self._chains[chain].left[spawner] += 1

    def place(self, chain: int, among: range) -> int:
        """Choose and return a spawner for a task that starts at once; `among` are the spawners of its user."""
        left = self._chains[chain].left if chain else self._load
        spawner = min(self._present(among), key=lambda at: (left[at], self._load[at]))
        self.restore(spawner, chain)
        return spawner

    def queue(self, number: int) -> int:
        """Choose and return a spawner for a task that waits in a chain. `set_slots` must have been called before."""
        chain = self._chains[number]
        with_slots = [at for at, slots in chain.slots.items() if slots]
        spawner = min(with_slots, key=lambda at: (chain.left[at] / chain.slots[at], at))
        self.restore(spawner, number)
        return spawner

    def set_slots(self, number: int, slots: int, among: range) -> None:
        """Divide the slots of a chain evenly among spawners. Those that already have tasks of the chain come first."""
        chain = self._chains[number]
        while sum(chain.slots.values()) < slots:
            present = self._present(among)
            chain.slots[min(present, key=lambda at: (chain.slots[at], -chain.left[at], self._load[at]))] += 1
        while sum(chain.slots.values()) > slots:
            chain.slots[max(among, key=lambda at: (chain.slots[at], -chain.left[at]))] -= 1

    def slots_at(self, number: int, spawner: int) -> int:
        return self._chains[number].slots[spawner]

    def stranded(self, number: int, spawner: int) -> bool:
        """True if a spawner has tasks of a chain but no slots left for it."""
        chain = self._chains[number]
        return not chain.slots[spawner] and chain.left[spawner] > 0

    def over(self, spawner: int, number: int) -> None:
        """Stop counting a task that has ended or will never start."""
        self._load[spawner] -= 1
        if number:
            chain = self._chains[number]
            chain.left[spawner] -= 1
            if not any(chain.left.values()):
                del self._chains[number]

    def _present(self, among: range) -> Sequence[int]:
        return [at for at in among if at not in self._missing] or among if self._missing else among
