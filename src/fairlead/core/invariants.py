"""What must always hold, in two strengths: what a cycle touched (every cycle) and everything (tests, simulator).

The checks add up from the allocations and never trust the sums they check.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.core.holding import is_coming, standing
from fairlead.core.lanes import lane_key
from fairlead.core.lifecycle import JOB, NODE, QUEUE
from fairlead.core.model import (
    NEW,
    NO_RESERVATIONS,
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
from fairlead.core.state import Partition, is_short


class Broken(AssertionError):
    """The state contradicts itself: a fault of ours, never of the input."""


def check_touched(p: Partition) -> None:
    """What the open plan reached: its nodes from their allocations up, and that its jobs' tasks add up."""
    touched, rows, jobs = p.touched, p.nodes.rows, p.jobs
    for join in sorted(touched.nodes):
        if join in rows:
            _check_node(p, join)
    for job_id in touched.jobs:
        if job_id in jobs:
            _check_counts(p, jobs[job_id])
    if touched.chains:
        for number in sorted(touched.chains):
            if number in p.chains:
                _check_chain(p, number)


def check_all(p: Partition, settled: bool = True) -> None:
    """Everything, from the allocations up. Without `settled`, another cycle has to follow at once."""
    for join in p.nodes.rows:
        _check_node(p, join)
    _check_table(p)
    for job in p.jobs.values():
        _check_job(p, job)
    _check_allocations(p)
    _check_chains(p)
    _check_accounts(p)
    _check_queues(p)
    _check_lanes(p)
    _check_kept(p, settled)
    _check_pools(p)
    _check_remembered(p)


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


# -- nodes -------------------------------------------------------------------------------------------------------


def _check_node(p: Partition, join: int) -> None:
    nodes = p.nodes
    row = nodes.rows[join]
    name = nodes.name[row]
    used: Vector = {}
    devices: dict[int, int] = {}
    known: dict[Shape, int] = {}
    shape: Shape | None = None
    for allocation in nodes.allocations[row].values():
        if allocation.stage.shape is not shape:
            shape = allocation.stage.shape
            known.setdefault(shape, 0)
        block = allocation.indices
        tasks = 0 if allocation.rooms else block[1] - block[0] if len(block) == 2 else count(block)
        known[shape] += tasks
        if allocation.node != join:
            raise Broken(f"allocation {allocation.id} is listed on node {name} but lives elsewhere")
        if shape.devices or allocation.devices:
            if len(allocation.devices) != tasks * shape.devices:
                raise Broken(f"allocation {allocation.id} has {len(allocation.devices)} devices for {tasks} tasks")
            for device in allocation.devices:
                devices[device] = devices.get(device, 0) + shape.device_milli
    for shape, tasks in known.items():
        for resource, amount in shape.amounts:
            used[resource] = used.get(resource, 0) + amount * tasks
    booked = {device: milli for device, milli in enumerate(nodes.devices[row]) if milli}
    if devices != booked:
        raise Broken(f"node {name}: devices used {booked}, its allocations use {devices}")
    over = False
    for resource, column in nodes.used.items():
        # used + free = capacity + over holds by their definition; what can go wrong is the use itself.
        taken, have = column[row], nodes.capacity[resource][row]
        if taken != used.get(resource, 0) or taken < 0 or have < 0:
            raise Broken(f"node {name}: {resource} used {taken} of {have}, its allocations use {used}")
        over |= taken > have
    if used.get(GPU, 0) != sum(booked.values()):
        raise Broken(f"node {name}: its devices and its gpu disagree")
    over |= any(milli > WHOLE_DEVICE for milli in nodes.devices[row])
    over |= len(nodes.devices[row]) > nodes.device_count(row)
    if over != (row in nodes.over_rows) or (over and nodes.placeable(row)):
        raise Broken(f"node {name} is {'' if over else 'not '}over, and takes work as if it were the opposite")
    if nodes.state[row] not in NODE.states:
        raise Broken(f"node {name} is {nodes.state[row]}")


