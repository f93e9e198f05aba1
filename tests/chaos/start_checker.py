"""Checks starts: the rules allow the start, the ask has its turn, and no task stops for another in that moment.

`DoorChecker` applies the changes of a partition one by one to its own copy, and checks the copy just before each start.
The rules are those of `tests/chaos/rules.py`, not the core's.

An ask is passed over wrongly if another ask is placed although the first one has an earlier turn, may start, and fits
whole on the nodes kept for it and on unreserved nodes. It has an earlier turn

- in the same leaf queue, if its place in the order is before that of the other;
- in another leaf, if at the level where the two paths differ its queue is below its entitlement and the other's is not.
  Tasks for which nodes are set aside until loans end count as use.

Only the first ask of each lane that may start counts, and only if it could have started at every moment of the
cycle since the first start. Some cases are left out, because a count of tasks does not decide them: as the ask that
is passed over, jobs that start whole and stages with `near` or `apart`; everything while backfill knows the end of
a task; across queues, the unit `slots`, which counts starts out beforehand; single tasks of a resource manager,
which may be recovered and not started; partitions with `checks` of other packages, and queues with orders of other
packages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairlead.core.changes import (
    Chained,
    Change,
    Ended,
    Ordered,
    Placed,
    Promised,
    QueuesSet,
    SettingsSet,
    SinglesPlaced,
    Stopped,
)
from fairlead.core.cycle import Cycle
from fairlead.core.dump import dump, load
from fairlead.core.entitlement import Entitlements
from fairlead.core.lanes import Lane
from fairlead.core.model import NEW, Ask, Queue, Stage
from fairlead.core.state import Partition, Touched
from tests.chaos.checkers import need, nodes_of
from tests.chaos.rules import (
    More,
    Rooms,
    comes_before,
    has_one_shape,
    is_followed,
    refusal,
    refusal_to_claim,
    refusal_to_wait_behind,
    set_aside,
    together,
    waits_whole,
)
from tests.chaos.tasks import Micros, indices
from tests.chaos.users import UserUses, user_of

Ordering = tuple[Ask | None, list[tuple[Stage, int]]]
"""An ask for which nodes are ordered, and its tasks."""

Key = tuple[str, int, int]
"""An ask by its job, the position of its stage, and its kind."""

Task = tuple[str, int, int]
"""A task by its job, the position of its stage, and its index."""


class DoorChecker:
    """An observer of a writer. It raises `CheckFailed`, which names the wrong start."""

    def __init__(self) -> None:
        self._copy = Partition("")
        self._uses = UserUses(self._copy)
        self._new: set[Task] = set()
        self._moment = -1

    def began(self, partition: Partition) -> None:
        self._copy = load(dump(partition))
        self._uses = UserUses(self._copy)

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        plan = decided.plan
        self.follow(decided.changes, plan.now, plan.partition.readiness.ready)

    def stopped(self, partition: Partition, why: str) -> None:
        """Do nothing: `began` makes a new copy."""

    def follow(self, changes: Sequence[Change[Any]], now: Micros, ready: bool) -> None:
        """Check the changes of one cycle."""
        partition = self._copy
        if now != self._moment:
            self._moment = now
            self._new.clear()
        self._uses.pass_time(partition, now)
        partition.now, partition.touched = now, Touched()
        starts = _Starts(partition, self._uses, changes, ready, self._new)
        turns = _Turns(partition, self._uses, changes)
        for change in changes:
            starts.judge(change)
            turns.judge(change)
            change.apply(partition)
            turns.look(change)
            if isinstance(change, SettingsSet | QueuesSet):
                self._uses.follow(partition)
        turns.end()


def _started(change: Change[Any]) -> list[tuple[Key, int]]:
    """Return the asks that a change starts, each with the number of tasks."""
    if isinstance(change, Placed):
        return [((change.job, change.stage, change.kind), sum(len(indices(part.indices)) for part in change.parts))]
    if isinstance(change, SinglesPlaced):
        return [((job, position, NEW), 1) for job, position in change.tasks]
    return []


def _continues(change: Change[Any]) -> bool:
    """True for later stages of a job that starts whole, which is checked once, with its first stage."""
    return isinstance(change, Placed) and change.group not in (0, change.first)


def _may_be_recovered(partition: Partition, change: Change[Any]) -> bool:
    """True if the change may record a task that a resource manager started itself. No rule applies then."""
    if not isinstance(change, Placed) or not partition.jobs[change.job].manager or change.group:
        return False
    return _started(change)[0][1] == 1


def _tasks(change: Placed | SinglesPlaced) -> list[Task]:
    """Return the tasks that a change places."""
    if isinstance(change, Placed):
        return [(change.job, change.stage, index) for part in change.parts for index in indices(part.indices)]
    return [(job, position, 0) for job, position in change.tasks]


def _placed(change: Change[Any]) -> range:
    """Return the ids of the allocations that a change places."""
    if isinstance(change, Placed):
        return range(change.first, change.first + len(change.parts))
    if isinstance(change, SinglesPlaced):
        return range(change.first, change.first + len(change.tasks))
    return range(0)


# -- permission --------------------------------------------------------------------------------------------------


class _Starts:
    """Checks that the rules allow each start, chain, order and claim, and that no task stops for another within the
    moment of its start: at the same time, also in a later cycle."""

    def __init__(
        self, partition: Partition, uses: UserUses, changes: Sequence[Change[Any]], ready: bool, new: set[Task]
    ) -> None:
        self.partition = partition
        self.uses = uses
        self.changes = changes
        self.ready = ready
        self._orders_judged = False
        self._placed: set[int] = set()
        """Ids of the allocations that this cycle has placed."""
        self._new = new
        """The tasks that were placed at this moment."""

    def judge(self, change: Change[Any]) -> None:
        partition = self.partition
        if _may_be_recovered(partition, change):
            return
        for node_id in nodes_of(partition, change):
            disconnected = node_id in partition.nodes.disconnected
            need(not disconnected, f"a task is placed on a node whose agent is disconnected: {change}")
        if isinstance(change, Placed | SinglesPlaced):
            self._judge_start(change)
            alone = [task for task in _tasks(change) if not is_followed(partition, *task)]
            need(not alone, f"tasks are placed before those that they follow have succeeded: {alone}")
            self._placed.update(_placed(change))
            self._new.update(_tasks(change))
        elif isinstance(change, Chained):
            stage = partition.allocations[change.allocation].stage
            reason = refusal_to_wait_behind(
                partition, partition.waits(stage.job.id, stage.position, change.kind), stage
            )
            need(not reason, f"tasks of {_name(stage)} are sent ahead in a chain, and may not start: {reason}")
        elif isinstance(change, Ordered):
            self._judge_orders()
        elif isinstance(change, Promised) and change.cause != "order":
            reason = refusal_to_claim(partition, partition.waits(change.job, change.stage, change.kind))
            need(not reason, f"tasks are stopped for job {change.job}, which may not start: {reason}")
        elif isinstance(change, Stopped | Ended):
            allocation = partition.allocations[change.allocation]
            stage = allocation.stage
            need(
                change.allocation not in self._placed,
                f"tasks of {_name(stage)} are placed and stopped in one cycle: {change}",
            )
            if isinstance(change, Stopped) and change.cause == "preempt":
                new = [index for index in indices(change.indices) if (stage.job.id, stage.position, index) in self._new]
                need(not new, f"tasks {new} of {_name(stage)} stop for another in the moment of their start")

    def _judge_start(self, change: Placed | SinglesPlaced) -> None:
        partition = self.partition
        need(self.ready, f"tasks are placed before the partition is ready: {change}")
        if isinstance(change, Placed):
            if _continues(change):
                return
            gang = bool(change.group)
            of_gang = [other for other in self.changes if isinstance(other, Placed) and other.group == change.group]
            started = [start for part in (of_gang if gang else [change]) for start in _started(part)]
            tasks = [(partition.jobs[job].stages[position], many) for (job, position, _), many in started]
            reason = refusal(partition, partition.waits(*started[0][0]), tasks, gang=gang)
            need(not reason, f"tasks of {_name(tasks[0][0])} are placed, and may not start: {reason}")
            return
        more = More()
        for key, many in _started(change):
            stage = partition.jobs[key[0]].stages[key[1]]
            reason = refusal(partition, partition.waits(*key), [(stage, many)], more=more)
            need(not reason, f"tasks of {_name(stage)} are placed, and may not start: {reason}")
            more.add([(stage, many)])

    def _judge_orders(self) -> None:
        """Check that all tasks of a cycle's orders may start together when every pool is at its `max`."""
        if self._orders_judged:
            return
        self._orders_judged = True
        partition = self.partition
        wanted: dict[Key, int] = {}
        for change in self.changes:
            for nodes, meant in change.nodes if isinstance(change, Ordered) else ():
                for job, position, kind, tasks in meant:
                    wanted[job, position, kind] = wanted.get((job, position, kind), 0) + nodes * tasks
        by_ask: dict[int, Ordering] = {}
        for key, tasks in wanted.items():
            ask = partition.waits(*key)
            by_ask.setdefault(id(ask), (ask, []))[1].append((partition.jobs[key[0]].stages[key[1]], tasks))
        rights, ordered = _rights_of_pools(partition), More()
        # The last part of a share may go to a gang of any size, so the order of asks matters, whatever their pools.
        for ask, started in self._in_turn(list(by_ask.values())):
            reason = refusal(partition, ask, started, gang=True, more=ordered, rights=rights)
            need(not reason, f"nodes are ordered for {_name(started[0][0])}, which may not start: {reason}")
            ordered.add(started)

    def _in_turn(self, orderings: list[Ordering]) -> Iterator[Ordering]:
        """Yield the ordered tasks in the order of their turns: a gang whole, other tasks one by one."""
        left = [_turns(ordering) for ordering in orderings]
        had_turns: list[tuple[Stage, int]] = []
        while left:
            first = left[0]
            for turns in left[1:]:
                if self._is_before(turns[0], first[0], had_turns):
                    first = turns
            turn = first.pop(0)
            had_turns += turn[1]
            yield turn
            left = [turns for turns in left if turns]

    def _is_before(self, one: Ordering, other: Ordering, had_turns: list[tuple[Stage, int]]) -> bool:
        """True if a turn is certainly before another: in one leaf queue by its order, else by the queues' paths."""
        first, second = one[0], other[0]
        if first is None or second is None:
            return first is None and second is not None
        paths = [ask.stage.job.queue.path for ask in (first, second)]
        if paths[0] != paths[1]:
            return paths[0] < paths[1]
        return comes_before(self.partition, self.uses, first, second, had_turns)


