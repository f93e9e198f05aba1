"""The turns inside a leaf: of all its open lanes the first head by the leaf's order, and the lanes' way to sleep."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace

from fairlead.core.lanes import Lane
from fairlead.core.model import Queue, Reservation
from fairlead.core.phases.backfill import NO_ROOM, TRY, Backfill
from fairlead.core.phases.turn import is_bounded
from fairlead.core.policy.order import Key
from fairlead.core.state import Partition


class Turns:
    """The next reservation of each open lane of a leaf, first the one whose turn it is."""

    def __init__(self, p: Partition, leaf: Queue, lanes: list[Lane], joined: bool = False) -> None:
        """With `joined`, only those are looked at who joined the lanes since they were closed."""
        self.p = p
        self.leaf = leaf
        self.fair = leaf.settings.order == "fair"
        self.open: list[tuple[Key, str, Lane, Reservation]] = []
        """A heap of the lanes that are not closed yet, each with who is the next of it."""
        self._walks: dict[Lane, Iterator[Reservation]] = {}
        self._passed: dict[int, None] = {}
        self._no_room: dict[Lane, Reservation] = {}
        """The first of a lane that found no room, where others behind it were tried."""
        self._limited: dict[Lane, Reservation] = {}
        """The first of a lane that would have been beyond a limit."""
        for lane in lanes:
            lane.moved = False
            first = lane.head()
            if first is not None:
                self._walks[lane] = walk = iter(_in_order(lane) if joined else lane)
                first = next(walk)
                heappush(self.open, (lane.key(first), lane.text, lane, first))
            if joined and lane.no_room is not None:
                self._no_room[lane] = lane.no_room
            if joined and lane.limited is not None:
                self._limited[lane] = lane.limited

    def current(self) -> tuple[Lane, Reservation]:
        """Whose turn it is, until its lane goes on or is closed."""
        heap = self.open
        while self.fair or heap[0][2].moved:
            key, text, lane, reservation = heap[0]
            place = lane.key(reservation)
            if place == key:
                break
            # Its job runs more than before, or its stage has reached `min`: others of its lane may come before it now.
            place, following = lane.after(self._passed) or (place, reservation)
            heapreplace(heap, (place, text, lane, following))
        return heap[0][2], heap[0][3]

    def go_on(self, after: Reservation | None = None) -> None:
        """The turn is over. The lane queues up again, with the reservation that had it if that wants more."""
        lane = self.open[0][2]
        following = after
        moves = self.fair or lane.moved
        if moves:
            # Places move with tasks that start: look from the beginning, past those that were passed over.
            found = lane.after(self._passed)
            following = None if found is None else found[1]
        elif after is None or after.stage.reservations[after.kind] is not after:
            following = next(self._walks[lane], None)
        if following is None:
            self.close()
        elif len(self.open) == 1 and not moves:
            self.open[0] = (*self.open[0][:3], following)  # nobody else to come before it
        else:
            heapreplace(self.open, (lane.key(following), lane.text, lane, following))

    def pass_over(self, no_room: bool = False) -> None:
        """It keeps its place, and the next one of its lane is tried."""
        _, _, lane, reservation = self.open[0]
        self._passed[id(reservation)] = None
        if no_room:
            self._no_room.setdefault(lane, reservation)
        self.go_on()

    def pass_hopeless(self, backfill: Backfill) -> None:
        """Pass over those who cannot start, up to the first of whom that is not known. Who asks is told why later."""
        heap = self.open
        while heap:
            lane, reservation = self.current()
            if len(heap) == 1 and not (self.fair or lane.moved):
                self._pass_in_lane(lane, reservation, backfill)
                return
            prospect = backfill.prospect(lane, reservation)
            if prospect == TRY:
                return
            self.pass_over(no_room=prospect == NO_ROOM)

    def _pass_in_lane(self, lane: Lane, first: Reservation, backfill: Backfill) -> None:
        """The same where there is only one lane, so that nobody else can come between."""
        following, no_room = backfill.skip_hopeless(lane, first, self._walks[lane])
        if no_room is not None:
            self._no_room.setdefault(lane, no_room)
        if following is None:
            self.close()
        else:
            self.open[0] = (*self.open[0][:3], following)

    def note_limited(self) -> None:
        """Whose turn it is would be beyond a limit."""
        _, _, lane, reservation = self.open[0]
        self._limited.setdefault(lane, reservation)

    def close(self, no_room: Reservation | None = None) -> None:
        """Nothing more of this lane: it sleeps until something changes for it, or for who found no room."""
        lane = heappop(self.open)[2]
        lane.no_room = no_room = no_room or self._no_room.get(lane)
        if no_room is not None:
            self.p.hungry = min(self.p.hungry, no_room.waiting_since + self.p.settings.starving_after + 1)
        lane.limited = self._limited.get(lane)
        lane.blocked = no_room if no_room is not None and is_bounded(self.p, no_room.stage.job) else None
        lane.slept = (self.p.room, self.p.nodes.version)
        lane.joined.clear()


def _in_order(lane: Lane) -> list[Reservation]:
    """Who joined a lane while it slept; mostly one."""
    return sorted(lane.joined, key=lane.key) if len(lane.joined) > 1 else list(lane.joined)
