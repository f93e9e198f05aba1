"""The map of a partition's nodes for the web page, in columns, and what changed in it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fairlead.core.model import Micros
from fairlead.core.nodes import NodeTable
from fairlead.core.ranges import count
from fairlead.core.resources import CPU, MEMORY, MILLI
from fairlead.core.state import Partition
from fairlead.views.answers import node_state, queue_answer
from fairlead.wire import api as wire

STATES = ("up", "disconnected", "draining", "disabled", "lost")
MAX_VALUES = 200
"""A label with more values groups nothing, and is left out."""
TENTHS = "0123456789A"


def ordered_rows(nodes: NodeTable) -> list[int]:
    """Return the rows of all nodes in the order in which they joined."""
    return [nodes.rows[node_id] for node_id in sorted(nodes.rows)]


def node_row(nodes: NodeTable, row: int) -> wire.NodeRow:
    node_id = nodes.node_id[row]
    devices = nodes.devices[row]
    return wire.NodeRow(
        STATES.index(node_state(nodes, row)),
        (node_id in nodes.held) + 2 * (node_id in nodes.avoided),
        _percent(nodes, CPU, row),
        _percent(nodes, MEMORY, row),
        sum(count(allocation.indices) for allocation in nodes.allocations[row].values() if not allocation.rooms),
        "".join([TENTHS[min(10, -(-used * 10 // MILLI))] for used in devices]),
    )


def _percent(nodes: NodeTable, resource: str, row: int) -> int:
    column = nodes.capacity.get(resource)
    capacity = column[row] if column else 0
    return min(999, 100 * nodes.used[resource][row] // capacity) if capacity > 0 else 0


def static_columns(nodes: NodeTable, rows: list[int]) -> dict[str, object]:
    """Return the columns of a map that change only when nodes join, leave or are altered."""
    cpus, memory = (nodes.capacity.get(name) for name in (CPU, MEMORY))
    labels = sorted({key for row in rows for key in nodes.labels[row]})
    groups = {label: _groups([nodes.labels[row].get(label) for row in rows]) for label in labels}
    return {
        "names": [nodes.name[row] for row in rows],
        "cpus": [cpus[row] / MILLI if cpus else 0.0 for row in rows],
        "memory": [memory[row] if memory else 0 for row in rows],
        "pools": _groups([nodes.pool[row] or None for row in rows]),
        "labels": {label: group for label, group in groups.items() if len(group.values) <= MAX_VALUES},
    }


def _groups(column: list[str | None]) -> wire.NodeGroups:
    values = sorted({value for value in column if value is not None})
    place = {value: at for at, value in enumerate(values)}
    return wire.NodeGroups(values=values, of=[-1 if value is None else place[value] for value in column])


def map_queues(partition: Partition, now: Micros, paths: Iterable[str] | None = None) -> dict[str, wire.Queue]:
    """Return queues by path, with percentages in tenths, so that a map changes only when they are seen to change."""
    queues = {path: partition.queues[path] for path in (sorted(partition.queues) if paths is None else paths)}
    return {path: _rounded(queue_answer(partition, queue, now)) for path, queue in queues.items()}


def _rounded(queue: wire.Queue) -> wire.Queue:
    fields = ("entitlement_percent", "use_percent", "loan_percent", "past_percent")
    users = [
        msgspec.structs.replace(user, use_percent=round(user.use_percent, 1), past_percent=round(user.past_percent, 1))
        for user in queue.users
    ]
    return msgspec.structs.replace(queue, users=users, **{field: round(getattr(queue, field), 1) for field in fields})
