"""Turns: each goes to the taker with the lowest level at that time, such as the user or queue with the least use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

Level = tuple[int, str]
"""The level of a taker, and its name. The taker with the lowest level is next."""


class Ladder(ABC):
    """The levels of a taker after each of its next turns, of which there are at most `most`."""

    __slots__ = ("done", "most", "name")

    def __init__(self, name: str, most: int) -> None:
        self.name = name
        self.most = most
        self.done = 0
        """The number of turns counted out so far."""

    @abstractmethod
    def level(self, turns: int) -> Level:
        """Return the level after a number of turns."""

    @abstractmethod
    def turns_before(self, level: Level) -> int:
        """Return how many turns this taker has before another one at `level`."""


def count_out(ladders: Sequence[Ladder], turns: int) -> None:
    """Give turns one by one to the taker with the lowest level at that time. The results are in `done` of the ladders.

    A search by halves first gives each taker most of its turns at once.
    """
    turns = min(turns, sum([ladder.most for ladder in ladders]))
    low = min([ladder.level(0)[0] for ladder in ladders])
    high = 1 + max([ladder.level(ladder.most)[0] for ladder in ladders])
    while turns - sum([ladder.done for ladder in ladders]) > len(ladders) and high - low > 1:
        middle = (low + high) // 2
        counts = [ladder.turns_before((middle, "")) for ladder in ladders]
        if sum(counts) > turns:
            high = middle
        else:
            low = middle
            for ladder, count in zip(ladders, counts, strict=True):
                ladder.done = count
    left = turns - sum([ladder.done for ladder in ladders])
    heap = [(ladder.level(ladder.done), ladder) for ladder in ladders if ladder.done < ladder.most]
    heapify(heap)
    while left:
        ladder = heap[0][1]
        rival = min([entry[0] for entry in heap[1:3]], default=None)
        until = ladder.most if rival is None else max(ladder.done + 1, ladder.turns_before(rival))
        taken = min(until - ladder.done, left)
        ladder.done += taken
        left -= taken
        if ladder.done < ladder.most:
            heapreplace(heap, (ladder.level(ladder.done), ladder))
        else:
            heappop(heap)