def _check_table(p: Partition) -> None:
    nodes = p.nodes
    total: Vector = {}
    for join, row in nodes.rows.items():
        _need(nodes.join[row] == join, f"row {row} does not know its node {join}")
        _need(nodes.joins.get(nodes.name[row]) == join, f"node {nodes.name[row]} is not found by name")
        _need(join < p.counters.join, f"join number {join} was never given")
        if nodes.state[row] in ("up", "draining"):
            add(total, nodes.capacity_of(row))
    _need(len(nodes.joins) == len(nodes.rows), "names and rows of nodes differ")
    up = sum(nodes.state[row] in ("up", "draining") for row in nodes.rows.values())
    _need(up == nodes.many, f"{up} nodes are up, the table says {nodes.many}")
    _need(total == nodes.total, f"the nodes have {total} together, the table says {nodes.total}")
    for row, join in enumerate(nodes.join):
        if nodes.rows.get(join) != row:
            _need(not nodes.allocations[row], f"vacant row {row} has allocations")
            _need(not any(column[row] for column in nodes.used.values()), f"vacant row {row} is used")
            _need(not any(column[row] for column in nodes.capacity.values()), f"vacant row {row} has capacity")


# -- jobs, tasks, allocations ------------------------------------------------------------------------------------


def _check_counts(p: Partition, job: Job) -> None:
    """The cheap half of `_check_job`: numbers, not sets."""
    live = 0
    # What all stages of a job ask for together is not in the hands of one of them.
    kinds = _check_whole(p, job) if job.whole else (REPLACE, SCALE, NEW)
    for stage in job.stages:
        pending, reservations = stage.pending, stage.reservations
        running = len(stage.live) if stage.live else 0
        known = running + (stage.done() if stage.ended else 0)
        if pending is not NOTHING_PENDING or reservations is not NO_RESERVATIONS:
            known += stage.waiting()
            for kind in kinds:
                if (pending[kind] is None) != (reservations[kind] is None) and (reservations[kind] or not p.unmet(job)):
                    raise Broken(f"job {job.id} stage {stage.name}: tasks wait that nobody asks for, or nobody waits")
        if known != stage.count and (known < stage.count or not running):
            raise Broken(f"job {job.id} stage {stage.name}: {known} tasks of {stage.count}")
        live += running
    if bool(live) != (job.allocations > 0) or (job.ended_at is not None) != JOB.terminal(job.state):
        raise Broken(f"job {job.id} is {job.state} with {job.allocations} allocations")


def _check_whole(p: Partition, job: Job) -> tuple[int, ...]:
    """All stages of a whole job have started, or none has and they ask together. Returns what each asks for itself."""
    started = job.stages[0].started
    shared = job.stages[0].reservations[NEW]
    for stage in job.stages:
        own = stage.reservations[NEW]
        if (
            stage.started != started
            or (own is not None and own.whole == started)
            or (not started and own is not shared)
        ):
            raise Broken(f"job {job.id}: its stages have not started together, or do not ask together")
    if started:
        return (REPLACE, SCALE, NEW)
    waits = any(stage.pending[NEW] is not None for stage in job.stages)
    if waits != (shared is not None) and (shared is not None or not p.unmet(job)):
        raise Broken(f"job {job.id}: tasks wait that nobody asks for, or nobody waits")
    return (REPLACE, SCALE)


def _check_job(p: Partition, job: Job) -> None:
    _need(job.state in JOB.states, f"job {job.id} is {job.state}")
    _need(job.over == JOB.terminal(job.state), f"job {job.id} is {job.state} but ended at {job.ended_at}")
    live: dict[int, Allocation] = {}
    for stage in job.stages:
        _check_stage(p, stage)
        live.update((each.id, each) for each in (stage.live or {}).values())
    if job.whole:
        _check_whole(p, job)
    tasks = sum(count(each.indices) for each in live.values() if not each.rooms)
    _need(tasks == job.live, f"job {job.id} counts {job.live} tasks with a room, has {tasks}")
    _need(len(live) == job.allocations, f"job {job.id} counts {job.allocations} allocations, has {len(live)}")
    if not job.over and not job.manager:
        _need(
            (job.state == "running") == bool(live) or not any(stage.waiting() for stage in job.stages),
            f"job {job.id} is {job.state} with {len(live)} allocations",
        )
    _need(job.listed == (not job.over or job.allocations > 0), f"job {job.id} is counted wrongly with its queue")


