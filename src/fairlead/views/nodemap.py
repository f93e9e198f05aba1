"""The map of a partition's nodes for the web page: one row for each node, and columns that seldom change."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import msgspec

from fairlead.core.ahead.expected_ends import end_of
from fairlead.core.model import Allocation, Micros
from fairlead.core.node_table import NodeTable
from fairlead.core.ranges import count, indices
from fairlead.core.resources import CPU, MEMORY, MILLI, SECOND
from fairlead.core.state import Partition
from fairlead.views.answers import NAMED, SeesJob, amounts, node_state, queue_answer
from fairlead.wire import api as wire

STATES = ("up", "disconnected", "draining", "disabled", "lost")
MAX_VALUES = 200
"""Labels with more values are left out, because they do not group nodes usefully."""
MAX_STAGES = 60
"""The greatest number of stages of which tasks are listed for a node."""
TENTHS = "0123456789A"


def ordered_rows(nodes: NodeTable) -> list[int]:
    """Return the rows of all nodes in join order."""
    return [nodes.rows[node_id] for node_id in sorted(nodes.rows)]


def node_row(partition: Partition, row: int) -> wire.NodeRow:
    nodes = partition.nodes
    node_id = nodes.node_id[row]
    devices = nodes.devices[row]
    return wire.NodeRow(
        STATES.index(node_state(partition, row)),
        (node_id in nodes.held) + 2 * (node_id in nodes.avoided),
        _percent(nodes, CPU, row),
        _percent(nodes, MEMORY, row),
        sum(count(allocation.indices) for allocation in nodes.allocations[row].values() if not allocation.slots),
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


def map_tasks(partition: Partition, names: Iterable[str], sees: SeesJob, now: Micros) -> wire.MapTasks:
    """Return the live tasks of nodes in the order of their start. Unknown nodes are left out."""
    nodes = partition.nodes
    found: list[wire.NodeTasks] = []
    more = False
    for name in dict.fromkeys(names):
        node_id = nodes.find(name)
        if node_id is None:
            continue
        alike: dict[tuple[str, str, str], list[Allocation]] = {}
        for allocation in nodes.allocations[nodes.rows[node_id]].values():
            if not allocation.slots:
                stage = allocation.stage
                alike.setdefault((stage.job.id, stage.name, allocation.state), []).append(allocation)
        listed = sorted(alike.values(), key=lambda group: (min(map(_since, group)), group[0].id))
        more = more or len(listed) > MAX_STAGES
        found += [_tasks_answer(name, group, sees, now) for group in listed[:MAX_STAGES]]
    return wire.MapTasks(tasks=found, more=more)


def _since(allocation: Allocation) -> Micros:
    return allocation.since if allocation.started is None else allocation.started


def _tasks_answer(node: str, group: list[Allocation], sees: SeesJob, now: Micros) -> wire.NodeTasks:
    """Return tasks of one stage and state on a node. Only callers that may see their job learn whose tasks they are."""
    stage = group[0].stage
    answer = wire.NodeTasks(
        node=node,
        job="",
        name="",
        stage="",
        user="",
        state=group[0].state,
        tasks=sum(count(allocation.indices) for allocation in group),
        indices=[],
        resources=amounts(stage.spec.resources),
        devices=sorted(device for allocation in group for device in allocation.devices),
        since=min(map(_since, group)) / SECOND,
        ends=None,
    )
    if not sees(stage.job):
        return answer
    ends = [end_of(allocation, now) for allocation in group]
    known = [end for end in ends if end is not None]
    first = (index for allocation in group for index in indices(allocation.indices))
    return msgspec.structs.replace(
        answer,
        job=stage.job.id,
        name=stage.job.spec.name,
        stage=stage.name,
        user=stage.job.user,
        indices=sorted(islice(first, NAMED)),
        ends=max(known) / SECOND if len(known) == len(ends) else None,
    )


def map_queues(partition: Partition, now: Micros, paths: Iterable[str] | None = None) -> dict[str, wire.Queue]:
    """Return queues by path, without the use of users.

    Percentages are rounded to tenths, so that no change is sent that cannot be seen.
    """
    queues = {path: partition.queues[path] for path in (sorted(partition.queues) if paths is None else paths)}
    return {path: _rounded(queue_answer(partition, queue, now)) for path, queue in queues.items()}


def _rounded(queue: wire.Queue) -> wire.Queue:
    fields = ("entitlement_percent", "use_percent", "loan_percent", "past_percent")
    return msgspec.structs.replace(queue, **{field: round(getattr(queue, field), 1) for field in fields})
