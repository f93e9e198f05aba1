"""Checks of the state: in every cycle of the parts that the cycle touched; in tests and the simulator of everything.

The checks compute sums from the allocations and compare them with the stored sums.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.core.holds.earmarks import is_coming, usable_places
from fairlead.core.holds.release import starving_holds
from fairlead.core.lanes import lane_key
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
from fairlead.core.policy.score import may_be_held
from fairlead.core.ranges import Ranges, count, indices
from fairlead.core.resources import GPU, Vector, add
from fairlead.core.shape import WHOLE_DEVICE, Shape
from fairlead.core.state import MAX_RUNS, Partition, is_short


class InvariantBroken(AssertionError):
    """The state contradicts itself. This is a bug in Fairlead, never a fault of the input."""


def check_touched(partition: Partition) -> None:
    """Check the parts that the open plan touched: nodes against their allocations, and task counts of jobs."""
    touched, rows, jobs = partition.touched, partition.nodes.rows, partition.jobs
    for node_id in sorted(touched.nodes):
        if node_id in rows:
            _check_node(partition, node_id)
    for job_id in touched.jobs:
        if job_id in jobs:
            _check_counts(partition, jobs[job_id])
    if touched.chains:
        for number in sorted(touched.chains):
            if number in partition.derived.chains:
                _check_chain(partition, number)


def check_all(partition: Partition, settled: bool = True) -> None:
    """Check everything.

    With `settled` False, another cycle must follow, so a promise may remain for which no task is stopping any more.
    """
    for node_id in partition.nodes.rows:
        _check_node(partition, node_id)
    _check_table(partition)
    for job in partition.jobs.values():
        _check_job(partition, job)
    _check_allocations(partition)
    _check_chains(partition)
    _check_accounts(partition)
    _check_queues(partition)
    _check_past(partition)
    _check_runs(partition)
    _check_strange(partition)
    _check_lanes(partition)
    _check_kept(partition, settled)
    _check_pools(partition)
    _check_remembered(partition)


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantBroken(what)


# -- nodes -------------------------------------------------------------------------------------------------------


def _check_node(partition: Partition, node_id: int) -> None:
    nodes = partition.nodes
    row = nodes.rows[node_id]
    name = nodes.name[row]
    used: Vector = {}
    devices: dict[int, int] = {}
    tasks_by_shape: dict[Shape, int] = {}
    shape: Shape | None = None
    for allocation in nodes.allocations[row].values():
        if allocation.stage.shape is not shape:
            shape = allocation.stage.shape
            tasks_by_shape.setdefault(shape, 0)
        block = allocation.indices
        tasks = 0 if allocation.slots else block[1] - block[0] if len(block) == 2 else count(block)
        tasks_by_shape[shape] += tasks
        if allocation.node != node_id:
            raise InvariantBroken(f"allocation {allocation.id} is listed on node {name} but belongs to another node")
        if shape.devices or allocation.devices:
            if len(allocation.devices) != tasks * shape.devices:
                raise InvariantBroken(
                    f"allocation {allocation.id} has {len(allocation.devices)} devices for {tasks} tasks"
                )
            for device in allocation.devices:
                devices[device] = devices.get(device, 0) + shape.device_milli
    for shape, tasks in tasks_by_shape.items():
        for resource, amount in shape.amounts:
            used[resource] = used.get(resource, 0) + amount * tasks
    booked = {device: milli for device, milli in enumerate(nodes.devices[row]) if milli}
    if devices != booked:
        raise InvariantBroken(f"node {name}: devices used {booked}, its allocations use {devices}")
    over = False
    for resource, column in nodes.used.items():
        # used + free = capacity + over is true by definition; only the use itself can be wrong.
        taken, capacity = column[row], nodes.capacity[resource][row]
        if taken != used.get(resource, 0) or taken < 0 or capacity < 0:
            raise InvariantBroken(f"node {name}: {resource} used {taken} of {capacity}, its allocations use {used}")
        over |= taken > capacity
    if used.get(GPU, 0) != sum(booked.values()):
        raise InvariantBroken(f"node {name}: its devices and its gpu disagree")
    over |= any(milli > WHOLE_DEVICE for milli in nodes.devices[row])
    over |= len(nodes.devices[row]) > nodes.device_count(row)
    if over != (row in nodes.over_rows) or (over and nodes.placeable(row)):
        raise InvariantBroken(f"node {name} is {'' if over else 'not '}over, but is marked as the opposite")
    if nodes.state[row] not in NODE.states:
        raise InvariantBroken(f"node {name} is {nodes.state[row]}")


def _check_table(partition: Partition) -> None:
    nodes = partition.nodes
    total: Vector = {}
    for node_id, row in nodes.rows.items():
        _need(nodes.node_id[row] == node_id, f"row {row} does not know its node {node_id}")
        _need(nodes.joins.get(nodes.name[row]) == node_id, f"node {nodes.name[row]} is not found by name")
        _need(node_id < partition.counters.node_id, f"node id {node_id} was never given")
        if nodes.state[row] in ("up", "draining"):
            add(total, nodes.capacity_of(row))
    _need(len(nodes.joins) == len(nodes.rows), "names and rows of nodes differ")
    for node_id in nodes.disconnected:
        row = nodes.rows.get(node_id, -1)
        _need(row >= 0 and not nodes.manager[row], f"node {node_id} is disconnected and has no agent")
    up = sum(nodes.state[row] in ("up", "draining") for row in nodes.rows.values())
    _need(up == nodes.up_count, f"{up} nodes are up, the table says {nodes.up_count}")
    _need(total == nodes.total, f"the nodes have {total} together, the table says {nodes.total}")
    for row, node_id in enumerate(nodes.node_id):
        if nodes.rows.get(node_id) != row:
            _need(not nodes.allocations[row], f"vacant row {row} has allocations")
            _need(not any(column[row] for column in nodes.used.values()), f"vacant row {row} is used")
            _need(not any(column[row] for column in nodes.capacity.values()), f"vacant row {row} has capacity")


# -- jobs, tasks, allocations ------------------------------------------------------------------------------------


def _check_counts(partition: Partition, job: Job) -> None:
    """Check the task counts of a job: the cheap part of `_check_job`."""
    live = 0
    # The shared ask of a whole job is checked with the job, not with each stage.
    kinds = _check_whole(partition, job) if job.whole else (REPLACE, SCALE, NEW)
    for stage in job.stages:
        pending, asks = stage.pending, stage.asks
        running = len(stage.live) if stage.live else 0
        total = running + (stage.done() if stage.ended else 0)
        if pending is not NOTHING_PENDING or asks is not NO_ASKS:
            total += stage.waiting()
            for kind in kinds:
                if (pending[kind] is None) != (asks[kind] is None) and (asks[kind] or not partition.unmet(job)):
                    raise InvariantBroken(
                        f"job {job.id} stage {stage.name}: pending tasks without an ask, or an ask without tasks"
                    )
        if total != stage.count and (total < stage.count or not running):
            raise InvariantBroken(f"job {job.id} stage {stage.name}: {total} tasks of {stage.count}")
        live += running
    if bool(live) != (job.allocations > 0) or (job.ended_at is not None) != JOB.terminal(job.state):
        raise InvariantBroken(f"job {job.id} is {job.state} with {job.allocations} allocations")


def _check_whole(partition: Partition, job: Job) -> tuple[int, ...]:
    """Check that all stages of a whole job have started, or share one ask.

    Returns the kinds of asks to check by stage.
    """
    started = job.stages[0].started
    shared = job.stages[0].asks[NEW]
    for stage in job.stages:
        own = stage.asks[NEW]
        if (
            stage.started != started
            or (own is not None and own.whole == started)
            or (not started and own is not shared)
        ):
            raise InvariantBroken(f"job {job.id}: its stages have not started together, or do not ask together")
    if started:
        return (REPLACE, SCALE, NEW)
    waits = any(stage.pending[NEW] is not None for stage in job.stages)
    if waits != (shared is not None) and (shared is not None or not partition.unmet(job)):
        raise InvariantBroken(f"job {job.id}: pending tasks without an ask, or an ask without tasks")
    return (REPLACE, SCALE)


def _check_job(partition: Partition, job: Job) -> None:
    _need(job.state in JOB.states, f"job {job.id} is {job.state}")
    _need(job.over == JOB.terminal(job.state), f"job {job.id} is {job.state} but ended at {job.ended_at}")
    live: dict[int, Allocation] = {}
    for stage in job.stages:
        _check_stage(partition, stage)
        live.update((allocation.id, allocation) for allocation in (stage.live or {}).values())
    if job.whole:
        _check_whole(partition, job)
    tasks = sum(count(allocation.indices) for allocation in live.values() if not allocation.slots)
    _need(tasks == job.live, f"job {job.id} counts {job.live} tasks that use capacity, has {tasks}")
    _need(len(live) == job.allocations, f"job {job.id} counts {job.allocations} allocations, has {len(live)}")
    if not job.over and not job.manager:
        _need(
            (job.state == "running") == bool(live) or not any(stage.waiting() for stage in job.stages),
            f"job {job.id} is {job.state} with {len(live)} allocations",
        )
    _need(job.listed == (not job.over or job.allocations > 0), f"job {job.id} is counted wrongly with its queue")


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


def _check_stage(partition: Partition, stage: Stage) -> None:
    name = f"job {stage.job.id} stage {stage.name}"
    seen = Ranges()
    kinds: list[Ranges] = [ranges for ranges in stage.pending if ranges is not None]
    kinds += list((stage.ended or {}).values())
    try:
        for ranges in kinds:
            _need(bool(ranges), f"{name} keeps an empty range")
            seen.add(ranges.flat())
        for index in sorted(stage.live or ()):
            if index < stage.count:
                seen.add((index, index + 1))
    except ValueError as problem:
        raise InvariantBroken(f"{name}: a task is in two places ({problem})") from None
    tasks = seen.flat()
    if not stage.job.manager:
        _need(tasks == ((0, stage.count) if stage.count else ()), f"{name}: tasks {seen!r} of {stage.count}")
    _need(not tasks or tasks[-1] <= stage.count, f"{name}: tasks beyond its count {stage.count}")
    for index, allocation in (stage.live or {}).items():
        _need(index in set(indices(allocation.indices)), f"{name}[{index}] is not in its allocation")
        _need(allocation.attempt <= stage.top, f"{name}[{index}] has an attempt above the highest")
        _need(allocation.attempt > stage.past(index).attempt, f"{name}[{index}] reuses an attempt")
    _need(stage.below_min == (stage.missing() > 0), f"{name} misses {stage.missing()} replacements, but is not marked")
    for kind, ask in enumerate(stage.asks):
        if ask is not None:
            _need(stage in ask.stages and ask.kind == kind, f"{name}: an ask is misplaced")
        if stage.whole(kind):
            continue
        if ask is not None:
            _need(stage.pending[kind] is not None, f"{name}: an ask outlives its tasks")
        elif stage.pending[kind] is not None:
            _need(bool(partition.unmet(stage.job)), f"{name}: pending tasks without an ask")
    if not stage.started and not stage.job.manager:
        _need(
            stage.pending[REPLACE] is stage.pending[SCALE] is None,
            f"{name} has not started and has pending tasks of kind replace or scale",
        )
        states = {allocation.state for allocation in (stage.live or {}).values()}
        _need(states <= {"stopping"}, f"{name} has not started and is {states}")
    _check_generation(stage, name)
    if stage.job.over:
        _need(not stage.waiting(), f"{name}: its job has ended and tasks still wait")


def _check_allocations(partition: Partition) -> None:
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
        row = partition.nodes.rows.get(allocation.node)
        _need(row is not None, f"allocation {number} is on a node that is gone")
        if row is not None:
            _need(partition.nodes.allocations[row].get(number) is allocation, f"allocation {number} is not on its node")
            _need(
                partition.nodes.manager[row] == allocation.stage.job.manager,
                f"allocation {number} is on another manager's node",
            )


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
    used: dict[int, Vector] = {}
    tasks: dict[int, int] = {}
    running: dict[int, int] = {}
    for job in partition.jobs.values():
        if not job.over or job.allocations:
            expected = partition.accounts_for(job.queue, job.spec.user, job.spec.groups)
            _need(
                [id(account) for account in job.accounts] == [id(account) for account in expected],
                f"job {job.id} is booked on the wrong accounts",
            )
        for account in job.accounts:
            if job.allocations:
                running[id(account)] = running.get(id(account), 0) + 1
    for allocation in partition.allocations.values():
        for account in () if allocation.slots else allocation.stage.job.accounts:
            add(used.setdefault(id(account), {}), allocation.stage.shape.resources, count(allocation.indices))
            tasks[id(account)] = tasks.get(id(account), 0) + count(allocation.indices)
    for account in _accounts(partition):
        expected_use = used.get(id(account), {})
        _need(account.used == expected_use, f"{account.name}: used {account.used}, should be {expected_use}")
        _need(account.tasks == tasks.get(id(account), 0), f"{account.name}: its tasks do not add up")
        _need(account.running == running.get(id(account), 0), f"{account.name}: running jobs do not add up")
        _need(all(amount > 0 for amount in account.used.values()), f"{account.name}: use is not positive")
    for queue in partition.queues.values():
        if queue.children:
            below: Vector = {}
            for child in queue.children.values():
                add(below, child.account.used)
            _need(below == queue.account.used, f"queue {queue.path}: its children use {below}")


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
            (parent is None) == (path == "root") and (parent is None or parent.children.get(queue.name) is queue),
            f"queue {path} is not a child of its parent",
        )
        _need(
            (queue.state == "draining") == (path in partition.derived.draining_queues),
            f"queue {path} is draining, or is not, but is listed as the opposite",
        )
        listed = sum(job.listed for job in partition.jobs.values() if job.queue is queue)
        _need(queue.jobs == listed, f"queue {path} counts {queue.jobs} jobs, has {listed}")


def _check_strange(partition: Partition) -> None:
    """Check that no job or task can get a job or attempt number of tasks that this journal never started."""
    for (number, name), found in partition.strange.items():
        _need(number < partition.counters.job, f"job {number} runs somewhere, and its number may be given again")
        for job in [job for job in partition.jobs.values() if job.number == number]:
            stage = job.stage(name)
            highest = max(found.tasks, default=0)
            _need(stage is None or stage.floor >= highest, f"attempt {highest} of job {number} may be given again")


def _check_runs(partition: Partition) -> None:
    """Check the number of last run times of users and names. There are none unless estimates are learned."""
    _need(partition.settings.learns or not partition.runs, "runs are kept, and estimates are not learned")
    _need(len(partition.runs) <= MAX_RUNS, f"the runs of {len(partition.runs)} users and names are kept")
    for key, runs in partition.runs.items():
        _need(runs.noted <= partition.now, f"the runs of {key} were noted later than now")
        _need(runs.last >= 0 and (runs.before is None or runs.before >= 0), f"runs of {key} are shorter than 0")


def _check_past(partition: Partition) -> None:
    """Check that the past use of a queue is at least that of its children, or of its users, and never below 0."""
    on = partition.settings.share_memory > 0
    _need(on or not partition.landmark, "there is a landmark, and no past counts")
    _need(partition.landmark <= partition.now, "the landmark is later than now")
    for path, queue in partition.queues.items():
        _need((queue.account.booked is not None) == on, f"queue {path} has a past: {queue.account.booked}")
        takes_turns = on and queue.order.by_user
        users = queue.users.values()
        _need(
            all((account.booked is not None) == takes_turns for account in users), f"users of {path} have a wrong past"
        )
        past = partition.past_of(queue.account)
        below = [child.account for child in queue.children.values()] or (list(users) if takes_turns else [])
        parts: Vector = {}
        for account in below:
            part = partition.past_of(account)
            _need(min(part.values(), default=0) >= 0, f"{account.name} has a past below 0: {part}")
            add(parts, part)
        enough = all(amount <= past.get(name, 0) for name, amount in parts.items())
        _need(enough and min(past.values(), default=0) >= 0, f"queue {path} has a past of {past}, its parts {parts}")


def _check_lanes(partition: Partition) -> None:
    sizes: dict[tuple[str, object], int] = {}
    for job in partition.jobs.values():
        for stage in job.stages:
            _need(
                partition.derived.shapes.get(stage.shape.key) is stage.shape, f"the shape of {job.id} is not interned"
            )
            for ask in stage.asks:
                if ask is not None:
                    _need(not ask.whole or job.whole, f"stage {stage.name} of {job.id} has an ask for its whole job")
                # A shared ask of all stages counts with the first stage.
                if ask is not None and ask.stage is stage:
                    key = lane_key(ask)
                    sizes[key] = sizes.get(key, 0) + 1
                    _need(
                        ask.seq < partition.counters.ask,
                        f"an ask of {job.id} was never numbered",
                    )
                    _need(ask.place <= ask.seq, f"{job.id} has the place of an ask after its own")
            _need(stage.last_place < partition.counters.ask, f"{job.id} comes back to a place that was never given")
    lanes = {key: lane.size for key, lane in partition.lanes.items()}
    _need(sizes == lanes, f"lanes hold {lanes}, the stages ask for {sizes}")
    asked: dict[str, int] = {}
    for lane in partition.lanes.values():
        asked[lane.queue.path] = asked.get(lane.queue.path, 0) + lane.size
    for path, queue in partition.queues.items():
        _need(queue.asks == asked.get(path, 0), f"queue {path} counts {queue.asks} asks")
    for lane in partition.lanes.values():
        _need(len(list(lane)) == lane.size, f"the lane of {lane.queue.path} lost an ask")
        _need(lane.head() is next(iter(lane), None), f"the lane of {lane.queue.path} has a wrong head")
    uses: dict[int, int] = {}
    for job in partition.jobs.values():
        for stage in job.stages:
            uses[id(stage.shape)] = uses.get(id(stage.shape), 0) + 1
    for shape in partition.derived.shapes.values():
        _need(shape.stages == uses.get(id(shape), 0) > 0, f"shape {shape.text} outlives its stages")


def _check_kept(partition: Partition, settled: bool) -> None:
    """Check that each hold and promise has an ask and is entered at its nodes, and that not too many nodes are held."""
    kept: dict[int, dict[int, list[Place]]] = {}
    earmarks: list[Hold | Promise] = [*partition.holds.values(), *partition.promises.values()]
    for earmark in earmarks:
        what = f"the {type(earmark).__name__.lower()} of ask {earmark.seq} of job {earmark.job}"
        served = partition.earmark_of(earmark.seq) is earmark and partition.ask_of_earmark(earmark) is not None
        _need(served, f"{what} outlives its demand")
        _need(usable_places(partition, earmark) == earmark.places, f"{what} has a node that is not what it was")
        for place in earmark.places:
            kept.setdefault(place[0], {}).setdefault(earmark.seq, []).append(place)
    _need(kept == partition.nodes.held, f"nodes are kept as {partition.nodes.held}, should be {kept}")
    overdue = {number: allocation for number, allocation in partition.allocations.items() if allocation.overdue}
    _need(
        overdue == partition.derived.overdue, f"stops are overdue as {partition.derived.overdue}, should be {overdue}"
    )
    stops = all(allocation.state == "stopping" for allocation in overdue.values())
    _need(stops, "an allocation is overdue to stop, but is not stopping")
    starving = starving_holds(partition)
    large = [hold for hold in starving if hold.large]
    _need(not large or len(starving) == 1, "a hold of more nodes than may be held is not the only hold")
    held = {node_id for hold in starving for node_id in hold.nodes}
    most = may_be_held(partition.settings.held_nodes_percent, len(partition.nodes))
    _need(bool(large) or len(held) <= most, f"{len(held)} nodes are held, {most} may be")
    for promise in partition.promises.values():
        stopping = [partition.allocations[number] for number in promise.victims if number in partition.allocations]
        # If the cycle reached its bounds, an ask that may start now may not have had its turn.
        waited = promise.ordered or not partition.readiness.ready or not settled or is_coming(partition, promise)
        _need(waited, f"no task stops for the promise to job {promise.job} any more")
        stops = all(allocation.state == "stopping" for allocation in stopping)
        _need(stops, f"a victim for job {promise.job} is not stopping")
    at_work = {job.id: job for job in partition.jobs.values() if job.allocations}
    listed = {
        name: job
        for queue in partition.queues.values()
        for priority, jobs in queue.at_work.items()
        for name, job in jobs.items()
        if job.queue is queue and job.priority == priority
    }
    _need(at_work.keys() == listed.keys(), "the jobs with allocations are not those that the queues list")
    priorities: dict[int, int] = {}
    for job in partition.jobs.values():
        priorities[job.priority] = priorities.get(job.priority, 0) + 1
    _need(
        priorities == partition.derived.priorities,
        f"jobs have priorities {priorities}, counted are {partition.derived.priorities}",
    )


def _check_pools(partition: Partition) -> None:
    """Check that orders have a pool and expected nodes, and that idle, unwanted and drained nodes are as listed."""
    expected = {name: number for number, order in partition.orders.items() for name in order.coming}
    _need(expected == partition.order_of, f"nodes are expected as {expected}, listed as {partition.order_of}")
    for number, order in partition.orders.items():
        _need(number == order.number < partition.counters.order, f"order {number} was never numbered")
        _need(order.pool in partition.pools, f"order {number} outlives its pool {order.pool}")
        _need(bool(order.coming), f"order {number} has no nodes left, and is still listed")
        joined = [name for name in order.coming if name in partition.nodes.joins]
        _need(not joined, f"order {number} waits for {joined}, which have joined")
    for node_id, row in partition.nodes.rows.items():
        empty = (
            not partition.nodes.allocations[row]
            and partition.nodes.pool[row] in partition.pools
            and partition.pools[partition.nodes.pool[row]].elastic
        )
        _need(
            (node_id in partition.idle) == empty,
            f"node {partition.nodes.name[row]} is idle, or is not, but is listed as the opposite",
        )
    for node_id in partition.nodes.reasons:
        _need(node_id in partition.nodes.rows, f"node {node_id} was removed, and why it was drained is still stored")
        row = partition.nodes.rows[node_id]
        _need(partition.nodes.state[row] != "up", f"node {partition.nodes.name[row]} is up and has a reason not to be")
    for node_id in partition.nodes.closed_until:
        _need(node_id in partition.nodes.rows, f"node {node_id} was removed, and until when it is disabled is stored")
        state = partition.nodes.state[partition.nodes.rows[node_id]]
        _need(state in ("disabled", "lost"), f"node {node_id} is {state}, and until when it is disabled is stored")
    for node_id in partition.unwanted:
        _need(node_id in partition.nodes.rows, f"node {node_id} was removed and is still to be given back")
        row = partition.nodes.rows[node_id]
        _need(
            partition.nodes.state[row] != "up", f"node {partition.nodes.name[row]} is to be given back and takes work"
        )
        _need(
            not partition.nodes.allocations[row], f"node {partition.nodes.name[row]} is to be given back and has work"
        )


def _check_remembered(partition: Partition) -> None:
    short = {
        (job.id, stage.position): stage.short_since
        for job in partition.jobs.values()
        for stage in job.stages
        if stage.short_since is not None and stage.on_loss == "replace"
    }
    _need(short == partition.derived.short, f"stages with too few tasks: {short}, listed: {partition.derived.short}")
    for job_id, position in short:
        stage = partition.jobs[job_id].stages[position]
        _need(is_short(stage), f"stage {stage.name} of {job_id} has enough tasks, or is over")
    owners = {entry.job: key for key, entry in partition.keys.items() if entry.job}
    _need(owners == partition.derived.key_of, f"jobs' keys: {owners}, listed: {partition.derived.key_of}")
    for (user, key), entry in partition.keys.items():
        if entry.job:
            _need(partition.derived.key_of.get(entry.job) == (user, key), f"key {key} lost its job")
            _need(entry.job in partition.jobs, f"key {key} outlives its job {entry.job}")
    waiting = {(before, job.id) for job in partition.jobs.values() if not job.over for before in job.after}
    listed = {(before, follower) for before, followers in partition.derived.followers.items() for follower in followers}
    _need(waiting == listed, f"jobs after others: {waiting}, listed: {listed}")
    ended = {
        job.id
        for job in partition.jobs.values()
        if job.over and not job.allocations and job.id not in partition.derived.followers
    }
    _need(ended <= {job_id for _, _, job_id in partition.derived.forgetting}, "an ended job would never be forgotten")
