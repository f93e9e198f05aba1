"""Backfill across lanes: the first head without room has a planned time, and others start only if they do not delay it.

It is at work within one match. The planned time is the earliest at which, by the estimates of what runs, the head fits
whole; whoever comes after it in turn order may start if it is expected to be over by then, or if the head still fits
at that time beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import Literal

from fairlead.core.admission import is_bounded
from fairlead.core.asks import needs_of, together_of
from fairlead.core.changes import Part, Placed
from fairlead.core.forecast import guess
from fairlead.core.future import Future
from fairlead.core.lanes import Lane, lane_key
from fairlead.core.model import NEW, Allocation, Micros, Reservation
from fairlead.core.phases.turn import Starter
from fairlead.core.plan import Plan
from fairlead.core.policy.backfill import ends_in_time, plan_start
from fairlead.core.ranges import count
from fairlead.core.reasons import NoRoom, Reason, WouldDelay
from fairlead.core.shape import Shape
from fairlead.core.state import FAR, Partition

Prospect = Literal[0, 1, 2]
TRY: Prospect = 0
NO_ROOM: Prospect = 1
LATE: Prospect = 2
"""What may come of trying: that is not known; there is no room; it would delay the head."""


class Backfill:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.head: Reservation | None = None
        self.when: Micros | None = None
        """When the head is planned to start; None if that is not known, and then nobody can delay it."""
        self.spare = 0
        """For how many more of its tasks there is room then; of a head of several shapes that is not known."""
        self._future: Future | None = None
        """What will be free then, as far as somebody had to look."""
        self._shape: Shape | None = None
        """Of the head, if it has one."""
        self._delays: WouldDelay | None = None
        """What is said to those who would delay it."""
        self._full: dict[Lane, tuple[int, int]] = {}
        """So many tasks at once were too many, and for how many there was room."""
        self._unbounded: dict[tuple[int, bool, Shape], bool] = {}
        """Of those with the same accounts and shape: whether nothing but the room there is can keep them back."""
        self._seen: tuple[int, ...] = ()
        self._began: Micros = plan.now

    def block(self, reservation: Reservation, reason: NoRoom) -> None:
        """Somebody found no room. The first one is the head, and gets a planned time."""
        if self.head is not None:
            return
        self.head = reservation
        needs = needs_of(reservation)
        if len(needs) == 1:
            stage, wanted = needs[0]
            planned = plan_start(reason.room, wanted, self._ends(), self._gain(stage.shape))
            if planned is not None:
                self.when, self.spare = planned
        else:
            self._plan_several(reservation)
        self._shape = None if reservation.whole else reservation.stage.shape
        if self.when is not None:
            self._delays = WouldDelay(reservation.stage.job.id, self.when)
        self.plan.planned = self._planned()

    def start(
        self, starter: Starter, lane: Lane, reservation: Reservation, together: int, most: int
    ) -> tuple[int, Reason | None]:
        """Start an ask in its turn, unless it comes after the head and would delay it."""
        if self.head is None or reservation is self.head:
            placed, reason = starter.start(lane, reservation, together, most)
        else:
            placed, reason = self._beside(starter, lane, reservation, together, most)
            self.plan.note("backfilled", placed)
        if isinstance(reason, NoRoom) and not reservation.whole:
            self._full[lane] = (reason.wanted, reason.room)
        elif placed and lane in self._full:
            wanted, left = self._full[lane]
            self._full[lane] = (wanted, left - placed)
        return placed, reason

    def prospect(self, lane: Lane, reservation: Reservation) -> Prospect:
        """Whether somebody may be able to start in this cycle, as far as that is known without trying."""
        stage, p = reservation.stage, self.plan.partition
        if reservation.whole or reservation is self.head or (p.nodes.held and p.kept(reservation.seq) is not None):
            return TRY
        plain = reservation.kind == NEW and not stage.started
        together = stage.needed if plain else together_of(reservation)
        full = self._full.get(lane)
        if full is not None and together > full[1] and (together >= full[0] or self._only_room(reservation)):
            return NO_ROOM
        if self._delays is None or stage.shape is not self._shape or together <= self.spare:
            return TRY
        # Each of its tasks would be in the way of one of the head's, unless it is over by then.
        return TRY if self._in_time(reservation) else LATE

    def skip_hopeless(
        self, lane: Lane, first: Reservation, others: Iterator[Reservation]
    ) -> tuple[Reservation | None, Reservation | None]:
        """The first of a lane who may be able to start, and the first before it who has no room."""
        no_room: Reservation | None = None
        wanted, room = self._full.get(lane, (FAR, FAR))
        spare = self.spare if self._delays is not None and lane.shapes == (self._shape,) else FAR
        accounts, lendable, only_room, head = None, False, False, self.head
        now, when = self.plan.now, self.when if self.when is not None else 0
        held = bool(self.plan.partition.nodes.held)  # then some may have nodes of their own
        for each in chain((first,), others):
            stage = each.stage
            if each.kind != NEW or stage.started or stage.ended or each.whole or each is head or held:
                prospect = self.prospect(lane, each)
            else:  # `prospect` without what is the same for all of them: in a long queue these are nearly all
                together, least = stage.count, stage.terms.min
                if 0 < least < together:
                    together = least
                if together > room:
                    job = stage.job
                    if job.accounts is not accounts or job.preemptible != lendable:
                        accounts, lendable, only_room = job.accounts, job.preemptible, self._only_room(each)
                    if only_room or together >= wanted:
                        no_room = no_room or each
                        continue
                prospect = LATE if together > spare and not ends_in_time(now, guess(stage.terms), when) else TRY
            if prospect == TRY:
                return each, no_room
            if prospect == NO_ROOM and no_room is None:
                no_room = each
        return None, no_room

    def why_passed(self, lane: Lane, reservation: Reservation) -> Reason | None:
        """Why somebody was not tried."""
        prospect = self.prospect(lane, reservation)
        if prospect == NO_ROOM:
            return NoRoom(together_of(reservation), max(self._full[lane][1], 0))
        return self._delays if prospect == LATE else None

    def _only_room(self, reservation: Reservation) -> bool:
        """Whether there is the same room for it as for all others of its lane, and nothing else can keep it back."""
        p, job, shape = self.plan.partition, reservation.stage.job, reservation.stage.shape
        alike = (id(job.accounts), job.preemptible, shape)
        known = self._unbounded.get(alike)
        if known is None:
            known = not (p.nodes.held or shape.key.apart or shape.key.near or is_bounded(p, job))
            self._unbounded[alike] = known
        return known

    def remember(self, unfinished: bool) -> None:
        """Keep what was found out for the next cycle, unless there were some who were not looked at."""
        p = self.plan.partition
        self._seen = _seen(p)
        p.backfilled = self if self.head is not None and not unfinished else None

    def resume(self, plan: Plan) -> bool:
        """Whether what was found out holds in another cycle; then it goes on from there.

        That is if nothing has changed but that others joined, behind the head. Who was waiting still cannot start:
        there is no more room, the head has the same planned time, and to be over by then has become harder.
        """
        p, head = plan.partition, self.head
        if head is None or p.nodes.held or self._seen != _seen(p) or p.forecast is None or p.forecast.is_late(plan.now):
            return False
        path, asleep = head.stage.job.queue.path, (p.room, p.nodes.version)
        for lane in p.lanes.values():
            if lane.queue.path != path or lane.slept != asleep or lane.blocked is not None:
                return False
            if lane.joined:
                # Whom match knows of each lane are the first of it; who joins before one would be that instead.
                known = {id(each): each for each in (head, lane.no_room, lane.limited) if each is not None}
                last = max([lane.key(each) for each in known.values()])
                if min([lane.key(each) for each in lane.joined]) < last:
                    return False
        self.plan = plan
        plan.planned = self._planned()
        return True

    def has_turned_late(self, now: Micros) -> bool:
        """True if the first of a lane without room could not be over in time by now, so that it is not tried.

        Then another one may be the first without room.
        """
        when = self.when
        if when is None or self._shape is None:
            return False
        for lane in self.plan.partition.lanes.values():
            ask = lane.no_room
            if ask is None or lane.slept is None or ask is self.head or ask.whole or lane.shapes != (self._shape,):
                continue
            lasts = _lasts(ask)
            was, is_now = ends_in_time(self._began, lasts, when), ends_in_time(now, lasts, when)
            if was and not is_now and together_of(ask) > self.spare:
                return True
        return False

    def _planned(self) -> tuple[str, int, Micros | None] | None:
        head = self.head
        return None if head is None else (head.stage.job.id, head.kind, self.when)

    def _in_time(self, reservation: Reservation) -> bool:
        return self.when is not None and ends_in_time(self.plan.now, _lasts(reservation), self.when)

    def _beside(
        self, starter: Starter, lane: Lane, reservation: Reservation, together: int, most: int
    ) -> tuple[int, Reason | None]:
        p, head, before = self.plan.partition, self.head, starter.before()
        assert head is not None
        mark = before[0]
        kept = p.kept(reservation.seq)
        own = kept.nodes if kept is not None else ()  # where the head could not start: it is not planned for there
        if self._delays is None or self._in_time(reservation):
            placed, reason = starter.start(lane, reservation, together, most)
            if self._future is not None:
                self._future.without(self._placed(mark))
            return placed, reason
        alike = not reservation.whole and reservation.stage.shape is self._shape
        most = max(together, min(most, self.spare)) if alike else together
        if not alike or reservation.stage.shape.key.apart or p.nodes.held:
            self._then()  # else each of its tasks is in the way of one of the head's
        placed, reason = starter.start(lane, reservation, together, most)
        if reason is None and not self._still_fits(mark, head, own):
            starter.take_back(before)
            return 0, self._delays
        return placed, reason

    def _still_fits(self, mark: int, head: Reservation, own: Collection[int]) -> bool:
        """Whether the head fits at its time beside what was placed since a mark; if so, that counts from here on.

        What was placed on nodes that were kept for it takes nothing from the head.
        """
        placed, known = self._placed(mark), self._future
        if known is None:
            lost = sum([count(part.indices) for _, part in placed if part.node not in own])
            if lost > self.spare:
                return False
            self.spare -= lost
            return True
        needs = needs_of(head)
        known.without(placed)
        alike = not head.whole and all(shape is head.stage.shape for shape, _ in placed)
        future = known if alike else known.copy()
        lost = 0
        for shape, part in placed:
            before = future.room(part.node, needs[0][0].shape)
            future.take(part.node, shape, count(part.indices), part.devices)
            if part.node not in own:
                lost += before - future.room(part.node, needs[0][0].shape)
        if lost > self.spare if len(needs) == 1 else not _packs(future.copy(), head):
            return False
        self._future, self.spare = future, self.spare - lost
        return True

    def _placed(self, mark: int) -> list[tuple[Shape, Part]]:
        """What was placed since a mark, node by node."""
        jobs = self.plan.partition.jobs
        return [
            (jobs[change.job].stages[change.stage].shape, part)
            for change, _ in self.plan.done[mark:]
            if isinstance(change, Placed)
            for part in change.parts
        ]

    def _ends(self) -> Iterable[tuple[Micros, Allocation]]:
        """When what runs is expected to end, in order."""
        forecast = self.plan.partition.forecast
        return forecast.in_order(self.plan.now) if forecast is not None else ()

    def _gain(self, shape: Shape) -> Callable[[Allocation], int]:
        """For how many more tasks there is room after this one has ended too."""
        p, future = self.plan.partition, Future(self.plan.partition)
        rooms: dict[int, int] = {}
        if len(p.shapes) == 1 and not shape.key.apart and not p.nodes.over_rows:
            # Where all tasks are equal, each that ends makes room for one.
            def alike(allocation: Allocation) -> int:
                usable = rooms.get(allocation.node)
                if usable is None:
                    usable = rooms[allocation.node] = future.takes(allocation.node, shape)
                return count(allocation.indices) if usable else 0

            return alike

        self._future = future

        def gain(allocation: Allocation) -> int:
            join = allocation.node
            before = rooms.get(join)
            if before is None:
                before = future.room(join, shape)
            future.end(allocation)
            rooms[join] = after = future.room(join, shape)
            return after - before

        return gain

    def _then(self) -> Future:
        """What will be free at the planned time: what is now, without all that will have ended."""
        if self._future is None:
            assert self.when is not None
            self._future = self._at(self.when, self._ends())
        return self._future

    def _plan_several(self, head: Reservation) -> None:
        """The same for a head of several shapes: it is tried how much has to end before all of them fit."""
        ends = list(self._ends())
        times = sorted({end for end, _ in ends})
        low, high = 0, len(times)
        while low < high:
            middle = (low + high) // 2
            if _packs(self._at(times[middle], ends), head):
                high = middle
            else:
                low = middle + 1
        if low < len(times):
            self.when = times[low]

    def _at(self, when: Micros, ends: Iterable[tuple[Micros, Allocation]]) -> Future:
        future = Future(self.plan.partition)
        for end, allocation in ends:
            if end > when:
                break
            future.end(allocation)
        return future


def resume(plan: Plan) -> Backfill | None:
    """What an earlier cycle found out, if it still holds."""
    known = plan.partition.backfilled
    return known if isinstance(known, Backfill) and plan.partition.reign.ready and known.resume(plan) else None


def has_turned_late(p: Partition) -> bool:
    """True if time alone has changed what an earlier cycle found out of those without room."""
    return isinstance(p.backfilled, Backfill) and p.backfilled.has_turned_late(p.now)


def why_passed(p: Partition, reservation: Reservation) -> Reason | None:
    """Why somebody who waits was not even tried when it was last looked."""
    known, lane = p.backfilled, p.lanes.get(lane_key(reservation))
    return known.why_passed(lane, reservation) if isinstance(known, Backfill) and lane is not None else None


def _seen(p: Partition) -> tuple[int, ...]:
    """What all that was found out depends on, but for who waits."""
    return (p.room, p.nodes.version, p.holds_version, p.tree, p.forecast.version if p.forecast is not None else -1)


def _packs(future: Future, head: Reservation) -> bool:
    """Whether all that a head needs can be set down, node by node."""
    for stage, needed in needs_of(head):
        left = needed
        for join in sorted(future.p.nodes.rows):
            left -= future.pack(join, stage.shape, left)
            if not left:
                break
        if left:
            return False
    return True


def _lasts(reservation: Reservation) -> Micros | None:
    """How long all of it is expected to take."""
    longest = 0
    if not reservation.whole:
        return guess(reservation.stage.terms)
    for stage in reservation.stages:
        lasts = guess(stage.terms)
        if lasts is None:
            return None
        longest = max(longest, lasts)
    return longest
