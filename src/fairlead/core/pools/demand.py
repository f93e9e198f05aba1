"""The phase `demand`: orders nodes from pools for waiting tasks without capacity, and gives unneeded nodes back.

A cycle makes at most one order per pool. Ordered nodes and the capacity of stopping tasks count as capacity, so nothing
is ordered twice, nor for tasks that will fit soon.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.core.changes import GivenBack, Idled, NodeMoved, Ordered, OrderFailed, Promised, Released
from fairlead.core.model import Meant, Micros, OrderCause, Pool
from fairlead.core.plan import Plan
from fairlead.core.policy.pool_size import leaves_free, nodes_for_free, nodes_to_add, nodes_to_give_back
from fairlead.core.pools.capacity import Outlook, plan_capacity
from fairlead.core.pools.sizes import coming_nodes, free_in, grows, nodes_left, paused_until, size_of
from fairlead.core.resources import add as summed
from fairlead.core.resources import format_duration
from fairlead.core.state import Partition

LOOK_COST: Micros = 100
"""The pause after an outlook, for each item that it examined: more than ten times the time that it took."""

LITTLE = 1_000
"""No pause follows an outlook that examined at most this number of items."""


def demand(plan: Plan) -> None:
    partition, scaling = plan.partition, plan.partition.memory.scaling
    scaling.dirty = scaling.dirty or len(plan) > 0
    if not partition.pools and not partition.idle and scaling.shrink_at is None and not scaling.paused:
        return
    pools = [partition.pools[name] for name in sorted(partition.pools) if partition.pools[name].elastic]
    if not pools:  # the last pool may have just left the configuration
        scaling.next_look, scaling.paused, scaling.shrink_at = None, [], None
    if not partition.pools and not partition.idle:
        return
    _note_idle(plan)
    if pools and partition.readiness.ready and not plan.more and _is_due(partition):
        _resize(plan, pools)


def _resize(plan: Plan, pools: list[Pool]) -> None:
    partition, scaling = plan.partition, plan.partition.memory.scaling
    outlook = plan_capacity(partition) if _is_needed(partition, pools) else Outlook({}, {}, {}, 0)
    for pool in pools:
        _grow(plan, pool, outlook)
        _shrink(plan, pool, outlook)
    scaling.dirty = False
    scaling.next_look = partition.now + outlook.looked * LOOK_COST if outlook.looked > LITTLE else None
    scaling.paused = [pool.name for pool in pools if paused_until(partition, pool) > partition.now]
    times = [when for pool in pools if not pool.paused for when in _shrinks(partition, pool) if when > partition.now]
    scaling.shrink_at = min(times, default=None)


def demand_due(partition: Partition) -> Iterator[Micros]:
    """Yield the times when the phase must run, even if nothing else happens."""
    scaling = partition.memory.scaling
    for order in partition.orders.values():
        yield _late_at(partition, order.since)
    if scaling.next_look is not None and scaling.dirty:
        yield scaling.next_look
    for name in scaling.paused:
        if name in partition.pools:
            yield paused_until(partition, partition.pools[name])
    if scaling.shrink_at is not None:
        yield scaling.shrink_at


def give_up_late(plan: Plan) -> None:
    """Fail orders of nodes that did not join in time."""
    partition = plan.partition
    for number in sorted(partition.orders):
        order = partition.orders[number]
        if _late_at(partition, order.since) <= partition.now:
            reason = f"not there within {format_duration(partition.settings.promise_for)}"
            plan.do(OrderFailed(number, tuple(order.coming), reason, partition.now + partition.settings.pool_pause))


def order_nodes(plan: Plan, pool: Pool, nodes: list[tuple[Meant, ...]], cause: OrderCause) -> None:
    """Order nodes, each with the tasks that it is meant for. Equal neighbours are journaled once, with their number."""
    runs: list[tuple[int, tuple[Meant, ...]]] = []
    for meant in nodes:
        if runs and runs[-1][1] == meant:
            runs[-1] = (runs[-1][0] + 1, meant)
        else:
            runs.append((1, meant))
    plan.do(Ordered(plan.partition.counters.order, pool.name, tuple(runs), cause))


def give_back(plan: Plan, pool: Pool, node_ids: list[int]) -> None:
    for node_id in node_ids:
        plan.do(NodeMoved(node_id, "draining"))
    plan.do(GivenBack(pool.name, tuple(node_ids)))


def idle_nodes(partition: Partition, pool: Pool) -> list[int]:
    """Return the empty nodes of a pool that accept work, the longest idle first."""
    nodes = partition.nodes
    node_ids = [
        node_id
        for node_id in partition.idle
        if nodes.pool[nodes.rows[node_id]] == pool.name
        and nodes.state[nodes.rows[node_id]] == "up"
        and node_id not in nodes.held
    ]
    return sorted(node_ids, key=lambda node_id: (partition.idle[node_id], node_id))


def _note_idle(plan: Plan) -> None:
    partition = plan.partition
    node_ids = partition.touched.nodes
    if partition.memory.scaling.pools != partition.derived.pools_version:
        node_ids = set(partition.nodes.rows)
        partition.memory.scaling.pools = partition.derived.pools_version
    elastic = {name for name, pool in partition.pools.items() if pool.elastic}
    if not elastic and not partition.idle:
        return
    idle: list[int] = []
    busy: list[int] = []
    for node_id in sorted(node_ids):
        row = partition.nodes.rows.get(node_id)
        if row is not None:
            is_idle = partition.nodes.pool[row] in elastic and not partition.nodes.allocations[row]
            if is_idle != (node_id in partition.idle):
                (idle if is_idle else busy).append(node_id)
    if idle or busy:
        plan.do(Idled(tuple(idle), tuple(busy)))


def _is_due(partition: Partition) -> bool:
    scaling = partition.memory.scaling
    if scaling.shrink_at is not None and scaling.shrink_at <= partition.now:
        return True
    if any(
        name in partition.pools and paused_until(partition, partition.pools[name]) <= partition.now
        for name in scaling.paused
    ):
        return True
    return scaling.dirty and (scaling.next_look is None or scaling.next_look <= partition.now)


def _is_needed(partition: Partition, pools: list[Pool]) -> bool:
    """True if an outlook can have an effect: a pool may grow, or has idle nodes to give back."""
    return bool(partition.idle) or any(
        grows(partition, pool, partition.now) and nodes_left(partition, pool) != 0 for pool in pools
    )


def _grow(plan: Plan, pool: Pool, outlook: Outlook) -> None:
    partition, settings = plan.partition, pool.settings
    if not grows(partition, pool, partition.now):
        return
    meant = outlook.new.get(pool.name, [])
    idle = idle_nodes(partition, pool)
    ordered = coming_nodes(partition, pool)
    add = nodes_to_add(
        idle=len(idle),
        pending=sum(node_id in outlook.used for node_id in idle) + outlook.coming.get(pool.name, 0) + len(meant),
        ordered=ordered,
        min_idle=settings.min_idle,
        total=size_of(partition, pool),
        least=settings.min,
    )
    if settings.min_free:
        free = free_in(partition, pool, outlook.used)
        summed(free, dict(settings.node), ordered - outlook.coming.get(pool.name, 0))
        lacking = nodes_for_free(free=free, least=dict(settings.min_free), node=dict(settings.node))
        add = max(add, len(meant) + lacking)
    left = nodes_left(partition, pool)
    add = max(len(meant), add if left is None else min(add, left))
    if add:
        order_nodes(plan, pool, meant + [()] * (add - len(meant)), "demand" if meant else "spare")
        _renew(plan, meant)


def _renew(plan: Plan, nodes: list[tuple[Meant, ...]]) -> None:
    """Extend the promises of gangs for which more nodes are ordered, so that they keep the nodes that joined."""
    partition = plan.partition
    for ask_key in dict.fromkeys(entry[:3] for meant in nodes for entry in meant):
        ask = partition.waits(*ask_key)
        promise = partition.promises.get(ask.seq) if ask is not None else None
        if promise is not None and promise.ordered and promise.since < partition.now:
            plan.do(Released(promise.seq, "more nodes are ordered for it"))
            plan.do(Promised(promise.job, promise.stage, promise.kind, promise.places, (), "order"))


def _shrink(plan: Plan, pool: Pool, outlook: Outlook) -> None:
    partition, settings = plan.partition, pool.settings
    if pool.paused or _cool_at(partition, pool) > partition.now:
        return
    idle = [node_id for node_id in idle_nodes(partition, pool) if node_id not in outlook.used]
    surplus = nodes_to_give_back(
        idle=len(idle),
        pending=0,
        max_idle=settings.max_idle,
        min_idle=settings.min_idle,
        total=size_of(partition, pool),
        least=settings.min,
    )
    rested = [
        node_id for node_id in idle[:surplus] if _idle_since(partition, node_id) + settings.idle_for <= partition.now
    ]
    if settings.min_free:
        rested = _not_needed_free(partition, pool, rested, outlook)
    if rested:
        give_back(plan, pool, rested)


def _not_needed_free(partition: Partition, pool: Pool, idle: list[int], outlook: Outlook) -> list[int]:
    """Return the idle nodes that can go while the other present nodes of the pool still have `min_free`."""
    nodes, least = partition.nodes, dict(pool.settings.min_free)
    free, found = free_in(partition, pool, outlook.used), list[int]()
    for node_id in idle:
        node = {name: nodes.capacity[name][nodes.rows[node_id]] for name in least if name in nodes.capacity}
        if leaves_free(free=free, least=least, node=node):
            summed(free, node, -1)
            found.append(node_id)
    return found


def _shrinks(partition: Partition, pool: Pool) -> Iterator[Micros]:
    for node_id in idle_nodes(partition, pool):
        yield max(_idle_since(partition, node_id) + pool.settings.idle_for, _cool_at(partition, pool))


def _idle_since(partition: Partition, node_id: int) -> Micros:
    """Return since when a node has been idle, at the earliest since the partition is ready."""
    return partition.readiness.counts_from(partition.idle[node_id])


def _cool_at(partition: Partition, pool: Pool) -> Micros:
    """Return the time from which a pool may shrink: `pool_pause` after it last grew or shrank."""
    changed = [when for when in (pool.grew, pool.shrank) if when is not None]
    return max(changed) + partition.settings.pool_pause if changed else 0


def _late_at(partition: Partition, since: Micros) -> Micros:
    return partition.readiness.counts_from(since) + partition.settings.promise_for
