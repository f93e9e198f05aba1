"""Earmarked nodes: the capacity that is kept there for asks, the asks that may use it now, and when earmarks end."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fairlead.core.admission import is_unpreemptible
from fairlead.core.ahead.expected_ends import guess
from fairlead.core.asks import is_single
from fairlead.core.index.kinds import Choice
from fairlead.core.model import FAR, Ask, Earmark, Hold, Micros, Place, Promise, Stage
from fairlead.core.node_fit import Wanted, fitting_beside, fitting_now, may_take
from fairlead.core.policy.fit import choose_devices
from fairlead.core.ranges import count
from fairlead.core.shape import WHOLE_DEVICE, Shape
from fairlead.core.state import STOP_MARGIN, Partition

FEW_FAILURES = 3
"""A backed-off node counts as coming back if at most this number of launches failed in a row: its back-off is short."""


def kept_on(partition: Partition, node_id: int, without: int | None = None) -> list[tuple[Shape, int]]:
    """Return the tasks that a node is kept for, in the order of their asks. The ask `without` is left out."""
    wanted: list[tuple[Shape, int]] = []
    for seq, places in sorted(partition.nodes.held.get(node_id, {}).items()):
        earmark = partition.earmark_of(seq)
        if earmark is not None and seq != without:
            wanted += [(partition.jobs[earmark.job].stages[position].shape, tasks) for _, position, tasks in places]
    return wanted


def claimed_on(partition: Partition, node_id: int) -> list[tuple[Shape, int]]:
    """Return the tasks that a node is held for, and the tasks that have started there since it is held."""
    claimed = kept_on(partition, node_id)
    since = _held_since(partition, node_id)
    for allocation in partition.nodes.allocations[partition.nodes.rows[node_id]].values():
        if since is not None and allocation.since >= since and not allocation.slots:
            claimed.append((allocation.stage.shape, count(allocation.indices)))
    return claimed


def _held_since(partition: Partition, node_id: int) -> Micros | None:
    seqs = partition.nodes.held.get(node_id, ())
    return min((partition.holds[seq].since for seq in seqs if seq in partition.holds), default=None)


def choose_held(partition: Partition, stage: Stage, kind: int, most: int) -> list[Choice]:
    """Choose nodes that are kept for an ask, for up to `most` tasks of a stage of it that fit there now."""
    ask = stage.asks[kind]
    chosen: list[Choice] = []
    earmark = partition.earmark_of(ask.seq) if ask is not None else None
    if ask is None or earmark is None:
        return chosen
    for node_id, position, tasks in earmark.places:
        if position == stage.position and most and partition.nodes.placeable(partition.nodes.rows[node_id]):
            fitting, devices = _fitting_held(partition, ask, earmark, stage, (node_id, tasks), most)
            if fitting:
                chosen.append(Choice(node_id, fitting, devices))
                most -= fitting
    return chosen


def _fitting_held(
    partition: Partition, ask: Ask, earmark: Earmark, stage: Stage, kept: tuple[int, int], most: int
) -> tuple[int, tuple[int, ...]]:
    """Return how many tasks may start on a node of their ask's earmark, and their devices.

    `kept` is the node and the number of tasks that it is kept for. More tasks may start there only if it is not kept
    for other asks, was not ordered, and no condition separates tasks.
    """
    node_id, part = kept
    shape, is_shared = stage.shape, len(partition.nodes.held[node_id]) > 1
    if is_shared and shape.devices:
        return _part_of_devices(partition, node_id, earmark.seq, shape, min(part, most))
    ordered = isinstance(earmark, Promise) and earmark.ordered
    limited = is_shared or ordered or shape.key.apart or ask.whole
    return fitting_now(partition.nodes, node_id, shape, min(part, most) if limited else most)


def _part_of_devices(
    partition: Partition, node_id: int, seq: int, shape: Shape, most: int
) -> tuple[int, tuple[int, ...]]:
    """Return how many tasks of one ask fit a node that is kept for several asks, and the devices they get.

    The devices are chosen so that the tasks of the other asks still fit.

    Devices of tasks that ran before the holds count as free for the other asks, because these tasks are expected to
    end. Tasks that started from a hold keep their devices.
    """
    nodes = partition.nodes
    row = nodes.rows[node_id]
    others = kept_on(partition, node_id, without=seq)
    since = _held_since(partition, node_id) or 0
    taken = [0] * nodes.gpus[row]
    for allocation in nodes.allocations[row].values():
        if allocation.safe_until > since + partition.settings.hold_for:
            for device in allocation.devices:
                if device < len(taken):
                    taken[device] += allocation.stage.shape.device_milli
    used = list(nodes.devices[row][: nodes.gpus[row]])
    most = fitting_now(nodes, node_id, shape, most)[0]
    chosen = _devices_beside(used, taken, others, shape, most)
    if len(chosen) < most * shape.devices:
        # On a device shared with an older task, the tasks may leave too little for each other. Try empty devices, too.
        empty = [in_use if in_use == safe else WHOLE_DEVICE for in_use, safe in zip(used, taken, strict=True)]
        chosen = max(chosen, _devices_beside(empty, taken, others, shape, most), key=len)
    return len(chosen) // shape.devices, chosen


def _devices_beside(used: list[int], taken: list[int], others: Wanted, shape: Shape, most: int) -> tuple[int, ...]:
    """Choose devices for up to `most` tasks, one by one, so that `others` still fit on the remaining devices."""
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
                allowed[device] = WHOLE_DEVICE  # another device may leave the others enough
        taken = after
        for device in devices:
            used[device] += shape.device_milli
        chosen += devices
    return chosen


def _fit_devices(used: list[int], wanted: Wanted) -> bool:
    used = list(used)
    for shape, tasks in wanted:
        chosen = choose_devices(used, len(used), shape.devices, shape.device_milli, tasks) if shape.devices else ()
        if len(chosen) < shape.devices * tasks:
            return False
        for device in chosen:
            used[device] += shape.device_milli
    return True


def is_only_ordered(partition: Partition, node_id: int) -> bool:
    """True if a node is kept only because it was ordered. All asks may use what its promises leave free."""
    return all(
        seq in partition.promises and partition.promises[seq].ordered for seq in partition.nodes.held.get(node_id, ())
    )


def nodes_with_task(stage: Stage) -> Collection[int]:
    """Return the nodes on which no further task of a stage may start, because its tasks must be on separate nodes."""
    return {allocation.node for allocation in (stage.live or {}).values()} if stage.shape.key.apart else ()


def choose_lent(partition: Partition, stage: Stage, most: int, lent: Mapping[int, Micros]) -> list[Choice]:
    """Choose nodes earmarked for other asks, for tasks that do not delay those asks.

    Such tasks request no resources, are expected to end before the ask that the node is kept for can start (`lent`), or
    fit beside the promises of an ordered node.
    """
    shape, nodes = stage.shape, partition.nodes
    run_time = guess(stage.terms)
    own = {ask.seq for ask in stage.asks if ask is not None}
    ordered = any(promise.ordered for promise in partition.promises.values())
    usable: list[tuple[int, bool]] = []
    for node_id in sorted(nodes.held) if lent or ordered or not shape.amounts else ():
        if own.isdisjoint(nodes.held[node_id]):
            beside = ordered and is_only_ordered(partition, node_id)
            in_time = run_time is not None and partition.now + run_time <= lent.get(node_id, 0)
            if beside or in_time or not shape.amounts:
                usable.append((node_id, beside))
    return _choose_on(partition, stage, most, usable)


def choose_closing(partition: Partition, stage: Stage, most: int) -> list[Choice]:
    """Choose nodes with a planned drain, for tasks whose time limit ends them before the drain."""
    limit, nodes = stage.terms.time_limit, partition.nodes
    if limit is None:
        return []
    usable = [
        (node_id, False)
        for node_id, begin in sorted(nodes.closing.items())
        if partition.now + limit <= begin and node_id not in nodes.held and nodes.takes_until(nodes.rows[node_id])
    ]
    return _choose_on(partition, stage, most, usable)


def choose_yielded(partition: Partition, ask: Ask, stage: Stage, most: int, without: Collection[int]) -> list[Choice]:
    """Choose nodes that were ordered for single tasks of another ask, to which the ask has a better right.

    Otherwise the single tasks would start there and would then be stopped for the ask immediately.
    """
    nodes, promises = partition.nodes, partition.promises
    yielding: dict[int, None] = {}
    for promise in promises.values() if most > 0 else ():
        owner = partition.ask_of_earmark(promise)
        if promise.ordered and owner is not None and is_single(owner) and _has_better_right(partition, ask, owner):
            yielding[promise.seq] = None
    yielded = sorted({node_id: None for seq in yielding for node_id in promises[seq].nodes if node_id not in without})
    usable = [(node_id, False) for node_id in yielded if all(seq in yielding for seq in nodes.held[node_id])]
    return _choose_on(partition, stage, most, usable)


def _choose_on(partition: Partition, stage: Stage, most: int, usable: list[tuple[int, bool]]) -> list[Choice]:
    """Choose capacity for up to `most` tasks of a stage. With True, only what the promises on a node leave is used."""
    nodes, shape, taken = partition.nodes, stage.shape, nodes_with_task(stage)
    chosen: list[Choice] = []
    for node_id, beside in usable if most > 0 else ():
        row = nodes.rows[node_id]
        takes = nodes.placeable(row) or nodes.takes_until(row)
        if node_id not in taken and takes and may_take(nodes, row, shape):
            fitting = min(most, 1) if shape.key.apart else most
            if beside:
                fitting = max(0, fitting_beside(nodes, node_id, _tasks_on(partition, node_id), shape, fitting))
            tasks, devices = fitting_now(nodes, node_id, shape, fitting)
            if tasks:
                chosen.append(Choice(node_id, tasks, devices))
                most -= tasks
    return chosen


def _tasks_on(partition: Partition, node_id: int) -> list[tuple[Shape, int]]:
    """Return the tasks that run on a node, and the tasks that it is kept for."""
    live = partition.nodes.allocations[partition.nodes.rows[node_id]].values()
    running = [(allocation.stage.shape, count(allocation.indices)) for allocation in live if not allocation.slots]
    return kept_on(partition, node_id) + running


def _has_better_right(partition: Partition, ask: Ask, owner: Ask) -> bool:
    """True if tasks of the owner could be stopped for the ask: by priority, or because they would be on loan."""
    job, other = ask.stage.job, owner.stage.job
    if job.queue is other.queue:
        return (
            partition.settings.preempt == "priority"
            and job.preempts
            and other.priority < job.priority
            and not is_unpreemptible(partition, other)
        )
    rights = partition.entitlements()
    own_queue, other_queue = next(
        pair for pair in zip(job.queue.line(), other.queue.line(), strict=False) if pair[0] is not pair[1]
    )
    return rights.used(own_queue) < rights.of(own_queue) and rights.used(other_queue) >= rights.of(other_queue)


def usable_places(partition: Partition, earmark: Earmark) -> tuple[Place, ...]:
    """Return the places of an earmark on nodes that its ask can still use, also after a short back-off."""
    nodes = partition.nodes
    stages = partition.jobs[earmark.job].stages
    places: list[Place] = []
    for place in earmark.places:
        node_id, position, _ = place
        row = nodes.rows.get(node_id)
        if row is None or nodes.state[row] != "up" or (node_id in nodes.avoided and nodes.failures[row] > FEW_FAILURES):
            continue
        shape = stages[position].shape
        if may_take(nodes, row, shape) and fitting_beside(nodes, node_id, kept_on(partition, node_id), shape, 0) >= 0:
            places.append(place)
    return tuple(places)


def ends_at(partition: Partition, earmark: Hold | Promise, now: Micros) -> Micros:
    """Return the time when a hold or promise expires. Time before the partition was ready does not count.

    A recall does not expire (`FAR`). It ends when all tasks on its nodes have ended.
    """
    settings = partition.settings
    since = partition.readiness.counts_from(earmark.since) if partition.readiness.ready else now
    if isinstance(earmark, Hold):
        return FAR if earmark.recalled else since + settings.hold_for
    stopping = [partition.allocations[number].stage for number in earmark.victims if number in partition.allocations]
    grace = max(map(partition.grace_of, stopping), default=settings.preempt_grace)
    return since + settings.promise_for + (0 if earmark.ordered else grace)


def back_soon(partition: Partition) -> list[int]:
    """Return the nodes that take no work now and count as coming capacity, in the order in which they joined.

    These are disconnected nodes, because they come back or are declared lost soon, and backed-off nodes that are tried
    again within `promise_for`. A node where launches keep failing does not count.
    """
    nodes = partition.nodes
    without_work = sorted({*nodes.avoided, *nodes.disconnected}) if nodes.avoided or nodes.disconnected else ()
    return [node_id for node_id in without_work if node_id not in nodes.avoided or _is_tried_soon(partition, node_id)]


def _is_tried_soon(partition: Partition, node_id: int) -> bool:
    nodes = partition.nodes
    until = nodes.avoided[node_id]
    return (
        until <= partition.now + partition.settings.promise_for and nodes.failures[nodes.rows[node_id]] <= FEW_FAILURES
    )


def is_coming(partition: Partition, promise: Promise) -> bool:
    """True if tasks are still stopping on the nodes of a promise, for whatever cause.

    False if a task that was stopped for the promise is overdue, because other tasks must be stopped instead.
    """
    victims = [partition.allocations[number] for number in promise.victims if number in partition.allocations]
    if any(allocation.overdue for allocation in victims):
        return False
    on_nodes = [
        allocation
        for node_id in promise.nodes
        for allocation in partition.nodes.allocations[partition.nodes.rows[node_id]].values()
    ]
    return bool(victims) or any(allocation.leaving for allocation in on_nodes)


def is_stuck(partition: Partition, promise: Promise) -> bool:
    """True if the stop of a task became overdue after a promise was made that relies on it."""
    return any(
        allocation.id in promise.victims
        or (
            allocation.node in promise.nodes
            and allocation.since + partition.grace_of(allocation.stage) + STOP_MARGIN > promise.since
        )
        for allocation in partition.derived.overdue.values()
    )
