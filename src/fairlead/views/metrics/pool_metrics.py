"""Figures of pools: the nodes they have, the nodes that waiting tasks need, and the nodes that are coming."""

from __future__ import annotations

import msgspec

from fairlead.core.pools.capacity import plan_capacity
from fairlead.core.pools.sizes import coming_nodes
from fairlead.core.state import Partition

LOOKED = 1_000
"""Maximum number of asks that are evaluated for `PoolFigures.pending`."""


class PoolFigures(msgspec.Struct, frozen=True):
    """Numbers of nodes. `available` nodes are idle and accept work: they are not disabled, held or promised."""

    total: int
    available: int
    pending: int
    """Nodes that waiting tasks need, of asks that may start. Only `LOOKED` asks are evaluated, because the writer waits
    meanwhile; the others are assumed to need nodes in proportion."""
    ordered: int
    disabled: int

    @property
    def idle(self) -> int:
        """Return the number of available nodes that no waiting task needs; negative if nodes are missing."""
        return self.available - self.pending


def pool_figures(partition: Partition, others: bool = False) -> dict[str, PoolFigures] | None:
    """Return figures by pool, for configured pools and pools that nodes name; None before the partition is ready.

    With `others`, those of the nodes without a pool are added, under the empty name.
    """
    if not partition.readiness.ready:
        return None
    nodes = partition.nodes
    names = sorted(
        {*partition.pools, *(nodes.pool[row] for row in nodes.rows.values() if nodes.pool[row]), *[""] * others}
    )
    if not names:
        return {}
    outlook = plan_capacity(partition, bounded=False, most=LOOKED)
    new = {name: len(lacking) * (LOOKED + outlook.left) // LOOKED for name, lacking in outlook.new.items()}
    total, available, disabled, pending = ({name: 0 for name in names} for _ in range(4))
    for node_id, row in nodes.rows.items():
        name = nodes.pool[row]
        if name in total and not nodes.manager[row] and nodes.state[row] != "lost":
            total[name] += 1
            disabled[name] += nodes.state[row] == "disabled"
            available[name] += nodes.placeable(row) and not nodes.allocations[row] and node_id not in nodes.held
            pending[name] += node_id in outlook.used
    return {
        name: PoolFigures(
            total[name],
            available[name],
            pending[name] + outlook.coming.get(name, 0) + new.get(name, 0),
            coming_nodes(partition, partition.pools[name]) if name in partition.pools else 0,
            disabled[name],
        )
        for name in names
    }
