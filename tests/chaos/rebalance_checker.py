"""Checks rebalance: no queue stays below its entitlement for long if stopping tasks on loan would help it.

A queue is **deprived** if all of this is true:

- it uses less than it is entitled to, also counting what is promised to it and the tasks of its other asks for which
  nodes are set aside, and the spread among its siblings is over
  `rebalance_threshold`, if that is set; otherwise, one of its siblings has a share;
- the first ask of one of its lanes that may start has no room, and will have none when the tasks that stop are gone. A
  task counts as stopping for `preempt_grace` and a margin;
- stopping some tasks on loan to its siblings would let that ask start, and would leave each of their queues its share
  and its guarantee. Only simple sets are tried: one unit alone, or units from the newest on. A node
  that other asks hold too does not count: its capacity goes to the owner of the hold, not to a claim.

It may be deprived for `rebalance_after`, twice `preempt_grace` and some slack without a break. The time starts anew
when tasks stop for an ask of the queue, which may be killed before it starts, when these stops end or are overdue, and
with a new writer. Time while the
partition is not ready does not count. Not considered as the waiting ask: jobs that start whole, and stages with `near`
or `apart`.

An ask is an **owner** if its queue is within its entitlement with it, and is **kept waiting** if the same is true with
fewer excuses: a loan that has just begun counts, the last unit that stops may be one of which only a part is on loan,
and no stop starts the time anew. What excuses a wait is named in `EXCUSES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from fairlead.core.changes import Promised, Stopped
from fairlead.core.cycle import Cycle
from fairlead.core.model import Allocation, Ask, Job, Queue, Stage
from fairlead.core.plan import Plan
from fairlead.core.policy.shares import Claim, spread
from fairlead.core.resources import MINUTE, SECOND
from fairlead.core.settings import PartitionSettings
from fairlead.core.state import Partition
from tests.chaos.checkers import need
from tests.chaos.rules import Rooms, has_one_shape, is_unpreemptible, set_aside, together, waits_whole
from tests.chaos.tasks import Micros, indices

MARGIN: Micros = MINUTE
"""How long beyond `preempt_grace` a stopping task may take to end."""
SLACK: Micros = 10 * SECOND


EXCUSES = (
    "tasks that are not preemptible",
    "guarantees of other queues",
    "nodes that are kept for other asks",
    "nodes that take no work, and tasks that do not stop in time",
    "an ask before it in its lane that may start",
    "other jobs of its queue that have used its share up",
    "a pause after a hold or claim that did not help",
    "recall that is turned off: then tasks that have just begun",
)
"""What an owner may wait for longer than the bound; docs/shares.md says so, too."""


class LoanChecker:
    """An observer of a writer. It raises `CheckFailed`, which names the queue that waits for capacity on loan."""

    def __init__(self) -> None:
        self._since: dict[str, Micros] = {}
        """Queue → since when it has been deprived."""
        self._waits: dict[int, Micros] = {}
        """Owner → since when it has been kept waiting."""
        self._stops: dict[int, list[str]] = {}
        """Tasks that stop for queues, by allocation. What they free is expected, and may use up a limit."""
        self._ready_at: Micros = 0

    def began(self, partition: Partition) -> None:
        self._since, self._waits = {}, {}

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        self.decided(decided.plan)
        self.look(decided.plan.partition, decided.plan.now, settled=not decided.more)

    def stopped(self, partition: Partition, why: str) -> None:
        """Do nothing: `began` resets the times."""

    def decided(self, plan: Plan) -> None:
        """Restart the times of queues for which tasks were stopped, and check these tasks. `look` must follow."""
        _check_runtimes(plan)
        for number, queues in _served(plan):
            self._stops[number] = [queue.path for queue in queues]

    def look(self, partition: Partition, now: Micros, settled: bool = True) -> None:
        """Update the times of deprived queues. Check them if `settled`: no cycle follows at once."""
        settings = partition.settings
        on = settings.rebalance_threshold != 0 and settings.rebalance_after > 0
        if not partition.readiness.ready or not on or partition.readiness.ready_at != self._ready_at:
            self._since, self._waits, self._ready_at = {}, {}, partition.readiness.ready_at
        if not partition.readiness.ready or not on:
            return
        self._look_at_owners(partition, now, settled)
        for number, paths in list(self._stops.items()):
            for path in paths:
                self._since.pop(path, None)
            if not _is_coming(partition, number, now):
                del self._stops[number]
        reasons = deprived(partition, now)
        self._since = {path: self._since.get(path, now) for path in reasons}
        bound = settings.rebalance_after + 2 * settings.preempt_grace + SLACK
        for path, since in self._since.items() if settled else ():
            need(
                now - since <= bound,
                f"queue {path} has been below its entitlement for {now - since} us: {reasons[path]}",
            )

    def _look_at_owners(self, partition: Partition, now: Micros, settled: bool) -> None:
        settings = partition.settings
        reasons = kept_waiting(partition, now)
        self._waits = {seq: self._waits.get(seq, now) for seq in reasons}
        again = max(_least_runtime(settings), settings.rebalance_after)
        bound = settings.rebalance_after + again + 2 * settings.preempt_grace + SLACK
        for seq, since in self._waits.items() if settled else ():
            need(
                now - since <= bound,
                f"an owner has been kept waiting for {now - since} us: {reasons[seq]}",
            )


def _check_runtimes(plan: Plan) -> None:
    """Check that tasks stopped for a share had run for `min_runtime`."""
    partition = plan.partition
    claimed = {
        number
        for change, _ in plan.done
        if isinstance(change, Promised) and change.cause == "share"
        for number in change.victims
    }
    for change, before in plan.done:
        if isinstance(change, Stopped) and change.cause == "preempt":
            by_share = change.stopped_for.startswith("queue ") or (change.into or change.allocation) in claimed
            ran = plan.now - _began(before.allocation)
            need(
                not by_share or ran >= _least_runtime(partition.settings),
                f"task of job {before.allocation.stage.job.id} is stopped and has run for less than min_runtime",
            )


def _served(plan: Plan) -> Iterator[tuple[int, list[Queue]]]:
    """Yield the allocations that were stopped, with the queues that they were stopped for."""
    partition = plan.partition
    for change, _ in plan.done:
        if isinstance(change, Stopped) and change.cause == "preempt":
            kind, _, name = change.stopped_for.partition(" ")
            leaf = partition.queues[name] if kind == "queue" else partition.jobs[name].queue
            yield change.into or change.allocation, leaf.line()


def deprived(partition: Partition, now: Micros) -> dict[str, str]:
    """Return the deprived queues, each with the ask that could start and the tasks to stop for it."""
    rights = partition.entitlements()
    free, coming = Rooms(partition), _rooms_without_stopping(partition, now)
    waiting = [ask for ask in _first_asks(partition) if not free.whole(ask)]
    wanting = {queue.path for ask in waiting for queue in ask.stage.job.queue.line()}
    expected = _Use(partition, claims=True)
    reasons: dict[str, str] = {}
    for parent in partition.queues.values():
        children = list(parent.children.values())
        lacking = [child for child in children if child.path in wanting and expected.of(child) < rights.of(child)]
        lacking = [child for child in lacking if rights.used(child) < rights.of(child)]
        claims = [
            Claim(child.name, rights.share(child), rights.used(child), int(child.path in wanting)) for child in children
        ]
        threshold = partition.settings.rebalance_threshold
        if not lacking or (threshold is not None and spread(rights.of(parent), claims) <= threshold):
            continue
        if threshold is None and not _has_shares(parent):
            continue
        units = sorted(_units_on_loan(partition, parent, now), key=lambda unit: (-unit.began, -unit.number))
        for child in lacking:
            for ask in waiting:
                if child not in ask.stage.job.queue.line() or ask.seq in partition.promises or coming.whole(ask):
                    continue
                with_others = _Use(partition, claims=True)
                for stage, tasks in set_aside(partition, without=ask):
                    with_others.add(stage, tasks)
                if with_others.of(child) >= rights.of(child):
                    continue
                helpers = _helpers(partition, now, parent, ask, [unit for unit in units if child not in unit.line])
                if helpers:
                    reasons[child.path] = f"job {ask.stage.job.id} could start by the stop of {helpers}"
    return reasons


def kept_waiting(partition: Partition, now: Micros) -> dict[int, str]:
    """Return the owners that are kept waiting, each with the tasks whose stop would let it start."""
    rights, settings = partition.entitlements(), partition.settings
    free, coming = Rooms(partition), _rooms_without_stopping(partition, now)
    if settings.rebalance_threshold is not None:
        return {}
    reasons: dict[int, str] = {}
    for ask in _first_asks(partition):
        line = ask.stage.job.queue.line()
        paused = max(ask.unheld_until, ask.unclaimed_until) + settings.promise_for > now > settings.promise_for
        if paused and (ask.unheld_until or ask.unclaimed_until):
            continue
        if ask.seq in partition.promises or free.whole(ask) or coming.whole(ask):
            continue
        for parent, child in pairwise(line):
            use = _Use(partition, claims=True)
            for stage, tasks in (*together(ask), *set_aside(partition, without=ask)):
                use.add(stage, tasks)
            if not _has_shares(parent) or use.of(child) > rights.of(child):
                continue
            young = bool(settings.recall_after)
            units = sorted(_units_on_loan(partition, parent, now, young), key=lambda unit: (-unit.began, -unit.number))
            others = [unit for unit in units if child not in unit.line]
            helpers = _helpers(partition, now, parent, ask, others, crossing=True)
            if helpers:
                reasons[ask.seq] = f"job {ask.stage.job.id} could start by the stop of {helpers}"
    return reasons


def _has_shares(parent: Queue) -> bool:
    """True if shares divide a level: those of its queues, or of a queue above them."""
    return any(queue.settings.share is not None for queue in (*parent.line(), *parent.children.values()))


def _first_asks(partition: Partition) -> Iterator[Ask]:
    """Yield the first ask of each lane that may start, if it has one shape."""
    for lane in partition.lanes.values():
        for ask in lane:
            if waits_whole(partition, ask):
                if has_one_shape(ask):
                    yield ask
                break


def _rooms_without_stopping(partition: Partition, now: Micros) -> Rooms:
    """Return the free capacity after stopping tasks have ended."""
    rooms = Rooms(partition)
    for allocation in partition.allocations.values():
        if not allocation.slots and _is_coming(partition, allocation.id, now):
            tasks = len(indices(allocation.indices))
            rooms.end(allocation.node, allocation.stage.shape, tasks, allocation.devices)
    return rooms


def _is_coming(partition: Partition, number: int, now: Micros) -> bool:
    """True if an allocation stops, and is not overdue."""
    allocation = partition.allocations.get(number)
    if allocation is None or allocation.state != "stopping":
        return False
    return now <= allocation.since + partition.settings.preempt_grace + MARGIN


class _Use:
    """Use of queues after stopping tasks have ended; with `claims`, also after all claims have started."""

    def __init__(self, partition: Partition, claims: bool = False) -> None:
        self.partition = partition
        self._more: dict[str, tuple[dict[str, int], int]] = {}
        for allocation in partition.allocations.values():
            if allocation.state == "stopping" and not allocation.slots:
                self.add(allocation.stage, -len(indices(allocation.indices)))
        for promise in partition.promises.values() if claims else ():
            claimant = None if promise.ordered else partition.ask_of_earmark(promise)
            for stage, tasks in together(claimant) if claimant is not None else ():
                self.add(stage, tasks)

    def add(self, stage: Stage, tasks: int) -> None:
        for queue in stage.job.queue.line():
            used, many = self._more.get(queue.path, ({}, 0))
            used = dict(used)
            for name, amount in stage.shape.key.resources:
                used[name] = used.get(name, 0) + amount * tasks
            self._more[queue.path] = (used, many + tasks)

    def vector(self, queue: Queue) -> dict[str, int]:
        more = self._more.get(queue.path, ({}, 0))[0]
        return {name: queue.account.used.get(name, 0) + more.get(name, 0) for name in {**queue.account.used, **more}}

    def of(self, queue: Queue) -> int:
        many = queue.account.tasks + self._more.get(queue.path, ({}, 0))[1]
        return self.partition.entitlements().measure(self.vector(queue), many)


# -- what could be stopped ---------------------------------------------------------------------------------------


class Task(msgspec.Struct):
    """A running task with its devices."""

    allocation: Allocation
    index: int
    devices: tuple[int, ...]


class Unit(msgspec.Struct):
    """Tasks that are stopped together: one task of a stage that can spare some, or a whole gang."""

    name: str
    line: list[Queue]
    began: Micros
    number: int
    tasks: list[Task]
    spare: int | None = None
    """The number of tasks that its stage can lose one by one; None for a whole gang."""


def _units_on_loan(partition: Partition, parent: Queue, now: Micros, young: bool = False) -> Iterator[Unit]:
    """Yield the units that may be stopped in those children of a queue that have loans; with `young`, of any age."""
    rights = partition.entitlements()
    for job in sorted(partition.jobs.values(), key=lambda job: job.number):
        line = job.queue.line()
        if not job.allocations or parent not in line[:-1] or is_unpreemptible(job):
            continue
        if rights.loaned(line[line.index(parent) + 1]):
            for unit in _units(job):
                again = any(task.allocation.attempt > 1 for task in unit.tasks)
                least = _least_runtime(partition.settings)
                if young or now - unit.began >= (max(least, partition.settings.rebalance_after) if again else least):
                    yield unit


def _least_runtime(settings: PartitionSettings) -> Micros:
    return min(MINUTE, settings.rebalance_after) if settings.min_runtime is None else settings.min_runtime


def _units(job: Job) -> Iterator[Unit]:
    whole: list[Task] = []
    for stage in job.stages:
        live = [
            (index, allocation)
            for index, allocation in (stage.live or {}).items()
            if allocation.state != "stopping" and not allocation.slots
        ]
        is_array = stage.started and stage.min == 1 and not job.whole
        spare = len(live) - (0 if is_array else stage.needed) if stage.started else 0
        for index, allocation in live if spare > 0 else ():
            yield _unit(job, [_task(allocation, index)], f"{job.id} {stage.name}[{index}]", spare)
        whole += [] if is_array else [_task(allocation, index) for index, allocation in live]
        if whole and not job.whole:
            yield _unit(job, whole, f"{job.id} {stage.name}")
            whole = []
    if whole:
        yield _unit(job, whole, job.id)


def _unit(job: Job, tasks: list[Task], name: str, spare: int | None = None) -> Unit:
    newest = max((_began(task.allocation), task.allocation.id) for task in tasks)
    return Unit(name, job.queue.line(), newest[0], newest[1], tasks, spare)


def _task(allocation: Allocation, index: int) -> Task:
    numbers = indices(allocation.indices)
    per_task = len(allocation.devices) // len(numbers)
    first = numbers.index(index) * per_task
    return Task(allocation, index, allocation.devices[first : first + per_task])


def _began(allocation: Allocation) -> Micros:
    return allocation.since if allocation.started is None else allocation.started


def _helpers(
    partition: Partition, now: Micros, parent: Queue, ask: Ask, units: Sequence[Unit], crossing: bool = False
) -> list[str]:
    """Return the names of units that let an ask start when they stop; empty if no simple set does."""
    near = [unit for unit in units if any(_is_usable(partition, ask, task.allocation.node) for task in unit.tasks)]
    for unit in near:
        if _may_go(partition, parent, [], unit, crossing) and _starts(partition, now, ask, [unit]):
            return [unit.name]
    gone: list[Unit] = []
    for unit in near:
        if _may_go(partition, parent, gone, unit, crossing):
            gone.append(unit)
            if _starts(partition, now, ask, gone):
                return [stopped.name for stopped in gone]
    return []


def _is_usable(partition: Partition, ask: Ask, node_id: int) -> bool:
    """True if a node accepts the tasks of an ask, regardless of free capacity."""
    nodes, shape = partition.nodes, ask.stage.shape
    row = nodes.rows[node_id]
    without_work = node_id in nodes.avoided or node_id in nodes.disconnected
    if nodes.state[row] != "up" or without_work or nodes.manager[row] != shape.key.manager:
        return False
    if any(seq != ask.seq for seq in nodes.held.get(node_id, ())):
        return False
    return shape.accepts(nodes.labels[row], nodes.taints[row], nodes.pool[row], nodes.users[row])


def _tasks(units: Iterable[Unit]) -> list[Task]:
    """Return the tasks of units without duplicates: a single task is also part of its gang's unit."""
    return list({(task.allocation.id, task.index): task for unit in units for task in unit.tasks}.values())


