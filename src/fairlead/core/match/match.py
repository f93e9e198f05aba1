"""Match: gives turns down the queue tree by share, then in the leaf by its order; a gang starts whole or not at all.

A head without capacity closes its lane for this cycle: behind it, an ask may use only nodes of its own. A head that
admission refuses (a limit, a stopped queue), or that is too large for any node, is passed over and keeps its place.
Earmarked nodes give an ask no earlier turn: in its turn it uses them together with free nodes. A lane in which nothing
can be placed sleeps until capacity may be free or a limit may have changed. A cycle places at most `max_placed` tasks,
or one gang. A job that starts whole is one gang over all its stages.
"""

from __future__ import annotations

from fairlead.core.admission import blocks_lane, is_bounded, refusal
from fairlead.core.ahead.conservative import Conservative
from fairlead.core.ahead.easy import Backfill, has_turned_late, resume
from fairlead.core.ahead.reserve import packs
from fairlead.core.ahead.shortest import ShortestCursor
from fairlead.core.ahead.whatif import WhatIf, lent_nodes
from fairlead.core.asks import gang_size, is_single, use_of
from fairlead.core.changes import Released
from fairlead.core.holds.recall import stops_at, use_set_aside
from fairlead.core.lanes import Lane
from fairlead.core.match.awake_lanes import AwakeLanes
from fairlead.core.match.place import Starter
from fairlead.core.match.queue_cursor import QueueCursor
from fairlead.core.match.share_tree import ShareNode, Tree, slot_quotas
from fairlead.core.model import FAR, REPLACE, Ask, Micros, Queue
from fairlead.core.outcomes import ask_for_rest
from fairlead.core.plan import Plan
from fairlead.core.preempt.preempt import Claims, can_claim
from fairlead.core.shape import Shape
from fairlead.core.state import Partition
from fairlead.core.why.reasons import NoCapacity, NotReady, OverLimit, Reason

Cursor = QueueCursor | ShortestCursor


def match(plan: Plan) -> None:
    partition = plan.partition
    left = partition.settings.max_placed
    if partition.memory.replan_at <= partition.now or has_turned_late(partition):
        partition.memory.replan_at = FAR
        partition.wake_all_lanes()
    claims = Claims(plan) if not partition.backfills and can_claim(partition) else None
    another_round = True
    if partition.holds or partition.memory.lent:
        _lend_held_nodes(plan)
    backfill = resume(plan)
    if backfill is not None:
        cursors = _joined(plan, backfill)
        if not cursors:
            return
        left, another_round = Round(plan, left, backfill, None, cursors).serve()
    # Another round is needed after starts: they may move other asks up in their lanes (`fair`) or make a limit refuse a
    # head that found no capacity, and a whole job that started asks for its remaining tasks. Released nodes go to the
    # first turn.
    while left > 0 and another_round:
        if partition.holds or partition.memory.lent:
            _lend_held_nodes(plan)
        backfills = _see_backfill(partition)
        claims = None if backfills else claims  # with backfill, claims are made after match
        awake = AwakeLanes(plan, backfill is not None and _starts_change_reasons(partition), claims)
        if not partition.readiness.ready:
            _report_not_ready(plan, awake)
            return
        if not awake.by_queue:
            break
        backfill = None
        if backfills:
            backfill = Conservative(plan) if partition.settings.backfill == "conservative" else Backfill(plan)
        left, another_round = Round(plan, left, backfill, claims, {}, awake).serve()
    _finish(plan, left, backfill)


def _see_backfill(partition: Partition) -> bool:
    """Return whether asks may pass one without capacity now. All lanes wake if that has changed."""
    memory, backfills = partition.memory, partition.backfills
    if memory.backfilled != backfills:
        memory.backfilled, memory.backfill, memory.replan_at = backfills, None, FAR
        partition.wake_all_lanes()
    return backfills


def _finish(plan: Plan, left: int, backfill: Backfill | None) -> None:
    plan.more = plan.more or left <= 0
    if left > 0:
        _release_arrivals(plan)
    if backfill is not None:
        plan.partition.memory.replan_at = _overrun_at(plan, backfill) if left > 0 else plan.now
        backfill.remember(plan.more)


