"""Lanes: the ordered reservations of one leaf queue and one shape. Only the head of a lane is tried.

A lane is derived from the reservations of the stages: a heap whose dead entries are dropped when they come up.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from fairlead.core.model import NEW, SCALE, Queue, Reservation
from fairlead.core.policy.order import ORDERS, Key, Place
from fairlead.core.shape import Shape


class Lane:
    __slots__ = ("_heap", "queue", "shape", "size")

    def __init__(self, queue: Queue, shape: Shape) -> None:
        self.queue = queue
        self.shape = shape
        self.size = 0
        self._heap: list[tuple[Key, int, Reservation]] = []

    def add(self, reservation: Reservation) -> None:
        heappush(self._heap, (self._key(reservation), reservation.seq, reservation))
        self.size += 1

    def drop(self) -> None:
        """Say that one reservation has left its stage; its entry goes when it comes up."""
        self.size -= 1

    def head(self) -> Reservation | None:
        heap = self._heap
        while heap:
            reservation = heap[0][2]
            if reservation.stage.reservations[reservation.kind] is reservation:
                return reservation
            heappop(heap)
        return None

    def resort(self) -> None:
        """Take up a new order of the queue, or a new priority of a job."""
        self._heap = [(self._key(r), r.seq, r) for r in self]
        heapify(self._heap)

    def __iter__(self) -> Iterator[Reservation]:
        """The reservations in order."""
        seen: set[int] = set()
        for _, _, reservation in sorted(self._heap, key=lambda entry: entry[:2]):
            if reservation.stage.reservations[reservation.kind] is reservation and id(reservation) not in seen:
                seen.add(id(reservation))
                yield reservation

    def _key(self, reservation: Reservation) -> Key:
        job = reservation.stage.job
        settings = self.queue.settings
        kind = NEW if reservation.kind == SCALE and not settings.scale_first else reservation.kind
        running = sum(stage.running() for stage in job.stages)
        place = Place(kind, job.priority, running, reservation.asked)
        # Who was brought to the front goes first in its round, the last one brought before the others.
        return (reservation.round, -reservation.front, *ORDERS[settings.order](place))
