"""Backfill across lanes: later asks start only if they do not delay the first head without capacity.

Used during one match phase. The head gets a planned time: the earliest at which all of it fits, by the estimates of
running tasks. An ask after it in turn order may start if it is expected to end by then, or if the head still fits
beside it at that time.
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
from fairlead.core.model import FAR, NEW, Allocation, Ask, Micros
from fairlead.core.plan import Plan
from fairlead.core.policy.backfill import ends_in_time, plan_start
from fairlead.core.ranges import count
from fairlead.core.reasons import NoRoom, Reason, WouldDelay
from fairlead.core.shape import Shape
from fairlead.core.state import Partition
from fairlead.core.whatif import WhatIf

Prospect = Literal[0, 1, 2]
TRY: Prospect = 0
NO_ROOM: Prospect = 1
LATE: Prospect = 2
"""The outcome of trying an ask, as far as it can be predicted: unknown; no capacity; it would delay the head."""


class Backfill:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.head: Ask | None = None
        self.when: Micros | None = None
        """The planned start of the head. None if it is unknown; then no ask counts as delaying the head."""
        self.spare = 0
        """The number of further tasks of the head's shape that fit at the planned time. Unused if it has several."""
        self._future: WhatIf | None = None
        """Free capacity at the planned time; None until it is needed."""
        self._shape: Shape | None = None
        """The shape of the head; None if it has several."""
        self._delays: WouldDelay | None = None
        """The reason of an ask that would delay the head."""
        self._full: dict[Lane, tuple[int, int]] = {}
        """Lane → a number of tasks that did not fit at once, and the number that did."""
        self._unbounded: dict[tuple[int, bool, Shape], bool] = {}
        """Accounts, preemptibility and shape → True if only missing capacity can keep such an ask waiting."""
        self._versions: tuple[int, ...] = ()
        self._began: Micros = plan.now

    def block(self, ask: Ask, reason: NoRoom) -> None:
        """Report an ask without capacity. The first one becomes the head and gets a planned time."""
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
            placed, reason = self._start_beside(starter, lane, ask, together, most)
            self.plan.note("backfilled", placed)
        if isinstance(reason, NoRoom) and not ask.whole:
            self._full[lane] = (reason.wanted, reason.room)
        elif placed and lane in self._full:
            wanted, left = self._full[lane]
            self._full[lane] = (wanted, left - placed)
        return placed, reason

    def prospect(self, lane: Lane, ask: Ask) -> Prospect:
        """Predict without trying whether an ask can start in this cycle."""
        stage, partition = ask.stage, self.plan.partition
        if ask.whole or ask is self.head or (partition.nodes.held and partition.earmark_of(ask.seq) is not None):
            return TRY
        plain = ask.kind == NEW and not stage.started
        together = stage.needed if plain else gang_size(ask)
        full = self._full.get(lane)
        if full is not None and together > full[1] and (together >= full[0] or self._only_room(ask)):
            return NO_ROOM
        if self._delays is None or stage.shape is not self._shape or together <= self.spare:
            return TRY
        # Each of its tasks takes the place of a task of the head, unless it ends by the planned time.
        return TRY if self._in_time(ask) else LATE

    def skip_hopeless(self, lane: Lane, first: Ask, following: Iterator[Ask]) -> tuple[Ask | None, Ask | None]:
        """Return the first ask of a lane that may be able to start, and the first ask before it without capacity."""
        no_room: Ask | None = None
        wanted, room = self._full.get(lane, (FAR, FAR))
        spare = self.spare if self._delays is not None and lane.shapes == (self._shape,) else FAR
        accounts, lendable, only_room, head = None, False, False, self.head
        now, when = self.plan.now, self.when if self.when is not None else 0
        held = bool(self.plan.partition.nodes.held)  # then some asks may have nodes of their own
        for ask in chain((first,), following):
            stage = ask.stage
            if ask.kind != NEW or stage.started or stage.ended or ask.whole or ask is head or held:
                prospect = self.prospect(lane, ask)
            else:  # `prospect` without the parts that are equal for these asks, which are nearly all of a long lane
                together, least = stage.count, stage.terms.min
                if 0 < least < together:
                    together = least
                if together > room:
                    job = stage.job
                    if job.accounts is not accounts or job.preemptible != lendable:
                        accounts, lendable, only_room = job.accounts, job.preemptible, self._only_room(ask)
                    if only_room or together >= wanted:
                        no_room = no_room or ask
                        continue
                prospect = LATE if together > spare and not ends_in_time(now, guess(stage.terms), when) else TRY
            if prospect == TRY:
                return ask, no_room
            if prospect == NO_ROOM and no_room is None:
                no_room = ask
        return None, no_room

    def why_passed(self, lane: Lane, ask: Ask) -> Reason | None:
        """Return the reason why an ask was not tried."""
        prospect = self.prospect(lane, ask)
        if prospect == NO_ROOM:
            return NoRoom(gang_size(ask), max(self._full[lane][1], 0))
        return self._delays if prospect == LATE else None

    def _only_room(self, ask: Ask) -> bool:
        """True if an ask can use no other nodes than the rest of its lane, and only missing capacity makes it wait."""
        partition, job, shape = self.plan.partition, ask.stage.job, ask.stage.shape
        key = (id(job.accounts), job.preemptible, shape)
        unbounded = self._unbounded.get(key)
        if unbounded is None:
            unbounded = not (partition.nodes.held or shape.key.apart or shape.key.near or is_bounded(partition, job))
            self._unbounded[key] = unbounded
        return unbounded

    def remember(self, unfinished: bool) -> None:
        """Keep the results for the next cycle, unless some asks were not looked at."""
        partition = self.plan.partition
        self._versions = _versions(partition)
        partition.memory.backfill = self if self.head is not None and not unfinished else None

    def resume(self, plan: Plan) -> bool:
        """True if the results of an earlier cycle still hold; the new plan then continues from them.

        They hold if the only change is that asks joined behind the head. The asks that waited before still cannot
        start: there is no more capacity, the planned time is the same, and less time is left to end by then.
        """
        partition, head = plan.partition, self.head
        if (
            head is None
            or partition.nodes.held
            or self._versions != _versions(partition)
            or partition.derived.forecast is None
            or partition.derived.forecast.is_late(plan.now)
        ):
            return False
        path, asleep = head.stage.job.queue.path, (partition.derived.openings, partition.nodes.version)
        for lane in partition.lanes.values():
            if lane.queue.path != path or lane.memory.asleep_at != asleep or lane.memory.blocked is not None:
                return False
            if lane.queue.order.by_user and partition.settings.share_memory and lane.has_new_order(plan.now):
                return False
            if lane.memory.new_while_asleep:
                # Match remembers the first ask of each sort. An ask that joined before one of these would replace it.
                firsts = {id(ask): ask for ask in (head, lane.memory.no_room, lane.memory.limited) if ask is not None}
                last = max([lane.key(ask) for ask in firsts.values()])
                if min([lane.key(ask) for ask in lane.memory.new_while_asleep]) < last:
                    return False
        self.plan = plan
        plan.planned = self._planned()
        return True

    def has_turned_late(self, now: Micros) -> bool:
        """True if the first ask without capacity of some lane can no longer end by the planned time.

        It is then not tried any more, and another ask may be the first without capacity.
        """
        when = self.when
        if when is None or self._shape is None:
            return False
        for lane in self.plan.partition.lanes.values():
            ask = lane.memory.no_room
            if (
                ask is None
                or lane.memory.asleep_at is None
                or ask is self.head
                or ask.whole
                or lane.shapes != (self._shape,)
            ):
                continue
            run_time = _run_time(ask)
            was, is_now = ends_in_time(self._began, run_time, when), ends_in_time(now, run_time, when)
            if was and not is_now and gang_size(ask) > self.spare:
                return True
        return False

    def _planned(self) -> tuple[str, int, Micros | None] | None:
        head = self.head
        return None if head is None else (head.stage.job.id, head.kind, self.when)

    def _in_time(self, ask: Ask) -> bool:
        return self.when is not None and ends_in_time(self.plan.now, _run_time(ask), self.when)

    def _start_beside(
        self, starter: Starter, lane: Lane, ask: Ask, together: int, most: int
    ) -> tuple[int, Reason | None]:
        partition, head, before = self.plan.partition, self.head, starter.before()
        assert head is not None
        mark = before[0]
        earmark = partition.earmark_of(ask.seq)
        own = (
            earmark.nodes if earmark is not None else ()
        )  # the head cannot start there, so its plan does not count on them
        if self._delays is None or self._in_time(ask):
            placed, reason = starter.start(lane, ask, together, most)
            if self._future is not None:
                self._future.without(self._placed(mark))
            return placed, reason
        same_shape = not ask.whole and ask.stage.shape is self._shape
        most = max(together, min(most, self.spare)) if same_shape else together
        if not same_shape or ask.stage.shape.key.apart or partition.nodes.held:
            self._look_ahead()  # otherwise each of its tasks takes the place of exactly one task of the head
        placed, reason = starter.start(lane, ask, together, most)
        if reason is None and not self._still_fits(mark, head, own):
            starter.undo_tried(before)
            return 0, self._delays
        return placed, reason

    def _still_fits(self, mark: int, head: Ask, own: Collection[int]) -> bool:
        """True if the head still fits at its planned time beside the tasks placed since a mark.

        If so, these tasks are counted from now on. Tasks on `own`, the nodes kept for their ask, take nothing from
        the head.
        """
        placed, future = self._placed(mark), self._future
        if future is None:
            lost = sum([count(part.indices) for _, part in placed if part.node not in own])
            if lost > self.spare:
                return False
            self.spare -= lost
            return True
        needs = minimum_by_stage(head)
        future.without(placed)
        same_shape = not head.whole and all(shape is head.stage.shape for shape, _ in placed)
        whatif = future if same_shape else future.copy()
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
        """Return the tasks placed since a mark, node by node."""
        jobs = self.plan.partition.jobs
        return [
            (jobs[change.job].stages[change.stage].shape, part)
            for change, _ in self.plan.done[mark:]
            if isinstance(change, Placed)
            for part in change.parts
        ]

    def _ends(self) -> Iterable[tuple[Micros, Allocation]]:
        """Return the running allocations with their expected ends, in order of these."""
        forecast = self.plan.partition.derived.forecast
        return forecast.in_order(self.plan.now) if forecast is not None else ()

    def _gain(self, shape: Shape) -> Callable[[Allocation], int]:
        """Return a function that ends one more allocation and gives the number of further tasks that then fit."""
        partition, whatif = self.plan.partition, WhatIf(self.plan.partition)
        rooms: dict[int, int] = {}
        if len(partition.derived.shapes) == 1 and not shape.key.apart and not partition.nodes.over_rows:
            # All tasks are equal, so each one that ends frees capacity for one.
            def gain_if_equal(allocation: Allocation) -> int:
                usable = rooms.get(allocation.node)
                if usable is None:
                    usable = rooms[allocation.node] = whatif.takes(allocation.node, shape)
                return count(allocation.indices) if usable else 0

            return gain_if_equal

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

    def _look_ahead(self) -> WhatIf:
        """Return the free capacity at the planned time, when allocations expected to end by then are gone."""
        if self._future is None:
            assert self.when is not None
            self._future = self._free_at(self.when, self._ends())
        return self._future

    def _plan_several(self, head: Ask) -> None:
        """Plan a head of several shapes: search for the earliest end after which all of them fit."""
        ends = list(self._ends())
        times = sorted({end for end, _ in ends})
        low, high = 0, len(times)
        while low < high:
            middle = (low + high) // 2
            if _packs(self._free_at(times[middle], ends), head):
                high = middle
            else:
                low = middle + 1
        if low < len(times):
            self.when = times[low]

    def _free_at(self, when: Micros, ends: Iterable[tuple[Micros, Allocation]]) -> WhatIf:
        whatif = WhatIf(self.plan.partition)
        for end, allocation in ends:
            if end > when:
                break
            whatif.end(allocation)
        return whatif