def _lend_held_nodes(plan: Plan) -> None:
    """Let tasks that end in time use nodes that are held for other asks, with backfill or during a recall.

    All lanes wake if a node is lent for longer than before, which may change without an event in these lanes.
    """
    partition, memory = plan.partition, plan.partition.memory
    backfills = partition.backfills
    holds = [hold for hold in partition.holds.values() if hold.recalled or backfills]
    plan.lent = lent_nodes(partition, holds, stops_at) if holds else {}
    if any(until > memory.lent.get(node_id, 0) for node_id, until in plan.lent.items()):
        partition.wake_all_lanes()
    memory.lent = plan.lent


def _joined(plan: Plan, backfill: Backfill) -> dict[str, Cursor]:
    """Return cursors over the asks that joined sleeping lanes, by queue. Asks that waited before are not tried again.

    Queues in which no new ask can start are left out.
    """
    joined: dict[str, list[Lane]] = {}
    for lane in plan.partition.lanes.values():
        verdict = lane.memory.verdict
        if verdict is not None and verdict.joined:
            if verdict.closed:
                verdict.joined.clear()
            else:
                joined.setdefault(lane.queue.path, []).append(lane)
    cursors: dict[str, Cursor] = {}
    for path, lanes in joined.items():
        cursor = QueueCursor(plan.partition, plan.partition.queues[path], lanes, joined=True)
        cursor.pass_hopeless(backfill)
        if cursor.open:
            cursors[path] = cursor
    return cursors


def _report_not_ready(plan: Plan, awake: AwakeLanes) -> None:
    for lanes in awake.by_queue.values():
        for lane in lanes:
            head = lane.head()
            if head is not None:
                plan.note_reason(head, NotReady())


def _release_arrivals(plan: Plan) -> None:
    """Release nodes that were ordered for single tasks, once their ask has had its turn. Gangs keep such nodes.

    The next cycle tries the asks that could not use these nodes before.
    """
    partition = plan.partition
    for _, promise in sorted(partition.promises.items()) if partition.promises else ():
        ask = partition.ask_of_earmark(promise)
        if promise.ordered and ask is not None and is_single(ask):
            plan.do(Released(promise.seq, "it had its turn"))
            plan.unsettled = True


def plan_due(partition: Partition) -> Micros:
    """Return when match must plan the start of the head again, if no event comes before; `FAR` if never."""
    return partition.memory.replan_at if partition.now < partition.memory.replan_at else FAR


def _overrun_at(plan: Plan, backfill: Backfill) -> Micros:
    """Return the next expected end of a task, if the planned start or a loan of held nodes relies on it; else `FAR`."""
    forecast = plan.partition.derived.forecast
    first = forecast.first(plan.now) if forecast is not None else None
    last = backfill.last_planned
    if first is None or not (plan.lent or (last is not None and first <= last)):
        return FAR
    return first


def _starts_change_reasons(partition: Partition) -> bool:
    """True if starts can change why other asks wait: several lanes compete, or starts move asks."""
    return len(partition.lanes) > 1 or any(lane.queue.order.moves for lane in partition.lanes.values())


