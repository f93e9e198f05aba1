"""Spreads tasks over spawners. The slots of a chain are divided among the spawners of its user.

A slot lets one task of the chain run at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence


class Chain:
    """The slots of one chain, and its tasks that have not ended (`left`), by spawner."""

    __slots__ = ("left", "slots")

    def __init__(self) -> None:
        self.slots: defaultdict[int, int] = defaultdict(int)
        self.left: defaultdict[int, int] = defaultdict(int)


class SpawnerBalance:
    """Chooses a spawner for each task, and counts the tasks and slots of each spawner."""

    def __init__(self, missing: Collection[int] = ()) -> None:
        """Start with no tasks. Spawners in `missing` get no tasks, unless their user has no other spawner."""
        self._load: defaultdict[int, int] = defaultdict(int)
        self._missing = missing
        self._chains: dict[int, Chain] = {}

    def restore(self, spawner: int, chain: int) -> None:
        """Count a task that a spawner already has."""
        self._load[spawner] += 1
        if chain:
            self._chain(chain).left[spawner] += 1

    def place(self, chain: int, among: range) -> int:
        """Choose and return a spawner for a task that starts at once; `among` are the spawners of its user."""
        if chain:
            left = self._chain(chain).left
            spawner = min(self._present(among), key=lambda spawner_id: (left[spawner_id], self._load[spawner_id]))
        else:
            spawner = min(self._present(among), key=self._load.__getitem__)
        self.restore(spawner, chain)
        return spawner

    def queue(self, number: int) -> int:
        """Choose and return a spawner for a task that waits in a chain. `set_slots` must have been called before."""
        chain = self._chains[number]
        spawner = min(
            (spawner_id for spawner_id, slots in chain.slots.items() if slots),
            key=lambda spawner_id: (chain.left[spawner_id] / chain.slots[spawner_id], spawner_id),
        )
        self.restore(spawner, number)
        return spawner

    def set_slots(self, number: int, slots: int, among: range) -> None:
        """Let at most `slots` tasks of a chain run at a time, spread evenly over `among`.

        Spawners that already have tasks of the chain come first.
        """
        chain = self._chain(number)
        while sum(chain.slots.values()) < slots:
            present = self._present(among)
            chain.slots[
                min(
                    present,
                    key=lambda spawner_id: (chain.slots[spawner_id], -chain.left[spawner_id], self._load[spawner_id]),
                )
            ] += 1
        while sum(chain.slots.values()) > slots:
            chain.slots[max(among, key=lambda spawner_id: (chain.slots[spawner_id], -chain.left[spawner_id]))] -= 1

    def slots_at(self, number: int, spawner: int) -> int:
        """Return the number of slots that a chain has at a spawner."""
        return self._chain(number).slots[spawner]

    def stranded(self, number: int, spawner: int) -> bool:
        """True if a spawner has tasks of a chain but no slots left for it."""
        chain = self._chain(number)
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
        return (
            [spawner_id for spawner_id in among if spawner_id not in self._missing] or among if self._missing else among
        )

    def _chain(self, number: int) -> Chain:
        chain = self._chains.get(number)
        if chain is None:
            chain = self._chains[number] = Chain()
        return chain
