"""Backfill across lanes: later asks start only if they do not delay the head, the first ask without capacity.

The head gets a planned time: the earliest time at which all of it fits, by the expected ends of running tasks. A later
ask may start if it is expected to end by then, or if the head still fits beside it at that time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from typing import Literal

from fairlead.core.admission import is_bounded, refusal
from fairlead.core.ahead.reserve import Reserve
from fairlead.core.asks import gang_size
from fairlead.core.changes import StartPlanned
from fairlead.core.lanes import Lane, lane_key
from fairlead.core.last_runs import expected_run, given_run_time, run_time
from fairlead.core.match.place import Starter
from fairlead.core.model import FAR, NEW, Ask, Micros
from fairlead.core.plan import Plan
from fairlead.core.policy.backfill_modes import ends_in_time
from fairlead.core.resources import HOUR
from fairlead.core.shape import Shape
from fairlead.core.state import Partition
from fairlead.core.why.never import never_fits
from fairlead.core.why.reasons import NoCapacity, Reason, WouldDelay

LATENESS: Micros = HOUR
"""With learned estimates, which may be too short: the longest time by which other asks may delay the head."""

MAX_TRIES = 10
"""After this number of asks whose start cannot be planned, no further one is tried as head in a round."""

Prospect = Literal[0, 1, 2]
TRY: Prospect = 0
NO_CAPACITY: Prospect = 1
LATE: Prospect = 2
"""What a try of an ask would bring: TRY, unknown; NO_CAPACITY; LATE, it would delay the head."""


class Backfill:
    """Backfill in the modes `easy` and `shortest`. They differ in the order in which match tries asks."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.head: Ask | None = None
        self._reserve: Reserve | None = None
        """Capacity that is set aside for the head at its planned start."""
        self._guard: Reserve | None = None
        """With learned estimates: capacity that is set aside for the head at its latest start, by given estimates."""
        self._shape: Shape | None = None
        """The shape of the head; None if it has several shapes."""
        self._delays: WouldDelay | None = None
        """The reason for asks that would delay the head; None if the start of the head cannot be planned."""
        self._full: dict[Lane, tuple[int, int]] = {}
        """Lane → a number of tasks that did not fit together, and the number of tasks that fit."""
        self._unbounded: dict[tuple[int, bool, Shape], bool] = {}
        """(Accounts, preemptible, shape) → True if such an ask can wait only for capacity."""
        self._versions: tuple[int, ...] = ()
        self._began: Micros = plan.now
        self._tries = 0
        """The number of asks that were tried as head."""

    @property
    def when(self) -> Micros | None:
        """The planned start of the head. If it is unknown (None), no ask counts as delaying the head."""
        return None if self._reserve is None else self._reserve.when

    @property
    def last_planned(self) -> Micros | None:
        """The last planned start of any ask."""
        return self.when

    @property
    def spare(self) -> int:
        """The number of further tasks of the head's shape that fit at the planned time."""
        return 0 if self._reserve is None else self._reserve.spare

    def block(self, ask: Ask, reason: NoCapacity) -> bool:
        """Record an ask without capacity. The first one whose start can be planned becomes the head.

        False if it waits for tasks of which no end is known. It then closes its lane, as without backfill: more such
        tasks must not pass it for ever. If all ends are known, it waits for nodes, which no other ask can delay.
        """
        if self.head is None and self._tries < MAX_TRIES:
            self._tries += 1
            self._plan_head(ask, reason)
            if self.when is None:
                self.head = self._reserve = self._guard = self._shape = self.plan.planned = None
        return self.head is not None or self.plan.partition.knows_all_ends

    def _plan_head(self, ask: Ask, reason: NoCapacity) -> None:
        self.head = ask
        self._reserve = Reserve(self.plan, ask, self.plan.partition.derived.forecast)
        self._reserve.plan_earliest(reason.fitting)
        self._guard = self._guard_for(ask, reason.fitting)
        self._shape = None if ask.whole else ask.stage.shape
        if self.when is not None:
            self._delays = WouldDelay(ask.stage.job.id, self.when)
        self.plan.planned = self._planned()

    def _guard_for(self, ask: Ask, fitting: int) -> Reserve | None:
        """Set capacity aside for the head at its latest start, which is fixed when the head is first planned.

        If the head can no longer fit by then, it is planned as early as it fits. Otherwise no other ask could start,
        not even an ask with held nodes for which the head waits.
        """
        forecast = self.plan.partition.derived.forecast
        if forecast is None or forecast.given is None:
            return None
        if not ask.latest:
            first = Reserve(self.plan, ask, forecast.given)
            first.plan_earliest(fitting)
            if first.when is None:
                return None
            self.plan.do(StartPlanned(ask.stage.job.id, ask.stage.position, ask.kind, first.when + LATENESS))
        guard = Reserve(self.plan, ask, forecast.given)
        if not guard.plan_at(ask.latest, fitting):
            guard = Reserve(self.plan, ask, forecast.given)
            guard.plan_earliest(fitting)
        return guard if guard.when is not None else None

    def start(
        self, starter: Starter, lane: Lane, ask: Ask, together: int, most: int, own: bool
    ) -> tuple[int, Reason | None]:
        """Start an ask in its turn, unless it is behind the head and would delay it; see `Starter.start`."""
        if self.head is None or ask is self.head:
            placed, reason = starter.start(lane, ask, together, most, own)
        else:
            placed, reason = self._start_beside(starter, lane, ask, together, most, own)
            self.plan.note("backfilled", placed)
        if isinstance(reason, NoCapacity) and not ask.whole:
            self._full[lane] = (reason.wanted, reason.fitting)
        elif placed and lane in self._full:
            wanted, left = self._full[lane]
            self._full[lane] = (wanted, left - placed)
        return placed, reason

    def plans(self, ask: Ask) -> bool:
        """True if asks that would delay the planned start of an ask are kept back."""
        return ask is self.head and self.when is not None

    def prospect(self, lane: Lane, ask: Ask) -> Prospect:
        """Predict, without a try, whether an ask can start in this cycle."""
        stage, partition = ask.stage, self.plan.partition
        if ask.whole or ask is self.head or (partition.nodes.held and partition.earmark_of(ask.seq) is not None):
            return TRY
        plain = ask.kind == NEW and not stage.started
        together = stage.needed if plain else gang_size(ask)
        full = self._full.get(lane)
        if full is not None and together > full[1] and (together >= full[0] or self._only_capacity(ask)):
            return NO_CAPACITY
        if self._delays is None or stage.shape is not self._shape or together <= self.spare:
            return TRY
        # Each of its tasks takes capacity of a task of the head, unless it ends by the planned time.
        return TRY if self._in_time(ask) else LATE

    def skip_hopeless(self, lane: Lane, first: Ask, following: Iterator[Ask]) -> tuple[Ask | None, Ask | None]:
        """Return the first ask of a lane that may be able to start, and the first ask before it that lacks capacity."""
        no_capacity: Ask | None = None
        wanted, fitting = self._full.get(lane, (FAR, FAR))
        spare = self.spare if self._delays is not None and lane.shapes == (self._shape,) else FAR
        accounts, lendable, only_capacity, head = None, False, False, self.head
        now, when = self.plan.now, self.when if self.when is not None else 0
        held = bool(self.plan.partition.nodes.held)  # then some asks may have earmarked nodes
        for ask in chain((first,), following):
            stage = ask.stage
            if ask.kind != NEW or stage.started or stage.ended or ask.whole or ask is head or held:
                prospect = self.prospect(lane, ask)
            else:  # `prospect` inlined for these asks, which are nearly all of a long lane
                together, least = stage.count, stage.terms.min
                if 0 < least < together:
                    together = least
                if together > fitting:
                    job = stage.job
                    if job.accounts is not accounts or job.preemptible != lendable:
                        accounts, lendable, only_capacity = job.accounts, job.preemptible, self._only_capacity(ask)
                    if only_capacity or together >= wanted:
                        no_capacity = no_capacity or ask
                        continue
                length = expected_run(self.plan.partition, stage) if together > spare else 0
                prospect = LATE if together > spare and not ends_in_time(now, length, when) else TRY
            if prospect == TRY:
                return ask, no_capacity
            if prospect == NO_CAPACITY and no_capacity is None:
                no_capacity = ask
        return None, no_capacity

    def why_passed(self, lane: Lane, ask: Ask) -> Reason | None:
        """Return why an ask was not tried."""
        prospect = self.prospect(lane, ask)
        if prospect == NO_CAPACITY:
            partition, wanted = self.plan.partition, gang_size(ask)
            reason = refusal(partition, ask) or never_fits(partition, ask.stage, wanted)
            return reason or NoCapacity(wanted, max(self._full[lane][1], 0))
        return self._delays if prospect == LATE else None

    def planned_before(self, ask: Ask) -> tuple[int, ...]:
        """Return the nodes on which asks with an earlier turn are planned to start."""
        return () if self._reserve is None or ask is self.head else self._reserve.nodes()

    def _only_capacity(self, ask: Ask) -> bool:
        """True if an ask can use the same nodes as all asks of its lane, and can wait only for capacity."""
        partition, job, shape = self.plan.partition, ask.stage.job, ask.stage.shape
        key = (id(job.accounts), job.preemptible, shape)
        unbounded = self._unbounded.get(key)
        if unbounded is None:
            unbounded = not (partition.nodes.held or shape.key.apart or shape.key.near or is_bounded(partition, job))
            self._unbounded[key] = unbounded
        return unbounded

    def remember(self, unfinished: bool) -> None:
        """Keep the results for the next cycle, unless match ended before all asks had their turn."""
        partition = self.plan.partition
        self._versions = _versions(partition)
        partition.memory.backfill = self if self.head is not None and not unfinished else None

    def resume(self, plan: Plan) -> bool:
        """Continue from the results of an earlier cycle. False if they no longer hold.

        They hold if nothing has changed except that asks joined behind the head. Asks that waited before still cannot
        start, because capacity and planned time are the same and less time is left.
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
        versions = partition.capacity_versions()
        if not all(self._holds_for(lane, head, versions, plan.now) for lane in partition.lanes.values()):
            return False
        self.plan = plan
        plan.planned = self._planned()
        for reserve in self._reserves():
            reserve.plan = plan
        return True

    def _holds_for(self, lane: Lane, head: Ask, versions: tuple[int, int], now: Micros) -> bool:
        """True if the results still hold for a lane: it is asleep, and all new asks are behind those of its verdict."""
        verdict, queue = lane.memory.verdict, lane.queue
        if queue is not head.stage.job.queue or verdict is None or verdict.versions != versions or verdict.bounded:
            return False
        if queue.order.by_user and self.plan.partition.settings.share_memory and lane.has_new_order(verdict, now):
            return False
        if not verdict.joined:
            return True
        # A verdict names the first ask of each kind. An ask that joined before one of these would replace it.
        firsts = {id(ask): ask for ask in (head, verdict.no_capacity, verdict.limited) if ask is not None}
        return min([lane.key(ask) for ask in verdict.joined]) > max([lane.key(ask) for ask in firsts.values()])

    def has_turned_late(self, now: Micros) -> bool:
        """True if the first ask without capacity of some lane can no longer end by the planned time.

        Match then skips that ask as late, so another ask may be the first without capacity.
        """
        when = self.when
        if when is None or self._shape is None:
            return False
        for lane in self.plan.partition.lanes.values():
            ask = lane.no_capacity()
            if ask is None or ask is self.head or ask.whole or lane.shapes != (self._shape,):
                continue
            length = run_time(self.plan.partition, ask)
            was, is_now = ends_in_time(self._began, length, when), ends_in_time(now, length, when)
            if was and not is_now and gang_size(ask) > self.spare:
                return True
        return False

    def _planned(self) -> tuple[str, int, Micros | None] | None:
        head = self.head
        return None if head is None else (head.stage.job.id, head.kind, self.when)

    def _in_time(self, ask: Ask) -> bool:
        return self.when is not None and ends_in_time(self.plan.now, run_time(self.plan.partition, ask), self.when)

    def _start_beside(
        self, starter: Starter, lane: Lane, ask: Ask, together: int, most: int, own_only: bool
    ) -> tuple[int, Reason | None]:
        before, late = starter.before(ask.stage.job), self._could_delay(ask)
        same_shape = not ask.whole and ask.stage.shape is self._shape
        if late:
            spare = self.spare if same_shape and late == [self._reserve] else together
            most = max(together, min(most, spare))
        if not same_shape or ask.stage.shape.key.apart or self.plan.partition.nodes.held:
            for each in late:
                each.look_ahead()  # otherwise each task takes capacity of exactly one task of the head
        # The plan of the head does not count on nodes that are earmarked for the ask.
        earmark = self.plan.partition.earmark_of(ask.seq)
        own = () if earmark is None else earmark.nodes
        placed, reason = starter.start(lane, ask, together, most, own_only)
        if reason is None and not self._take(late, before[0], own):
            starter.undo_tried(before)
            return 0, self._delays or self._would_delay()
        for kept in self._reserves():
            if kept not in late:
                kept.see_placed(before[0])
        return placed, reason

    def _reserves(self) -> list[Reserve]:
        return [reserve for reserve in (self._reserve, self._guard) if reserve is not None]

    def _could_delay(self, ask: Ask) -> list[Reserve]:
        """Return the plans of the head that an ask could delay, because it may run beyond their times."""
        late = [] if self._reserve is None or self._delays is None or self._in_time(ask) else [self._reserve]
        return late + self._late_guard(ask)

    def _late_guard(self, ask: Ask) -> list[Reserve]:
        guard = self._guard
        if guard is None or (guard.when is not None and ends_in_time(self.plan.now, given_run_time(ask), guard.when)):
            return []
        return [guard]

    def _take(self, reserves: list[Reserve], mark: int, own: Collection[int]) -> bool:
        """Count tasks placed since a mark in all reserves; count nothing and return False if the head does not fit."""
        for at, reserve in enumerate(reserves):
            if not reserve.take(mark, own):
                for taken in reserves[:at]:
                    taken.give_back()
                return False
        return True

    def _would_delay(self) -> WouldDelay | None:
        """Return the reason for an ask that would delay the head beyond its latest start."""
        guard = self._guard
        return None if guard is None or guard.when is None else WouldDelay(guard.head.stage.job.id, guard.when)


def resume(plan: Plan) -> Backfill | None:
    """Return the backfill of an earlier cycle if its results still hold."""
    backfill = plan.partition.memory.backfill
    if isinstance(backfill, Backfill) and plan.partition.readiness.ready and backfill.resume(plan):
        return backfill
    return None


def has_turned_late(partition: Partition) -> bool:
    """True if time alone has changed the first ask without capacity of a lane."""
    return isinstance(partition.memory.backfill, Backfill) and partition.memory.backfill.has_turned_late(partition.now)


def why_passed(partition: Partition, ask: Ask) -> Reason | None:
    """Return why the last match did not try a waiting ask."""
    backfill, lane = partition.memory.backfill, partition.lanes.get(lane_key(ask))
    return backfill.why_passed(lane, ask) if isinstance(backfill, Backfill) and lane is not None else None


def is_planned(partition: Partition, ask: Ask) -> bool:
    """True if asks that would delay an ask are kept back for it."""
    return isinstance(partition.memory.backfill, Backfill) and partition.memory.backfill.plans(ask)


def is_kept_back(partition: Partition, ask: Ask) -> bool:
    """True if an ask may start only beside the planned start of another one, unless nodes are kept for it."""
    backfill = partition.memory.backfill
    if not isinstance(backfill, Backfill) or backfill.when is None or backfill.head is ask:
        return False
    return not ends_in_time(partition.now, run_time(partition, ask), backfill.when)


def planned_before(partition: Partition, ask: Ask) -> tuple[int, ...]:
    """Return the nodes on which the last match planned asks whose turn is before that of an ask."""
    backfill = partition.memory.backfill
    return backfill.planned_before(ask) if isinstance(backfill, Backfill) else ()


def _versions(partition: Partition) -> tuple[int, ...]:
    """Return the versions of the state that the results depend on. Waiting asks do not change them."""
    return (
        partition.derived.openings,
        partition.nodes.version,
        partition.derived.holds_version,
        partition.derived.queue_version,
        partition.derived.runs_version,
        partition.derived.forecast.version if partition.derived.forecast is not None else -1,
    )
