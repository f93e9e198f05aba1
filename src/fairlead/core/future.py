"""What will be free at some time, by the estimates of what runs: on any node, or on those that are held."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fairlead.core.changes import Part
from fairlead.core.explain import MANY
from fairlead.core.forecast import end_of
from fairlead.core.holding import came_for_some, may_take, room_for
from fairlead.core.model import Allocation, Micros, Promise
from fairlead.core.ranges import count, indices
from fairlead.core.resources import Vector, add
from fairlead.core.shape import Shape
from fairlead.core.state import Partition


class Future:
    """What will be free on nodes at some time. Nodes are looked at when somebody asks for them."""

    def __init__(self, p: Partition) -> None:
        self.p = p
        self._nodes: dict[int, tuple[Vector, list[int]]] = {}
        self._shared: dict[int, None] = {}
        """Nodes that are kept for some, whose part is taken already; the rest is for everybody."""
        self._back: dict[int, None] = {}
        """Nodes that are backed off and counted on all the same."""
        self.own: Collection[int] = ()
        """The nodes that are held for the ask that the question is about."""

    def count_on(self, join: int) -> None:
        """A node that is backed off takes tasks again before long."""
        self._back[join] = None

    def set_aside(self, promise: Promise) -> None:
        """Take the room on nodes that were ordered for some who wait for more."""
        for join, position, tasks in promise.places:
            shape = self.p.jobs[promise.job].stages[position].shape
            if self.slots(join, shape, tasks) >= tasks:
                self.put(join, shape, tasks)
            if came_for_some(self.p, join):
                self._shared[join] = None

    def room(self, join: int, shape: Shape, most: int = MANY) -> int:
        return self.slots(join, shape, 1 if shape.key.apart else most) if self.takes(join, shape) else 0

    def takes(self, join: int, shape: Shape) -> bool:
        """Whether a node takes tasks of a shape, if there is room."""
        nodes = self.p.nodes
        row = nodes.rows[join]
        if join in nodes.held and join not in self._shared and join not in self.own:
            return False
        usable = nodes.placeable(row) or (join in self._back and nodes.usable(row))
        return usable and may_take(nodes, row, shape)

    def slots(self, join: int, shape: Shape, most: int) -> int:
        """The same for those who may use the node, whoever else may not."""
        return room_for(*self._node(join), shape, most)[0]

    def end(self, allocation: Allocation) -> None:
        self.take(allocation.node, allocation.stage.shape, -count(allocation.indices), allocation.devices)

    def take(self, join: int, shape: Shape, tasks: int, devices: tuple[int, ...]) -> None:
        """Tasks will be there; below 0, they will have gone."""
        free, used = self._node(join)
        add(free, shape.resources, -tasks)
        for device in devices:
            if device < len(used):
                used[device] += shape.device_milli if tasks > 0 else -shape.device_milli

    def without(self, placed: list[tuple[Shape, Part]]) -> None:
        """Learn of nodes as they were before something was placed there, just now."""
        new = [(shape, part) for shape, part in placed if part.node not in self._nodes]
        for shape, part in new:
            self.take(part.node, shape, -count(part.indices), part.devices)

    def pack(self, join: int, shape: Shape, most: int) -> int:
        """Set down as many tasks as there is room for, up to a number. Returns how many."""
        tasks = self.room(join, shape, most)
        if tasks:
            self.put(join, shape, tasks)
        return tasks

    def put(self, join: int, shape: Shape, tasks: int) -> tuple[int, ...]:
        """Set down tasks for which there is room. Returns the devices they get."""
        devices = room_for(*self._node(join), shape, tasks)[1]
        self.take(join, shape, tasks, devices)
        return devices

    def end_some(self, allocation: Allocation, block: tuple[int, ...]) -> None:
        """Only some tasks of an allocation will have gone."""
        self.take(allocation.node, allocation.stage.shape, -count(block), _devices_of(allocation, block))

    def free_on(self, join: int) -> Vector:
        """What will be free on a node, but for devices; not to be altered."""
        return self._node(join)[0]

    def without_some(self, join: int, gone: Iterable[tuple[Allocation, tuple[int, ...]]]) -> tuple[Vector, list[int]]:
        """What would be free on a node, and used of its devices, if some tasks there were gone too."""
        free, used = self._node(join)
        free, used = dict(free), list(used)
        for allocation, block in gone:
            shape = allocation.stage.shape
            add(free, shape.resources, count(block))
            for device in _devices_of(allocation, block):
                if device < len(used):
                    used[device] -= shape.device_milli
        return free, used

    def copy(self) -> Future:
        other = Future(self.p)
        other._shared, other._back = dict(self._shared), dict(self._back)
        other.own = self.own
        other._nodes = {join: (dict(free), list(used)) for join, (free, used) in self._nodes.items()}
        return other

    def _node(self, join: int) -> tuple[Vector, list[int]]:
        known = self._nodes.get(join)
        if known is None:
            nodes = self.p.nodes
            row = nodes.rows[join]
            free = {name: column[row] - nodes.used[name][row] for name, column in nodes.capacity.items()}
            known = self._nodes[join] = (free, nodes.devices[row][: nodes.gpus[row]])
        return known


def _devices_of(allocation: Allocation, block: tuple[int, ...]) -> tuple[int, ...]:
    """The devices of some tasks of an allocation."""
    if not allocation.devices or block == allocation.indices:
        return allocation.devices
    per_task = len(allocation.devices) // max(1, count(allocation.indices))
    gone = set(indices(block))
    devices: tuple[int, ...] = ()
    for at, index in enumerate(indices(allocation.indices)):
        if index in gone:
            devices += allocation.devices[at * per_task : (at + 1) * per_task]
    return devices


def lent_nodes(p: Partition) -> dict[int, Micros]:
    """The held nodes that none of those they are held for can use before some time."""
    lent: dict[int, Micros] = {}
    for hold in p.holds.values():
        when = p.now
        for join, position, tasks in hold.places:
            free = _free_at(p, join, p.jobs[hold.job].stages[position].shape, tasks)
            if free is None:
                when = p.now  # it may start at any time
                break
            when = max(when, free)
        for join in hold.nodes:
            lent[join] = min(lent.get(join, when), when)
    return {join: until for join, until in lent.items() if until > p.now}


def _free_at(p: Partition, join: int, shape: Shape, tasks: int) -> Micros | None:
    """When there will be room for so many tasks on a node; None if that is not known."""
    future = Future(p)
    ends: list[tuple[Micros, int, Allocation]] = []
    for allocation in p.nodes.allocations[p.nodes.rows[join]].values():
        end = end_of(allocation, p.now)
        if end is not None and not allocation.rooms:
            ends.append((end, allocation.id, allocation))
    when = p.now
    for end, _, allocation in sorted(ends, key=lambda each: each[:2]):
        if future.slots(join, shape, tasks) >= tasks:
            break
        future.end(allocation)
        when = end
    return when if future.slots(join, shape, tasks) >= tasks else None
