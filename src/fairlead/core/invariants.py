"""Checks of the state. Every cycle checks the nodes and jobs that it touched; tests and the simulator check everything.

The checks compute sums from the allocations and compare them with the stored sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fairlead.core.holds.earmarks import is_coming, usable_places
from fairlead.core.holds.release import starving_holds
from fairlead.core.lanes import LaneKey, lane_key
from fairlead.core.lifecycle import JOB, NODE, QUEUE
from fairlead.core.model import (
    NEW,
    NO_ASKS,
    NOTHING_PENDING,
    REPLACE,
    SCALE,
    Account,
    Allocation,
    Hold,
    Job,
    Place,
    Promise,
    Stage,
)
from fairlead.core.policy.fit import may_be_held
from fairlead.core.ranges import Ranges, count, difference, indices
from fairlead.core.resources import GPU, Vector, add
from fairlead.core.shape import WHOLE_DEVICE, Shape
from fairlead.core.state import MAX_MIX, MAX_RUNS, MIX_WEIGHT, Partition, is_short


class InvariantBroken(AssertionError):
    """The state contradicts itself. This is a bug in Fairlead, never a fault of the input."""


def check_touched(partition: Partition) -> None:
    """Check what the open plan touched: nodes against their allocations, and the task counts of jobs."""
    touched, rows, jobs = partition.touched, partition.nodes.rows, partition.jobs
    for node_id in sorted(touched.nodes):
        if node_id in rows:
            _check_node(partition, node_id)
    for job_id in touched.jobs:
        if job_id in jobs:
            _check_counts(partition, jobs[job_id])
    for number in sorted(touched.chains):
        if number in partition.derived.chains:
            _check_chain(partition, number)


def check_all(partition: Partition, settled: bool = True) -> None:
    """Check everything.

    With `settled` False, another cycle must follow. Until then a promise may remain for which no task stops any more.
    """
    for node_id in partition.nodes.rows:
        _check_node(partition, node_id)
    for job in partition.jobs.values():
        _check_job(partition, job)
    for check in EVERYTHING:
        check(partition)
    if settled:
        _check_promises_come(partition)


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantBroken(what)


def _same(expected: object, stored: object, what: str) -> None:
    if stored != expected:
        raise InvariantBroken(f"{what}: {stored}, should be {expected}")


# -- nodes -------------------------------------------------------------------------------------------------------


def _check_node(partition: Partition, node_id: int) -> None:
    nodes = partition.nodes
    row = nodes.rows[node_id]
    used, devices = _use_of(nodes.allocations[row].values(), node_id)
    booked = {device: milli for device, milli in enumerate(nodes.devices[row]) if milli}
    if devices != booked:
        raise InvariantBroken(f"node {nodes.name[row]}: devices used {booked}, its allocations use {devices}")
    over = False
    for resource, column in nodes.used.items():
        # used + free = capacity + over is true by definition; only the use itself can be wrong.
        taken, capacity = column[row], nodes.capacity[resource][row]
        if taken != used.get(resource, 0) or capacity < 0:
            raise InvariantBroken(
                f"node {nodes.name[row]}: {resource} used {taken} of {capacity}, its allocations use {used}"
            )
        over |= taken > capacity
    if used.get(GPU, 0) != sum(booked.values()):
        raise InvariantBroken(f"node {nodes.name[row]}: its devices and its gpu disagree")
    over |= any(milli > WHOLE_DEVICE for milli in nodes.devices[row]) or len(nodes.devices[row]) > nodes.gpus[row]
    if over != (row in nodes.over_rows) or (over and nodes.placeable(row)):
        raise InvariantBroken(f"node {nodes.name[row]} is {'' if over else 'not '}over, but is marked as the opposite")
    if nodes.state[row] not in NODE.states:
        raise InvariantBroken(f"node {nodes.name[row]} is {nodes.state[row]}")


def _use_of(allocations: Iterable[Allocation], node_id: int) -> tuple[Vector, dict[int, int]]:
    devices: dict[int, int] = {}
    tasks_by_shape: dict[Shape, int] = {}
    shape: Shape | None = None
    for allocation in allocations:
        if allocation.stage.shape is not shape:
            shape = allocation.stage.shape
            tasks_by_shape.setdefault(shape, 0)
        block = allocation.indices
        tasks = 0 if allocation.slots else block[1] - block[0] if len(block) == 2 else count(block)
        tasks_by_shape[shape] += tasks
        if allocation.node != node_id:
            raise InvariantBroken(f"allocation {allocation.id} is listed on node {node_id}, but is on another")
        if shape.devices or allocation.devices:
            if len(allocation.devices) != tasks * shape.devices:
                raise InvariantBroken(
                    f"allocation {allocation.id} has {len(allocation.devices)} devices for {tasks} tasks"
                )
            for device in allocation.devices:
                devices[device] = devices.get(device, 0) + shape.device_milli
    used: Vector = {}
    for shape, tasks in tasks_by_shape.items():
        for resource, amount in shape.amounts:
            used[resource] = used.get(resource, 0) + amount * tasks
    return used, devices


def _check_table(partition: Partition) -> None:
    nodes = partition.nodes
    total: Vector = {}
    up = 0
    for node_id, row in nodes.rows.items():
        _same(node_id, nodes.node_id[row], f"the node of row {row}")
        _same(node_id, nodes.joins.get(nodes.name[row]), f"the id of node {nodes.name[row]}")
        _need(node_id < partition.counters.node_id, f"node id {node_id} was never given")
        if nodes.state[row] in ("up", "draining"):
            up += 1
            add(total, nodes.capacity_of(row))
    _same(len(nodes.rows), len(nodes.joins), "the number of names of nodes")
    for node_id in nodes.disconnected:
        row = nodes.rows.get(node_id, -1)
        _need(row >= 0 and not nodes.manager[row], f"node {node_id} is disconnected and has no agent")
    _same(up, nodes.up_count, "the number of nodes that are up")
    _same(total, nodes.total, "the capacity of the nodes that are up")
    for row, node_id in enumerate(nodes.node_id):
        if nodes.rows.get(node_id) != row:
            _need(not nodes.allocations[row], f"vacant row {row} has allocations")
            columns = (*nodes.used.values(), *nodes.capacity.values())
            _need(not any(column[row] for column in columns), f"vacant row {row} has capacity or is used")


# -- jobs, tasks, allocations ------------------------------------------------------------------------------------


def _check_counts(partition: Partition, job: Job) -> None:
    """Check the task counts of a job: the cheap part of `_check_job`."""
    live = 0
    # The shared ask of a whole job is checked with the job, not with each stage.
    kinds = _check_whole(partition, job) if job.whole else (REPLACE, SCALE, NEW)
    for stage in job.stages:
        pending, asks = stage.pending, stage.asks
        running = len(stage.live or ())
        total = running + (stage.done() if stage.ended else 0) + (count(stage.blocked) if stage.blocked else 0)
        if pending is not NOTHING_PENDING or asks is not NO_ASKS:
            total += stage.waiting()
            for kind in kinds:
                if (pending[kind] is None) != (asks[kind] is None) and (asks[kind] or not partition.unmet(job)):
                    raise InvariantBroken(
                        f"job {job.id} stage {stage.name}: pending tasks without an ask, or an ask without tasks"
                    )
        size = stage.size if stage.terms.absent else stage.count
        if total != size and (total < size or not running):
            raise InvariantBroken(f"job {job.id} stage {stage.name}: {total} tasks of {size}")
        live += running
    if bool(live) != (job.allocations > 0) or (job.ended_at is not None) != JOB.terminal(job.state):
        raise InvariantBroken(f"job {job.id} is {job.state} with {job.allocations} allocations")


def _check_whole(partition: Partition, job: Job) -> tuple[int, ...]:
    """Check that all stages of a whole job have started, or share one ask; return the other kinds of asks to check."""
    started = job.stages[0].started
    shared = job.stages[0].asks[NEW]
    for stage in job.stages:
        own = stage.asks[NEW]
        apart = own is not None and own.whole if started else own is not shared or (own is not None and not own.whole)
        if stage.started != started or apart:
            raise InvariantBroken(f"job {job.id}: its stages have not started together, or do not ask together")
    if started:
        return (REPLACE, SCALE, NEW)
    waits = any(stage.pending[NEW] is not None for stage in job.stages)
    if waits != (shared is not None) and (shared is not None or not partition.unmet(job)):
        raise InvariantBroken(f"job {job.id}: pending tasks without an ask, or an ask without tasks")
    return (REPLACE, SCALE)


def _check_job(partition: Partition, job: Job) -> None:
    _need(job.state in JOB.states, f"job {job.id} is {job.state}")
    live: dict[int, Allocation] = {}
    for stage in job.stages:
        _check_stage(partition, stage)
        live.update((allocation.id, allocation) for allocation in (stage.live or {}).values())
    _check_counts(partition, job)
    tasks = sum(count(allocation.indices) for allocation in live.values() if not allocation.slots)
    _same(tasks, job.live, f"the tasks of job {job.id} that use capacity")
    _same(len(live), job.allocations, f"the allocations of job {job.id}")
    if not job.over and not job.manager:
        _need(
            (job.state == "running") == bool(live) or not any(stage.unstarted() for stage in job.stages),
            f"job {job.id} is {job.state} with {len(live)} allocations",
        )
    _need(job.listed == (not job.over or job.allocations > 0), f"job {job.id} is counted wrongly with its queue")


def _check_stage(partition: Partition, stage: Stage) -> None:
    name = f"job {stage.job.id} stage {stage.name}"
    _check_places(stage, name)
    for index, allocation in (stage.live or {}).items():
        _need(index in set(indices(allocation.indices)), f"{name}[{index}] is not in its allocation")
        _need(allocation.attempt <= stage.top, f"{name}[{index}] has an attempt above the highest")
        _need(allocation.attempt > stage.past(index).attempt, f"{name}[{index}] reuses an attempt")
    _same(stage.missing() > 0, stage.below_min, f"{name} has too few live tasks")
    for kind, ask in enumerate(stage.asks):
        if ask is not None:
            _need(stage in ask.stages and ask.kind == kind, f"{name}: an ask is misplaced")
    if not stage.started and not stage.job.manager:
        _need(
            stage.pending[REPLACE] is stage.pending[SCALE] is None,
            f"{name} has not started and has pending tasks of kind replace or scale",
        )
        states = {allocation.state for allocation in (stage.live or {}).values()}
        _need(states <= {"stopping"}, f"{name} has not started and is {states}")
    _check_generation(stage, name)
    _need(not stage.job.over or not stage.unstarted(), f"{name}: its job has ended and tasks still wait")


def _check_places(stage: Stage, name: str) -> None:
    seen = Ranges()
    try:
        for ranges in (*stage.pending, *(stage.ended or {}).values()):
            if ranges is not None:
                _need(bool(ranges), f"{name} keeps an empty range")
                seen.add(ranges.flat())
        for index in sorted(stage.live or ()):
            if index < stage.count:
                seen.add((index, index + 1))
        seen.add(stage.blocked)
    except ValueError as problem:
        raise InvariantBroken(f"{name}: a task is in two places ({problem})") from None
    tasks = seen.flat()
    if not stage.job.manager:
        expected = difference((0, stage.count), stage.terms.absent) if stage.count else ()
        _same(expected, tasks, f"the tasks of {name}")
    _need(not tasks or tasks[-1] <= stage.count, f"{name}: tasks beyond its count {stage.count}")


def _check_generation(stage: Stage, name: str) -> None:
    """Check that the live members of a gang are of one generation, and that each has a rank of its own."""
    live = {index: task.generation for index, task in (stage.live or {}).items() if index < stage.count}
    # Members of an elastic gang may stop for other asks while the gang starts again.
    if stage.strict and stage.on_failure == "restart":
        numbers = set(live.values())
        _need(len(numbers) <= 1, f"{name}: live members of generations {sorted(numbers)}")
    _need(all(number <= stage.generation for number in live.values()), f"{name}: a member of a later generation")
    if not stage.started or not stage.generation:
        return
    ranks = [stage.rank(index) for index, number in live.items() if number == stage.generation]
    _need(None not in ranks and len(set(ranks)) == len(ranks), f"{name}: ranks {ranks}")


def _check_allocations(partition: Partition) -> None:
    nodes = partition.nodes
    live: dict[int, Allocation] = {}
    for job in partition.jobs.values():
        for stage in job.stages:
            for index, allocation in (stage.live or {}).items():
                live[allocation.id] = allocation
                _need(allocation.stage is stage, f"allocation {allocation.id} belongs to another stage")
                _need(partition.allocations.get(allocation.id) is allocation, f"{stage.name}[{index}] is not booked")
    _need(live.keys() == partition.allocations.keys(), "allocations without a job")
    for number, allocation in partition.allocations.items():
        _need(number == allocation.id < partition.counters.allocation, f"allocation {number} was never numbered")
        _need(allocation.node in nodes, f"allocation {number} is on a node that is gone")
        row = nodes.rows[allocation.node]
        _need(nodes.allocations[row].get(number) is allocation, f"allocation {number} is not on its node")
        _same(allocation.stage.job.manager, nodes.manager[row], f"the manager of the node of allocation {number}")


def _check_chain(partition: Partition, number: int) -> None:
    """Check the number of slots that allocations wait for in a chain, and that they are of one stage and node."""
    chain = partition.derived.chains[number].values()
    slots = sum(count(allocation.indices) for allocation in chain if not allocation.slots)
    first = next(iter(chain))
    for member in chain:
        if member.slots not in (0, slots):
            raise InvariantBroken(f"chain {number} has {slots} slots, and {member.slots} for allocation {member.id}")
        if member.stage is not first.stage or member.node != first.node or member.devices or member.group:
            raise InvariantBroken(f"allocation {member.id} cannot be in chain {number}")


def _check_chains(partition: Partition) -> None:
    chains: dict[int, dict[int, Allocation]] = {}
    for allocation in partition.allocations.values():
        if allocation.chain:
            chains.setdefault(allocation.chain, {})[allocation.id] = allocation
        _need(not allocation.slots or bool(allocation.chain), f"allocation {allocation.id} waits in no chain")
        stops = allocation.cause not in ("", "scale", "time limit", "return") and allocation.state == "stopping"
        _need(stops or not allocation.stopped_for, f"allocation {allocation.id} stops for no claim, user or member")
        returns = allocation.cause == "return"
        _need(not returns or allocation.state == "assigned", f"allocation {allocation.id} returns and was started")
    _need(chains == partition.derived.chains, "the chains are not those of the allocations")
    for number in chains:
        _check_chain(partition, number)


# -- queues and accounts -----------------------------------------------------------------------------------------


def _check_accounts(partition: Partition) -> None:
    sums: dict[int, Account] = {id(account): Account(account.name) for account in _accounts(partition)}
    for job in partition.jobs.values():
        if job.listed:
            expected = partition.accounts_for(job.queue, job.spec.user, job.spec.groups)
            _need(
                [id(account) for account in job.accounts] == [id(account) for account in expected],
                f"job {job.id} is booked on the wrong accounts",
            )
            for account in job.accounts:
                sums[id(account)].running += job.allocations > 0
    for allocation in partition.allocations.values():
        for account in () if allocation.slots else allocation.stage.job.accounts:
            tasks = count(allocation.indices)
            sums[id(account)].tasks += tasks
            add(sums[id(account)].used, allocation.stage.shape.resources, tasks)
    for account in _accounts(partition):
        found = sums[id(account)]
        _same(found.used, account.used, f"the use of {account.name}")
        _same((found.tasks, found.running), (account.tasks, account.running), f"tasks and jobs of {account.name}")
        _need(all(amount > 0 for amount in account.used.values()), f"{account.name}: use is not positive")
    for queue in partition.queues.values():
        if queue.children:
            below: Vector = {}
            for child in queue.children.values():
                add(below, child.account.used)
            _same(below, queue.account.used, f"the use of queue {queue.path} and of its children")


def _accounts(partition: Partition) -> Iterable[Account]:
    for queue in partition.queues.values():
        yield queue.account
        yield from queue.users.values()
        yield from queue.groups.values()


def _check_queues(partition: Partition) -> None:
    for path, queue in partition.queues.items():
        _need(queue.path == path and queue.state in QUEUE.states, f"queue {path} is {queue.state}")
        _need(not (queue.jobs and queue.children), f"queue {path} has jobs and queues below it")
        parent = queue.parent
        _need(
            path == "root" if parent is None else parent.children.get(queue.name) is queue,
            f"queue {path} is not a child of its parent",
        )
        _same(queue.state == "draining", path in partition.derived.draining_queues, f"queue {path} is draining")
        listed = sum(job.listed for job in partition.jobs.values() if job.queue is queue)
        _same(listed, queue.jobs, f"the jobs of queue {path}")
    at_work = {job.id for job in partition.jobs.values() if job.allocations}
    listed_at_work = {
        name
        for queue in partition.queues.values()
        for priority, jobs in queue.at_work.items()
        for name, job in jobs.items()
        if job.queue is queue and job.priority == priority
    }
    _same(at_work, listed_at_work, "the jobs with allocations")
    _same(Counter(job.priority for job in partition.jobs.values()), partition.derived.priorities, "jobs by priority")


def _check_past(partition: Partition) -> None:
    """Check that the past use of a queue is at least that of its children, or of its users, and never below 0."""
    on = partition.settings.share_memory > 0
    _need(on or not partition.landmark, "there is a landmark, and no past counts")
    _need(partition.landmark <= partition.now, "the landmark is later than now")
    for path, queue in partition.queues.items():
        _same(on, queue.account.booked is not None, f"past use counts in queue {path}")
        takes_turns = on and queue.order.by_user
        for user in queue.users.values():
            _same(takes_turns, user.booked is not None, f"past use counts for {user.name}")
        past = partition.past_of(queue.account)
        below = [child.account for child in queue.children.values()]
        parts: Vector = {}
        for account in below or (queue.users.values() if takes_turns else ()):
            part = partition.past_of(account)
            _need(min(part.values(), default=0) >= 0, f"{account.name} has a past below 0: {part}")
            add(parts, part)
        enough = all(amount <= past.get(name, 0) for name, amount in parts.items())
        _need(enough and min(past.values(), default=0) >= 0, f"queue {path} has a past of {past}, its parts {parts}")


def _check_runs(partition: Partition) -> None:
    _need(partition.settings.learns or not partition.runs, "run times are kept, and estimates are not learned")
    _need(len(partition.runs) <= MAX_RUNS, f"the run times of {len(partition.runs)} users and names are kept")
    for key, runs in partition.runs.items():
        _need(runs.noted <= partition.now, f"the run times of {key} were noted later than now")
        _need(runs.last >= 0 and (runs.before is None or runs.before >= 0), f"run times of {key} are shorter than 0")


def _check_mix(partition: Partition) -> None:
    requests = partition.mix.requests
    _need(len(requests) <= MAX_MIX, f"the mix has {len(requests)} requests")
    _need(sum(tasks for _, tasks in requests) <= 2 * MIX_WEIGHT, "the mix weighs too much")
    _need(all(tasks > 0 for _, tasks in requests), "a request of the mix has no weight")
    _need([key for key, _ in requests] == sorted({key for key, _ in requests}), "the mix is not sorted")
    _need(0 <= partition.mix.ending <= 100, "the part of tasks that end is no percentage")
    _need(partition.mix.upto <= partition.counters.job, "the mix includes jobs that were not submitted yet")


def _check_strange(partition: Partition) -> None:
    """Check that no job or task can get a job or attempt number of tasks that this journal never started."""
    skipped = partition.skipped.flat()
    _need(bool(skipped) == bool(partition.era), f"era {partition.era} began and skipped no job numbers")
    _need(not skipped or skipped[-1] <= partition.counters.job, "job numbers that were skipped may be given")
    for job in partition.jobs.values():
        _need(job.number not in partition.skipped, f"job {job.id} has a number that was skipped")
    for (number, name), found in partition.strange.items():
        _need(number < partition.counters.job, f"job {number} runs somewhere, and its number may be given again")
        for job in [job for job in partition.jobs.values() if job.number == number]:
            stage = job.stage(name)
            highest = max(found.tasks, default=0)
            _need(stage is None or stage.floor >= highest, f"attempt {highest} of job {number} may be given again")


# -- lanes, holds and promises -----------------------------------------------------------------------------------


def _check_lanes(partition: Partition) -> None:
    sizes: Counter[LaneKey] = Counter()
    asks: Counter[str] = Counter()
    for job in partition.jobs.values():
        for stage in job.stages:
            # A shared ask of all stages counts with the first stage.
            for ask in [ask for ask in stage.asks if ask is not None and ask.stage is stage]:
                sizes[lane_key(ask)] += 1
                asks[job.queue.path] += 1
                _need(not ask.whole or job.whole, f"stage {stage.name} of {job.id} has an ask for its whole job")
                _need(ask.seq < partition.counters.ask, f"an ask of {job.id} was never numbered")
                _need(ask.place <= ask.seq, f"{job.id} has the place of an ask after its own")
            _need(stage.last_place < partition.counters.ask, f"{job.id} comes back to a place that was never given")
    _same(sizes, {key: lane.size for key, lane in partition.lanes.items()}, "the sizes of the lanes")
    for path, queue in partition.queues.items():
        _same(asks[path], queue.asks, f"the asks of queue {path}")
    for lane in partition.lanes.values():
        _same(lane.size, len(list(lane)), f"the asks in the lane of {lane.queue.path}")
        _need(lane.head() is next(iter(lane), None), f"the lane of {lane.queue.path} has a wrong head")


def _check_shapes(partition: Partition) -> None:
    shapes = partition.derived.shapes
    uses = Counter(stage.shape.key for job in partition.jobs.values() for stage in job.stages)
    _same(uses, {key: shape.stages for key, shape in shapes.items()}, "the stages of each shape")
    for job in partition.jobs.values():
        for stage in job.stages:
            _need(shapes[stage.shape.key] is stage.shape, f"the shape of {job.id} is not interned")


def _check_earmarks(partition: Partition) -> None:
    """Check that each hold and promise has an ask and is entered at its nodes, and that not too many nodes are held."""
    kept: dict[int, dict[int, list[Place]]] = {}
    earmarks: list[Hold | Promise] = [*partition.holds.values(), *partition.promises.values()]
    for earmark in earmarks:
        what = f"the {type(earmark).__name__.lower()} of ask {earmark.seq} of job {earmark.job}"
        served = partition.earmark_of(earmark.seq) is earmark and partition.ask_of_earmark(earmark) is not None
        _need(served, f"{what} outlives its demand")
        _same(usable_places(partition, earmark), earmark.places, f"the nodes of {what}")
        for place in earmark.places:
            kept.setdefault(place[0], {}).setdefault(earmark.seq, []).append(place)
    _same(kept, partition.nodes.held, "the nodes that are kept")
    starving = starving_holds(partition)
    large = any(hold.large for hold in starving)
    _need(not large or len(starving) == 1, "a hold of more nodes than may be held is not the only hold")
    held = {node_id for hold in starving for node_id in hold.nodes}
    most = may_be_held(partition.settings.held_nodes_percent, len(partition.nodes))
    _need(large or len(held) <= most, f"{len(held)} nodes are held, {most} may be")


def _check_stops(partition: Partition) -> None:
    overdue = {number: allocation for number, allocation in partition.allocations.items() if allocation.overdue}
    _same(overdue, partition.derived.overdue, "the overdue stops")
    stops = all(allocation.state == "stopping" for allocation in overdue.values())
    _need(stops, "an allocation is overdue to stop, but is not stopping")
    for promise in partition.promises.values():
        victims = [partition.allocations[number] for number in promise.victims if number in partition.allocations]
        stops = all(victim.state == "stopping" for victim in victims)
        _need(stops, f"a victim for job {promise.job} is not stopping")


def _check_promises_come(partition: Partition) -> None:
    # Without readiness, and if the cycle reached its bounds, an ask that may start may not have had its turn.
    for promise in partition.promises.values() if partition.readiness.ready else ():
        comes = promise.ordered or is_coming(partition, promise)
        _need(comes, f"no task stops for the promise to job {promise.job} any more")


# -- pools and nodes that take no work ---------------------------------------------------------------------------


def _check_orders(partition: Partition) -> None:
    expected = {name: number for number, order in partition.orders.items() for name in order.coming}
    _same(expected, partition.order_of, "the nodes that are expected")
    for number, order in partition.orders.items():
        _need(number == order.number < partition.counters.order, f"order {number} was never numbered")
        _need(order.pool in partition.pools, f"order {number} outlives its pool {order.pool}")
        _need(bool(order.coming), f"order {number} has no nodes left, and is still listed")
        joined = [name for name in order.coming if name in partition.nodes.joins]
        _need(not joined, f"order {number} waits for {joined}, which have joined")


def _check_unused_nodes(partition: Partition) -> None:
    nodes, pools = partition.nodes, partition.pools
    elastic = {name for name, pool in pools.items() if pool.elastic}
    idle = {id for id, row in nodes.rows.items() if not nodes.allocations[row] and nodes.pool[row] in elastic}
    _same(idle, set(partition.idle), "the idle nodes")
    for node_id in {**nodes.reasons, **nodes.closed_until, **nodes.closing, **partition.unwanted}:
        _need(node_id in nodes, f"node {node_id} was removed, and why it takes no work is still stored")
    states = {node_id: nodes.state[row] for node_id, row in nodes.rows.items()}
    for node_id in nodes.reasons:
        _need(states[node_id] != "up", f"node {node_id} is up and has a reason not to be")
    for node_id in nodes.closed_until:
        closed = states[node_id] in ("draining", "disabled", "lost")
        _need(closed, f"node {node_id} is {states[node_id]}, and until when it takes no work is stored")
    for node_id in nodes.closing:
        closes = states[node_id] in ("draining", "lost")
        _need(closes, f"node {node_id} is {states[node_id]}, and from when it is drained is stored")
    for node_id in partition.unwanted:
        _need(states[node_id] != "up", f"node {node_id} is to be given back and takes work")
        _need(not nodes.allocations[nodes.rows[node_id]], f"node {node_id} is to be given back and has work")


# -- what waits for a time or for another job --------------------------------------------------------------------


def _check_short(partition: Partition) -> None:
    stages = {(job.id, stage.position): stage for job in partition.jobs.values() for stage in job.stages}
    short = {
        key: stage.short_since
        for key, stage in stages.items()
        if stage.short_since is not None and stage.on_loss == "replace"
    }
    _same(short, partition.derived.short, "stages with too few tasks")
    for key in short:
        _need(is_short(stages[key]), f"stage {stages[key].name} of {key[0]} has enough tasks, or is over")


def _check_keys(partition: Partition) -> None:
    owners = {entry.job: key for key, entry in partition.keys.items() if entry.job}
    _same(owners, partition.derived.key_of, "the idempotency keys of jobs")
    for job_id, key in owners.items():
        _need(job_id in partition.jobs, f"key {key} outlives its job {job_id}")


def _check_ended_jobs(partition: Partition) -> None:
    derived = partition.derived
    waiting = {(after.job, job.id) for job in partition.jobs.values() if not job.over for after in job.after}
    listed = {(before, follower) for before, followers in derived.followers.items() for follower in followers}
    _same(waiting, listed, "jobs after others")
    ended = {job.id for job in partition.jobs.values() if not job.listed and job.id not in derived.followers}
    _need(ended <= {job_id for _, _, job_id in derived.forgetting}, "an ended job would never be forgotten")


EVERYTHING = (
    _check_table,
    _check_allocations,
    _check_chains,
    _check_accounts,
    _check_queues,
    _check_past,
    _check_runs,
    _check_mix,
    _check_strange,
    _check_lanes,
    _check_shapes,
    _check_earmarks,
    _check_stops,
    _check_orders,
    _check_unused_nodes,
    _check_short,
    _check_keys,
    _check_ended_jobs,
)
