"""Changes of nodes: coming, changing, going."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.core.changes.base import Change
from fairlead.core.lifecycle import NODE
from fairlead.core.model import Amounts, NodeState, Pairs
from fairlead.core.state import Partition


class NodeSpec(msgspec.Struct, frozen=True, array_like=True):
    """What a node has."""

    capacity: Amounts
    labels: Pairs = ()
    taints: tuple[str, ...] = ()
    pool: str = ""
    users: tuple[str, ...] = ()
    """The users whose tasks it takes; empty: all."""


class NodeAdded(Change, frozen=True, tag="node added"):
    node_id: int
    name: str
    spec: NodeSpec
    manager: str = ""
    state: NodeState = "up"
    lost_from: NodeState = "up"

    def apply(self, partition: Partition) -> int:
        before = partition.counters.node_id
        spec = self.spec
        partition.nodes.add(
            self.node_id,
            self.name,
            dict(spec.capacity),
            dict(spec.labels),
            spec.taints,
            spec.pool,
            spec.users,
            self.manager,
            self.state,
        )
        if self.lost_from != "up":
            partition.nodes.set_state(self.node_id, self.state, self.lost_from)
        partition.counters.node_id = max(before, self.node_id + 1)
        partition.touched.nodes.add(self.node_id)
        return before

    def undo(self, partition: Partition, kept: int) -> None:
        partition.nodes.remove(self.node_id)
        partition.counters.node_id = kept


class NodeSet(Change, frozen=True, tag="node set"):
    node_id: int
    spec: NodeSpec

    def apply(self, partition: Partition) -> NodeSpec:
        before = spec_of(partition, self.node_id)
        self._set(partition, self.spec)
        return before

    def undo(self, partition: Partition, kept: NodeSpec) -> None:
        self._set(partition, kept)

    def _set(self, partition: Partition, spec: NodeSpec) -> None:
        partition.nodes.set(self.node_id, dict(spec.capacity), dict(spec.labels), spec.taints, spec.pool, spec.users)
        partition.touched.nodes.add(self.node_id)


class NodeMoved(Change, frozen=True, tag="node moved"):
    node_id: int
    state: NodeState

    def apply(self, partition: Partition) -> tuple[NodeState, NodeState]:
        before = partition.nodes.state[partition.nodes.rows[self.node_id]]
        lost_from = partition.nodes.lost_from.get(self.node_id, "up")
        NODE.check(before, self.state)
        partition.nodes.set_state(self.node_id, self.state, before)
        partition.touched.nodes.add(self.node_id)
        return before, lost_from

    def undo(self, partition: Partition, kept: tuple[NodeState, NodeState]) -> None:
        partition.nodes.set_state(self.node_id, *kept)


class NodeAvoided(Change, frozen=True, tag="node avoided"):
    """Launches went wrong on a node: it gets no new work until a time (0: it does again)."""

    node_id: int
    failures: int
    pauses: int
    until: int

    def apply(self, partition: Partition) -> tuple[int, int, int]:
        before = _avoided(partition, self.node_id)
        partition.nodes.avoid(self.node_id, self.failures, self.pauses, self.until)
        return before

    def undo(self, partition: Partition, kept: tuple[int, int, int]) -> None:
        partition.nodes.avoid(self.node_id, *kept)


def _avoided(partition: Partition, node_id: int) -> tuple[int, int, int]:
    row = partition.nodes.rows[node_id]
    return partition.nodes.failures[row], partition.nodes.pauses[row], partition.nodes.avoided.get(node_id, 0)


class NodeRemoved(Change, frozen=True, tag="node removed"):
    """The node has no allocations left: they were released first."""

    node_id: int

    def apply(self, partition: Partition) -> tuple[NodeAdded, tuple[int, int, int], int | None, int | None]:
        avoided = _avoided(partition, self.node_id)
        before = as_added(partition, self.node_id)
        partition.nodes.remove(self.node_id)
        partition.touched.nodes.discard(self.node_id)
        return before, avoided, partition.idle.pop(self.node_id, None), partition.unwanted.pop(self.node_id, None)

    def undo(self, partition: Partition, kept: tuple[NodeAdded, tuple[int, int, int], int | None, int | None]) -> None:
        before, avoided, idle, unwanted = kept
        before.apply(partition)
        partition.nodes.avoid(self.node_id, *avoided)
        if idle is not None:
            partition.idle[self.node_id] = idle
        if unwanted is not None:
            partition.unwanted[self.node_id] = unwanted


def as_added(partition: Partition, node_id: int) -> NodeAdded:
    """A node as it is now, as the change that would bring it."""
    row = partition.nodes.rows[node_id]
    return NodeAdded(
        node_id,
        partition.nodes.name[row],
        spec_of(partition, node_id),
        partition.nodes.manager[row],
        partition.nodes.state[row],
        partition.nodes.lost_from.get(node_id, "up"),
    )


def spec_of(partition: Partition, node_id: int) -> NodeSpec:
    """A node's properties as they are now."""
    nodes = partition.nodes
    row = nodes.rows[node_id]
    return NodeSpec(
        tuple(nodes.capacity_of(row).items()),
        tuple(sorted(nodes.labels[row].items())),
        nodes.taints[row],
        nodes.pool[row],
        nodes.users[row],
    )


CHANGES: tuple[type[Any], ...] = (NodeAdded, NodeSet, NodeMoved, NodeAvoided, NodeRemoved)
