"""Counts the tasks of a shape that fit a node: now, when it is empty, or beside other tasks."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.core.node_table import NodeTable
from fairlead.core.policy.fit import choose_devices, count_fitting
from fairlead.core.resources import GPU, Vector, add
from fairlead.core.shape import Shape

Wanted = Iterable[tuple[Shape, int]]
"""Shapes, and the number of tasks of each."""


def fitting_beside(nodes: NodeTable, node_id: int, others: Wanted, shape: Shape, most: int) -> int:
    """Return the number of tasks of a shape, at most `most`, that fit a node which runs only `others`.

    Return -1 if `others` alone do not fit.
    """
    row = nodes.rows[node_id]
    taken: Vector = {}
    devices = [0] * nodes.gpus[row]
    for other, tasks in others:
        add(taken, other.resources, tasks)
        if other.devices:
            chosen = choose_devices(devices, len(devices), other.devices, other.device_milli, tasks)
            if len(chosen) < other.devices * tasks:
                return -1
            for device in chosen:
                devices[device] += other.device_milli
    free = {name: column[row] - taken.get(name, 0) for name, column in nodes.capacity.items()}
    if any(free.get(name, -amount) < 0 for name, amount in taken.items()):
        return -1
    return fitting_in(free, devices, shape, most)[0]


def fitting_now(nodes: NodeTable, node_id: int, shape: Shape, most: int) -> tuple[int, tuple[int, ...]]:
    """Return the number of tasks of a shape that fit a node now, up to `most`, and the devices they get."""
    row = nodes.rows[node_id]
    free = {name: column[row] - nodes.used[name][row] for name, column in nodes.capacity.items()}
    return fitting_in(free, nodes.devices[row][: nodes.gpus[row]], shape, most)


def fitting_in(free: Vector, devices: list[int], shape: Shape, most: int) -> tuple[int, tuple[int, ...]]:
    """Return the number of tasks that fit free resources and devices, up to `most`, and the devices they get.

    `devices` lists the used milli-GPU of each device.
    """
    most = count_fitting([(free.get(name, 0), amount) for name, amount in shape.amounts if name != GPU], most)
    if not shape.devices or not most:
        return most, ()
    chosen = choose_devices(devices, len(devices), shape.devices, shape.device_milli, most)
    return len(chosen) // shape.devices, chosen


def may_take(nodes: NodeTable, row: int, shape: Shape) -> bool:
    """True if a node accepts tasks of a shape when it has capacity."""
    return nodes.manager[row] == shape.key.manager and shape.accepts(
        nodes.labels[row], nodes.taints[row], nodes.pool[row], nodes.users[row]
    )
