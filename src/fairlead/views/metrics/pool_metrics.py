"""The use of pools: their present nodes, the nodes that waiting tasks need, and the ordered nodes."""

from __future__ import annotations

from collections import Counter as Tally

from fairlead.core.pools.capacity import Outlook, plan_capacity
from fairlead.core.pools.sizes import coming_nodes
from fairlead.core.state import Partition
from fairlead.wire.api import PoolUse

LOOKED = 1_000
"""Maximum number of asks that are evaluated for `PoolUse.pending`, because the writer waits meanwhile. The other asks
are assumed to need nodes in proportion."""


def pool_figures(partition: Partition, others: bool = False) -> dict[str, PoolUse] | None:
    """Return the use of configured pools, and of pools that only nodes name; None before the partition is ready.

    With `others`, the use of the nodes without a pool is added, under the empty name.
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
    uses = {name: Tally[str]() for name in names}
    for name, use in uses.items():
        missing = len(outlook.new.get(name, ())) * (LOOKED + outlook.left) // LOOKED
        use["pending"] = outlook.coming.get(name, 0) + missing
        use["ordered"] = coming_nodes(partition, partition.pools[name]) if name in partition.pools else 0
    _count_nodes(partition, outlook, uses)
    return {
        name: PoolUse(
            ready=True,
            idle=use["available"] - use["pending"],
            **{field: use[field] for field in ("total", "available", "pending", "ordered", "disabled")},
        )
        for name, use in uses.items()
    }


def _count_nodes(partition: Partition, outlook: Outlook, uses: dict[str, Tally[str]]) -> None:
    nodes = partition.nodes
    for node_id, row in nodes.rows.items():
        use = uses.get(nodes.pool[row])
        if use is None or nodes.manager[row] or nodes.state[row] == "lost":
            continue
        use["total"] += 1
        use["disabled"] += nodes.state[row] == "disabled"
        use["available"] += nodes.placeable(row) and not nodes.allocations[row] and node_id not in nodes.held
        use["pending"] += node_id in outlook.used
