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
    join: int
    name: str
    spec: NodeSpec
    manager: str = ""
    state: NodeState = "up"
    lost_from: NodeState = "up"

    def apply(self, p: Partition) -> int:
        before = p.counters.join
        spec = self.spec
        p.nodes.add(
            self.join,
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
            p.nodes.set_state(self.join, self.state, self.lost_from)
        p.counters.join = max(before, self.join + 1)
        p.touched.nodes.add(self.join)
        return before

    def undo(self, p: Partition, kept: int) -> None:
        p.nodes.remove(self.join)
        p.counters.join = kept


class NodeSet(Change, frozen=True, tag="node set"):
    join: int
    spec: NodeSpec

    def apply(self, p: Partition) -> NodeSpec:
        before = spec_of(p, self.join)
        self._set(p, self.spec)
        return before

    def undo(self, p: Partition, kept: NodeSpec) -> None:
        self._set(p, kept)

    def _set(self, p: Partition, spec: NodeSpec) -> None:
        p.nodes.set(self.join, dict(spec.capacity), dict(spec.labels), spec.taints, spec.pool, spec.users)
        p.touched.nodes.add(self.join)


class NodeMoved(Change, frozen=True, tag="node moved"):
    join: int
    state: NodeState

    def apply(self, p: Partition) -> tuple[NodeState, NodeState]:
        before = p.nodes.state[p.nodes.rows[self.join]]
        lost_from = p.nodes.lost_from.get(self.join, "up")
        NODE.check(before, self.state)
        p.nodes.set_state(self.join, self.state, before)
        p.touched.nodes.add(self.join)
        return before, lost_from

    def undo(self, p: Partition, kept: tuple[NodeState, NodeState]) -> None:
        p.nodes.set_state(self.join, *kept)


class NodeAvoided(Change, frozen=True, tag="node avoided"):
    """Launches went wrong on a node: it gets no new work until a time (0: it does again)."""

    join: int
    failures: int
    pauses: int
    until: int

    def apply(self, p: Partition) -> tuple[int, int, int]:
        before = _avoided(p, self.join)
        p.nodes.avoid(self.join, self.failures, self.pauses, self.until)
        return before

    def undo(self, p: Partition, kept: tuple[int, int, int]) -> None:
        p.nodes.avoid(self.join, *kept)


def _avoided(p: Partition, join: int) -> tuple[int, int, int]:
    row = p.nodes.rows[join]
    return p.nodes.failures[row], p.nodes.pauses[row], p.nodes.avoided.get(join, 0)


class NodeRemoved(Change, frozen=True, tag="node removed"):
    """The node has no allocations left: they were released first."""

    join: int

    def apply(self, p: Partition) -> tuple[NodeAdded, tuple[int, int, int], int | None, int | None]:
        avoided = _avoided(p, self.join)
        before = as_added(p, self.join)
        p.nodes.remove(self.join)
        p.touched.nodes.discard(self.join)
        return before, avoided, p.idle.pop(self.join, None), p.unwanted.pop(self.join, None)

    def undo(self, p: Partition, kept: tuple[NodeAdded, tuple[int, int, int], int | None, int | None]) -> None:
        before, avoided, idle, unwanted = kept
        before.apply(p)
        p.nodes.avoid(self.join, *avoided)
        if idle is not None:
            p.idle[self.join] = idle
        if unwanted is not None:
            p.unwanted[self.join] = unwanted


def as_added(p: Partition, join: int) -> NodeAdded:
    """A node as it is now, as the change that would bring it."""
    row = p.nodes.rows[join]
    return NodeAdded(
        join,
        p.nodes.name[row],
        spec_of(p, join),
        p.nodes.manager[row],
        p.nodes.state[row],
        p.nodes.lost_from.get(join, "up"),
    )


def spec_of(p: Partition, join: int) -> NodeSpec:
    """A node's properties as they are now."""
    nodes = p.nodes
    row = nodes.rows[join]
    return NodeSpec(
        tuple(nodes.capacity_of(row).items()),
        tuple(sorted(nodes.labels[row].items())),
        nodes.taints[row],
        nodes.pool[row],
        nodes.users[row],
    )


CHANGES: tuple[type[Any], ...] = (NodeAdded, NodeSet, NodeMoved, NodeAvoided, NodeRemoved)