def _check_stage(p: Partition, stage: Stage) -> None:
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
        raise Broken(f"{name}: a task is in two places ({problem})") from None
    known = seen.flat()
    if not stage.job.manager:
        _need(known == ((0, stage.count) if stage.count else ()), f"{name}: tasks {seen!r} of {stage.count}")
    _need(not known or known[-1] <= stage.count, f"{name}: tasks beyond its count {stage.count}")
    for index, allocation in (stage.live or {}).items():
        _need(index in set(indices(allocation.indices)), f"{name}[{index}] is not in its allocation")
        _need(allocation.attempt <= stage.top, f"{name}[{index}] has an attempt above the highest")
        _need(allocation.attempt > stage.past(index).attempt, f"{name}[{index}] reuses an attempt")
    _need(stage.below_min == (stage.missing() > 0), f"{name} misses {stage.missing()} replacements, unnoticed")
    for kind, reservation in enumerate(stage.reservations):
        if reservation is not None:
            _need(stage in reservation.stages and reservation.kind == kind, f"{name}: a reservation is misplaced")
        if stage.whole(kind):
            continue
        if reservation is not None:
            _need(stage.pending[kind] is not None, f"{name}: a reservation outlives its tasks")
        elif stage.pending[kind] is not None:
            _need(bool(p.unmet(stage.job)), f"{name}: tasks wait that nobody asks for")
    if not stage.started and not stage.job.manager:
        _need(
            stage.pending[REPLACE] is stage.pending[SCALE] is None, f"{name} has not started and wants more than that"
        )
        states = {allocation.state for allocation in (stage.live or {}).values()}
        _need(states <= {"stopping"}, f"{name} has not started and is {states}")
    if stage.job.over:
        _need(not stage.waiting(), f"{name}: its job has ended and tasks still wait")


def _check_allocations(p: Partition) -> None:
    found: dict[int, Allocation] = {}
    for job in p.jobs.values():
        for stage in job.stages:
            for index, allocation in (stage.live or {}).items():
                found[allocation.id] = allocation
                _need(allocation.stage is stage, f"allocation {allocation.id} belongs to another stage")
                _need(p.allocations.get(allocation.id) is allocation, f"{stage.name}[{index}] is not booked")
    _need(found.keys() == p.allocations.keys(), "allocations without a job")
    for number, allocation in p.allocations.items():
        _need(number == allocation.id < p.counters.allocation, f"allocation {number} was never numbered")
        row = p.nodes.rows.get(allocation.node)
        _need(row is not None, f"allocation {number} is on a node that is gone")
        if row is not None:
            _need(p.nodes.allocations[row].get(number) is allocation, f"allocation {number} is not on its node")
            _need(
                p.nodes.manager[row] == allocation.stage.job.manager,
                f"allocation {number} is on another manager's node",
            )


def _check_chain(p: Partition, number: int) -> None:
    """Nobody waits for a room that is free, or behind somebody else's."""
    chain = p.chains[number].values()
    rooms = sum(count(each.indices) for each in chain if not each.rooms)
    first = next(iter(chain))
    for each in chain:
        if each.rooms not in (0, rooms):
            raise Broken(f"chain {number} has {rooms} rooms, and {each.rooms} for allocation {each.id}")
        if each.stage is not first.stage or each.node != first.node or each.devices or each.group:
            raise Broken(f"allocation {each.id} cannot be in chain {number}")


def _check_chains(p: Partition) -> None:
    known: dict[int, dict[int, Allocation]] = {}
    for allocation in p.allocations.values():
        if allocation.chain:
            known.setdefault(allocation.chain, {})[allocation.id] = allocation
        _need(not allocation.rooms or bool(allocation.chain), f"allocation {allocation.id} waits for nobody")
        returns = allocation.cause == "return"
        _need(not returns or allocation.state == "assigned", f"allocation {allocation.id} returns and was started")
    _need(known == p.chains, "the chains are not those of the allocations")
    for number in known:
        _check_chain(p, number)


# -- queues and accounts -----------------------------------------------------------------------------------------


def _check_accounts(p: Partition) -> None:
    used: dict[int, Vector] = {}
    tasks: dict[int, int] = {}
    running: dict[int, int] = {}
    for job in p.jobs.values():
        if not job.over or job.allocations:
            expected = p.accounts_for(job.queue, job.spec.user, job.spec.groups)
            _need(
                [id(each) for each in job.accounts] == [id(each) for each in expected],
                f"job {job.id} is booked on the wrong accounts",
            )
        for account in job.accounts:
            if job.allocations:
                running[id(account)] = running.get(id(account), 0) + 1
    for allocation in p.allocations.values():
        for account in () if allocation.rooms else allocation.stage.job.accounts:
            add(used.setdefault(id(account), {}), allocation.stage.shape.resources, count(allocation.indices))
            tasks[id(account)] = tasks.get(id(account), 0) + count(allocation.indices)
    for account in _accounts(p):
        expected_use = used.get(id(account), {})
        _need(account.used == expected_use, f"{account.name}: used {account.used}, should be {expected_use}")
        _need(account.tasks == tasks.get(id(account), 0), f"{account.name}: its tasks do not add up")
        _need(account.running == running.get(id(account), 0), f"{account.name}: running jobs do not add up")
        _need(all(amount > 0 for amount in account.used.values()), f"{account.name}: use is not positive")
    for queue in p.queues.values():
        if queue.children:
            below: Vector = {}
            for child in queue.children.values():
                add(below, child.account.used)
            _need(below == queue.account.used, f"queue {queue.path}: its children use {below}")


