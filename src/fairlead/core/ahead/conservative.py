"""`backfill: conservative`: waiting asks are planned in the order of turns, and no ask is delayed by a later one."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.core.ahead.capacity_timeline import Timeline
from fairlead.core.ahead.easy import LATE, TRY, Backfill, Prospect
from fairlead.core.ahead.reserve import Reserve, placed_since
from fairlead.core.asks import minimum_by_stage
from fairlead.core.lanes import Lane
from fairlead.core.last_runs import run_time
from fairlead.core.match.place import Starter
from fairlead.core.model import Ask, Micros
from fairlead.core.plan import Plan
from fairlead.core.why.reasons import NoCapacity, Reason, WouldDelay

MAX_PLANNED = 100
"""At most this number of asks is planned. Later asks do not start, because they might delay asks without a plan."""
MAX_LOOKS = 200_000
"""After this number of examined pieces of the timeline, match plans no further ask in this cycle."""


class Conservative(Backfill):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._timeline: Timeline | None = None
        self._planned_asks: dict[int, Micros | None] = {}
        """Number of a planned ask → its planned start."""
        self._last: Micros | None = None

    @property
    def last_planned(self) -> Micros | None:
        return self._last

    def block(self, ask: Ask, reason: NoCapacity) -> bool:
        if self.head is None:
            self._plan_head(ask, reason)
            forecast = self.plan.partition.derived.forecast
            assert forecast is not None
            self._timeline = Timeline(self.plan.partition, self.plan.now, forecast)
        self._reserve_for(ask)
        return True

    def start(
        self, starter: Starter, lane: Lane, ask: Ask, together: int, most: int, own: bool
    ) -> tuple[int, Reason | None]:
        if self.head is None or ask is self.head:
            return starter.start(lane, ask, together, most, own)
        placed, reason = self._start_beside(starter, lane, ask, together, most, own)
        self.plan.note("backfilled", placed)
        return placed, reason

    def plans(self, ask: Ask) -> bool:
        return self._planned_asks.get(ask.seq) is not None

    def prospect(self, lane: Lane, ask: Ask) -> Prospect:
        return LATE if self._is_full() else TRY

    def skip_hopeless(self, lane: Lane, first: Ask, following: Iterator[Ask]) -> tuple[Ask | None, Ask | None]:
        return (None if self._is_full() else first), None

    def why_passed(self, lane: Lane, ask: Ask) -> Reason | None:
        return self._delays if self._is_full() else None

    def planned_before(self, ask: Ask) -> tuple[int, ...]:
        assert self._timeline is not None and self.head is not None
        reserved = self._timeline.reserved_before(ask.stage.job.id)
        if self.head.seq in self._planned_asks:
            return reserved
        return tuple(sorted({*super().planned_before(ask), *reserved}))  # the timeline has no head with earmarked nodes

    def has_turned_late(self, now: Micros) -> bool:
        return False

    def resume(self, plan: Plan) -> bool:
        return False  # with several nodes, a new plan may use other nodes for the same asks

    def _is_full(self) -> bool:
        timeline = self._timeline
        return timeline is not None and (len(self._planned_asks) >= MAX_PLANNED or timeline.looks >= MAX_LOOKS)

    def _start_beside(
        self, starter: Starter, lane: Lane, ask: Ask, together: int, most: int, own_only: bool
    ) -> tuple[int, Reason | None]:
        timeline, now = self._timeline, self.plan.now
        assert timeline is not None
        partition = self.plan.partition
        if partition.earmark_of(ask.seq) is not None:
            return starter.start(lane, ask, together, most)  # planned asks use no nodes that are earmarked for it
        length, before = run_time(partition, ask), starter.before(ask.stage.job)
        late = self._late_guard(ask)
        for guard in late:
            guard.look_ahead()
        placed, reason = starter.start(lane, ask, together, together)
        if reason is not None:
            return placed, reason
        delayed = self._delayed(ask, before[0], length, late)
        if delayed is None:
            return placed, None
        starter.undo_tried(before)
        index = partition.derived.index
        withdrawn = index.withdraw(timeline.closed(now, ask.stage.shape, length)) if not ask.whole else []
        if withdrawn:
            placed, reason = starter.start(lane, ask, together, together)
            index.put_back(withdrawn)
            if reason is None:
                if self._delayed(ask, before[0], length, late) is None:
                    return placed, None
                starter.undo_tried(before)
        self._reserve_for(ask)
        return 0, delayed

    def _delayed(self, ask: Ask, mark: int, length: Micros | None, late: list[Reserve]) -> WouldDelay | None:
        """Return the reason if tasks placed since a mark would delay a planned job; else count these tasks."""
        unknown = self._delays or WouldDelay(ask.stage.job.id, self.plan.now)
        assert self._timeline is not None
        if not self._take(late, mark, ()):
            return self._would_delay() or unknown
        delayed = self._timeline.delayed(self.plan.now, placed_since(self.plan, mark), length)
        if delayed is not None:
            for guard in late:
                guard.give_back()
            return WouldDelay(*delayed) if delayed[0] else unknown
        if self._guard is not None and not late:
            self._guard.see_placed(mark)
        return None

    def _reserve_for(self, ask: Ask) -> None:
        """Plan the start of an ask, as early as all of it fits."""
        timeline, partition = self._timeline, self.plan.partition
        assert timeline is not None
        if ask.seq in self._planned_asks or partition.earmark_of(ask.seq) is not None or self._is_full():
            return
        when = timeline.plan(self.plan.now, ask.stage.job.id, minimum_by_stage(ask), run_time(partition, ask))
        self._planned_asks[ask.seq] = when
        if when is not None:
            self._last = when if self._last is None else max(self._last, when)
            if self._delays is None:
                self._delays = WouldDelay(ask.stage.job.id, when)
