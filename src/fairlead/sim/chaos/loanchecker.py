"""Checks rebalance: no queue stays below its entitlement for long if stopping tasks on loan would help it.

A queue is **deprived** if all of this is true:

- it uses less than it is entitled to, also counting what is promised to it, and the spread among its siblings is over
  `rebalance_threshold`, if that is set; otherwise, one of its siblings has a share;
- the first ask of one of its lanes that may start has no room, and will have none when the tasks that stop are gone. A
  task counts as stopping for `preempt_grace` and a margin;
- stopping some tasks on loan to its siblings would let that ask start, and would leave each of their queues its share
  and its guarantee. Only simple sets are tried: one unit alone, or units from the newest on. A node
  that other asks hold too does not count: its capacity goes to the owner of the hold, not to a claim.

It may be deprived for `rebalance_after`, `preempt_grace` and some slack without a break. The time starts anew when
tasks stop for an ask of the queue, which may be killed before it starts, and with a new writer. Time while the
partition is not ready does not count. Not considered as the waiting ask: jobs that start whole, and stages with `near`
or `apart`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from fairlead.core.changes import Stopped
from fairlead.core.cycle import Cycle
from fairlead.core.model import Allocation, Ask, Job, Queue, Stage
from fairlead.core.plan import Plan
from fairlead.core.policy.shares import Claim, spread
from fairlead.core.resources import MINUTE, SECOND
from fairlead.core.settings import PartitionSettings
from fairlead.core.state import Partition
from fairlead.sim.chaos.checkers import need
from fairlead.sim.chaos.rules import Rooms, has_one_shape, is_unpreemptible, together, waits_whole
from fairlead.sim.chaos.tasks import Micros, indices

MARGIN: Micros = MINUTE
"""How long beyond `preempt_grace` a stopping task may take to end."""
SLACK: Micros = 10 * SECOND


class LoanChecker:
    """An observer of a writer. It raises `CheckFailed`, which names the queue that waits for capacity on loan."""

    def __init__(self) -> None:
        self._since: dict[str, Micros] = {}
        """Queue → since when it has been deprived."""
        self._ready_at: Micros = 0

    def began(self, partition: Partition) -> None:
        self._since = {}

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        self.decided(decided.plan)
        self.look(decided.plan.partition, decided.plan.now, settled=not decided.more)

    def stopped(self, partition: Partition, why: str) -> None:
        """Do nothing: `began` resets the times."""

    def decided(self, plan: Plan) -> None:
        """Restart the times of queues for which tasks were stopped. `look` must follow."""
        for queue in _served(plan):
            self._since.pop(queue.path, None)

    def look(self, partition: Partition, now: Micros, settled: bool = True) -> None:
        """Update the times of deprived queues. Check them if `settled`: no cycle follows at once."""
        settings = partition.settings
        on = settings.rebalance_threshold != 0 and settings.rebalance_after > 0
        if not partition.reign.ready or not on or partition.reign.ready_at != self._ready_at:
            self._since, self._ready_at = {}, partition.reign.ready_at
        if not partition.reign.ready or not on:
            return
        reasons = deprived(partition, now)
        self._since = {path: self._since.get(path, now) for path in reasons}
        bound = settings.rebalance_after + settings.preempt_grace + SLACK
        for path, since in self._since.items() if settled else ():
            need(
                now - since <= bound,
                f"queue {path} has been below its entitlement for {now - since} us: {reasons[path]}",
            )


def _served(plan: Plan) -> Iterator[Queue]:
    """Yield the queues for which tasks were stopped."""
    partition = plan.partition
    for change, _ in plan.done:
        if isinstance(change, Stopped) and change.cause == "preempt":
            kind, _, name = change.stopped_for.partition(" ")
            leaf = partition.queues[name] if kind == "queue" else partition.jobs[name].queue
            yield from leaf.line()


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
        if threshold is None and all(child.settings.share is None for child in children):
            continue
        units = sorted(_units_on_loan(partition, parent, now), key=lambda unit: (-unit.began, -unit.number))
        for child in lacking:
            for ask in waiting:
                if child not in ask.stage.job.queue.line() or ask.seq in partition.promises or coming.whole(ask):
                    continue
                helpers = _helpers(partition, now, parent, ask, [unit for unit in units if child not in unit.line])
                if helpers:
                    reasons[child.path] = f"job {ask.stage.job.id} could start by the stop of {helpers}"
    return reasons


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
        if (
            allocation.state == "stopping"
            and not allocation.rooms
            and now <= allocation.since + partition.settings.preempt_grace + MARGIN
        ):
            tasks = len(indices(allocation.indices))
            rooms.end(allocation.node, allocation.stage.shape, tasks, allocation.devices)
    return rooms


class _Use:
    """Use of queues after stopping tasks have ended; with `claims`, also after all claims have started."""

    def __init__(self, partition: Partition, claims: bool = False) -> None:
        self.partition = partition
        self._more: dict[str, tuple[dict[str, int], int]] = {}
        for allocation in partition.allocations.values():
            if allocation.state == "stopping" and not allocation.rooms:
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
    """Tasks that are stopped together: one spare task of a gang, or a whole gang."""

    name: str
    line: list[Queue]
    began: Micros
    number: int
    tasks: list[Task]


def _units_on_loan(partition: Partition, parent: Queue, now: Micros) -> Iterator[Unit]:
    """Yield the units that may be stopped in those children of a queue that have loans."""
    rights = partition.entitlements()
    for job in sorted(partition.jobs.values(), key=lambda job: job.number):
        line = job.queue.line()
        if not job.allocations or parent not in line[:-1] or is_unpreemptible(job):
            continue
        if rights.loaned(line[line.index(parent) + 1]):
            for unit in _units(job):
                again = any(task.allocation.attempt > 1 for task in unit.tasks)
                least = _least_runtime(partition.settings)
                if now - unit.began >= (max(least, partition.settings.rebalance_after) if again else least):
                    yield unit


def _least_runtime(settings: PartitionSettings) -> Micros:
    return min(MINUTE, settings.rebalance_after) if settings.min_runtime is None else settings.min_runtime


def _units(job: Job) -> Iterator[Unit]:
    whole: list[Task] = []
    for stage in job.stages:
        live = [
            (index, allocation)
            for index, allocation in (stage.live or {}).items()
            if allocation.state != "stopping" and not allocation.rooms
        ]
        live.sort(key=lambda item: (_began(item[1]), item[1].id, item[0]), reverse=True)
        spare = max(0, len(live) - stage.needed) if stage.started else 0
        for index, allocation in live[:spare]:
            yield _unit(job, [_task(allocation, index)], f"{job.id} {stage.name}[{index}]")
        whole += [_task(allocation, index) for index, allocation in live]
        if whole and not job.whole:
            yield _unit(job, whole, f"{job.id} {stage.name}")
            whole = []
    if whole:
        yield _unit(job, whole, job.id)


def _unit(job: Job, tasks: list[Task], name: str) -> Unit:
    newest = max((_began(task.allocation), task.allocation.id) for task in tasks)
    return Unit(name, job.queue.line(), newest[0], newest[1], tasks)


def _task(allocation: Allocation, index: int) -> Task:
    numbers = indices(allocation.indices)
    per_task = len(allocation.devices) // len(numbers)
    first = numbers.index(index) * per_task
    return Task(allocation, index, allocation.devices[first : first + per_task])


def _began(allocation: Allocation) -> Micros:
    return allocation.since if allocation.started is None else allocation.started


def _helpers(partition: Partition, now: Micros, parent: Queue, ask: Ask, units: Sequence[Unit]) -> list[str]:
    """Return the names of units that let an ask start when they stop; empty if no simple set does."""
    near = [unit for unit in units if any(_is_usable(partition, ask, task.allocation.node) for task in unit.tasks)]
    for unit in near:
        if _may_go(partition, parent, [unit]) and _starts(partition, now, ask, [unit]):
            return [unit.name]
    gone: list[Unit] = []
    for unit in near:
        if _may_go(partition, parent, [*gone, unit]):
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
    """Return the tasks of units without duplicates: a spare task is also part of its gang's unit."""
    return list({(task.allocation.id, task.index): task for unit in units for task in unit.tasks}.values())


def _may_go(partition: Partition, parent: Queue, units: Sequence[Unit]) -> bool:
    """True if every queue below the parent keeps its share and guarantee when these units stop."""
    use, rights = _Use(partition), partition.entitlements()
    for task in _tasks(units):
        use.add(task.allocation.stage, -1)
    for unit in units:
        freed = {name for task in unit.tasks for name, _ in task.allocation.stage.shape.key.resources}
        for queue in unit.line[unit.line.index(parent) + 1 :]:
            used = use.vector(queue)
            if use.of(queue) < rights.of(queue):
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
