"""Free capacity of nodes in a supposed state, such as at a later time by the estimates of running tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from fairlead.core.ahead.expected_ends import end_of
from fairlead.core.asks import is_single
from fairlead.core.changes import Part
from fairlead.core.holds.earmarks import is_only_ordered
from fairlead.core.model import FAR, Allocation, Hold, Micros, Promise, Queue
from fairlead.core.node_fit import fitting_in, may_take
from fairlead.core.ranges import count, indices
from fairlead.core.resources import Vector, add
from fairlead.core.shape import Shape
from fairlead.core.state import Partition
from fairlead.core.why.never import MANY


class WhatIf:
    """A supposed state of nodes. Each node is read from the partition when it is first needed."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._nodes: dict[int, tuple[Vector, list[int]]] = {}
        self._shared: dict[int, None] = {}
        """Earmarked nodes whose promised capacity counts as used, so that all asks may use the rest."""
        self._back: dict[int, None] = {}
        """Backed-off nodes that count as usable."""
        self.own: Collection[int] = ()
        """The nodes that are held for the ask in question."""

    def count_on(self, node_id: int) -> None:
        """Count a backed-off or disconnected node as usable, because it will accept tasks again soon."""
        self._back[node_id] = None

    def set_aside(self, promise: Promise) -> None:
        """Count the capacity that is promised on ordered nodes as used."""
        for node_id, position, tasks in promise.places:
            shape = self.partition.jobs[promise.job].stages[position].shape
            if self.slots(node_id, shape, tasks) >= tasks:
                self.put(node_id, shape, tasks)
            if is_only_ordered(self.partition, node_id):
                self._shared[node_id] = None

    def fitting(self, node_id: int, shape: Shape, most: int = MANY) -> int:
        """Return the number of tasks of a shape that fit on a node, up to `most`; 0 if they may not use the node."""
        return self.slots(node_id, shape, 1 if shape.key.apart else most) if self.takes(node_id, shape) else 0

    def takes(self, node_id: int, shape: Shape) -> bool:
        """True if tasks of a shape may use a node, whatever is free there."""
        nodes = self.partition.nodes
        row = nodes.rows[node_id]
        if self.is_kept(node_id):
            return False
        usable = nodes.placeable(row) or (node_id in self._back and nodes.usable(row))
        return usable and may_take(nodes, row, shape)

    def is_kept(self, node_id: int) -> bool:
        """True if a node is kept for other asks."""
        return node_id in self.partition.nodes.held and node_id not in self._shared and node_id not in self.own

    def slots(self, node_id: int, shape: Shape, most: int) -> int:
        """Return the number of tasks that fit on a node, even if they may not use it."""
        return fitting_in(*self._node(node_id), shape, most)[0]

    def end(self, allocation: Allocation) -> None:
        self.take(allocation.node, allocation.stage.shape, -count(allocation.indices), allocation.devices)

    def take(self, node_id: int, shape: Shape, tasks: int, devices: tuple[int, ...]) -> None:
        """Add tasks to a node, or remove them if `tasks` is negative."""
        free, used = self._node(node_id)
        add(free, shape.resources, -tasks)
        for device in devices:
            if device < len(used):
                used[device] += shape.device_milli if tasks > 0 else -shape.device_milli

    def without(self, placed: list[tuple[Shape, Part]]) -> None:
        """Read the nodes of some tasks as they were before these tasks were placed."""
        new = [(shape, part) for shape, part in placed if part.node not in self._nodes]
        for shape, part in new:
            self.take(part.node, shape, -count(part.indices), part.devices)

    def pack(self, node_id: int, shape: Shape, most: int) -> int:
        """Put up to `most` tasks on a node, if they fit. Returns their number."""
        tasks = self.fitting(node_id, shape, most)
        if tasks:
            self.put(node_id, shape, tasks)
        return tasks

    def put(self, node_id: int, shape: Shape, tasks: int) -> tuple[int, ...]:
        """Put tasks that fit on a node. Returns the devices they get."""
        devices = fitting_in(*self._node(node_id), shape, tasks)[1]
        self.take(node_id, shape, tasks, devices)
        return devices

    def end_some(self, allocation: Allocation, block: tuple[int, ...]) -> None:
        """End some tasks of an allocation."""
        self.take(allocation.node, allocation.stage.shape, -count(block), devices_of(allocation, block))

    def free_on(self, node_id: int) -> Vector:
        """Return the free resources of a node, without devices. Do not alter the result."""
        return self._node(node_id)[0]

    def left_on(self, node_id: int) -> tuple[tuple[tuple[str, int], ...], tuple[int, ...]]:
        """Return the free resources of a node and the used part of each device, as a key to compare nodes by."""
        free, used = self._node(node_id)
        return tuple(free.items()), tuple(used)

    def without_some(
        self, node_id: int, gone: Iterable[tuple[Allocation, tuple[int, ...]]]
    ) -> tuple[Vector, list[int]]:
        """Return the free resources of a node, and the used part of each device, without some tasks there."""
        free, used = self._node(node_id)
        free, used = dict(free), list(used)
        for allocation, block in gone:
            shape = allocation.stage.shape
            add(free, shape.resources, count(block))
            for device in devices_of(allocation, block):
                if device < len(used):
                    used[device] -= shape.device_milli
        return free, used

    def copy(self) -> WhatIf:
        other = WhatIf(self.partition)
        other._shared, other._back = dict(self._shared), dict(self._back)
        other.own = self.own
        other._nodes = {node_id: (dict(free), list(used)) for node_id, (free, used) in self._nodes.items()}
        return other

    def _node(self, node_id: int) -> tuple[Vector, list[int]]:
        free_and_used = self._nodes.get(node_id)
        if free_and_used is None:
            nodes = self.partition.nodes
            row = nodes.rows[node_id]
            free = {name: column[row] - nodes.used[name][row] for name, column in nodes.capacity.items()}
            free_and_used = self._nodes[node_id] = (free, nodes.devices[row][: nodes.gpus[row]])
        return free_and_used


