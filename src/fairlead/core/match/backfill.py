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
from fairlead.core.asks import gang_size, minimum_by_stage
from fairlead.core.changes import Part, Placed
from fairlead.core.forecast import guess
from fairlead.core.lanes import Lane, lane_key
from fairlead.core.match.place import Starter
from fairlead.core.model import NEW, Allocation, Ask, Micros
from fairlead.core.plan import Plan
from fairlead.core.policy.backfill import ends_in_time, plan_start
from fairlead.core.ranges import count
from fairlead.core.reasons import NoRoom, Reason, WouldDelay
from fairlead.core.shape import Shape
from fairlead.core.state import FAR, Partition
from fairlead.core.whatif import WhatIf

Prospect = Literal[0, 1, 2]
TRY: Prospect = 0
NO_ROOM: Prospect = 1
LATE: Prospect = 2
"""What may come of trying: that is not known; there is no room; it would delay the head."""


class Backfill:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.head: Ask | None = None
        self.when: Micros | None = None
        """When the head is planned to start; None if that is not known, and then nobody can delay it."""
        self.spare = 0
        """For how many more of its tasks there is room then; of a head of several shapes that is not known."""
        self._future: WhatIf | None = None
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

    def block(self, ask: Ask, reason: NoRoom) -> None:
        """Somebody found no room. The first one is the head, and gets a planned time."""
        if self.head is not None:
            return
        self.head = ask
        needs = minimum_by_stage(ask)
        if len(needs) == 1:
            stage, wanted = needs[0]
            planned = plan_start(reason.room, wanted, self._ends(), self._gain(stage.shape))
            if planned is not None:
                self.when, self.spare = planned
        else:
            self._plan_several(ask)
        self._shape = None if ask.whole else ask.stage.shape
        if self.when is not None:
            self._delays = WouldDelay(ask.stage.job.id, self.when)
        self.plan.planned = self._planned()

    def start(self, starter: Starter, lane: Lane, ask: Ask, together: int, most: int) -> tuple[int, Reason | None]:
        """Start an ask in its turn, unless it comes after the head and would delay it."""
        if self.head is None or ask is self.head:
            placed, reason = starter.start(lane, ask, together, most)
        else:
            placed, reason = self._beside(starter, lane, ask, together, most)
            self.plan.note("backfilled", placed)
        if isinstance(reason, NoRoom) and not ask.whole:
            self._full[lane] = (reason.wanted, reason.room)
        elif placed and lane in self._full:
            wanted, left = self._full[lane]
            self._full[lane] = (wanted, left - placed)
        return placed, reason

    def prospect(self, lane: Lane, ask: Ask) -> Prospect:
        """Whether somebody may be able to start in this cycle, as far as that is known without trying."""
        stage, partition = ask.stage, self.plan.partition
        if ask.whole or ask is self.head or (partition.nodes.held and partition.kept(ask.seq) is not None):
            return TRY
        plain = ask.kind == NEW and not stage.started
        together = stage.needed if plain else gang_size(ask)
        full = self._full.get(lane)
        if full is not None and together > full[1] and (together >= full[0] or self._only_room(ask)):
            return NO_ROOM
        if self._delays is None or stage.shape is not self._shape or together <= self.spare:
            return TRY
        # Each of its tasks would be in the way of one of the head's, unless it is over by then.
        return TRY if self._in_time(ask) else LATE

    def skip_hopeless(self, lane: Lane, first: Ask, others: Iterator[Ask]) -> tuple[Ask | None, Ask | None]:
        """The first of a lane who may be able to start, and the first before it who has no room."""
        no_room: Ask | None = None
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

    def why_passed(self, lane: Lane, ask: Ask) -> Reason | None:
        """Why somebody was not tried."""
        prospect = self.prospect(lane, ask)
        if prospect == NO_ROOM:
            return NoRoom(gang_size(ask), max(self._full[lane][1], 0))
        return self._delays if prospect == LATE else None

    def _only_room(self, ask: Ask) -> bool:
        """Whether there is the same room for it as for all others of its lane, and nothing else can keep it back."""
        partition, job, shape = self.plan.partition, ask.stage.job, ask.stage.shape
        alike = (id(job.accounts), job.preemptible, shape)
        known = self._unbounded.get(alike)
        if known is None:
            known = not (partition.nodes.held or shape.key.apart or shape.key.near or is_bounded(partition, job))
            self._unbounded[alike] = known
        return known

    def remember(self, unfinished: bool) -> None:
        """Keep what was found out for the next cycle, unless there were some who were not looked at."""
        partition = self.plan.partition
        self._seen = _seen(partition)
        partition.backfilled = self if self.head is not None and not unfinished else None

    def resume(self, plan: Plan) -> bool:
        """Whether what was found out holds in another cycle; then it goes on from there.

        That is if nothing has changed but that others joined, behind the head. Who was waiting still cannot start:
        there is no more room, the head has the same planned time, and to be over by then has become harder.
        """
        partition, head = plan.partition, self.head
        if (
            head is None
            or partition.nodes.held
            or self._seen != _seen(partition)
            or partition.forecast is None
            or partition.forecast.is_late(plan.now)
        ):
            return False
        path, asleep = head.stage.job.queue.path, (partition.openings, partition.nodes.version)
        for lane in partition.lanes.values():
            if lane.queue.path != path or lane.asleep_at != asleep or lane.blocked is not None:
                return False
            if lane.new_while_asleep:
                # Whom match knows of each lane are the first of it; who joins before one would be that instead.
                known = {id(each): each for each in (head, lane.no_room, lane.limited) if each is not None}
                last = max([lane.key(each) for each in known.values()])
                if min([lane.key(each) for each in lane.new_while_asleep]) < last:
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
            if ask is None or lane.asleep_at is None or ask is self.head or ask.whole or lane.shapes != (self._shape,):
                continue
            lasts = _lasts(ask)
            was, is_now = ends_in_time(self._began, lasts, when), ends_in_time(now, lasts, when)
            if was and not is_now and gang_size(ask) > self.spare:
                return True
        return False

    def _planned(self) -> tuple[str, int, Micros | None] | None:
        head = self.head
        return None if head is None else (head.stage.job.id, head.kind, self.when)

    def _in_time(self, ask: Ask) -> bool:
        return self.when is not None and ends_in_time(self.plan.now, _lasts(ask), self.when)

    def _beside(self, starter: Starter, lane: Lane, ask: Ask, together: int, most: int) -> tuple[int, Reason | None]:
        partition, head, before = self.plan.partition, self.head, starter.before()
        assert head is not None
        mark = before[0]
        kept = partition.kept(ask.seq)
        own = kept.nodes if kept is not None else ()  # where the head could not start: it is not planned for there
        if self._delays is None or self._in_time(ask):
            placed, reason = starter.start(lane, ask, together, most)
            if self._future is not None:
                self._future.without(self._placed(mark))
            return placed, reason
        alike = not ask.whole and ask.stage.shape is self._shape
        most = max(together, min(most, self.spare)) if alike else together
        if not alike or ask.stage.shape.key.apart or partition.nodes.held:
            self._then()  # else each of its tasks is in the way of one of the head's
        placed, reason = starter.start(lane, ask, together, most)
        if reason is None and not self._still_fits(mark, head, own):
            starter.take_back(before)
            return 0, self._delays
        return placed, reason

    def _still_fits(self, mark: int, head: Ask, own: Collection[int]) -> bool:
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
        needs = minimum_by_stage(head)
        known.without(placed)
        alike = not head.whole and all(shape is head.stage.shape for shape, _ in placed)
        whatif = known if alike else known.copy()
        lost = 0
        for shape, part in placed:
            before = whatif.room(part.node, needs[0][0].shape)
            whatif.take(part.node, shape, count(part.indices), part.devices)
            if part.node not in own:
                lost += before - whatif.room(part.node, needs[0][0].shape)
        if lost > self.spare if len(needs) == 1 else not _packs(whatif.copy(), head):
            return False
        self._future, self.spare = whatif, self.spare - lost
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
        partition, whatif = self.plan.partition, WhatIf(self.plan.partition)
        rooms: dict[int, int] = {}
        if len(partition.shapes) == 1 and not shape.key.apart and not partition.nodes.over_rows:
            # Where all tasks are equal, each that ends makes room for one.
            def alike(allocation: Allocation) -> int:
                usable = rooms.get(allocation.node)
                if usable is None:
                    usable = rooms[allocation.node] = whatif.takes(allocation.node, shape)
                return count(allocation.indices) if usable else 0

            return alike

        self._future = whatif

        def gain(allocation: Allocation) -> int:
            node_id = allocation.node
            before = rooms.get(node_id)
            if before is None:
                before = whatif.room(node_id, shape)
            whatif.end(allocation)
            rooms[node_id] = after = whatif.room(node_id, shape)
            return after - before

        return gain

    def _then(self) -> WhatIf:
        """What will be free at the planned time: what is now, without all that will have ended."""
        if self._future is None:
            assert self.when is not None
            self._future = self._at(self.when, self._ends())
        return self._future

    def _plan_several(self, head: Ask) -> None:
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

    def _at(self, when: Micros, ends: Iterable[tuple[Micros, Allocation]]) -> WhatIf:
        whatif = WhatIf(self.plan.partition)
        for end, allocation in ends:
            if end > when:
                break
            whatif.end(allocation)
        return whatif


