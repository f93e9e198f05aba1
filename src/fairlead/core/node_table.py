"""The nodes of a partition: a table with a column per property and a row per node.

Outside this table a node is identified by its node id. Ids are never reused, so an outdated id never finds another
node; rows are reused. Columns are plain lists, which are fastest for single updates. `used` and `capacity` have one
list per resource; `devices` has the use of each GPU, in milli-GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from fairlead.core.model import DEFAULT_COST, Allocation, Earmark, NodeState, Place
from fairlead.core.resources import GPU, Vector
from fairlead.core.shape import WHOLE_DEVICE, Shape, plugged_in

VACANT = -1
VACANT_STATE: NodeState = "lost"
"""The state of a row without a node, so that the row is not counted as up."""


V = TypeVar("V")


def _put(values: dict[int, V], node_id: int, value: V | None) -> None:
    """Set the value of a node; None removes it."""
    if value is None:
        values.pop(node_id, None)
    else:
        values[node_id] = value


class NodeTable:
    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.joins: dict[str, int] = {}
        self.node_id: list[int] = []
        self.name: list[str] = []
        self.state: list[NodeState] = []
        self.pool: list[str] = []
        self.manager: list[str] = []
        self.labels: list[dict[str, str]] = []
        self.taints: list[tuple[str, ...]] = []
        self.users: list[tuple[str, ...]] = []
        """Only tasks of these users run on the node; empty for all users."""
        self.restricted = 0
        """The number of nodes for named users only."""
        self.capacity: dict[str, list[int]] = {}
        self.used: dict[str, list[int]] = {}
        self.devices: list[list[int]] = []
        self.allocations: list[dict[int, Allocation]] = []
        self.reasons: dict[int, str] = {}
        self.closed_until: dict[int, int] = {}
        """Id of a node that is drained or disabled for a time → when it is enabled again."""
        self.closing: dict[int, int] = {}
        """Id of a node that is drained from a time on → that time. Until then it takes tasks that end before."""
        """Node id → why an operator drained or disabled the node. A lost node keeps it for its return."""
        self.lost_from: dict[int, NodeState] = {}
        """Id of a lost node → the state that it gets when it returns, unless that is up."""
        self.failures: list[int] = []
        """The number of failed launches in a row."""
        self.pauses: list[int] = []
        """The number of pauses in a row; a pause follows failed launches."""
        self.avoided: dict[int, int] = {}
        """Node id → the end of its pause, before which it gets no work."""
        self.disconnected: dict[int, int] = {}
        """Node id → since when its agent is not connected. The node gets no new work."""
        self.held: dict[int, dict[int, list[Place]]] = {}
        """Node id → ask number → the places held or promised there. The index treats these nodes as full."""
        self.costs: dict[str, int] = {}
        """The cost of a node of each configured pool. Nodes of cheaper pools are used first."""
        self.over_rows: set[int] = set()
        """Rows of nodes with more use of a resource or device than they have. They get no new work."""
        self.gpus: list[int] = []
        """The number of devices by row."""
        self.plugged: list[str] = []
        """By row: the name of the GPUs of a device plugin; empty without, and if they are of two kinds or in parts."""
        self.with_gpus = 0
        """The number of nodes with GPUs of either kind."""
        self.whole_part: list[tuple[int, int]] = []
        """By row: the number of wholly free devices, and the largest free part of a device that is used in part."""
        self.used_since: dict[int, None] = {}
        """Ids of nodes whose use changed since the index was last updated."""
        self.altered_since: dict[int, None] = {}
        """Ids of nodes that were added, removed or otherwise changed since the index was last updated."""
        self.version = 0
        """Grows when nodes are added, removed or changed in anything but their use."""
        self.offered: dict[str, int] = {}
        """Resource → the number of nodes that have it."""
        self.up_count = 0
        """The number of nodes that are up or draining."""
        self.total: Vector = {}
        """The capacity of the nodes that are up or draining, of which shares are parts."""
        self._vacant: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, node_id: int) -> bool:
        return node_id in self.rows

    # -- adding, changing, removing ------------------------------------------------------------------------------

    def add(
        self,
        node_id: int,
        name: str,
        capacity: Mapping[str, int],
        labels: Mapping[str, str],
        taints: tuple[str, ...],
        pool: str,
        users: tuple[str, ...],
        manager: str,
        state: NodeState = "up",
    ) -> None:
        if node_id in self.rows or name in self.joins:
            raise ValueError(f"node {name} (join {node_id}) is already in the table")
        row = self._vacant.pop() if self._vacant else self._grow()
        self.rows[node_id] = row
        self.joins[name] = node_id
        self.node_id[row] = node_id
        self.name[row] = name
        self.manager[row] = manager
        self.set(node_id, capacity, labels, taints, pool, users)
        self.state[row] = state
        self._count(row, 1)

    def remove(self, node_id: int) -> None:
        """Remove a node that has no allocations left."""
        row = self.rows[node_id]
        if self.allocations[row]:
            raise ValueError(f"node {self.name[row]} still has allocations")
        self._count(row, -1)
        self.state[row] = VACANT_STATE
        self.set(node_id, {}, {}, (), "", ())
        self.failures[row] = self.pauses[row] = 0
        for values in (self.avoided, self.disconnected, self.lost_from, self.reasons, self.closed_until, self.closing):
            values.pop(node_id, None)
        self.node_id[row] = VACANT
        del self.joins[self.name[row]]
        del self.rows[node_id]
        self._vacant.append(row)

    def set(
        self,
        node_id: int,
        capacity: Mapping[str, int],
        labels: Mapping[str, str],
        taints: tuple[str, ...],
        pool: str,
        users: tuple[str, ...],
    ) -> None:
        row = self.rows[node_id]
        self._count(row, -1)
        self._set_capacity(row, capacity)
        self._count(row, 1)
        self.labels[row] = dict(labels)
        self.taints[row] = taints
        self.pool[row] = pool
        self._set_users(row, users)
        self._alter(node_id)

    def set_state(self, node_id: int, state: NodeState, lost_from: NodeState = "up") -> None:
        row = self.rows[node_id]
        _put(self.lost_from, node_id, lost_from if state == "lost" and lost_from != "up" else None)
        self._count(row, -1)
        self.state[row] = state
        self._count(row, 1)
        self._alter(node_id)

    def set_reason(self, node_id: int, reason: str) -> None:
        """Set why the node is drained or disabled; empty for no reason."""
        _put(self.reasons, node_id, reason or None)

    def close_until(self, node_id: int, until: int, begin: int) -> None:
        """Set when a drained or disabled node is enabled again; 0 if it stays so until a person enables it.

        With `begin`, it takes tasks that end before that time.
        """
        _put(self.closed_until, node_id, until or None)
        if begin != self.closing.get(node_id, 0):
            _put(self.closing, node_id, begin or None)
            self._alter(node_id)

    @property
    def aside(self) -> bool:
        """True if nodes outside of the index may take some tasks: held nodes, and nodes that close at a time."""
        return bool(self.held or self.closing)

    def avoid(self, node_id: int, failures: int, pauses: int, until: int) -> None:
        """Give a node no work until a time; 0 ends the pause."""
        row = self.rows[node_id]
        self.failures[row], self.pauses[row] = failures, pauses
        _put(self.avoided, node_id, until or None)
        self._alter(node_id)

    def connect(self, node_id: int, disconnected_since: int | None) -> None:
        """Record since when the agent of a node is not connected; None if it is."""
        _put(self.disconnected, node_id, disconnected_since)
        self._alter(node_id)

    def hold(self, earmark: Earmark) -> None:
        for place in earmark.places:
            self.held.setdefault(place[0], {}).setdefault(earmark.seq, []).append(place)
            self.altered_since[place[0]] = None

    def remove_earmark(self, earmark: Earmark) -> None:
        """Undo `hold`."""
        for node_id in earmark.nodes:
            holders = self.held[node_id]
            del holders[earmark.seq]
            if not holders:
                del self.held[node_id]
            self.altered_since[node_id] = None

    # -- use -----------------------------------------------------------------------------------------------------

    def book(self, allocation: Allocation, shape: Shape, tasks: int, devices: tuple[int, ...]) -> None:
        """Add an allocation with the use of `tasks` tasks of a shape on these devices, even beyond the capacity."""
        row = self._use(allocation.node, shape, tasks, devices)
        self.allocations[row][allocation.id] = allocation

    def book_all(
        self, node_id: int, allocations: Iterable[Allocation], shape: Shape, tasks: int, devices: tuple[int, ...]
    ) -> None:
        """Book several allocations of one shape on one node, which have `tasks` and `devices` together."""
        row = self._use(node_id, shape, tasks, devices)
        self.allocations[row].update({allocation.id: allocation for allocation in allocations})

    def _use(self, node_id: int, shape: Shape, tasks: int, devices: tuple[int, ...]) -> int:
        row = self.rows[node_id]
        for name, amount in shape.amounts:
            column = self.used.get(name)
            if column is None:
                column = self._add_column(name)
            column[row] += amount * tasks
            if column[row] > self.capacity[name][row]:
                self.over_rows.add(row)
        if devices:
            used = self.devices[row]
            for device in devices:
                while device >= len(used):
                    used.append(0)
                used[device] += shape.device_milli
                if used[device] > WHOLE_DEVICE or device >= self.gpus[row]:
                    self.over_rows.add(row)
            self._update_whole_part(row)
        self.used_since[node_id] = None
        return row

    def unbook(self, allocation: Allocation, shape: Shape, tasks: int, devices: tuple[int, ...]) -> None:
        """Undo `book`."""
        row = self.rows[allocation.node]
        for name, amount in shape.amounts:
            self.used[name][row] -= amount * tasks
        if devices:
            used = self.devices[row]
            for device in devices:
                used[device] -= shape.device_milli
            self._trim_devices(row)
            self._update_whole_part(row)
        if row in self.over_rows:
            self._update_over(row)
        del self.allocations[row][allocation.id]
        self.used_since[allocation.node] = None

    # -- queries -------------------------------------------------------------------------------------------------

    def in_order(self) -> Iterator[int]:
        """Yield the rows in use, ordered by node id."""
        for node_id in sorted(self.rows):
            yield self.rows[node_id]

    def cost_of(self, pool: str) -> int:
        """Return the cost of a node of a pool, or of a node without a pool."""
        return self.costs.get(pool, DEFAULT_COST)

    def find(self, name: str) -> int | None:
        return self.joins.get(name)

    def columns(self, name: str) -> tuple[list[int], list[int]]:
        """Return capacity and use of a resource by row. The lists stay up to date; they are not copies."""
        if name not in self.capacity:
            self._add_column(name)
        return self.capacity[name], self.used[name]

    def capacity_of(self, row: int) -> Vector:
        return {name: column[row] for name, column in sorted(self.capacity.items()) if column[row]}

    def used_by(self, row: int) -> Vector:
        return {name: column[row] for name, column in sorted(self.used.items()) if column[row]}

    def free(self, row: int) -> Vector:
        """Return the free resources, without resources that are used beyond the capacity."""
        return {
            name: free
            for name, column in sorted(self.capacity.items())
            if (free := column[row] - self.used[name][row]) > 0
        }

    def placeable(self, row: int) -> bool:
        """True if the node may get new work: it is up, connected, not avoided and not over."""
        node_id = self.node_id[row]
        return self.usable(row) and node_id not in self.avoided and node_id not in self.disconnected

    def takes_until(self, row: int) -> bool:
        """True if the node is drained from a time on, and may get tasks that end before."""
        node_id = self.node_id[row]
        closes = self.state[row] == "draining" and node_id in self.closing and row not in self.over_rows
        return closes and node_id not in self.avoided and node_id not in self.disconnected

    def usable(self, row: int) -> bool:
        """True if the node is up and not over, even if it is avoided or disconnected."""
        return self.state[row] == "up" and row not in self.over_rows

    # -- inside --------------------------------------------------------------------------------------------------

    def _alter(self, node_id: int) -> None:
        self.altered_since[node_id] = None
        self.version += 1

    def _grow(self) -> int:
        self.node_id.append(VACANT)
        self.state.append(VACANT_STATE)
        for names in (self.name, self.pool, self.manager):
            names.append("")
        for lists in (self.taints, self.users):
            lists.append(())
        self.labels.append({})
        self.devices.append([])
        self.plugged.append("")
        self.allocations.append({})
        self.whole_part.append((0, 0))
        for column in (self.failures, self.pauses, self.gpus, *self.capacity.values(), *self.used.values()):
            column.append(0)
        return len(self.node_id) - 1

    def _add_column(self, name: str) -> list[int]:
        self.capacity[name] = [0] * len(self.node_id)
        self.used[name] = [0] * len(self.node_id)
        return self.used[name]

    def _set_users(self, row: int, users: tuple[str, ...]) -> None:
        self.restricted += bool(users) - bool(self.users[row])
        self.users[row] = users

    def _set_capacity(self, row: int, capacity: Mapping[str, int]) -> None:
        for name in capacity:
            if name not in self.capacity:
                self._add_column(name)
        for name, column in self.capacity.items():
            before, column[row] = column[row], capacity.get(name, 0)
            if bool(before) != bool(column[row]):
                self.offered[name] = self.offered.get(name, 0) + (1 if column[row] else -1)
        self.with_gpus -= bool(self.gpus[row] or self.plugged[row])
        self.gpus[row] = capacity.get(GPU, 0) // WHOLE_DEVICE
        self.plugged[row] = "" if self.gpus[row] else plugged_in(capacity.items())
        self.with_gpus += bool(self.gpus[row] or self.plugged[row])
        devices = self.devices[row]
        devices.extend([0] * (self.gpus[row] - len(devices)))
        self._trim_devices(row)
        self._update_whole_part(row)
        self._update_over(row)

    def _update_whole_part(self, row: int) -> None:
        whole = part = 0
        for used in self.devices[row]:
            if not used:
                whole += 1
            elif used < WHOLE_DEVICE:
                part = max(part, WHOLE_DEVICE - used)
        self.whole_part[row] = (whole, part)

    def _update_over(self, row: int) -> None:
        devices = self.devices[row]
        if (
            any(column[row] > self.capacity[name][row] for name, column in self.used.items())
            or len(devices) > self.gpus[row]
            or any(used > WHOLE_DEVICE for used in devices)
        ):
            self.over_rows.add(row)
        else:
            self.over_rows.discard(row)

    def _trim_devices(self, row: int) -> None:
        # A device that was removed stays listed while it is used; it counts as use beyond the capacity.
        devices = self.devices[row]
        while len(devices) > self.gpus[row] and not devices[-1]:
            devices.pop()

    def _count(self, row: int, sign: int) -> None:
        if self.state[row] not in ("up", "draining"):
            return
        self.up_count += sign
        for name, column in self.capacity.items():
            if column[row]:
                total = self.total.get(name, 0) + sign * column[row]
                if total:
                    self.total[name] = total
                else:
                    self.total.pop(name, None)
