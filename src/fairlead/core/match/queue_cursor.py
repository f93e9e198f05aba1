"""The turns inside a leaf queue: pick the first head of all its open lanes by the queue's order, and close lanes."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace

from fairlead.core.admission import is_bounded
from fairlead.core.lanes import Lane, lane_key
from fairlead.core.match.backfill import NO_ROOM, TRY, Backfill
from fairlead.core.model import Ask, Queue
from fairlead.core.policy.order import Key
from fairlead.core.state import Partition


class QueueCursor:
    """The next ask of each open lane of a leaf, the one that has the turn first."""

    def __init__(self, partition: Partition, leaf: Queue, lanes: list[Lane], joined: bool = False) -> None:
        """With `joined`, look only at asks that joined the lanes since they were closed."""
        self.partition = partition
        self.leaf = leaf
        self.moves = leaf.order.by_running
        """True if starts move asks to other places in the leaf's order."""
        self.open: list[tuple[Key, str, Lane, Ask]] = []
        """A heap of the lanes that are not closed yet, each with its next ask."""
        self._walks: dict[Lane, Iterator[Ask]] = {}
        self._passed: dict[int, None] = {}
        self._no_room: dict[Lane, Ask] = {}
        """Lane → its first ask without capacity."""
        self._saw: dict[Lane, tuple[int, int]] = {}
        """Lane → the versions of capacity and nodes that this ask saw. Starts behind it may release nodes later."""
        self._limited: dict[Lane, Ask] = {}
        """Lane → its first ask that was refused for a limit."""
        self._owners: dict[Lane, list[Ask]] = {}
        """Lane → its asks that have nodes of their own, in order. They are tried behind a blocked ask too."""
        self.blocked: dict[Lane, tuple[int, int]] = {}
        """Lanes closed except for asks with nodes of their own → the versions at which they were closed."""
        self.full: dict[Lane, None] = {}
        """The blocked lanes in which an ask found no capacity: asks behind it may use only nodes of their own."""
        if partition.nodes.held and not joined:
            self._find_owners(lanes)
        for lane in lanes:
            lane.memory.moved = False
            if not joined:
                lane.memory.claims_at = None  # its asks are tried again
            head = lane.head()
            if head is not None:
                self._walks[lane] = walk = iter(_in_order(lane) if joined else lane)
                head = next(walk)
                heappush(self.open, (lane.key(head), lane.text, lane, head))
            if joined and lane.memory.no_room is not None:
                self._no_room[lane] = lane.memory.no_room
            if joined and lane.memory.limited is not None:
                self._limited[lane] = lane.memory.limited

    def current(self) -> tuple[Lane, Ask]:
        """Return the ask that has the turn, until its lane goes on or is closed."""
        _, _, lane, ask = self.open[0]
        return self._current_moved() if self.moves or lane.memory.moved else (lane, ask)

    def _current_moved(self) -> tuple[Lane, Ask]:
        heap = self.open
        while True:
            key, text, lane, ask = heap[0]
            place = lane.key(ask) if self.moves or lane.memory.moved else key
            if place == key:
                return lane, ask
            # Its job runs more tasks than before, or its stage has reached `min`: another ask of its lane may be first.
            following = ask
            if lane not in self.blocked:
                place, following = lane.after(self._passed) or (place, ask)
            heapreplace(heap, (place, text, lane, following))

    def block(self, no_room: bool) -> None:
        """Close the lane of the current ask, which found no capacity or was refused for a reason that holds for all.

        Only asks with nodes of their own are tried behind it: what a claim will use does not count against itself.
        Behind an ask without capacity they may use no other nodes.
        """
        _, _, lane, ask = self.open[0]
        if no_room:
            self._no_room.setdefault(lane, ask)
            self.full[lane] = None
        if lane not in self.blocked:
            self.blocked[lane] = (self.partition.derived.openings, self.partition.nodes.version)
            place = lane.key(ask)
            self._owners[lane] = [owner for owner in self._owners.get(lane, ()) if lane.key(owner) > place]
        self._next_owner(lane)

    def go_on(self, after: Ask | None = None) -> None:
        """End the turn. The lane queues up again, with `after`, the ask that had the turn, if it wants more."""
        heap = self.open
        lane = heap[0][2]
        if self.blocked and lane in self.blocked:
            self._next_owner(lane)
            return
        following = after
        moves = self.moves or lane.memory.moved
        if moves:
            # Starts move asks to other places: look from the beginning, without the asks that were passed over.
            first = lane.after(self._passed)
            following = None if first is None else first[1]
        elif after is None or after.stage.asks[after.kind] is not after:
            following = next(self._walks[lane], None)
        if following is None:
            self.close()
        elif len(heap) == 1 and not moves:
            heap[0] = (*heap[0][:3], following)  # no other lane can come before it
        else:
            heapreplace(heap, (lane.key(following), lane.text, lane, following))

    def pass_over(self, no_room: bool = False) -> None:
        """Try the next ask of the lane. The one passed over keeps its place."""
        _, _, lane, ask = self.open[0]
        self._passed[id(ask)] = None
        if no_room:
            self._note_no_room(lane, ask)
        self.go_on()

    def pass_hopeless(self, backfill: Backfill) -> None:
        """Skip asks that cannot start; stop at the first uncertain one. `Backfill.why_passed` gives their reasons."""
        heap = self.open
        while heap:
            lane, ask = self.current()
            if len(heap) == 1 and not (self.moves or lane.memory.moved):
                self._pass_in_lane(lane, ask, backfill)
                return
            prospect = backfill.prospect(lane, ask)
            if prospect == TRY:
                return
            self.pass_over(no_room=prospect == NO_ROOM)

    def _pass_in_lane(self, lane: Lane, first: Ask, backfill: Backfill) -> None:
        """Do the same where only one lane is open, so that no other lane can come between."""
        following, no_room = backfill.skip_hopeless(lane, first, self._walks[lane])
        if no_room is not None:
            self._note_no_room(lane, no_room)
        if following is None:
            self.close()
        else:
            self.open[0] = (*self.open[0][:3], following)

    def _note_no_room(self, lane: Lane, ask: Ask) -> None:
        self._no_room.setdefault(lane, ask)
        self._saw.setdefault(lane, (self.partition.derived.openings, self.partition.nodes.version))

    def note_limited(self) -> None:
        """Note that the current ask was refused for a limit."""
        _, _, lane, ask = self.open[0]
        self._limited.setdefault(lane, ask)

    def _find_owners(self, lanes: list[Lane]) -> None:
        partition = self.partition
        lane_by_id = {id(lane): lane for lane in lanes}
        for earmark in (*partition.holds.values(), *partition.promises.values()):
            ask = partition.ask_of_earmark(earmark)
            lane = lane_by_id.get(id(partition.lanes.get(lane_key(ask)))) if ask is not None else None
            if ask is not None and lane is not None:
                self._owners.setdefault(lane, []).append(ask)
        for lane, owners in self._owners.items():
            owners.sort(key=lane.key)

    def _next_owner(self, lane: Lane) -> None:
        """Continue a blocked lane with its next ask that has nodes of its own, or close it."""
        owners = self._owners[lane]
        while owners:
            ask = owners.pop(0)
            if ask.stage.asks[ask.kind] is ask and self.partition.earmark_of(ask.seq) is not None:
                heapreplace(self.open, (lane.key(ask), lane.text, lane, ask))
                return
        self.close()

    def close(self) -> None:
        """Close the current lane: it sleeps until something changes for it or for its ask without capacity."""
        lane = heappop(self.open)[2]
        lane.memory.no_room = no_room = self._no_room.get(lane)
        if no_room is not None:
            self.partition.memory.next_starving_at = min(
                self.partition.memory.next_starving_at,
                no_room.waiting_since + self.partition.settings.starving_after + 1,
            )
        lane.memory.limited = self._limited.get(lane)
        lane.memory.blocked = no_room if no_room is not None and is_bounded(self.partition, no_room.stage.job) else None
        lane.memory.asleep_at = (
            self.blocked.get(lane)
            or self._saw.get(lane)
            or (self.partition.derived.openings, self.partition.nodes.version)
        )
        lane.memory.new_while_asleep.clear()


def _in_order(lane: Lane) -> list[Ask]:
    """Return the asks that joined a lane while it slept, in order; mostly there is one."""
    return (
        sorted(lane.memory.new_while_asleep, key=lane.key)
        if len(lane.memory.new_while_asleep) > 1
        else list(lane.memory.new_while_asleep)
    )
