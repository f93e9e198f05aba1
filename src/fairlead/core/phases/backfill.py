"""Backfill across lanes: the first head without room has a planned time, and others start only if they do not delay it.

It is at work within one match. The planned time is the earliest at which, by the estimates of what runs, the head fits
whole; whoever comes after it in turn order may start if it is expected to be over by then, or if the head still fits
at that time beside it.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.core.changes import Part, Placed
from fairlead.core.forecast import guess
from fairlead.core.future import Future
from fairlead.core.lanes import Lane
from fairlead.core.model import Allocation, Micros, Reservation
from fairlead.core.phases.turn import needs_of, take_turn, together_of
from fairlead.core.plan import Plan
from fairlead.core.policy.backfill import ends_in_time, plan_start
from fairlead.core.ranges import count
from fairlead.core.reasons import NoRoom, Reason, WouldDelay
from fairlead.core.shape import Shape


class Backfill:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.head: Reservation | None = None
        self.when: Micros | None = None
        """When the head is planned to start; None if that is not known, and then nobody can delay it."""
        self.spare = 0
        """For how many more of its tasks there is room then; of a head of several shapes that is not known."""
        self.future = Future(plan.partition)
        self._shape: Shape | None = None
        """Of the head, if it has one."""
        self._delays: WouldDelay | None = None
        """What is said to those who would delay it."""
        self._full: dict[Lane, NoRoom] = {}
        """So many tasks at once were too many for the room there is."""

    def block(self, reservation: Reservation, reason: NoRoom) -> None:
        """Somebody found no room. The first one is the head, and gets a planned time."""
        if self.head is not None:
            return
        self.head = reservation
        if len(needs_of(reservation)) == 1:
            ((stage, wanted),) = needs_of(reservation)
            planned = plan_start(reason.room, wanted, self._gains(stage.shape))
            if planned is not None:
                self.when, self.spare = planned
        else:
            self._plan_several(reservation)
        self._shape = None if reservation.whole else reservation.stage.shape
        if self.when is not None:
            self._delays = WouldDelay(reservation.stage.job.id, self.when)
        self.plan.planned = (reservation.stage.job.id, reservation.kind, self.when)

    def take_turn(self, lane: Lane, reservation: Reservation, together: int, most: int) -> tuple[int, Reason | None]:
        """A turn as ever; but whoever comes after the head must not delay it."""
        if self.head is None or reservation is self.head:
            placed, reason = take_turn(self.plan, reservation, together, most)
        else:
            placed, reason = self._beside(reservation, together, most)
            self.plan.note("backfilled", placed)
        if isinstance(reason, NoRoom) and not reservation.whole:
            self._full[lane] = reason
        return placed, reason

    def hopeless(self, lane: Lane, reservation: Reservation) -> Reason | None:
        """Why somebody cannot start in this cycle, as far as that is known without trying."""
        if self.head is None or reservation is self.head or reservation.whole:
            return None
        together = together_of(reservation)
        full = self._full.get(lane)
        if full is not None and together >= full.wanted:
            return full if together == full.wanted else NoRoom(together, full.room)
        if self._delays is None or reservation.stage.shape is not self._shape or together <= self.spare:
            return None
        # Each of its tasks would be in the way of one of the head's, unless it is over by then.
        return None if self._in_time(reservation) else self._delays

    def _in_time(self, reservation: Reservation) -> bool:
        return self.when is not None and ends_in_time(self.plan.now, _lasts(reservation), self.when)

    def _beside(self, reservation: Reservation, together: int, most: int) -> tuple[int, Reason | None]:
        plan, p, head = self.plan, self.plan.partition, self.head
        assert head is not None
        mark, room = plan.mark(), p.room
        if self._delays is None or self._in_time(reservation):
            placed, reason = take_turn(plan, reservation, together, most)
            self.future.without(self._placed(mark))
            return placed, reason
        alike = not reservation.whole and reservation.stage.shape is self._shape
        most = max(together, min(most, self.spare)) if alike else together
        placed, reason = take_turn(plan, reservation, together, most)
        if reason is None and not self._still_fits(mark, head):
            plan.rollback(mark)
            p.room = room  # what is free again was only tried
            p.index.refresh()
            return 0, self._delays
        return placed, reason

    def _still_fits(self, mark: int, head: Reservation) -> bool:
        """Whether the head fits at its time beside what was placed since a mark; if so, that counts from here on."""
        needs = needs_of(head)
        placed = self._placed(mark)
        self.future.without(placed)
        alike = not head.whole and all(shape is head.stage.shape for shape, _ in placed)
        future = self.future if alike else self.future.copy()
        lost = 0
        for shape, part in placed:
            before = future.room(part.node, needs[0][0].shape)
            future.take(part.node, shape, count(part.indices), part.devices)
            lost += before - future.room(part.node, needs[0][0].shape)
        if lost > self.spare if len(needs) == 1 else not _packs(future.copy(), head):
            return False
        self.future, self.spare = future, self.spare - lost
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

    def _gains(self, shape: Shape) -> Iterator[tuple[Micros, int]]:
        """When what runs ends, and for how many more tasks there is room then."""
        future = self.future
        forecast = self.plan.partition.forecast
        for end, allocation in forecast.in_order(self.plan.now) if forecast is not None else ():
            tasks, join = count(allocation.indices), allocation.node
            before = future.room(join, shape)
            future.take(join, allocation.stage.shape, -tasks, allocation.devices)
            gain = future.room(join, shape) - before
            # Only what is asked for after this one has ended by the planned time.
            future.take(join, allocation.stage.shape, tasks, allocation.devices)
            yield end, gain
            future.take(join, allocation.stage.shape, -tasks, allocation.devices)

    def _plan_several(self, head: Reservation) -> None:
        """The same for a head of several shapes: it is tried how much has to end before all of them fit."""
        forecast = self.plan.partition.forecast
        ends = list(forecast.in_order(self.plan.now)) if forecast is not None else []
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
            self.future = self._at(times[low], ends)

    def _at(self, when: Micros, ends: list[tuple[Micros, Allocation]]) -> Future:
        future = Future(self.plan.partition)
        for end, allocation in ends:
            if end <= when:
                future.end(allocation)
        return future


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
