"""Pool sizes: current, ordered and allowed; whether a pool may order now, and which shapes its nodes accept."""

from __future__ import annotations

from collections.abc import Container

from fairlead.core.model import Micros, Pool
from fairlead.core.node_fit import fitting_in
from fairlead.core.resources import GPU, Vector
from fairlead.core.shape import WHOLE_DEVICE, Shape
from fairlead.core.state import Partition


def size_of(partition: Partition, pool: Pool) -> int:
    """Return the number of nodes of a pool, without those that are lost or given back."""
    nodes = partition.nodes
    return sum(
        nodes.pool[row] == pool.name and nodes.state[row] != "lost" and node_id not in partition.unwanted
        for node_id, row in nodes.rows.items()
    )


def free_in(partition: Partition, pool: Pool, without: Container[int]) -> Vector:
    """Return the free amounts of the resources in `min_free`, over the nodes of a pool that are not in `without`."""
    nodes, free = partition.nodes, dict.fromkeys(dict(pool.settings.min_free), 0)
    for node_id, row in nodes.rows.items():
        if nodes.pool[row] == pool.name and nodes.state[row] == "up" and node_id not in nodes.held:
            for name in free if node_id not in without else ():
                if name in nodes.capacity:
                    free[name] += max(0, nodes.capacity[name][row] - nodes.used[name][row])
    return free


def takes(pool: Pool, shape: Shape) -> bool:
    """True if an empty node of the pool fits a task of a shape."""
    settings = pool.settings
    if shape.key.manager or not shape.accepts(dict(settings.labels), settings.taints, pool.name):
        return False
    node = dict(settings.node)
    return bool(fitting_in(node, [0] * (node.get(GPU, 0) // WHOLE_DEVICE), shape, 1)[0])


def grows(partition: Partition, pool: Pool, now: Micros) -> bool:
    """True if the pool may order nodes: it has a provider and no pause."""
    return pool.elastic and not pool.paused and paused_until(partition, pool) <= now


def paused_until(partition: Partition, pool: Pool) -> Micros:
    """Return the time from which the pool may order again after a failed order."""
    return partition.readiness.pause_ends(pool.paused_until, partition.settings.pool_pause)


def nodes_left(partition: Partition, pool: Pool) -> int | None:
    """Return the number of nodes that a pool may still get; None if unlimited. Lost nodes count: they may come back."""
    most = pool.settings.max
    if most is None:
        return None
    present = sum(partition.nodes.pool[row] == pool.name for row in partition.nodes.rows.values())
    return max(0, most - present - coming_nodes(partition, pool))


def coming_nodes(partition: Partition, pool: Pool) -> int:
    """Return the number of ordered nodes that have not joined."""
    return sum(len(order.coming) for order in partition.orders.values() if order.pool == pool.name)
