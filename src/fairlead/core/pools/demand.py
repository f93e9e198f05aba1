"""Demand: what waits and finds no room is packed onto nodes that pools could bring, and these are ordered, once.

Nodes that nobody needs are given back. One order a pool a cycle; what is ordered already counts, and so does room that
will be there when what stops is gone. So a burst is one order, and nothing is ordered for work that fits.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.core.changes import GivenBack, Idled, NodeMoved, Ordered, OrderFailed, Promised, Released
from fairlead.core.model import Meant, Micros, OrderCause, Pool
from fairlead.core.plan import Plan
from fairlead.core.policy.scaling import nodes_to_add, nodes_to_give_back
from fairlead.core.pools.capacity import Outlook, plan_capacity
from fairlead.core.pools.sizes import coming_nodes, grows, nodes_left, paused_until, size_of
from fairlead.core.resources import format_duration
from fairlead.core.state import Partition

LOOK_COST: Micros = 100
"""How long to leave the outlook alone for each thing looked at: more than ten times what looking takes."""

LITTLE = 1_000
"""So many things are looked at as often as somebody likes."""


def demand(plan: Plan) -> None:
    partition, scaling = plan.partition, plan.partition.scaling
    scaling.dirty = scaling.dirty or len(plan) > 0
    pools = [partition.pools[name] for name in sorted(partition.pools) if partition.pools[name].elastic]
    if not pools:  # the last may have just left the configuration: nothing falls due any more
        scaling.next_look, scaling.paused, scaling.shrink_at = None, [], None
    if not partition.pools and not partition.idle:
        return
    _note_idle(plan)
    if not pools or not partition.reign.ready or plan.more or not _is_due(partition):
        return
    outlook = plan_capacity(partition) if _matters(partition, pools) else Outlook({}, {}, {}, 0)
    for pool in pools:
        _grow(plan, pool, outlook)
        _shrink(plan, pool, outlook)
    scaling.dirty = False
    scaling.next_look = partition.now + outlook.looked * LOOK_COST if outlook.looked > LITTLE else None
    scaling.paused = [pool.name for pool in pools if paused_until(partition, pool) > partition.now]
    times = [when for pool in pools if not pool.paused for when in _shrinks(partition, pool) if when > partition.now]
    scaling.shrink_at = min(times, default=None)


def demand_due(partition: Partition) -> Iterator[Micros]:
    """When time alone makes it look again."""
    scaling = partition.scaling
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
    """Nodes that did not come in time are not waited for any longer."""
    partition = plan.partition
    for number in sorted(partition.orders):
        order = partition.orders[number]
        if _late_at(partition, order.since) <= partition.now:
            reason = f"not there within {format_duration(partition.settings.promise_for)}"
            plan.do(OrderFailed(number, tuple(order.coming), reason, partition.now + partition.settings.pool_pause))


def order_nodes(plan: Plan, pool: Pool, nodes: list[tuple[Meant, ...]], cause: OrderCause) -> None:
    """Order nodes, each with what it is meant for. Equal ones next to each other are written once."""
    runs: list[tuple[int, tuple[Meant, ...]]] = []
    for meant in nodes:
        if runs and runs[-1][1] == meant:
            runs[-1] = (runs[-1][0] + 1, meant)
        else:
            runs.append((1, meant))
    plan.do(Ordered(plan.partition.counters.order, pool.name, tuple(runs), cause))


def give_back(plan: Plan, pool: Pool, joins: list[int]) -> None:
    for node_id in joins:
        plan.do(NodeMoved(node_id, "draining"))
    plan.do(GivenBack(pool.name, tuple(joins)))


def idle_nodes(partition: Partition, pool: Pool) -> list[int]:
    """The nodes of a pool that could take work and have none, those first that have had none for longest."""
    nodes = partition.nodes
    found = [
        node_id
        for node_id in partition.idle
        if nodes.pool[nodes.rows[node_id]] == pool.name
        and nodes.state[nodes.rows[node_id]] == "up"
        and node_id not in nodes.held
    ]
    return sorted(found, key=lambda node_id: (partition.idle[node_id], node_id))


def _note_idle(plan: Plan) -> None:
    """Write down since when nodes of pools have had nothing to do."""
    partition = plan.partition
    joins = partition.touched.nodes
    if partition.scaling.pools != partition.pools_version:
        joins = set(partition.nodes.rows)
        partition.scaling.pools = partition.pools_version
    elastic = {name for name, pool in partition.pools.items() if pool.elastic}
    if not elastic and not partition.idle:
        return
    idle: list[int] = []
    busy: list[int] = []
    for node_id in sorted(joins):
        row = partition.nodes.rows.get(node_id)
        if row is not None:
            rests = partition.nodes.pool[row] in elastic and not partition.nodes.allocations[row]
            if rests != (node_id in partition.idle):
                (idle if rests else busy).append(node_id)
    if idle or busy:
        plan.do(Idled(tuple(idle), tuple(busy)))


def _is_due(partition: Partition) -> bool:
    scaling = partition.scaling
    if scaling.shrink_at is not None and scaling.shrink_at <= partition.now:
        return True
    if any(
        name in partition.pools and paused_until(partition, partition.pools[name]) <= partition.now
        for name in scaling.paused
    ):
        return True
    return scaling.dirty and (scaling.next_look is None or scaling.next_look <= partition.now)


def _matters(partition: Partition, pools: list[Pool]) -> bool:
    """Whether anything can come of an outlook: a pool may grow, or has nodes that it might give back."""
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
    left = nodes_left(partition, pool)
    add = max(len(meant), add if left is None else min(add, left))
    if add:
        order_nodes(plan, pool, meant + [()] * (add - len(meant)), "demand" if meant else "spare")
        _renew(plan, meant)


def _renew(plan: Plan, nodes: list[tuple[Meant, ...]]) -> None:
    """Gangs for which more is ordered keep for as long what has come for them."""
    partition = plan.partition
    for whom in dict.fromkeys(each[:3] for meant in nodes for each in meant):
        ask = partition.waits(*whom)
        promise = partition.promises.get(ask.seq) if ask is not None else None
        if promise is not None and promise.ordered and promise.since < partition.now:
            plan.do(Released(promise.seq, "more is ordered"))
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
    if rested:
        give_back(plan, pool, rested)


def _shrinks(partition: Partition, pool: Pool) -> Iterator[Micros]:
    """When there may be something to give back."""
    for node_id in idle_nodes(partition, pool):
        yield max(_idle_since(partition, node_id) + pool.settings.idle_for, _cool_at(partition, pool))


def _idle_since(partition: Partition, node_id: int) -> Micros:
    """Since when a node has had nothing to do, for all that is known since the partition is ready."""
    return partition.reign.counts_from(partition.idle[node_id])


def _cool_at(partition: Partition, pool: Pool) -> Micros:
    """It does not shrink right after it grew or shrank."""
    changed = [when for when in (pool.grew, pool.shrank) if when is not None]
    return max(changed) + partition.settings.pool_pause if changed else 0


def _late_at(partition: Partition, since: Micros) -> Micros:
    return partition.reign.counts_from(since) + partition.settings.promise_for