def _accounts(p: Partition) -> Iterable[Account]:
    for queue in p.queues.values():
        yield queue.account
        yield from queue.users.values()
        yield from queue.groups.values()


def _check_queues(p: Partition) -> None:
    for path, queue in p.queues.items():
        _need(queue.path == path and queue.state in QUEUE.states, f"queue {path} is {queue.state}")
        _need(not (queue.jobs and queue.children), f"queue {path} has jobs and queues below it")
        parent = queue.parent
        _need(
            (parent is None) == (path == "root") and (parent is None or parent.children.get(queue.name) is queue),
            f"queue {path} hangs nowhere",
        )
        _need((queue.state == "draining") == (path in p.draining), f"queue {path} drains unnoticed")
        listed = sum(job.listed for job in p.jobs.values() if job.queue is queue)
        _need(queue.jobs == listed, f"queue {path} counts {queue.jobs} jobs, has {listed}")


def _check_lanes(p: Partition) -> None:
    sizes: dict[tuple[str, object], int] = {}
    for job in p.jobs.values():
        for stage in job.stages:
            _need(p.shapes.get(stage.shape.key) is stage.shape, f"the shape of {job.id} is not interned")
            for reservation in stage.reservations:
                if reservation is not None:
                    _need(not reservation.whole or job.whole, f"stage {stage.name} of {job.id} speaks for its job")
                # What all stages of a job share stands with the first.
                if reservation is not None and reservation.stage is stage:
                    key = lane_key(reservation)
                    sizes[key] = sizes.get(key, 0) + 1
                    _need(
                        reservation.seq < p.counters.reservation,
                        f"a reservation of {job.id} was never numbered",
                    )
                    _need(reservation.place <= reservation.seq, f"{job.id} has the place of an ask after its own")
            _need(stage.last_place < p.counters.reservation, f"{job.id} comes back to a place that never was")
    lanes = {key: lane.size for key, lane in p.lanes.items()}
    _need(sizes == lanes, f"lanes hold {lanes}, the stages ask for {sizes}")
    asked: dict[str, int] = {}
    for lane in p.lanes.values():
        asked[lane.queue.path] = asked.get(lane.queue.path, 0) + lane.size
    for path, queue in p.queues.items():
        _need(queue.reservations == asked.get(path, 0), f"queue {path} counts {queue.reservations} reservations")
    for lane in p.lanes.values():
        _need(len(list(lane)) == lane.size, f"the lane of {lane.queue.path} lost a reservation")
        _need(lane.head() is next(iter(lane), None), f"the lane of {lane.queue.path} has a wrong head")
    uses: dict[int, int] = {}
    for job in p.jobs.values():
        for stage in job.stages:
            uses[id(stage.shape)] = uses.get(id(stage.shape), 0) + 1
    for shape in p.shapes.values():
        _need(shape.stages == uses.get(id(shape), 0) > 0, f"shape {shape.text} outlives its stages")


