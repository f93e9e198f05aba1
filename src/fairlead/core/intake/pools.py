"""Intake for pools: ordered nodes that join or fail, and operators' commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairlead.core.changes import Arrived, OrderFailed, PoolMoved
from fairlead.core.commands import Accepted, FailOrder, MovePool, ScalePool
from fairlead.core.errors import Refused
from fairlead.core.holds.release import keep_arrived
from fairlead.core.intake.command_table import handles
from fairlead.core.intake.lookup import find_pool, need_operator
from fairlead.core.model import Meant, Pool, PoolSettings
from fairlead.core.node_fit import fitting_now, may_take
from fairlead.core.plan import Plan
from fairlead.core.pools.demand import give_back, idle_nodes, order_nodes
from fairlead.core.pools.sizes import coming_nodes, nodes_left, size_of
from fairlead.core.reader import check_text
from fairlead.core.resources import shown
from fairlead.core.state import Partition

MAX_REASON = 500
MAX_NODES = 100_000


def arrive(plan: Plan, name: str) -> None:
    """Handle an ordered node that joined: promise it to the asks that it was ordered for."""
    partition = plan.partition
    order = partition.orders[partition.order_of[name]]
    node_id = partition.nodes.joins[name]
    if partition.nodes.pool[partition.nodes.rows[node_id]] != order.pool:
        reason = f"node {name} joined, but not in pool {order.pool}"
        plan.do(OrderFailed(order.number, (name,), reason, partition.now + partition.settings.pool_pause))
        return
    waiting = [meant for meant in order.coming[name] if partition.waits(*meant[:3]) is not None]
    if waiting and not any(_takes(partition, node_id, meant) for meant in waiting):
        # The node differs from its pool's configuration: ordering more such nodes would not help.
        reason = f"node {name} joined, and takes nothing of what it was ordered for; see the node of pool {order.pool}"
        plan.do(OrderFailed(order.number, (name,), reason, partition.now + partition.settings.pool_pause))
        return
    plan.do(Arrived(order.number, name))
    for meant in waiting:
        ask = partition.waits(*meant[:3])
        if ask is not None:
            keep_arrived(plan, ask, (node_id, meant[1], meant[3]))


def _takes(partition: Partition, node_id: int, meant: Meant) -> bool:
    """True if a node fits one task of an ask that it was ordered for."""
    job, position, _, _ = meant
    shape = partition.jobs[job].stages[position].shape
    return (
        may_take(partition.nodes, partition.nodes.rows[node_id], shape)
        and fitting_now(partition.nodes, node_id, shape, 1)[0] > 0
    )


@handles(FailOrder)
def fail_order(plan: Plan, command: FailOrder) -> Accepted:
    """Record that ordered nodes will not join. Nodes that are not expected any more are skipped."""
    need_operator(command, "report a failed order")
    partition = plan.partition
    find_pool(partition, command.pool)
    check_text(command.reason, "reason", MAX_REASON)
    order = partition.orders.get(command.order)
    if order is None or order.pool != command.pool:
        return Accepted(note="no change")
    names = tuple(name for name in command.names or order.coming if name in order.coming)
    if not names:
        return Accepted(note="no change")
    plan.do(OrderFailed(order.number, names, command.reason, partition.now + partition.settings.pool_pause))
    return Accepted()


@handles(MovePool)
def move(plan: Plan, command: MovePool) -> Accepted:
    need_operator(command, "pause or resume a pool")
    pool = find_pool(plan.partition, command.pool)
    if command.action not in ("pause", "resume"):
        raise Refused("action", f"{shown(command.action)} is not one of pause, resume; write one of them")
    paused = command.action == "pause"
    if pool.paused == paused and (paused or not (pool.paused_until or _has_failed_orders(plan.partition))):
        return Accepted(note="no change")
    plan.do(PoolMoved(pool.name, paused))
    return Accepted()


def welcome(plan: Plan, names: Iterable[str]) -> None:
    """Forget failed orders of asks if the configuration has new pools, so that nodes are ordered from these."""
    if _has_failed_orders(plan.partition):
        for name in names:
            plan.do(PoolMoved(name, paused=False))


def _has_failed_orders(partition: Partition) -> bool:
    return any(ask.failed_orders for lane in partition.lanes.values() for ask in lane)


@handles(ScalePool)
def scale(plan: Plan, command: ScalePool) -> Accepted:
    need_operator(command, "scale a pool")
    partition = plan.partition
    pool = find_pool(partition, command.pool)
    settings = pool.settings
    if not pool.elastic:
        raise Refused("pool", f"pool {pool.name} has no provider that could bring nodes; configure one", "conflict")
    most = MAX_NODES if settings.max is None else settings.max
    if not settings.min <= command.nodes <= most:
        raise Refused("nodes", f"{command.nodes} is not between {settings.min} and {most}; choose a size between them")
    size = size_of(partition, pool) + coming_nodes(partition, pool)
    if command.nodes > size:
        return _order_by_hand(plan, pool, command.nodes - size)
    idle = idle_nodes(partition, pool)[: size - command.nodes]
    if idle:
        give_back(plan, pool, idle)
    if len(idle) < size - command.nodes:
        return Accepted(note=f"idle nodes given back: {len(idle)} of {size - command.nodes}; the others are not idle")
    return Accepted(note=f"idle nodes given back: {len(idle)}" if idle else "no change")


def _order_by_hand(plan: Plan, pool: Pool, wanted: int) -> Accepted:
    """Order nodes up to the pool's `max`, which includes lost nodes, and nodes that are given back but not gone yet."""
    left = nodes_left(plan.partition, pool)
    add = wanted if left is None else min(wanted, left)
    if add:
        order_nodes(plan, pool, [()] * add, "hand")
    if add < wanted:
        return Accepted(note=f"nodes ordered: {add} of {wanted}; those that are lost or on their way out count for max")
    return Accepted(note=f"nodes ordered: {add}")


def forget_orders(plan: Plan, pools: Mapping[str, PoolSettings]) -> None:
    """End the orders of pools that are removed from the configuration or lose their provider."""
    partition = plan.partition
    for number in sorted(partition.orders):
        order = partition.orders[number]
        if order.pool not in pools or not pools[order.pool].provider:
            plan.do(OrderFailed(number, tuple(order.coming), f"pool {order.pool} left the configuration"))
