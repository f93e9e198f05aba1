"""Lanes: the ordered reservations of one leaf queue and one shape. Only the head of a lane is tried.

A lane is derived from the reservations of the stages: a heap whose dead entries are dropped when they come up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, cast

from fairlead.core.model import NEW, SCALE, Queue, Reservation
from fairlead.core.policy.order import ORDERS, Key, Place
from fairlead.core.shape import Shape

# So many dead entries are left alone, however short the lane.
_SLACK = 16


class Lane:
    __slots__ = ("_heap", "queue", "shape", "size", "slept")

    def __init__(self, queue: Queue, shape: Shape) -> None:
        self.queue = queue
        self.shape = shape
        self.size = 0
        self.slept: tuple[int, int] | None = None
        """What the lane saw when nothing of it could be placed: it sleeps while that stands."""
        self._heap: list[tuple[Any, ...]] = []
        """Flat, because very many may wait: the key, and last the reservation."""

    def add(self, reservation: Reservation) -> None:
        self.touch(reservation)
        self.size += 1

    def touch(self, reservation: Reservation) -> None:
        """Give a reservation the place it has now. Under `fair` that changes with what its job runs."""
        if len(self._heap) > 2 * self.size + _SLACK:
            self._clear_out()
        heappush(self._heap, (*self._key(reservation), reservation))
        self.slept = None

    def drop(self) -> None:
        """Say that one reservation has left its stage; its entry goes when it comes up."""
        self.size -= 1

    def head(self) -> Reservation | None:
        heap = self._heap
        while heap:
            if self._counts(heap[0]):
                return cast(Reservation, heap[0][-1])
            heappop(heap)
        return None

    def after(self, passed: Collection[int]) -> tuple[Key, Reservation] | None:
        """The first reservation that is not among those passed over, and its place."""
        if not passed:
            head = self.head()
            return None if head is None else (cast(Key, self._heap[0][:-1]), head)
        # The heap in its order without disturbing it: a child comes up only after its parent did.
        heap = self._heap
        coming = [(heap[0], 0)] if heap else []
        while coming:
            entry, at = heappop(coming)
            if id(entry[-1]) not in passed and self._counts(entry):
                return cast(Key, entry[:-1]), cast(Reservation, entry[-1])
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heappush(coming, (heap[child], child))
        return None

    def resort(self) -> None:
        """Take up a new order of the queue, or a new priority of a job."""
        standing = {id(entry[-1]): entry[-1] for entry in self._heap if _stands(entry[-1])}
        self._heap = [(*self._key(each), each) for each in standing.values()]
        heapify(self._heap)
        self.slept = None

    def __iter__(self) -> Iterator[Reservation]:
        """The reservations in order."""
        for entry in self._live():
            yield entry[-1]

    def _live(self) -> list[tuple[Any, ...]]:
        """The entries that count, in order: of a reservation that was dropped and put back, the first."""
        entries: dict[int, tuple[Any, ...]] = {}
        for entry in sorted(self._heap):
            if self._counts(entry):
                entries.setdefault(id(entry[-1]), entry)
        return list(entries.values())

    def _counts(self, entry: tuple[Any, ...]) -> bool:
        """Whether an entry is of a reservation that stands, and at the place it has now."""
        reservation: Reservation = entry[-1]
        if not _stands(reservation):
            return False
        return self.queue.settings.order != "fair" or entry[:-1] == self._key(reservation)

    def _clear_out(self) -> None:
        """Drop the dead entries that never came up, so that the heap grows with what waits and not with time."""
        self._heap = self._live()

    def _key(self, reservation: Reservation) -> Key:
        job = reservation.stage.job
        settings = self.queue.settings
        kind = NEW if reservation.kind == SCALE and not settings.scale_first else reservation.kind
        place = Place(kind, job.priority, job.running(), reservation.asked)
        # Who was brought to the front goes first in its round, the last one brought before the others.
        return (reservation.round, -reservation.front, *ORDERS[settings.order](place), reservation.seq)


def _stands(reservation: Reservation) -> bool:
    return reservation.stage.reservations[reservation.kind] is reservation