def _check_kept(p: Partition, settled: bool) -> None:
    """No hold or promise outlives what it serves, nodes are kept as they say, and not more are held than may be."""
    kept: dict[int, dict[int, list[Place]]] = {}
    both: list[Hold | Promise] = [*p.holds.values(), *p.promises.values()]
    for each in both:
        what = f"what is kept for reservation {each.seq} of job {each.job}"
        _need(p.kept(each.seq) is each and p.kept_for(each) is not None, f"{what} outlives its demand")
        _need(standing(p, each) == each.places, f"{what} has a node that is not what it was")
        for place in each.places:
            kept.setdefault(place[0], {}).setdefault(each.seq, []).append(place)
    _need(kept == p.nodes.held, f"nodes are kept as {p.nodes.held}, should be {kept}")
    overdue = {number: each for number, each in p.allocations.items() if each.overdue}
    _need(overdue == p.overdue, f"stops are overdue as {p.overdue}, should be {overdue}")
    _need(all(each.state == "stopping" for each in overdue.values()), "a stop is overdue of what goes on")
    large = [hold for hold in p.holds.values() if hold.large]
    _need(not large or len(p.holds) == 1, "a hold of more nodes than may be held is not alone")
    held = {join for hold in p.holds.values() for join in hold.nodes}
    most = may_be_held(p.settings.held_nodes_percent, len(p.nodes))
    _need(bool(large) or len(held) <= most, f"{len(held)} nodes are held, {most} may be")
    for promise in p.promises.values():
        stopping = [p.allocations[number] for number in promise.victims if number in p.allocations]
        # In a cycle that reached its bounds, an ask that may start now may not have had its turn.
        waited = promise.ordered or not p.reign.ready or not settled or is_coming(p, promise)
        _need(waited, f"no task stops for the promise to job {promise.job} any more")
        _need(all(each.state == "stopping" for each in stopping), f"a victim for job {promise.job} goes on")
    at_work = {job.id: job for job in p.jobs.values() if job.allocations}
    known = {
        name: job
        for queue in p.queues.values()
        for priority, jobs in queue.at_work.items()
        for name, job in jobs.items()
        if job.queue is queue and job.priority == priority
    }
    _need(at_work.keys() == known.keys(), "the jobs at work are not those that the queues know")
    priorities: dict[int, int] = {}
    for job in p.jobs.values():
        priorities[job.priority] = priorities.get(job.priority, 0) + 1
    _need(priorities == p.priorities, f"jobs have priorities {priorities}, counted are {p.priorities}")


def _check_pools(p: Partition) -> None:
    """Orders are of pools and have something to wait for; idle and unwanted nodes have nothing to do."""
    expected = {name: number for number, order in p.orders.items() for name in order.coming}
    _need(expected == p.order_of, f"nodes are expected as {expected}, listed as {p.order_of}")
    for number, order in p.orders.items():
        _need(number == order.number < p.counters.order, f"order {number} was never numbered")
        _need(order.pool in p.pools, f"order {number} outlives its pool {order.pool}")
        _need(bool(order.coming), f"order {number} is over, and still there")
        come = [name for name in order.coming if name in p.nodes.joins]
        _need(not come, f"order {number} waits for {come}, which have joined")
    for join, row in p.nodes.rows.items():
        empty = not p.nodes.allocations[row] and p.nodes.pool[row] in p.pools and p.pools[p.nodes.pool[row]].elastic
        _need((join in p.idle) == empty, f"node {p.nodes.name[row]} is idle, or is not, and that is not known")
    for join in p.unwanted:
        _need(join in p.nodes.rows, f"node {join} is gone and still to be given back")
        row = p.nodes.rows[join]
        _need(p.nodes.state[row] != "up", f"node {p.nodes.name[row]} is to be given back and takes work")
        _need(not p.nodes.allocations[row], f"node {p.nodes.name[row]} is to be given back and has work")


def _check_remembered(p: Partition) -> None:
    short = {
        (job.id, stage.position): stage.short_since
        for job in p.jobs.values()
        for stage in job.stages
        if stage.short_since is not None and stage.terms.on_loss == "replace"
    }
    _need(short == p.short, f"stages with too few workers: {short}, listed: {p.short}")
    for job_id, position in short:
        stage = p.jobs[job_id].stages[position]
        _need(is_short(stage), f"stage {stage.name} of {job_id} has enough workers, or is over")
    owners = {entry.job: key for key, entry in p.keys.items() if entry.job}
    _need(owners == p.key_of, f"jobs' keys: {owners}, listed: {p.key_of}")
    for (user, key), entry in p.keys.items():
        if entry.job:
            _need(p.key_of.get(entry.job) == (user, key), f"key {key} lost its job")
            _need(entry.job in p.jobs, f"key {key} outlives its job {entry.job}")
    waiting = {(before, job.id) for job in p.jobs.values() if not job.over for before in job.after}
    known = {(before, each) for before, followers in p.followers.items() for each in followers}
    _need(waiting == known, f"jobs after others: {waiting}, listed: {known}")
    ended = {job.id for job in p.jobs.values() if job.over and not job.allocations and job.id not in p.followers}
    _need(ended <= {job_id for _, _, job_id in p.forgetting}, "an ended job would never be forgotten")
