"""Pools by price: how much of a new node of each pool is expected to be lost once it runs a task."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.core.model import Pool
from fairlead.core.policy.expected_loss import Usual, prices_of, waste_of
from fairlead.core.policy.fragmentation import Task, Workload
from fairlead.core.policy.placement import PLACEMENTS, Fleet, Node, least_lost
from fairlead.core.pools.sizes import takes
from fairlead.core.resources import CPU, GPU
from fairlead.core.shape import WHOLE_DEVICE, Shape
from fairlead.core.state import Partition


def losses(partition: Partition, shape: Shape, pools: Sequence[Pool]) -> dict[str, int]:
    """Return the expected loss on a node of each pool with one task; empty unless the placement uses prices."""
    place = PLACEMENTS.get(partition.settings.place)
    if not shape.gpus or len(pools) < 2 or place is None or not place.prices:
        return {}
    known = [(Shape(key), weight) for key, weight in partition.mix.requests]
    asked = {name for each in (shape, *[usual for usual, _ in known]) for name, _ in each.amounts}
    names = [CPU, *sorted(asked - {CPU, GPU})]
    tasks = [(_task(usual, names), weight) for usual, weight in known]
    gpu = shape.plugged or GPU
    nodes = [dict(pool.settings.node) for pool in pools]
    empty = [(tuple([node.get(name, 0) for name in names]), node.get(gpu, 0) // WHOLE_DEVICE) for node in nodes]
    usual = [
        Usual(task, weight, frozenset([at for at, pool in enumerate(pools) if takes(pool, each)]))
        for (task, weight), (each, _) in zip(tasks, known, strict=True)
    ]
    task = _task(shape, names)
    lost: dict[str, int] = {}
    for pool, (free, devices), prices in zip(
        pools,
        empty,
        prices_of(usual, [{node: 1} for node in empty], waste_of(tasks), partition.mix.ending),
        strict=True,
    ):
        node = Node(free, free, (0,) * devices)
        after = node.after(task, least_lost(node, task, Fleet(0, 0, Workload(()), prices)))
        lost[pool.name] = prices.lost(after.free, after.device_use)
    return lost


def _task(shape: Shape, names: Sequence[str]) -> Task:
    amounts = dict(shape.amounts)
    return Task(tuple([amounts.get(name, 0) for name in names]), shape.gpus, shape.gpu_milli)