class Round:
    """Gives turns until every awake lane is closed or the limit of placed tasks is reached."""

    def __init__(
        self,
        plan: Plan,
        left: int,
        backfill: Backfill | None,
        claims: Claims | None,
        cursors: dict[str, Cursor],
        awake: AwakeLanes | None = None,
    ) -> None:
        """`cursors` has the leaf queues that have had a turn, `awake` the lanes of the others."""
        self.plan = plan
        self.left = left
        self._backfill = backfill
        partition = self.partition = plan.partition
        partition.derived.index.put_all_back()
        self._awake = awake
        self._untried = awake.by_queue if awake is not None else {}
        self._open = sum(map(len, self._untried.values())) + sum([len(cursor.open) for cursor in cursors.values()])
        """The number of lanes that are not closed yet."""
        self._cursors = cursors
        self._owed = slot_quotas(partition) if partition.settings.unit == "slots" else {}
        self._tree: Tree | None = None
        """None if it has to be rebuilt."""
        learns = partition.settings.learns and partition.settings.backfills  # each start records what is expected of it
        self._starter = Starter(plan, batches=not self._keeps_back and not learns)
        self._claims = claims
        self._begun: list[Ask] = []
        self._lanes: dict[str, list[Lane]] | None = None
        """The lanes of leaf queues in which starts move asks; None until they are needed."""

    @property
    def _keeps_back(self) -> bool:
        """True if asks may not start if they would delay the planned head."""
        return self._backfill is not None and self._backfill.head is not None

    def serve(self) -> tuple[int, bool]:
        """Give turns. Returns how many more tasks this cycle may place, and True if another round is needed.

        The round ends when kept nodes are released, because asks that already had their turn may use them.
        """
        before = self.left
        while self.left > 0 and self._open > 0 and not self._starter.released:
            self._tree = self._tree or self._build_tree()
            branch = self._tree.next()
            if branch is None:
                break
            path = branch.queue.path
            cursor = self._cursors.get(path)
            if cursor is None:
                lanes = self._untried.pop(path)
                asleep = self._asleep(branch.queue, lanes) if branch.queue.order.moves else ()
                cursor = self._cursors[path] = QueueCursor(self.partition, branch.queue, lanes, asleep=asleep)
            open_before = len(cursor.open)
            self._serve(branch, cursor)
            self._open -= open_before - len(cursor.open)
        self._starter.flush()
        for whole in self._begun:
            ask_for_rest(self.plan, whole)
        return self.left, self.left < before or self._starter.released

    def _asleep(self, leaf: Queue, awake: list[Lane]) -> list[Lane]:
        if self._lanes is None:
            self._lanes = {}
            for lane in self.partition.lanes.values():
                if lane.queue.order.moves:
                    self._lanes.setdefault(lane.queue.path, []).append(lane)
        return [lane for lane in self._lanes.get(leaf.path, ()) if lane not in awake]

    def _serve(self, branch: ShareNode, cursor: Cursor) -> None:
        """Give the leaf queue one turn, or all turns if no other leaf has open lanes."""
        while cursor.open and self.left > 0 and not self._starter.released:
            if self._backfill is not None and self._keeps_back:
                cursor = self._after_head(cursor, self._backfill)
                cursor.pass_hopeless(self._backfill)
                if not cursor.open:
                    break
            lane, ask = cursor.current()
            if self._claims is not None and ask.stage.asks[ask.kind] is not ask:
                cursor.go_on()  # its gang was stopped for another ask
                continue
            placed = self._take_turn(branch, cursor, lane, ask)
            if self._tree is None:
                return
            if branch.rivals and placed:
                self._tree.after(branch, not cursor.open, *use_of(ask, placed))
                return
        if not cursor.open and self._tree is not None:
            self._tree.after(branch, True, {}, 0, 0)

    def _after_head(self, cursor: Cursor, backfill: Backfill) -> Cursor:
        """Return the cursor for asks behind the head: with `backfill: shortest`, it takes the shortest asks first."""
        if isinstance(cursor, QueueCursor) and self.partition.settings.backfill == "shortest":
            cursor = self._cursors[cursor.leaf.path] = ShortestCursor(cursor, backfill)
        return cursor

    def _take_turn(self, branch: ShareNode, cursor: Cursor, lane: Lane, ask: Ask) -> int:
        single = ask.stage.count == 1 and not ask.whole
        together = 1 if single else gang_size(ask)
        if together > self.left and self.left < self.partition.settings.max_placed:
            self.left = 0  # a gang too large for the rest of this cycle starts the next one
            return 0
        most = together if single or together > 1 else self._most(branch, cursor, lane, ask)
        own = lane in cursor.full
        if self._backfill is not None:
            placed, reason = self._backfill.start(self._starter, lane, ask, together, most, own)
        else:
            placed, reason = self._starter.start(lane, ask, together, most, own)
        self.left -= placed
        if placed and isinstance(cursor, QueueCursor) and cursor.counts:
            cursor.count(lane, ask, placed)
        if lane.memory.moved:
            self._starter.flush()  # the lane is now walked from its beginning, so book starts first
        if reason is None:
            if ask.whole:
                self._begun.append(ask)
            cursor.go_on(None if single else ask)
        else:
            self._close_or_pass(cursor, lane, ask, reason, own)
        return placed

    def _close_or_pass(self, cursor: Cursor, lane: Lane, ask: Ask, reason: Reason, own: bool) -> None:
        """Note why an ask did not start, and close its lane or pass over it; `own`: it tried only its own nodes."""
        if isinstance(reason, NoCapacity) and self._starter.flush():
            return  # nodes came back into the index, so the same ask is tried again
        if own:
            cursor.go_on()
            return
        self.plan.note_reason(ask, reason)
        if self._claims is not None and isinstance(reason, NoCapacity | OverLimit):
            self._claim(self._claims, lane, ask)
        if isinstance(reason, NoCapacity) and self._backfill is not None and self._backfill.block(ask, reason):
            self._starter.stop_batching()
            cursor.pass_over(no_capacity=True)
        elif isinstance(reason, NoCapacity):
            cursor.block(no_capacity=True)
            if is_single(ask):
                self._note_full(ask.stage.shape, reason)
        else:
            if isinstance(reason, OverLimit):
                cursor.note_limited(lane, ask)
            if blocks_lane(ask, reason):
                cursor.block(no_capacity=False)
            else:
                cursor.pass_over()

    def _claim(self, claims: Claims, lane: Lane, ask: Ask) -> None:
        """Stop tasks for an ask without capacity. Done in its turn, so that later asks cannot take what it will use.

        If an ask with held nodes can still start, the claim waits until after match, because that start may release
        enough capacity. If the claimant counts as a running job, other asks of its queue may not start any more, and
        those behind them have their turn in a new round.
        """
        if self._holder_can_start(ask):
            return
        earmark = self.partition.earmark_of(ask.seq)
        if claims.make(lane, ask):
            self.plan.unsettled = True
            self._starter.released = earmark is not None or is_bounded(self.partition, ask.stage.job)
            self.partition.derived.index.refresh()
            for any_lane in self.partition.lanes.values():
                any_lane.memory.moved = True  # stopped gangs have new asks

    def _holder_can_start(self, ask: Ask) -> bool:
        """True if another ask with held nodes may start and has capacity for all tasks that start together."""
        partition = self.partition
        for hold in partition.holds.values():
            holder = partition.ask_of_earmark(hold)
            if holder is not None and holder is not ask and refusal(partition, holder) is None:
                whatif = WhatIf(partition)
                whatif.own = hold.nodes
                if packs(whatif, holder):
                    return True
        return False

    def _note_full(self, shape: Shape, reason: Reason) -> None:
        """Note that no task of a shape fits, and put the lanes to sleep that are awake only because one might fit."""
        if shape.key.apart or self.partition.nodes.aside or shape in self._starter.full:
            return
        self._starter.full[shape] = reason
        asleep = self._awake.let_sleep(shape) if self._awake is not None else 0
        if asleep:
            self._open -= asleep
            self._tree = None  # it must not have leaf queues without open lanes

    def _build_tree(self) -> Tree:
        """Build the tree of leaf queues with open lanes. All starts must be booked, because it reads their use."""
        left = [path for path, lanes in self._untried.items() if lanes]
        left += [path for path, cursor in self._cursors.items() if cursor.open]
        leaves, aside = [self.partition.queues[path] for path in sorted(left)], use_set_aside(self.partition)
        return Tree(leaves, self.partition.uses(), self._owed, aside)

    def _most(self, branch: ShareNode, cursor: Cursor, lane: Lane, ask: Ask) -> int:
        most = self._most_in_turn(branch, cursor, lane, ask)
        # Replacements beyond those that the gang needs to reach `min` have a later turn.
        below_min = ask.kind == REPLACE and cursor.leaf.order.by_min
        return min(most, ask.stage.missing() or most) if below_min else most

    def _most_in_turn(self, branch: ShareNode, cursor: Cursor, lane: Lane, ask: Ask) -> int:
        counts = isinstance(cursor, QueueCursor) and cursor.counts
        if counts and self._keeps_back and cursor.leaf.asks > 1:
            return 1
        most = self.left
        if branch.rivals:
            assert self._tree is not None
            tasks = self.left if counts else min(self.left, ask.count)
            most = self._tree.run(branch, ask.stage.shape.resources, tasks)
        if isinstance(cursor, QueueCursor) and cursor.counts:
            return cursor.most(lane, ask, most, self._starter.fitting)
        return most