def resume(plan: Plan) -> Backfill | None:
    """What an earlier cycle found out, if it still holds."""
    known = plan.partition.backfilled
    return known if isinstance(known, Backfill) and plan.partition.reign.ready and known.resume(plan) else None


def has_turned_late(partition: Partition) -> bool:
    """True if time alone has changed what an earlier cycle found out of those without room."""
    return isinstance(partition.backfilled, Backfill) and partition.backfilled.has_turned_late(partition.now)


def why_passed(partition: Partition, ask: Ask) -> Reason | None:
    """Why somebody who waits was not even tried when it was last looked."""
    known, lane = partition.backfilled, partition.lanes.get(lane_key(ask))
    return known.why_passed(lane, ask) if isinstance(known, Backfill) and lane is not None else None


def _seen(partition: Partition) -> tuple[int, ...]:
    """What all that was found out depends on, but for who waits."""
    return (
        partition.openings,
        partition.nodes.version,
        partition.holds_version,
        partition.queue_version,
        partition.forecast.version if partition.forecast is not None else -1,
    )


def _packs(whatif: WhatIf, head: Ask) -> bool:
    """Whether all that a head needs can be set down, node by node."""
    for stage, needed in minimum_by_stage(head):
        left = needed
        for node_id in sorted(whatif.partition.nodes.rows):
            left -= whatif.pack(node_id, stage.shape, left)
            if not left:
                break
        if left:
            return False
    return True


def _lasts(ask: Ask) -> Micros | None:
    """How long all of it is expected to take."""
    longest = 0
    if not ask.whole:
        return guess(ask.stage.terms)
    for stage in ask.stages:
        lasts = guess(stage.terms)
        if lasts is None:
            return None
        longest = max(longest, lasts)
    return longest
