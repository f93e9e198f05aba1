"""Of a pool: how many nodes it has, has coming and may have, whether it may order now, and what its nodes take."""

from __future__ import annotations

from fairlead.core.holding import room_for
from fairlead.core.model import Micros, Pool
from fairlead.core.resources import GPU
from fairlead.core.shape import WHOLE_DEVICE, Shape
from fairlead.core.state import Partition


def size_of(p: Partition, pool: Pool) -> int:
    """How many nodes it has, but for those that are lost or given back."""
    nodes = p.nodes
    return sum(
        nodes.pool[row] == pool.name and nodes.state[row] != "lost" and join not in p.unwanted
        for join, row in nodes.rows.items()
    )


def takes(pool: Pool, shape: Shape) -> bool:
    """Whether a node of the pool, with nothing else on it, takes a task of a shape."""
    settings = pool.settings
    if shape.key.manager or not shape.accepts(dict(settings.labels), settings.taints, pool.name):
        return False
    node = dict(settings.node)
    return bool(room_for(node, [0] * (node.get(GPU, 0) // WHOLE_DEVICE), shape, 1)[0])


def grows(p: Partition, pool: Pool, now: Micros) -> bool:
    """True if the pool may be asked for nodes at a time."""
    return pool.elastic and not pool.paused and paused_until(p, pool) <= now


def paused_until(p: Partition, pool: Pool) -> Micros:
    """When the pool may be asked again after a failed order."""
    return p.reign.pause_ends(pool.paused_until, p.settings.pool_pause)


def nodes_left(p: Partition, pool: Pool) -> int | None:
    """How many nodes more it may have; None if as many as one likes. Lost ones count: they may come back."""
    most = pool.settings.max
    if most is None:
        return None
    present = sum(p.nodes.pool[row] == pool.name for row in p.nodes.rows.values())
    return max(0, most - present - coming_nodes(p, pool))


def coming_nodes(p: Partition, pool: Pool) -> int:
    return sum(len(order.coming) for order in p.orders.values() if order.pool == pool.name)
