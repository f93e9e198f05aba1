"""Which spawner gets which task. A chain is spread over the spawners of its user: each has some of its rooms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence


class Chain:
    """How the rooms of one chain, and its tasks that have not ended, are spread."""

    __slots__ = ("left", "rooms")

    def __init__(self) -> None:
        self.rooms: defaultdict[int, int] = defaultdict(int)
        self.left: defaultdict[int, int] = defaultdict(int)


class Rooms:
    def __init__(self, missing: Collection[int] = ()) -> None:
        """`missing` has the spawners that get no tasks now; when it has all of a user, it is not looked at."""
        self._load: defaultdict[int, int] = defaultdict(int)
        self._missing = missing
        self._chains: dict[int, Chain] = {}

    def restore(self, spawner: int, chain: int) -> None:
        """A task was found at a spawner."""
        self._load[spawner] += 1
        if chain:
            self._chain(chain).left[spawner] += 1

    def place(self, chain: int, among: range) -> int:
        """The spawner, among those of a user, for a task that starts at once."""
        if chain:
            left = self._chain(chain).left
            spawner = min(self._present(among), key=lambda each: (left[each], self._load[each]))
        else:
            spawner = min(self._present(among), key=self._load.__getitem__)
        self.restore(spawner, chain)
        return spawner

    def queue(self, number: int) -> int:
        """The spawner for a task that waits in a chain whose rooms are set."""
        chain = self._chains[number]
        spawner = min(
            (each for each, rooms in chain.rooms.items() if rooms),
            key=lambda each: (chain.left[each] / chain.rooms[each], each),
        )
        self.restore(spawner, number)
        return spawner

    def set_rooms(self, number: int, rooms: int, among: range) -> None:
        """Let N tasks of a chain run at a time, spread evenly, first over spawners that have been given some of it."""
        chain = self._chain(number)
        while sum(chain.rooms.values()) < rooms:
            present = self._present(among)
            chain.rooms[min(present, key=lambda each: (chain.rooms[each], -chain.left[each], self._load[each]))] += 1
        while sum(chain.rooms.values()) > rooms:
            chain.rooms[max(among, key=lambda each: (chain.rooms[each], -chain.left[each]))] -= 1

    def rooms_at(self, number: int, spawner: int) -> int:
        return self._chain(number).rooms[spawner]

    def stranded(self, number: int, spawner: int) -> bool:
        """Whether tasks of a chain wait where it has no rooms any more."""
        chain = self._chain(number)
        return not chain.rooms[spawner] and chain.left[spawner] > 0

    def over(self, spawner: int, number: int) -> None:
        """A task has ended, or will never start."""
        self._load[spawner] -= 1
        if number:
            chain = self._chains[number]
            chain.left[spawner] -= 1
            if not any(chain.left.values()):
                del self._chains[number]

    def _present(self, among: range) -> Sequence[int]:
        return [each for each in among if each not in self._missing] or among if self._missing else among

    def _chain(self, number: int) -> Chain:
        chain = self._chains.get(number)
        if chain is None:
            chain = self._chains[number] = Chain()
        return chain
