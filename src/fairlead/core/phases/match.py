"""Match: in turns, the first head over all open lanes of a leaf is tried, a gang whole or not at all.

A head for which there is no room closes its lane for this cycle; one that is not allowed (a limit, a stopped queue,
too large for any node) is passed over and keeps its place. A lane in which nothing can be placed sleeps until room or
a limit may have opened. A cycle places at most `max_placed` tasks, or one gang. A job that starts whole is one gang
over all its stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace

from fairlead.core.fitindex import FitIndex
from fairlead.core.future import lent_nodes
from fairlead.core.lanes import Lane
from fairlead.core.model import Queue, Reservation
from fairlead.core.outcomes import ask_for_rest
from fairlead.core.phases.backfill import Backfill
from fairlead.core.phases.hands import Hands
from fairlead.core.phases.kept import serve_kept
from fairlead.core.phases.turn import barred, blocks_all, is_bounded, take_turn, together_of
from fairlead.core.plan import Plan
from fairlead.core.policy.order import Key
from fairlead.core.reasons import NoRoom, NotReady, OverLimit, Reason


def match(plan: Plan) -> None:
    p = plan.partition
    left = p.settings.max_placed
    if p.nodes.held and p.reign.ready:
        p.index.put_all_back()
        left -= serve_kept(plan)
    awake = _awake(plan)
    if not p.reign.ready:
        for lanes in awake.values():
            for lane in lanes:
                _say(plan, lane.head(), NotReady())
        return
    if awake:
        p.index.put_all_back()
    backfill = Backfill(plan) if p.settings.backfill else None
    plan.lent = lent_nodes(p) if backfill is not None and awake else {}
    while awake:
        before = left
        for path in sorted(awake):
            left = _serve_leaf(plan, p.queues[path], awake[path], left, backfill)
            if left <= 0:
                plan.more = True
                return
        # What was placed may have moved others up in their lanes (`fair`), or barred a head that had no room, and a
        # job that started whole asks for the rest.
        awake = _awake(plan) if left < before else {}


def _awake(plan: Plan) -> dict[str, list[Lane]]:
    """The lanes that may have something to place, by queue."""
    p = plan.partition
    seen = (p.room, p.nodes.version)
    awake: dict[str, list[Lane]] = {}
    for key, lane in p.lanes.items():
        if lane.slept != seen or (lane.blocked is not None and barred(p, lane.blocked)):
            awake.setdefault(lane.queue.path, []).append(lane)
            plan.looked.add(key)
    if awake and p.settings.backfill:
        # Whoever is to be the first of all without room may be in a lane that sleeps.
        for key, lane in p.lanes.items():
            if key not in plan.looked:
                awake.setdefault(lane.queue.path, []).append(lane)
                plan.looked.add(key)
    return awake


class Turns:
    """The next reservation of each open lane of a leaf, first the one whose turn it is."""

    def __init__(self, plan: Plan, leaf: Queue, lanes: list[Lane]) -> None:
        self.plan = plan
        self.fair = leaf.settings.order == "fair"
        self._heap: list[tuple[Key, str, Lane, Reservation]] = []
        self._walks: dict[Lane, Iterator[Reservation]] = {}
        self._passed: dict[int, None] = {}
        self._no_room: dict[Lane, Reservation] = {}
        """The first of a lane that found no room, where others behind it were tried."""
        self._limited: dict[Lane, Reservation] = {}
        """The first of a lane that would have been beyond a limit."""
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

    def pass_over(self, no_room: bool = False) -> None:
        """It keeps its place, and the next one of its lane is tried."""
        _, _, lane, reservation = self._heap[0]
        self._passed[id(reservation)] = None
        if no_room:
            self._no_room.setdefault(lane, reservation)
        self.go_on()

    def note_limited(self) -> None:
        """Whose turn it is would be beyond a limit."""
        _, _, lane, reservation = self._heap[0]
        self._limited.setdefault(lane, reservation)

    def close(self, no_room: Reservation | None = None) -> None:
        """Nothing more of this lane: it sleeps until something changes for it, or for who found no room."""
        lane = heappop(self._heap)[2]
        lane.no_room = no_room = no_room or self._no_room.get(lane)
        lane.limited = self._limited.get(lane)
        lane.blocked = no_room if no_room is not None and is_bounded(no_room.stage.job) else None
        lane.slept = (self.plan.partition.room, self.plan.partition.nodes.version)


def _serve_leaf(plan: Plan, leaf: Queue, lanes: list[Lane], left: int, backfill: Backfill | None) -> int:
    """Give turns until every lane is closed, or as many tasks as may be are placed. Returns how many may still be."""
    p = plan.partition
    turns, most = Turns(plan, leaf, lanes), p.settings.max_placed
    begun: list[Reservation] = []
    # Under `fair` places move with every task that starts, so that each start has to be seen at once.
    hands = Hands(plan, p.index) if isinstance(p.index, FitIndex) and not turns.fair and backfill is None else None
    while turns and left > 0:
        lane, reservation = turns.current()
        if hands and hands.give(lane, reservation):
            left -= 1
            turns.go_on()
            continue
        together = together_of(reservation)
        if together > left and left < most:
            left = 0  # a gang that is too large for what is left of this cycle opens the next one
            break
        # Who is alone may start many at once. That others sleep does not make it alone: after a restart nobody sleeps.
        alone = not turns.fair or leaf.reservations == 1
        most = left if alone else 1
        if backfill is None:
            placed, reason = take_turn(plan, reservation, together, most)
        else:
            placed, reason = backfill.take_turn(lane, reservation, together, most)
        left -= placed
        if reason is None:
            if reservation.whole:
                begun.append(reservation)
            turns.go_on(reservation)
        elif isinstance(reason, NoRoom) and hands and hands.empty():
            continue  # there is more room than it seemed: the same one is tried again
        else:
            _say(plan, reservation, reason)
            if isinstance(reason, NoRoom) and backfill is not None:
                backfill.block(reservation, reason)
                turns.pass_over(no_room=True)
            elif isinstance(reason, NoRoom):
                turns.close(reservation)
            else:
                if isinstance(reason, OverLimit):
                    turns.note_limited()
                if blocks_all(reservation, reason):
                    turns.close()
                else:
                    turns.pass_over()
    if hands:
        hands.empty()
    for whole in begun:
        ask_for_rest(plan, whole)
    return left


def _say(plan: Plan, reservation: Reservation | None, reason: Reason) -> None:
    if reservation is not None:
        for stage in reservation.stages:
            plan.reasons[stage.job.id, stage.name, reservation.kind] = reason
