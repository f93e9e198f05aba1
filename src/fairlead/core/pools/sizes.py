"""Of a pool: how many nodes it has, has coming and may have, whether it may order now, and what its nodes take."""

from __future__ import annotations

from fairlead.core.holds.room import room_for
from fairlead.core.model import Micros, Pool
from fairlead.core.resources import GPU
from fairlead.core.shape import WHOLE_DEVICE, Shape
from fairlead.core.state import Partition


def size_of(partition: Partition, pool: Pool) -> int:
    """How many nodes it has, but for those that are lost or given back."""
    nodes = partition.nodes
    return sum(
        nodes.pool[row] == pool.name and nodes.state[row] != "lost" and node_id not in partition.unwanted
        for node_id, row in nodes.rows.items()
    )


def takes(pool: Pool, shape: Shape) -> bool:
    """Whether a node of the pool, with nothing else on it, takes a task of a shape."""
    settings = pool.settings
    if shape.key.manager or not shape.accepts(dict(settings.labels), settings.taints, pool.name):
        return False
    node = dict(settings.node)
    return bool(room_for(node, [0] * (node.get(GPU, 0) // WHOLE_DEVICE), shape, 1)[0])


def grows(partition: Partition, pool: Pool, now: Micros) -> bool:
    """True if the pool may be asked for nodes at a time."""
    return pool.elastic and not pool.paused and paused_until(partition, pool) <= now


def paused_until(partition: Partition, pool: Pool) -> Micros:
    """When the pool may be asked again after a failed order."""
    return partition.reign.pause_ends(pool.paused_until, partition.settings.pool_pause)


def nodes_left(partition: Partition, pool: Pool) -> int | None:
    """How many nodes more it may have; None if as many as one likes. Lost ones count: they may come back."""
    most = pool.settings.max
    if most is None:
        return None
    present = sum(partition.nodes.pool[row] == pool.name for row in partition.nodes.rows.values())
    return max(0, most - present - coming_nodes(partition, pool))


def coming_nodes(partition: Partition, pool: Pool) -> int:
    return sum(len(order.coming) for order in partition.orders.values() if order.pool == pool.name)
