"""Which spawner gets which task. Chains are spread over all of them: each has some of the rooms and of who waits."""

from __future__ import annotations

from collections.abc import Collection, Sequence


class Chain:
    """How the rooms of one chain, and its tasks that have not ended, are spread."""

    __slots__ = ("left", "rooms")

    def __init__(self, spawners: int) -> None:
        self.rooms = [0] * spawners
        self.left = [0] * spawners


class Rooms:
    def __init__(self, spawners: int, missing: Collection[int] = ()) -> None:
        """`missing` has the spawners that get no tasks now; when it has all of them, it is not looked at."""
        self._load = [0] * spawners
        self._all = range(spawners)
        self._missing = missing
        self._chains: dict[int, Chain] = {}

    def restore(self, spawner: int, chain: int) -> None:
        """A task was found at a spawner."""
        self._load[spawner] += 1
        if chain:
            self._chain(chain).left[spawner] += 1

    def place(self, chain: int) -> int:
        """The spawner for a task that starts at once."""
        if chain:
            left = self._chain(chain).left
            spawner = min(self._present(), key=lambda each: (left[each], self._load[each]))
        else:
            spawner = min(self._present(), key=self._load.__getitem__)
        self.restore(spawner, chain)
        return spawner

    def queue(self, number: int) -> int:
        """The spawner for a task that waits in a chain whose rooms are set."""
        chain = self._chains[number]
        spawner = min(
            (each for each in self._all if chain.rooms[each]), key=lambda each: chain.left[each] / chain.rooms[each]
        )
        self.restore(spawner, number)
        return spawner

    def set_rooms(self, number: int, rooms: int) -> None:
        """So many of a chain run at a time. They are spread evenly, first to who has been given tasks of it."""
        chain = self._chain(number)
        while sum(chain.rooms) < rooms:
            fewest = min(self._present(), key=lambda each: (chain.rooms[each], -chain.left[each], self._load[each]))
            chain.rooms[fewest] += 1
        while sum(chain.rooms) > rooms:
            chain.rooms[max(self._all, key=lambda each: (chain.rooms[each], -chain.left[each]))] -= 1

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
            if not any(chain.left):
                del self._chains[number]

    def _present(self) -> Sequence[int]:
        return [each for each in self._all if each not in self._missing] or self._all if self._missing else self._all

    def _chain(self, number: int) -> Chain:
        chain = self._chains.get(number)
        if chain is None:
            chain = self._chains[number] = Chain(len(self._load))
        return chain
