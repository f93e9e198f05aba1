"""Nodes that are held or promised: how much of a node is kept for whom, by its capacity, and who may use it now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from fairlead.core.admission import is_unpreemptible
from fairlead.core.asks import gang_size
from fairlead.core.forecast import guess
from fairlead.core.index.kinds import Choice
from fairlead.core.model import Ask, Earmark, Hold, Micros, Place, Promise, Stage
from fairlead.core.nodes import NodeTable
from fairlead.core.policy.fit import choose_devices, room
from fairlead.core.ranges import count
from fairlead.core.resources import GPU, Vector, add
from fairlead.core.shape import WHOLE_DEVICE, Shape
from fairlead.core.state import STOP_MARGIN, Partition

FEW_FAILURES = 3
"""A node where no more launches than this have gone wrong in a row is counted on to be back: it pauses for seconds."""

Wanted = Iterable[tuple[Shape, int]]
"""Shapes and how many tasks of each."""


def kept_on(partition: Partition, node_id: int, without: int | None = None) -> list[tuple[Shape, int]]:
    """What a node is kept for, in the order of the asks; but for one of them."""
    found: list[tuple[Shape, int]] = []
    for seq, places in sorted(partition.nodes.held.get(node_id, {}).items()):
        kept = partition.kept(seq)
        if kept is not None and seq != without:
            found += [(partition.jobs[kept.job].stages[position].shape, tasks) for _, position, tasks in places]
    return found


def claimed_on(partition: Partition, node_id: int) -> list[tuple[Shape, int]]:
    """The same, and what has landed there since: it is in the way of those that hold the node still."""
    claimed = kept_on(partition, node_id)
    since = min(
        (partition.holds[seq].since for seq in partition.nodes.held.get(node_id, ()) if seq in partition.holds),
        default=None,
    )
    for allocation in partition.nodes.allocations[partition.nodes.rows[node_id]].values():
        if since is not None and allocation.since >= since and not allocation.rooms:
            claimed.append((allocation.stage.shape, count(allocation.indices)))
    return claimed


def room_beside(nodes: NodeTable, node_id: int, others: Wanted, shape: Shape, most: int) -> int:
    """How many tasks of a shape would fit a node if it were empty but for some others; -1 if these do not fit."""
    row = nodes.rows[node_id]
    taken: Vector = {}
    devices = [0] * nodes.gpus[row]
    for other, tasks in others:
        add(taken, other.resources, tasks)
        if other.devices:
            chosen = choose_devices(devices, len(devices), other.devices, other.device_milli, tasks)
            if len(chosen) < other.devices * tasks:
                return -1
            for device in chosen:
                devices[device] += other.device_milli
    free = {name: column[row] - taken.get(name, 0) for name, column in nodes.capacity.items()}
    if any(free.get(name, -amount) < 0 for name, amount in taken.items()):
        return -1
    return room_for(free, devices, shape, most)[0]


def room_now(nodes: NodeTable, node_id: int, shape: Shape, most: int) -> tuple[int, tuple[int, ...]]:
    """How many tasks of a shape a node has room for, up to a number, and the devices they get."""
    row = nodes.rows[node_id]
    free = {name: column[row] - nodes.used[name][row] for name, column in nodes.capacity.items()}
    return room_for(free, nodes.devices[row][: nodes.gpus[row]], shape, most)


def room_for(free: Vector, devices: list[int], shape: Shape, most: int) -> tuple[int, tuple[int, ...]]:
    """How many tasks fit what is free, where so much of each device is used, and the devices they get."""
    most = room([(free.get(name, 0), amount) for name, amount in shape.amounts if name != GPU], most)
    if not shape.devices or not most:
        return most, ()
    chosen = choose_devices(devices, len(devices), shape.devices, shape.device_milli, most)
    return len(chosen) // shape.devices, chosen


def choose_held(partition: Partition, stage: Stage, kind: int, most: int) -> list[Choice]:
    """The nodes where tasks of a stage may start now because they are kept for it.

    A node that others hold too gives it no more than its part, so that it delays none of them. So does one that was
    ordered: the rest of it is for others.
    """
    ask = stage.asks[kind]
    chosen: list[Choice] = []
    kept = partition.kept(ask.seq) if ask is not None else None
    if ask is None or kept is None:
        return chosen
    for node_id, position, tasks in kept.places:
        if position == stage.position and most and partition.nodes.placeable(partition.nodes.rows[node_id]):
            alone = len(partition.nodes.held[node_id]) == 1 and not stage.shape.key.apart and not ask.whole
            alone = alone and not (isinstance(kept, Promise) and kept.ordered)
            if len(partition.nodes.held[node_id]) > 1 and stage.shape.devices:
                fitting, devices = _part_of_devices(partition, node_id, kept.seq, stage.shape, min(tasks, most))
            else:
                fitting, devices = room_now(partition.nodes, node_id, stage.shape, most if alone else min(tasks, most))
            if fitting:
                chosen.append(Choice(node_id, fitting, devices))
                most -= fitting
    return chosen


def _part_of_devices(
    partition: Partition, node_id: int, seq: int, shape: Shape, most: int
) -> tuple[int, tuple[int, ...]]:
    """How many tasks a node that others hold too has room for, on devices that leave the others theirs.

    What was there before the holds will have gone; what has started from a hold since then stays.
    """
    nodes = partition.nodes
    row = nodes.rows[node_id]
    others = kept_on(partition, node_id, without=seq)
    since = min([partition.holds[each].since for each in nodes.held[node_id] if each in partition.holds], default=0)
    taken = [0] * nodes.gpus[row]
    for allocation in nodes.allocations[row].values():
        if allocation.safe_until > since + partition.settings.hold_for:
            for device in allocation.devices:
                if device < len(taken):
                    taken[device] += allocation.stage.shape.device_milli
    used = list(nodes.devices[row][: nodes.gpus[row]])
    most = room_now(nodes, node_id, shape, most)[0]
    chosen = _devices_beside(used, taken, others, shape, most)
    if len(chosen) < most * shape.devices:
        # One task in the gap beside an older task, and the next one may find only the device of another owner.
        empty = [there if there == kept else WHOLE_DEVICE for there, kept in zip(used, taken, strict=True)]
        chosen = max(chosen, _devices_beside(empty, taken, others, shape, most), key=len)
    return len(chosen) // shape.devices, chosen


def _devices_beside(used: list[int], taken: list[int], others: Wanted, shape: Shape, most: int) -> tuple[int, ...]:
    """The devices of up to `most` tasks, chosen one by one so that the others fit beside them and what is taken."""
    used, taken = list(used), list(taken)
    chosen: tuple[int, ...] = ()
    for _ in range(most):
        allowed = list(used)
        while True:
            devices = choose_devices(allowed, len(allowed), shape.devices, shape.device_milli, 1)
            if not devices:
                return chosen
            after = list(taken)
            for device in devices:
                after[device] += shape.device_milli
            if _fit_devices(after, others):
                break
            for device in devices:
                allowed[device] = WHOLE_DEVICE  # another device may do
        taken = after
        for device in devices:
            used[device] += shape.device_milli
        chosen += devices
    return chosen


def _fit_devices(used: list[int], wanted: Wanted) -> bool:
    """True if tasks find devices where these parts of each are used."""
    used = list(used)
    for shape, tasks in wanted:
        chosen = choose_devices(used, len(used), shape.devices, shape.device_milli, tasks) if shape.devices else ()
        if len(chosen) < shape.devices * tasks:
            return False
        for device in chosen:
            used[device] += shape.device_milli
    return True


def choose_on(partition: Partition, stage: Stage, node_id: int, most: int) -> list[Choice]:
    """Room for tasks of a stage on one node, beside what is promised there."""
    nodes, shape = partition.nodes, stage.shape
    row = nodes.rows[node_id]
    if not nodes.placeable(row) or not may_take(nodes, row, shape):
        return []
    if shape.key.apart:
        most = 0 if any(each.node == node_id for each in (stage.live or {}).values()) else min(most, 1)
    tasks, devices = (
        room_now(nodes, node_id, shape, most) if node_id not in nodes.held else _beside(partition, node_id, shape, most)
    )
    return [Choice(node_id, tasks, devices)] if tasks else []


def came_for_some(partition: Partition, node_id: int) -> bool:
    """Whether a node is kept only because it was ordered: then what is beyond the promises is for everybody."""
    return all(
        seq in partition.promises and partition.promises[seq].ordered for seq in partition.nodes.held.get(node_id, ())
    )


def _beside(partition: Partition, node_id: int, shape: Shape, most: int) -> tuple[int, tuple[int, ...]]:
    """How many tasks of anybody fit an ordered node beside those that it is promised to, and their devices."""
    if not came_for_some(partition, node_id):
        return 0, ()
    there = partition.nodes.allocations[partition.nodes.rows[node_id]].values()
    others = kept_on(partition, node_id) + [(each.stage.shape, count(each.indices)) for each in there if not each.rooms]
    tasks = room_beside(partition.nodes, node_id, others, shape, most)
    return room_now(partition.nodes, node_id, shape, tasks) if tasks > 0 else (0, ())


def choose_lent(partition: Partition, stage: Stage, most: int, lent: Mapping[int, Micros]) -> list[Choice]:
    """The held nodes for tasks of anybody that are in nobody's way.

    Those ask for nothing, or are expected to be over before the nodes' holders can start, as `lent` says. Or they fit
    beside what an ordered node is promised to.
    """
    shape, nodes = stage.shape, partition.nodes
    lasts = guess(stage.terms)
    own = [each.seq for each in stage.asks if each is not None]
    near = {each.node for each in (stage.live or {}).values()} if shape.key.apart else ()
    chosen: list[Choice] = []
    ordered = any(promise.ordered for promise in partition.promises.values())
    for node_id in sorted(nodes.held) if lent or ordered or not shape.amounts else ():
        row = nodes.rows[node_id]
        if most <= 0 or node_id in near or not nodes.placeable(row) or not may_take(nodes, row, shape):
            continue
        if ordered and came_for_some(partition, node_id):
            found = (
                choose_on(partition, stage, node_id, most) if not any(seq in nodes.held[node_id] for seq in own) else []
            )
            chosen += found
            most -= sum(each.tasks for each in found)
            continue
        if shape.amounts and (lasts is None or partition.now + lasts > lent.get(node_id, 0)):
            continue
        if not any(seq in nodes.held[node_id] for seq in own):
            tasks, devices = room_now(nodes, node_id, shape, 1 if shape.key.apart else most)
            if tasks:
                chosen.append(Choice(node_id, tasks, devices))
                most -= tasks
    return chosen


def choose_yielded(partition: Partition, ask: Ask, stage: Stage, most: int, without: Collection[int]) -> list[Choice]:
    """Nodes that arrived for single tasks, and that yield to an ask with an earlier turn and a better right.

    Otherwise these tasks would start there, and be stopped for that ask at once. Gangs keep their nodes.
    """
    nodes, shape = partition.nodes, stage.shape
    yielding: dict[int, None] = {}
    for promise in partition.promises.values() if most > 0 else ():
        owner = partition.kept_for(promise)
        if not promise.ordered or owner is None or owner.whole or gang_size(owner) > 1:
            continue
        if _has_better_right(partition, ask, owner):
            yielding[promise.seq] = None
    near = {each.node for each in (stage.live or {}).values()} if shape.key.apart else ()
    chosen: list[Choice] = []
    for node_id in sorted({node_id: None for seq in yielding for node_id in partition.promises[seq].nodes}):
        row = nodes.rows[node_id]
        if (
            most <= 0
            or node_id in near
            or node_id in without
            or not all(seq in yielding for seq in nodes.held[node_id])
        ):
            continue
        if nodes.placeable(row) and may_take(nodes, row, shape):
            tasks, devices = room_now(nodes, node_id, shape, 1 if shape.key.apart else most)
            if tasks:
                chosen.append(Choice(node_id, tasks, devices))
                most -= tasks
    return chosen


def _has_better_right(partition: Partition, ask: Ask, owner: Ask) -> bool:
    """True if tasks of the owner could be stopped for the ask: for its priority, or because they would be on loan."""
    job, other = ask.stage.job, owner.stage.job
    if job.queue is other.queue:
        return (
            partition.settings.preempt == "priority"
            and other.priority < job.priority
            and not is_unpreemptible(partition, other)
        )
    rights = partition.entitlements()
    mine, its = next(pair for pair in zip(job.queue.line(), other.queue.line(), strict=False) if pair[0] is not pair[1])
    return rights.used(mine) < rights.of(mine) and rights.used(its) >= rights.of(its)


def may_take(nodes: NodeTable, row: int, shape: Shape) -> bool:
    """Whether a node takes tasks of a shape, whatever room it has."""
    return nodes.manager[row] == shape.key.manager and shape.accepts(
        nodes.labels[row], nodes.taints[row], nodes.pool[row], nodes.users[row]
    )


def standing(partition: Partition, kept: Earmark) -> tuple[Place, ...]:
    """Those of its places whose nodes can still be what they are kept for. A short back-off does no harm."""
    nodes = partition.nodes
    stages = partition.jobs[kept.job].stages
    found: list[Place] = []
    for place in kept.places:
        node_id, position, _ = place
        row = nodes.rows.get(node_id)
        if row is None or nodes.state[row] != "up" or (node_id in nodes.avoided and nodes.failures[row] > FEW_FAILURES):
            continue
        shape = stages[position].shape
        if may_take(nodes, row, shape) and room_beside(nodes, node_id, kept_on(partition, node_id), shape, 0) >= 0:
            found.append(place)
    return tuple(found)


def ends_at(partition: Partition, kept: Hold | Promise, now: Micros) -> Micros:
    """When a hold or a promise ends, if its ask has not started before. Its time begins anew at ready."""
    settings = partition.settings
    since = partition.reign.counts_from(kept.since) if partition.reign.ready else now
    if isinstance(kept, Hold):
        return since + settings.hold_for
    return since + settings.promise_for + (0 if kept.ordered else settings.preempt_grace)


def is_back_soon(partition: Partition, node_id: int) -> bool:
    """Whether a node that is backed off will be tried again before an ordered one would have to be there.

    A node where one launch after the other goes wrong is not counted on.
    """
    nodes = partition.nodes
    until = nodes.avoided[node_id]
    return (
        until <= partition.now + partition.settings.promise_for and nodes.failures[nodes.rows[node_id]] <= FEW_FAILURES
    )


def is_coming(partition: Partition, promise: Promise) -> bool:
    """True if tasks still stop on the nodes of a promise: for it, or for another cause, which it counts on too.

    If one of its victims is overdue the promise does not wait for the others: other victims have to be found.
    """
    victims = [partition.allocations[number] for number in promise.victims if number in partition.allocations]
    if any(each.overdue for each in victims):
        return False
    there = [
        each
        for node_id in promise.nodes
        for each in partition.nodes.allocations[partition.nodes.rows[node_id]].values()
    ]
    return bool(victims) or any(each.leaving for each in there)


def is_stuck(partition: Partition, promise: Promise) -> bool:
    """True if a promise counts on a task that does not stop: one that was not overdue when it was made."""
    patience = partition.settings.preempt_grace + STOP_MARGIN
    return any(
        each.id in promise.victims or (each.node in promise.nodes and each.since + patience > promise.since)
        for each in partition.overdue.values()
    )
