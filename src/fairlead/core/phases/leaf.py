"""The turns inside a leaf: of all its open lanes the first head by the leaf's order, and the lanes' way to sleep."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace

from fairlead.core.lanes import Lane
from fairlead.core.model import Queue, Reservation
from fairlead.core.policy.order import Key
from fairlead.core.state import Partition


class Turns:
    """The next reservation of each open lane of a leaf, first the one whose turn it is."""

    def __init__(self, p: Partition, leaf: Queue, lanes: list[Lane]) -> None:
        self.p = p
        self.leaf = leaf
        self.fair = leaf.settings.order == "fair"
        self._heap: list[tuple[Key, str, Lane, Reservation]] = []
        self._walks: dict[Lane, Iterator[Reservation]] = {}
        self._passed: dict[int, None] = {}
        for lane in lanes:
            head = lane.head()
            if head is not None:
                self._walks[lane] = walk = iter(lane)
                heappush(self._heap, (lane.key(head), lane.text, lane, next(walk)))

    def __len__(self) -> int:
        return len(self._heap)

    def current(self) -> tuple[Lane, Reservation]:
        """Whose turn it is, until its lane goes on or is closed."""
        heap = self._heap
        while self.fair:
            key, text, lane, reservation = heap[0]
            place = lane.key(reservation)
            if place == key:
                break
            heapreplace(heap, (place, text, lane, reservation))  # its job runs more than before
        return heap[0][2], heap[0][3]

    def go_on(self, after: Reservation | None = None) -> None:
        """The turn is over. The lane queues up again, with the reservation that had it if that wants more."""
        lane = self._heap[0][2]
        following = after
        if self.fair:
            # Places move with every task that starts: look from the beginning, past those that were passed over.
            found = lane.after(self._passed)
            following = None if found is None else found[1]
        elif after is None or after.stage.reservations[after.kind] is not after:
            following = next(self._walks[lane], None)
        if following is None:
            self.close()
        else:
            heapreplace(self._heap, (lane.key(following), lane.text, lane, following))

    def pass_over(self) -> None:
        """It keeps its place, and the next one of its lane is tried."""
        self._passed[id(self._heap[0][3])] = None
        self.go_on()

    def close(self, full: bool = False, blocked: Reservation | None = None) -> None:
        """Nothing more of this lane: it sleeps until something changes for it.

        If it is `full`, that is more room; and `blocked` is who found none, if others may overtake it when it is no
        longer allowed to start.
        """
        lane = heappop(self._heap)[2]
        lane.full = full
        lane.blocked = blocked
        lane.slept = (self.p.room, self.p.nodes.version)
