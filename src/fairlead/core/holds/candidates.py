"""Nodes that can be held, in groups of identical nodes: one node of each group is enough to decide for an ask.

Single nodes are ranked only for an ask that gets a hold. This matters with many starving asks and thousands of nodes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from fairlead.core.holds.earmarks import claimed_on
from fairlead.core.holds.release import held_nodes, starving_holds
from fairlead.core.node_fit import fitting_beside, may_take
from fairlead.core.shape import Shape
from fairlead.core.state import Partition

Claims = dict[int, list[tuple[Shape, int]]]
"""Node id → the shapes that claim capacity there, and the number of tasks of each."""


class NodeGroup(NamedTuple):
    """Identical nodes."""

    own: list[tuple[Shape, int]]
    """Running tasks of the ask's own gang on each node."""
    claims: list[tuple[Shape, int]]
    """These tasks, and the tasks that each node is held for."""
    counted: bool
    """True if these nodes already count as held for starving asks."""
    node_ids: list[int]


class Offer(NamedTuple):
    """The number of tasks that fit each node of a group: `alone` if no other ask held it, `beside` with the holds."""

    group: NodeGroup
    alone: int
    beside: int


class Candidates:
    """The nodes that can be held, with the tasks they are held for. `alone` leaves out holds of starving asks."""

    def __init__(self, partition: Partition, alone: bool = False) -> None:
        self.partition = partition
        self.version = partition.derived.holds_version
        held = [hold for hold in partition.holds.values() if hold.recalled or not alone]
        self.claims: Claims = {node_id: claimed_on(partition, node_id) for node_id in held_nodes(held)}
        self.counted = {} if alone else held_nodes(starving_holds(partition))
        """The nodes that count as held for starving asks."""
        self._groups: dict[tuple[int, ...], list[NodeGroup]] = {}

    def groups(self, without: tuple[int, ...]) -> list[NodeGroup]:
        """Return the groups of all nodes except some, for an ask whose gang has no running tasks (cached)."""
        groups = self._groups.get(without)
        if groups is None:
            groups = self._groups[without] = gather(self.partition, self.claims, self.counted, {}, without)
        return groups


def gather(
    partition: Partition, claims: Claims, counted: Collection[int], own: Claims, without: Collection[int] = ()
) -> list[NodeGroup]:
    """Group the nodes that may be held: up, connected, not backed off and not promised. The oldest nodes come first."""
    nodes = partition.nodes
    # Labels that no shape selects by do not distinguish nodes.
    labels = sorted({label for shape in partition.derived.shapes.values() for label in shape.selecting})
    columns = list(nodes.capacity.values())
    groups: dict[object, NodeGroup] = {}
    for node_id in sorted(nodes.rows):
        row = nodes.rows[node_id]
        if node_id in without or not _may_be_held(partition, node_id):
            continue
        has = nodes.labels[row]
        key: object = (
            nodes.manager[row],
            nodes.pool[row],
            nodes.taints[row],
            nodes.users[row],
            tuple([has.get(label) for label in labels]) if labels else (),
            tuple([column[row] for column in columns]),
            tuple(claims[node_id]) if node_id in claims else None,
            tuple(own[node_id]) if node_id in own else None,
            node_id in counted,
        )
        group = groups.get(key)
        if group is None:
            own_use = own.get(node_id, [])
            group = groups[key] = NodeGroup(own_use, claims.get(node_id, []) + own_use, node_id in counted, [])
        group.node_ids.append(node_id)
    return list(groups.values())


def _may_be_held(partition: Partition, node_id: int) -> bool:
    nodes = partition.nodes
    in_use = nodes.state[nodes.rows[node_id]] == "up" and node_id not in nodes.avoided
    promised = any(seq in partition.promises for seq in nodes.held.get(node_id, ()))
    return in_use and node_id not in nodes.disconnected and not promised


def offers(partition: Partition, shape: Shape, groups: list[NodeGroup], most: int) -> list[Offer]:
    """Return the offers of groups whose nodes fit a task of a shape. A node counts for at most `most` tasks."""
    nodes = partition.nodes
    if shape.key.apart:
        most = 1
    node_offers: list[Offer] = []
    for group in groups:
        node_id = group.node_ids[0]
        if may_take(nodes, nodes.rows[node_id], shape):
            alone = fitting_beside(nodes, node_id, group.own, shape, most)
            if alone > 0:
                beside = max(0, fitting_beside(nodes, node_id, group.claims, shape, most))
                node_offers.append(Offer(group, alone, beside))
    return node_offers


def suffice(node_offers: list[Offer], needed: int, most_nodes: int, most_new: int) -> bool:
    """True if `most_nodes` nodes can take all tasks and at most `most_new` of these nodes do not count as held yet."""
    for offer in sorted(node_offers, key=lambda offer: -offer.beside):
        if not offer.beside:
            return False
        nodes = min(len(offer.group.node_ids), most_nodes, -(-needed // offer.beside))
        if not offer.group.counted:
            nodes = min(nodes, max(0, most_new))
            most_new -= nodes
        most_nodes -= nodes
        needed -= nodes * offer.beside
        if needed <= 0:
            return True
    return False