def _may_go(partition: Partition, parent: Queue, gone: Sequence[Unit], unit: Unit, crossing: bool) -> bool:
    """True if every queue below the parent keeps its share and guarantee when one more unit stops.

    With `crossing`, it is enough that the queue was above its share before.
    """
    units = [*gone, unit]
    singles = [(each, id(each.tasks[0].allocation.stage)) for each in units if each.spare is not None]
    if any(sum(1 for _, other in singles if other == stage) > (each.spare or 0) for each, stage in singles):
        return False
    use, before, rights = _Use(partition), _Use(partition), partition.entitlements()
    for task in _tasks(units):
        use.add(task.allocation.stage, -1)
    for task in _tasks(gone):
        before.add(task.allocation.stage, -1)
    freed = {name for task in unit.tasks for name, _ in task.allocation.stage.shape.key.resources}
    for queue in unit.line[unit.line.index(parent) + 1 :]:
        used = use.vector(queue)
        if use.of(queue) < rights.of(queue) and not (crossing and before.of(queue) > rights.of(queue)):
            return False
        if any(used.get(name, 0) < least for name, least in queue.settings.guarantee if name in freed):
            return False
    return True


def _starts(partition: Partition, now: Micros, ask: Ask, units: Sequence[Unit]) -> bool:
    rooms = _rooms_without_stopping(partition, now)
    for task in _tasks(units):
        rooms.end(task.allocation.node, task.allocation.stage.shape, 1, task.devices)
    shared = [node_id for node_id, owners in partition.nodes.held.items() if len(owners) > 1]
    stage, needed = together(ask)[0]
    return rooms.count(ask, stage, partition.nodes.held, without=shared) >= needed