def devices_of(allocation: Allocation, block: tuple[int, ...]) -> tuple[int, ...]:
    """Return the devices of some tasks of an allocation."""
    if not allocation.devices or block == allocation.indices:
        return allocation.devices
    per_task = len(allocation.devices) // max(1, count(allocation.indices))
    gone = set(indices(block))
    devices: tuple[int, ...] = ()
    for at, index in enumerate(indices(allocation.indices)):
        if index in gone:
            devices += allocation.devices[at * per_task : (at + 1) * per_task]
    return devices


def lent_nodes(
    partition: Partition, holds: Iterable[Hold], stops_at: Callable[[Partition, Queue], Micros]
) -> dict[int, Micros]:
    """Return node → time for nodes of holds: until then no holder can use the node, so other tasks may.

    `stops_at` returns when the loans of a queue are stopped. From then on, the nodes of a recall are not lent.
    """
    lent: dict[int, Micros] = {}
    for hold in holds:
        stages, ask = partition.jobs[hold.job].stages, partition.ask_of_earmark(hold)
        single = ask is not None and is_single(ask)
        ready = {
            node_id: _fits_at(partition, node_id, stages[position].shape, 1 if single else tasks)
            for node_id, position, tasks in hold.places
        }
        if not single:
            # A gang starts when its last node is free. If that time is unknown, it may start at any time.
            whole = None if None in ready.values() else max([when for when in ready.values() if when is not None])
            ready = dict.fromkeys(ready, whole)
        last = stops_at(partition, ask.stage.job.queue) if hold.recalled and ask is not None else FAR
        for node_id, when in ready.items():
            until = partition.now if when is None else min(when, last)
            lent[node_id] = min(lent.get(node_id, until), until)
    return {node_id: until for node_id, until in lent.items() if until > partition.now}


def _fits_at(partition: Partition, node_id: int, shape: Shape, tasks: int) -> Micros | None:
    """Return the time from which a number of tasks fit on a node; None if it is unknown."""
    whatif = WhatIf(partition)
    ends: list[tuple[Micros, int, Allocation]] = []
    for allocation in partition.nodes.allocations[partition.nodes.rows[node_id]].values():
        end = end_of(allocation, partition.now)
        if end is not None and not allocation.slots:
            ends.append((end, allocation.id, allocation))
    when = partition.now
    for end, _, allocation in sorted(ends, key=lambda entry: entry[:2]):
        if whatif.slots(node_id, shape, tasks) >= tasks:
            break
        whatif.end(allocation)
        when = end
    return when if whatif.slots(node_id, shape, tasks) >= tasks else None
