"""Match: in turns, down the queue tree by share, then in the leaf by its order; a gang whole or not at all.

A head for which there is no capacity closes its lane for this cycle: behind it, an ask may use only nodes of its own.
A head that admission refuses (a limit, a stopped queue), or that is too large for any node, is passed over and keeps
its place. Nodes that are held, promised or arrived give no turn: their owner is tried when its turn comes, and then
uses them together with free ones. A lane in which nothing can be placed sleeps until capacity or a limit may have
opened. A cycle places at most `max_placed` tasks, or one gang. A job that starts whole is one gang over all its stages.
"""

from __future__ import annotations

from fairlead.core.admission import blocks_lane, refusal
from fairlead.core.asks import gang_size, minimum_by_stage
from fairlead.core.changes import Released
from fairlead.core.lanes import Lane, LaneKey
from fairlead.core.match.backfill import Backfill, has_turned_late, resume
from fairlead.core.match.place import Starter
from fairlead.core.match.queue_cursor import QueueCursor
from fairlead.core.match.share_tree import ShareNode, Tree
from fairlead.core.match.slot_quota import slot_quotas
from fairlead.core.model import REPLACE, Ask, Micros
from fairlead.core.outcomes import ask_for_rest
from fairlead.core.plan import Plan
from fairlead.core.preempt.preempt import Claims, can_claim
from fairlead.core.reasons import NoRoom, NotReady, OverLimit, Reason
from fairlead.core.resources import Vector, add
from fairlead.core.shape import Shape
from fairlead.core.state import FAR, Partition
from fairlead.core.whatif import lent_nodes

Awake = dict[str, list[Lane]]
"""The lanes that may have something to place, by the path of their leaf."""


def match(plan: Plan) -> None:
    partition = plan.partition
    left = partition.settings.max_placed
    if partition.replan_at <= partition.now or has_turned_late(partition):
        partition.replan_at = FAR
        partition.wake_all_lanes()
    # With backfill claims follow match.
    claims = Claims(plan) if not partition.settings.backfill and can_claim(partition) else None
    again = True
    backfill = resume(plan)
    if backfill is not None:
        turns = _joined(plan, backfill)
        if not turns:
            return
        left, again = Round(plan, {}, left, backfill, None, turns).serve()
    # What was placed may have moved other asks up in their lanes (`fair`), or made a limit refuse a head that found no
    # capacity, and a job that started whole asks for the rest. Nodes that were released are for the first turn.
    while left > 0 and again:
        anew = backfill is not None and _depend(partition)
        awake = _awake(plan, anew, claims)
        if not partition.reign.ready:
            _say_not_ready(plan, awake)
            return
        if awake and partition.settings.backfill:
            backfill = Backfill(plan)
            plan.lent = lent_nodes(partition)
        left, again = Round(plan, awake, left, backfill, claims, {}).serve() if awake else (left, False)
    plan.more = plan.more or left <= 0
    if left > 0:
        _release_arrivals(plan)
    if backfill is not None:
        partition.replan_at = _overrun_at(plan, backfill) if left > 0 else partition.now
        backfill.remember(plan.more)


def _joined(plan: Plan, backfill: Backfill) -> dict[str, QueueCursor]:
    """The turns of those who joined lanes that sleep, for as many of whom it is worth trying."""
    joined: Awake = {}
    for lane in plan.partition.lanes.values():
        if lane.new_while_asleep:
            joined.setdefault(lane.queue.path, []).append(lane)
    turns: dict[str, QueueCursor] = {}
    for path, lanes in joined.items():
        those = QueueCursor(plan.partition, plan.partition.queues[path], lanes, joined=True)
        those.pass_hopeless(backfill)
        if those.open:
            turns[path] = those
    return turns


def _say_not_ready(plan: Plan, awake: Awake) -> None:
    for lanes in awake.values():
        for lane in lanes:
            head = lane.head()
            if head is not None:
                plan.say(head, NotReady())


