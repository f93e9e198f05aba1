"""Changes of nodes: added, updated, moved to another state, avoided, connected, removed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from fairlead.core.changes.change import Change, Line, Names, NodeNews
from fairlead.core.lifecycle import NODE
from fairlead.core.model import Amounts, Closure, Micros, NodeState, Pairs
from fairlead.core.resources import SECOND, format_vector
from fairlead.core.state import Partition


class NodeSpec(msgspec.Struct, frozen=True, array_like=True):
    """The properties of a node."""

    capacity: Amounts
    labels: Pairs = ()
    taints: tuple[str, ...] = ()
    pool: str = ""
    users: tuple[str, ...] = ()
    """Only tasks of these users run there; empty for all users."""


class NodeAdded(Change[int], frozen=True, tag="node added"):
    node_id: int
    name: str
    spec: NodeSpec
    manager: str = ""
    state: NodeState = "up"
    lost_from: NodeState = "up"
    reason: str = ""
    until: int = 0
    begin: int = 0

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
        partition.nodes.set_reason(self.node_id, self.reason)
        partition.nodes.close_until(self.node_id, self.until, self.begin)
        partition.counters.node_id = max(before, self.node_id + 1)
        partition.touched.nodes.add(self.node_id)
        return before

    def undo(self, partition: Partition, before: int) -> None:
        partition.nodes.remove(self.node_id)
        partition.counters.node_id = before

    def news(self, partition: Partition, before: int) -> Iterable[NodeNews]:
        return (NodeNews(self.name, self.state),)

    def lines(self, names: Names, before: int) -> Iterator[Line]:
        fields = {"node": self.name, "pool": self.spec.pool, "manager": self.manager}
        yield Line("info", "node added", fields | {"resources": format_vector(dict(self.spec.capacity))})

    def manager_to_notify(self, partition: Partition, before: int) -> str:
        return self.manager


class NodeSet(Change[NodeSpec], frozen=True, tag="node set"):
    node_id: int
    spec: NodeSpec

    def apply(self, partition: Partition) -> NodeSpec:
        before = spec_of(partition, self.node_id)
        self._set(partition, self.spec)
        return before

    def undo(self, partition: Partition, before: NodeSpec) -> None:
        self._set(partition, before)

    def lines(self, names: Names, before: NodeSpec) -> Iterator[Line]:
        fields = {"node": names.node(self.node_id), "pool": self.spec.pool}
        yield Line("info", "node changed", fields | {"resources": format_vector(dict(self.spec.capacity))})

    def _set(self, partition: Partition, spec: NodeSpec) -> None:
        partition.nodes.set(self.node_id, dict(spec.capacity), dict(spec.labels), spec.taints, spec.pool, spec.users)
        partition.touched.nodes.add(self.node_id)


class NodeMovedUndo(msgspec.Struct, frozen=True, gc=False):
    state: NodeState
    lost_from: NodeState
    reason: str
    until: int
    begin: int


class NodeMoved(Change[NodeMovedUndo], frozen=True, tag="node moved"):
    """Moves a node to another state, or changes only the reason for its state."""

    node_id: int
    state: NodeState
    reason: str = ""
    """Why it is drained or disabled, in the words of an operator."""
    until: int = 0
    """When it is enabled again, if it is drained or disabled for a time; else 0."""
    begin: int = 0
    """If it is drained from a time on, that time; until then it takes tasks that end before."""

    warns = True

    def apply(self, partition: Partition) -> NodeMovedUndo:
        before = partition.nodes.state[partition.nodes.rows[self.node_id]]
        lost_from = partition.nodes.lost_from.get(self.node_id, "up")
        reason = partition.nodes.reasons.get(self.node_id, "")
        until = partition.nodes.closed_until.get(self.node_id, 0)
        begin = partition.nodes.closing.get(self.node_id, 0)
        if self.state != before:
            NODE.check(before, self.state)
            partition.nodes.set_state(self.node_id, self.state, before)
        partition.nodes.set_reason(self.node_id, self.reason)
        partition.nodes.close_until(self.node_id, self.until, self.begin)
        partition.touched.nodes.add(self.node_id)
        return NodeMovedUndo(before, lost_from, reason, until, begin)

    def undo(self, partition: Partition, before: NodeMovedUndo) -> None:
        partition.nodes.set_state(self.node_id, before.state, before.lost_from)
        partition.nodes.set_reason(self.node_id, before.reason)
        partition.nodes.close_until(self.node_id, before.until, before.begin)

    def news(self, partition: Partition, before: NodeMovedUndo) -> Iterable[NodeNews]:
        row = partition.nodes.rows.get(self.node_id)
        return (NodeNews("" if row is None else partition.nodes.name[row], self.state),)

    def manager_to_notify(self, partition: Partition, before: NodeMovedUndo) -> str:
        row = partition.nodes.rows.get(self.node_id)
        return "" if row is None else partition.nodes.manager[row]

    def lines(self, names: Names, before: NodeMovedUndo) -> Iterator[Line]:
        fields: dict[str, object] = {"node": names.node(self.node_id), "before": before.state, "state": self.state}
        if self.reason:
            fields["reason"] = self.reason
        if self.begin:
            fields["in_seconds"] = (self.begin - names.now) / SECOND
        if self.until:
            fields["for_seconds"] = (self.until - (self.begin or names.now)) / SECOND
        yield Line("warning" if self.state == "lost" else "info", "node moved", fields)


class ClosureSet(Change[Closure | None], frozen=True, tag="closure set"):
    """Sets until when nodes with these labels are disabled as they join. The time 0 ends this."""

    labels: Pairs
    until: int
    reason: str = ""

    def apply(self, partition: Partition) -> Closure | None:
        before = partition.closures.pop(self.labels, None)
        if self.until:
            partition.closures[self.labels] = Closure(self.until, self.reason)
        return before

    def undo(self, partition: Partition, before: Closure | None) -> None:
        partition.closures.pop(self.labels, None)
        if before is not None:
            partition.closures[self.labels] = before

    def lines(self, names: Names, before: Closure | None) -> Iterator[Line]:
        fields: dict[str, object] = {"labels": dict(self.labels), "reason": self.reason}
        if self.until:
            fields["for_seconds"] = (self.until - names.now) / SECOND
        yield Line("info", "nodes closed" if self.until else "nodes opened", fields)


class Avoidance(msgspec.Struct, frozen=True, gc=False):
    """The launch failures of a node, and the time until which it gets no new work."""

    failures: int
    pauses: int
    until: Micros


class NodeAvoided(Change[Avoidance], frozen=True, tag="node avoided"):
    """Gives a node no new work until a time, because launches failed there. The time 0 ends the pause."""

    node_id: int
    failures: int
    pauses: int
    until: int

    warns = True

    def apply(self, partition: Partition) -> Avoidance:
        before = _avoidance(partition, self.node_id)
        partition.nodes.avoid(self.node_id, self.failures, self.pauses, self.until)
        return before

    def undo(self, partition: Partition, before: Avoidance) -> None:
        partition.nodes.avoid(self.node_id, before.failures, before.pauses, before.until)

    def lines(self, names: Names, before: Avoidance) -> Iterator[Line]:
        if self.until not in (0, before.until):  # otherwise the pause ends or continues
            fields = {"failures": self.failures, "pause_seconds": (self.until - names.now) / SECOND}
            yield Line("warning", "node avoided", {"node": names.node(self.node_id), **fields})


def _avoidance(partition: Partition, node_id: int) -> Avoidance:
    row = partition.nodes.rows[node_id]
    return Avoidance(
        partition.nodes.failures[row], partition.nodes.pauses[row], partition.nodes.avoided.get(node_id, 0)
    )


class NodesConnected(Change[tuple[Micros | None, ...]], frozen=True, tag="nodes connected"):
    """Records that agents disconnected, so that their nodes get no new work, or connected again."""

    node_ids: tuple[int, ...]
    connected: bool

    warns = True

    def apply(self, partition: Partition) -> tuple[Micros | None, ...]:
        before = tuple(partition.nodes.disconnected.get(node_id) for node_id in self.node_ids)
        for node_id in self.node_ids:
            partition.nodes.connect(node_id, None if self.connected else partition.now)
        partition.touched.nodes.update(self.node_ids)
        return before

    def undo(self, partition: Partition, before: tuple[Micros | None, ...]) -> None:
        for node_id, since in zip(self.node_ids, before, strict=True):
            partition.nodes.connect(node_id, since)

    def news(self, partition: Partition, before: tuple[Micros | None, ...]) -> Iterable[NodeNews]:
        nodes = partition.nodes
        rows = [row for node_id in self.node_ids if (row := nodes.rows.get(node_id)) is not None]
        return [NodeNews(nodes.name[row], nodes.state[row] if self.connected else "disconnected") for row in rows]

    def lines(self, names: Names, before: tuple[Micros | None, ...]) -> Iterator[Line]:
        for node_id, since in zip(self.node_ids, before, strict=True):
            node = names.node(node_id)
            if not self.connected:
                yield Line("warning", "node disconnected", {"node": node})
            elif since is not None:
                yield Line("info", "node connected", {"node": node, "away_seconds": (names.now - since) / SECOND})


class NodeRemovedUndo(msgspec.Struct, frozen=True, gc=False):
    node: NodeAdded
    """The change that adds the same node."""
    avoidance: Avoidance
    disconnected: Micros | None
    idle: Micros | None
    unwanted: Micros | None


class NodeRemoved(Change[NodeRemovedUndo], frozen=True, tag="node removed"):
    """Removes a node. Its allocations were released before."""

    node_id: int

    def apply(self, partition: Partition) -> NodeRemovedUndo:
        avoidance = _avoidance(partition, self.node_id)
        node = as_added(partition, self.node_id)
        disconnected = partition.nodes.disconnected.get(self.node_id)
        partition.nodes.remove(self.node_id)
        partition.touched.nodes.discard(self.node_id)
        return NodeRemovedUndo(
            node,
            avoidance,
            disconnected,
            partition.idle.pop(self.node_id, None),
            partition.unwanted.pop(self.node_id, None),
        )

    def undo(self, partition: Partition, before: NodeRemovedUndo) -> None:
        before.node.apply(partition)
        avoidance = before.avoidance
        partition.nodes.avoid(self.node_id, avoidance.failures, avoidance.pauses, avoidance.until)
        if before.disconnected is not None:
            partition.nodes.connect(self.node_id, before.disconnected)
        if before.idle is not None:
            partition.idle[self.node_id] = before.idle
        if before.unwanted is not None:
            partition.unwanted[self.node_id] = before.unwanted

    def lines(self, names: Names, before: NodeRemovedUndo) -> Iterator[Line]:
        yield Line("info", "node removed", {"node": before.node.name})

    def news(self, partition: Partition, before: NodeRemovedUndo) -> Iterable[NodeNews]:
        return (NodeNews(before.node.name, "removed"),)

    def manager_to_notify(self, partition: Partition, before: NodeRemovedUndo) -> str:
        return before.node.manager


def as_added(partition: Partition, node_id: int) -> NodeAdded:
    """Return the change that adds a node with the present properties of an existing one."""
    row = partition.nodes.rows[node_id]
    return NodeAdded(
        node_id,
        partition.nodes.name[row],
        spec_of(partition, node_id),
        partition.nodes.manager[row],
        partition.nodes.state[row],
        partition.nodes.lost_from.get(node_id, "up"),
        partition.nodes.reasons.get(node_id, ""),
        partition.nodes.closed_until.get(node_id, 0),
        partition.nodes.closing.get(node_id, 0),
    )


def spec_of(partition: Partition, node_id: int) -> NodeSpec:
    """Return the present properties of a node."""
    nodes = partition.nodes
    row = nodes.rows[node_id]
    return NodeSpec(
        tuple(nodes.capacity_of(row).items()),
        tuple(sorted(nodes.labels[row].items())),
        nodes.taints[row],
        nodes.pool[row],
        nodes.users[row],
    )