def _turns(ordering: Ordering) -> list[Ordering]:
    """Return the turns of an ask: the tasks that start together, then each other task."""
    ask, tasks = ordering
    if ask is None or ask.whole:
        return [ordering]
    ((stage, many),) = tasks
    gang = min(many, sum(needed for _, needed in together(ask)))
    return [(ask, [(stage, gang)]), *[(ask, [(stage, 1)]) for _ in range(many - gang)]]


def _rights_of_pools(partition: Partition) -> Entitlements:
    """Return the entitlements of the queues if every pool had its `max` nodes."""
    capacity, nodes = dict(partition.nodes.total), partition.nodes.up_count
    for pool in partition.pools.values():
        coming = sum(len(order.coming) for order in partition.orders.values() if order.pool == pool.name)
        more = coming + (pool.settings.max or 1)
        nodes += more
        for name, amount in pool.settings.node:
            capacity[name] = capacity.get(name, 0) + more * amount
    return Entitlements(partition.settings.unit, capacity, nodes)


def _name(stage: Stage) -> str:
    return f"job {stage.job.id} stage {stage.name}"


# -- order of turns ----------------------------------------------------------------------------------------------


class _Passed:
    """An ask that is not placed in the cycle although it may start and fits."""

    def __init__(self, lane: Lane, ask: Ask) -> None:
        self.lane = lane
        self.ask = ask

    @property
    def stands(self) -> bool:
        return self.ask.stage.asks[self.ask.kind] is self.ask