def _release_arrivals(plan: Plan) -> None:
    """Release nodes that arrived for asks of single tasks, now that these have had their turn. Gangs keep theirs.

    Other asks, which found these nodes closed, are tried in the next cycle.
    """
    partition = plan.partition
    for _, promise in sorted(partition.promises.items()) if partition.promises else ():
        ask = partition.kept_for(promise)
        if promise.ordered and ask is not None and gang_size(ask) == 1 and not ask.whole:
            plan.do(Released(promise.seq, "it had its turn"))
            plan.unsettled = True


def plan_due(partition: Partition) -> Micros:
    """When a planned time will turn out to be wrong, if nothing happens before."""
    return partition.replan_at if partition.now < partition.replan_at else FAR


def _overrun_at(plan: Plan, backfill: Backfill) -> Micros:
    """When the first of those should have ended whom the planned time counts on, or for whom held nodes are lent."""
    forecast = plan.partition.forecast
    first = forecast.first(plan.now) if forecast is not None else None
    if first is None or not (plan.lent or (backfill.when is not None and first <= backfill.when)):
        return FAR
    return first


def _depend(partition: Partition) -> bool:
    """Whether who is placed changes what is to be said of others: who is the first without room, and who has none."""
    return len(partition.lanes) > 1 or any(lane.queue.order.by_running for lane in partition.lanes.values())


def _awake(plan: Plan, anew: bool, claims: Claims | None) -> Awake:
    """The lanes to look at: those for which something has changed; all of them if they are to be looked at anew."""
    partition = plan.partition
    room, version = partition.openings, partition.nodes.version
    fits: dict[Shape, bool] = {}
    awake: Awake = {}
    asleep: list[tuple[LaneKey, Lane]] = []
    for key, lane in partition.lanes.items():
        asleep_at = lane.asleep_at
        if asleep_at is not None and lane.blocked is not None and refusal(partition, lane.blocked) is not None:
            asleep_at = None
        if lane.claims_at is not None and lane.claims_at <= partition.now:
            asleep_at = None
        if asleep_at is not None and lane.new_while_asleep and not partition.settings.backfill and lane.all_behind():
            lane.new_while_asleep.clear()
        claim = asleep_at is not None and claims is not None and claims.may_make(lane, unknown=True)
        if asleep_at == (room, version) and not anew and not lane.new_while_asleep and not claim:
            asleep.append((key, lane))
            continue
        # Who was passed over may be allowed by now, and then it is not who found no room that is the first.
        if (
            asleep_at is None
            or claim
            or lane.new_while_asleep
            or lane.no_room is None
            or asleep_at[1] != version
            or lane.no_room is not lane.head()
        ):
            lane.woken_by_room = False
        elif not partition.settings.backfill and _still_full(partition, lane, fits):
            asleep.append((key, lane))
            continue
        else:
            lane.woken_by_room = True
        awake.setdefault(lane.queue.path, []).append(lane)
        plan.looked.add(key)
    # Nodes that are released, and claims of others, give an ask its chance in the middle of a match: then in its turn.
    for key, lane in asleep if awake and (partition.nodes.held or claims is not None) else ():
        if partition.nodes.held or (claims is not None and claims.may_make(lane)):
            lane.woken_by_room = False
            awake.setdefault(lane.queue.path, []).append(lane)
            plan.looked.add(key)
    if awake and partition.settings.backfill:
        # Whoever is to be the first of all without room may be in a lane that sleeps.
        awake = {}
        for key, lane in partition.lanes.items():
            lane.asleep_at, lane.woken_by_room = (
                None,
                False,
            )  # if its turn does not come in this cycle, it has to in the next
            awake.setdefault(lane.queue.path, []).append(lane)
            plan.looked.add(key)
    return awake


