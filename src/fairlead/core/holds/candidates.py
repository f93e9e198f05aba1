"""What could be held: the nodes gathered by what they are and by what claims them, so that one answers for all alike.

A head that starves may be one of many, and nodes are thousands. Whether there is enough for it is a question to each
kind of node; only who gets nodes has them ranked one by one.
"""

from __future__ import annotations

from collections.abc import Collection

from fairlead.core.holds.release import held_nodes
from fairlead.core.holds.room import claimed_on, may_take, room_beside
from fairlead.core.shape import Shape
from fairlead.core.state import Partition

Claims = dict[int, list[tuple[Shape, int]]]
"""A node by its join number → the shapes, and how many tasks of each, that claim room there."""


class NodeGroup:
    """Nodes that are alike: what the job itself uses there, what all claim, and whether somebody holds them."""

    __slots__ = ("claims", "held", "joins", "own")

    def __init__(self, own: list[tuple[Shape, int]], claims: list[tuple[Shape, int]], held: bool) -> None:
        self.own = own
        self.claims = claims
        self.held = held
        self.joins: list[int] = []


class Offer:
    """How many tasks fit each node of a kind: if nobody else were there, and beside what others claim."""

    __slots__ = ("alone", "beside", "kind")

    def __init__(self, kind: NodeGroup, alone: int, beside: int) -> None:
        self.kind = kind
        self.alone = alone
        self.beside = beside


class Candidates:
    """The nodes as they are claimed now; or, for who is to be alone, as if nobody claimed any."""

    def __init__(self, partition: Partition, alone: bool = False) -> None:
        self.partition = partition
        self.version = partition.holds_version
        self.claims: Claims = (
            {} if alone else {node_id: claimed_on(partition, node_id) for node_id in held_nodes(partition)}
        )
        self._kinds: list[NodeGroup] | None = None

    def kinds(self) -> list[NodeGroup]:
        """Without anything of a job's own. Worked out once."""
        if self._kinds is None:
            self._kinds = gather(self.partition, self.claims, {})
        return self._kinds


def gather(partition: Partition, claims: Claims, own: Claims, without: Collection[int] = ()) -> list[NodeGroup]:
    """The nodes that may be held: up, not backed off, and not promised to anybody. The first ones first."""
    nodes = partition.nodes
    # Labels that no shape asks for tell nobody apart.
    labels = sorted({label for shape in partition.shapes.values() for label, _ in shape.key.selectors})
    columns = list(nodes.capacity.values())
    kinds: dict[object, NodeGroup] = {}
    for node_id in sorted(nodes.rows):
        row = nodes.rows[node_id]
        if nodes.state[row] != "up" or node_id in nodes.avoided or node_id in without:
            continue
        if node_id in nodes.held and any(seq in partition.promises for seq in nodes.held[node_id]):
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
        )
        kind = kinds.get(key)
        if kind is None:
            mine = own.get(node_id, [])
            kind = kinds[key] = NodeGroup(mine, claims.get(node_id, []) + mine, node_id in claims)
        kind.joins.append(node_id)
    return list(kinds.values())


def offers(partition: Partition, shape: Shape, kinds: list[NodeGroup], most: int) -> list[Offer]:
    """What each kind has for tasks of a shape, up to so many on a node; only those that have anything."""
    nodes = partition.nodes
    if shape.key.apart:
        most = 1
    found: list[Offer] = []
    for kind in kinds:
        node_id = kind.joins[0]
        if may_take(nodes, nodes.rows[node_id], shape):
            alone = room_beside(nodes, node_id, kind.own, shape, most)
            if alone > 0:
                found.append(Offer(kind, alone, max(0, room_beside(nodes, node_id, kind.claims, shape, most))))
    return found


def suffice(found: list[Offer], needed: int, many: int, new: int) -> bool:
    """Whether so many nodes, of which so many nobody holds yet, can take all tasks: those with most room."""
    for offer in sorted(found, key=lambda each: -each.beside):
        if not offer.beside:
            return False
        nodes = min(len(offer.kind.joins), many, -(-needed // offer.beside))
        if not offer.kind.held:
            nodes = min(nodes, max(0, new))
            new -= nodes
        many -= nodes
        needed -= nodes * offer.beside
        if needed <= 0:
            return True
    return False