def resume(plan: Plan) -> Backfill | None:
    """Return the results of an earlier cycle, if they still hold."""
    backfill = plan.partition.memory.backfill
    return backfill if isinstance(backfill, Backfill) and plan.partition.reign.ready and backfill.resume(plan) else None


def has_turned_late(partition: Partition) -> bool:
    """True if the passing of time changed which ask is the first without capacity."""
    return isinstance(partition.memory.backfill, Backfill) and partition.memory.backfill.has_turned_late(partition.now)


def why_passed(partition: Partition, ask: Ask) -> Reason | None:
    """Return the reason why the last match did not try a waiting ask."""
    backfill, lane = partition.memory.backfill, partition.lanes.get(lane_key(ask))
    return backfill.why_passed(lane, ask) if isinstance(backfill, Backfill) and lane is not None else None


def _versions(partition: Partition) -> tuple[int, ...]:
    """Return the versions of the state that the results depend on, apart from the waiting asks."""
    return (
        partition.derived.openings,
        partition.nodes.version,
        partition.derived.holds_version,
        partition.derived.queue_version,
        partition.derived.forecast.version if partition.derived.forecast is not None else -1,
    )


def _packs(whatif: WhatIf, head: Ask) -> bool:
    """True if all tasks that a head needs to start fit, node by node."""
    for stage, needed in minimum_by_stage(head):
        left = needed
        for node_id in sorted(whatif.partition.nodes.rows):
            left -= whatif.pack(node_id, stage.shape, left)
            if not left:
                break
        if left:
            return False
    return True


def _run_time(ask: Ask) -> Micros | None:
    """Return the expected run time of an ask: the longest of its stages. None if one is unknown."""
    longest = 0
    if not ask.whole:
        return guess(ask.stage.terms)
    for stage in ask.stages:
        run_time = guess(stage.terms)
        if run_time is None:
            return None
        longest = max(longest, run_time)
    return longest