def _still_full(partition: Partition, lane: Lane, fits: dict[Shape, bool]) -> bool:
    """Whether a lane that had no room has none for a single task by now. Looked up once for all lanes of a shape."""
    if partition.nodes.held:  # they may have room for some, and the index does not know them
        return False
    if not fits:
        partition.index.put_all_back()
    shapes = lane.shapes
    if lane.no_room is not None and lane.no_room.whole:
        shapes = tuple(stage.shape for stage, _ in minimum_by_stage(lane.no_room))  # of some stages it may need nothing
    for shape in shapes:
        known = fits.get(shape)
        if known is None:
            known = fits[shape] = partition.index.fits(shape)
        if not known:
            return True
    return False


class Round:
    """Turns until every lane that was awake is closed, or as many tasks as may be are placed."""

    def __init__(
        self,
        plan: Plan,
        awake: Awake,
        left: int,
        backfill: Backfill | None,
        claims: Claims | None,
        turns: dict[str, QueueCursor],
    ) -> None:
        self.plan = plan
        self.left = left
        self._backfill = backfill
        partition = self.partition = plan.partition
        partition.index.put_all_back()
        self._awake = awake
        self._open = sum(map(len, awake.values())) + sum([len(each.open) for each in turns.values()])
        """How many lanes are not closed yet."""
        self._turns = turns
        self._owed = slot_quotas(partition) if partition.settings.unit == "slots" else {}
        self._tree: Tree | None = None
        """None when it has to be made anew."""
        self._starter = Starter(plan, batches=backfill is None)
        self._claims = claims
        self._begun: list[Ask] = []

    def serve(self) -> tuple[int, bool]:
        """Returns how many tasks may still be placed in this cycle, and if turns have to be given anew.

        A round ends when kept nodes are released: asks that had their turn before may use them.
        """
        before = self.left
        while self.left > 0 and self._open > 0 and not self._starter.released:
            self._tree = self._tree or self._grow()
            branch = self._tree.next()
            if branch is None:
                break
            path = branch.queue.path
            turns = self._turns.get(path)
            if turns is None:
                turns = self._turns[path] = QueueCursor(self.partition, branch.queue, self._awake.pop(path))
            open_before = len(turns.open)
            self._serve(branch, turns)
            self._open -= open_before - len(turns.open)
        self._starter.flush()
        for whole in self._begun:
            ask_for_rest(self.plan, whole)
        return self.left, self.left < before or self._starter.released

    def _serve(self, branch: ShareNode, turns: QueueCursor) -> None:
        """Give the leaf its turn, or all of them if nobody else is there."""
        while turns.open and self.left > 0 and not self._starter.released:
            if self._backfill is not None and self._backfill.head is not None:
                turns.pass_hopeless(self._backfill)
                if not turns.open:
                    break
            lane, ask = turns.current()
            if self._claims is not None and ask.stage.asks[ask.kind] is not ask:
                turns.go_on()  # its gang was stopped for another ask
                continue
            placed = self._take_turn(branch, turns, lane, ask)
            if self._tree is None:
                return
            if branch.rivals and placed:
                self._tree.after(branch, not turns.open, *_taken(ask, placed))
                return
        if not turns.open and self._tree is not None:
            self._tree.after(branch, True, {}, 0, 0)

    def _take_turn(self, branch: ShareNode, turns: QueueCursor, lane: Lane, ask: Ask) -> int:
        """Try the head whose turn it is. Returns how many tasks were placed."""
        single = ask.stage.count == 1 and not ask.whole
        together = most = 1
        if not single:
            together = gang_size(ask)
            if together > self.left and self.left < self.partition.settings.max_placed:
                self.left = 0  # a gang that is too large for what is left of this cycle opens the next one
                return 0
            most = together if together > 1 else self._most(branch, turns, ask)
        own = bool(turns.full) and lane in turns.full
        if self._backfill is not None:
            placed, reason = self._backfill.start(self._starter, lane, ask, together, most)
        else:
            placed, reason = self._starter.start(lane, ask, together, most, own)
        self.left -= placed
        if lane.moved:
            self._starter.flush()  # its lane is walked from the beginning, and what is not booked still stands there
        if reason is None:
            if not single and ask.whole:
                self._begun.append(ask)
            turns.go_on(None if single else ask)
        elif isinstance(reason, NoRoom) and self._starter.flush():
            pass  # nodes came back into the index: the same ask is tried again
        elif own:
            turns.go_on()
        else:
            self.plan.say(ask, reason)
            if self._claims is not None and isinstance(reason, NoRoom | OverLimit):
                self._claim(self._claims, lane, ask)
            if isinstance(reason, NoRoom) and self._backfill is not None:
                self._backfill.block(ask, reason)
                turns.pass_over(no_room=True)
            elif isinstance(reason, NoRoom):
                turns.block(no_room=True)
                if together == 1 and not ask.whole:
                    self._fill(ask.stage.shape, reason)
            else:
                if isinstance(reason, OverLimit):
                    turns.note_limited()
                if blocks_lane(ask, reason):
                    turns.block(no_room=False)
                else:
                    turns.pass_over()
        return placed

    def _claim(self, claims: Claims, lane: Lane, ask: Ask) -> None:
        """Stop tasks for an ask without capacity in its turn: what it will use is kept for it before later turns.

        With backfill that follows match, because starts beside the planned one do not delay it.
        """
        kept = self.partition.kept(ask.seq)
        if claims.make(lane, ask):
            self.plan.unsettled = True
            self._starter.released = kept is not None
            self.partition.index.refresh()
            for each in self.partition.lanes.values():
                each.moved = True  # gangs that are stopped ask anew

    def _fill(self, shape: Shape, reason: Reason) -> None:
        """One task of a shape found no room. Lanes that nothing but room for it could have woken go on sleeping."""
        if shape.key.apart or self.partition.nodes.held or shape in self._starter.full:
            return
        self._starter.full[shape] = reason
        seen = (self.partition.openings, self.partition.nodes.version)
        for path, lanes in self._awake.items():
            lulled = [lane for lane in lanes if lane.woken_by_room and lane.shapes == (shape,)]
            for lane in lulled:
                lane.asleep_at = seen
                self.plan.looked.discard((path, shape))
            if lulled:
                self._open -= len(lulled)
                self._awake[path] = [lane for lane in lanes if lane.asleep_at != seen]
                self._tree = None  # those with nothing left would be asked all the same

    def _grow(self) -> Tree:
        """The tree of the leaves that have open lanes. All starts are booked, so what is booked is all that is used."""
        left = [path for path, lanes in self._awake.items() if lanes]
        left += [path for path, turns in self._turns.items() if turns.open]
        return Tree([self.partition.queues[path] for path in sorted(left)], self.partition.entitlements(), self._owed)

    def _most(self, branch: ShareNode, turns: QueueCursor, ask: Ask) -> int:
        """How many single tasks it may start in one turn."""
        most = self._most_in_turn(branch, turns, ask)
        # Replacements beyond those that a gang needs to reach `min` have a later turn.
        below_min = ask.kind == REPLACE and turns.leaf.order.by_min
        return min(most, ask.stage.missing() or most) if below_min else most

    def _most_in_turn(self, branch: ShareNode, turns: QueueCursor, ask: Ask) -> int:
        # Who is alone may start many at once. That others sleep does not make it alone: after a restart nobody sleeps.
        if turns.moves and turns.leaf.asks > 1:
            return 1
        if not branch.rivals:
            return self.left
        assert self._tree is not None
        return self._tree.run(branch, ask.stage.shape.resources, min(self.left, ask.count))


def _taken(ask: Ask, placed: int) -> tuple[Vector, int, int]:
    """What so many tasks use that were placed: resources, how many times these, and how many tasks."""
    if not ask.whole:
        return ask.stage.shape.resources, placed, placed
    together: Vector = {}
    for stage in ask.stages:
        add(together, stage.shape.resources, stage.running())
    return together, 1, placed