class _Turns:
    """Checks that no ask is placed while one with an earlier turn could have used the same capacity."""

    def __init__(self, partition: Partition, uses: UserUses, changes: Sequence[Change[Any]]) -> None:
        self.partition = partition
        self.uses = uses
        self._batches = [change for change in changes if isinstance(change, SinglesPlaced)]
        """Batches that are not in the state yet. They are booked late, so some of their tasks had earlier turns."""
        self._served = {key for change in changes for key, _ in _started(change)}
        self._passed: list[_Passed] | None = None
        """None before the first start."""
        self._refused: set[int] = set()
        """Ids of the asks that were not allowed to start at the first start of the cycle."""
        self._on_loan: set[str] = set()
        """Queues that were at or above their entitlement at the first start."""
        self._suspects: list[tuple[Queue, str]] = []
        """Queues that were passed over if the cycle leaves them below their entitlement, with the text of the
        failure."""

    def judge(self, change: Change[Any]) -> None:
        started = _started(change)
        if (
            not started
            or _continues(change)
            or self.partition.derived.forecast
            or _may_be_recovered(self.partition, change)
        ):
            return
        if self._passed is None:
            self._begin()
        placed = self.partition.waits(*started[-1][0])  # of several asks, the last has the last turn
        assert placed is not None and self._passed is not None
        before = [(placed.stage, started[-1][1] - 1)]  # all but the last one had earlier turns
        if isinstance(change, SinglesPlaced):
            self._batches.remove(change)
            stages = [self.partition.jobs[job].stages[position] for job, position in change.tasks]
            before = [(stage, 1) for stage in stages[:-1] if user_of(stage) == user_of(placed.stage)]
        elif isinstance(change, Placed) and change.group:
            before = []
        for passed in self._passed:
            self._compare(passed, placed, isinstance(change, SinglesPlaced), before)

    def look(self, change: Change[Any]) -> None:
        """After a start or a claim, drop the asks that no longer fit or may no longer start."""
        if self._passed and (isinstance(change, Promised) or _started(change)):
            rooms = Rooms(self.partition)
            self._passed = [passed for passed in self._passed if self._could_start(passed, rooms)]

    def end(self) -> None:
        rights = self.partition.entitlements()
        for queue, text in self._suspects:
            need(rights.used(queue) >= rights.of(queue), text)

    def _begin(self) -> None:
        partition, rooms = self.partition, Rooms(self.partition)
        rights = partition.entitlements()
        self._on_loan = {queue.path for queue in partition.queues.values() if rights.used(queue) >= rights.of(queue)}
        self._passed = []
        for lane in partition.lanes.values():
            able = [ask for ask in lane if waits_whole(partition, ask)]
            self._refused.update(id(ask) for ask in lane)
            self._refused.difference_update(id(ask) for ask in able)
            first = self._first([ask for ask in able if not self._is_served(ask)])
            if first is not None and has_one_shape(first) and rooms.whole(first):
                self._passed.append(_Passed(lane, first))

    def _is_served(self, ask: Ask) -> bool:
        return any((stage.job.id, stage.position, ask.kind) in self._served for stage in ask.stages)

    def _could_start(self, passed: _Passed, rooms: Rooms) -> bool:
        return passed.stands and waits_whole(self.partition, passed.ask) and rooms.whole(passed.ask)

    def _compare(self, passed: _Passed, placed: Ask, in_batch: bool, before: list[tuple[Stage, int]]) -> None:
        if not passed.stands or self._is_blocked(passed):
            return
        leaf, other = placed.stage.job.queue, passed.ask.stage.job.queue
        what = f"{_name(placed.stage)} is placed, and {_name(passed.ask.stage)}, which could have started,"
        if leaf is other:
            user = user_of(passed.ask.stage)
            for batch in self._batches if user != user_of(placed.stage) else ():
                stages = [self.partition.jobs[job].stages[position] for job, position in batch.tasks]
                before = before + [(stage, 1) for stage in stages if user_of(stage) == user]
            earlier = comes_before(self.partition, self.uses, passed.ask, placed, before)
            need(not earlier, f"{what} is before it in queue {leaf.path}")
        elif self.partition.settings.unit != "slots":
            lent, entitled = _part(leaf, other)
            rights = self.partition.entitlements()
            # Tasks of a batch are booked late: at their turns, their queue used less than it does now.
            on_loan = lent.path in self._on_loan if in_batch else rights.used(lent) >= rights.of(lent)
            if on_loan and rights.share(entitled) and self._use_with_holds(entitled) < rights.of(entitled):
                text = f"{what} waits in queue {entitled.path}, which is below its entitlement: {lent.path} is not"
                self._suspects.append((entitled, text))

    def _use_with_holds(self, queue: Queue) -> int:
        """Return the use of a queue, counting the tasks for which nodes are set aside."""
        used, many = dict(queue.account.used), queue.account.tasks
        for stage, tasks in set_aside(self.partition):
            for name, amount in stage.shape.key.resources if queue in stage.job.queue.line() else ():
                used[name] = used.get(name, 0) + amount * tasks
            many += tasks if queue in stage.job.queue.line() else 0
        return self.partition.entitlements().measure(used, many)

    def _is_blocked(self, passed: _Passed) -> bool:
        """True if an earlier ask of the lane might start, because only the head of a lane is tried."""
        others = (ask for ask in passed.lane if ask is not passed.ask and id(ask) not in self._refused)
        return not all(comes_before(self.partition, self.uses, passed.ask, ask) for ask in others)

    def _first(self, asks: list[Ask]) -> Ask | None:
        """Return the ask that is before all others; None if the order is not certain."""
        first: Ask | None = None
        for ask in asks:
            if first is None or comes_before(self.partition, self.uses, ask, first):
                first = ask
        others = [ask for ask in asks if ask is not first]
        sure = first is not None and all(comes_before(self.partition, self.uses, first, ask) for ask in others)
        return first if sure else None


def _part(one: Queue, other: Queue) -> tuple[Queue, Queue]:
    """Return, for two leaf queues, their ancestors just below the lowest common queue."""
    pairs = zip(one.line(), other.line(), strict=False)
    return next((mine, its) for mine, its in pairs if mine is not its)
