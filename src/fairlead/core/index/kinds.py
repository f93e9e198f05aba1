"""What every index of nodes has in common: kinds of nodes, and following what changed in the table.

Nodes of one kind (manager, pool, taints, users, the labels that a shape selects or gathers by, GPUs or none) are all
the same to a shape but for their room. An index is derived and rebuilt at will; nothing about it is ever written down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from fairlead.core.nodes import NodeTable
from fairlead.core.shape import Shape


class KindKey(NamedTuple):
    manager: str
    pool: str
    taints: tuple[str, ...]
    users: tuple[str, ...]
    labels: tuple[str | None, ...]
    """The values of the labels that matter, in the order of their names."""
    gpus: bool


class NodeKind:
    __slots__ = ("key",)

    def __init__(self, key: KindKey) -> None:
        self.key = key


class Choice(NamedTuple):
    """Tasks of a turn that go to one node, with the devices of each in turn."""

    node_id: int
    tasks: int
    devices: tuple[int, ...]


K = TypeVar("K", bound=NodeKind)


class NodeIndex(Generic[K]):
    """A subclass keeps the nodes of a kind in its own way: see `_kind`, `_place` and `choose`."""

    def __init__(self, nodes: NodeTable) -> None:
        self.nodes = nodes
        self._shapes: dict[Shape, Any] = {}
        """The shapes that some stage has."""
        self._labels: list[str] = []
        self._kinds: dict[KindKey, K] = {}
        self._accepted: dict[tuple[Shape, str | None], list[K]] = {}
        self._at: dict[int, tuple[K, Any, Any]] = {}
        """Join number → the kind of the node, and where it stands now."""
        self._out: dict[int, None] = {}
        """The nodes that were taken out and not put back yet."""
        self._pushes = 0
        self._stale = True
        self.tight = False
        """Whether the tightest node is to be chosen, whatever the placement says."""

    # -- for the state

    def add(self, shape: Shape) -> None:
        """A stage has this shape. The index depends on all shapes that are known, and on nothing that was before."""
        self._shapes[shape] = ()
        self._stale = True

    def forget(self, shape: Shape) -> None:
        """No stage has this shape any more."""
        del self._shapes[shape]
        self._stale = True

    # -- for matching

    def choose(self, shape: Shape, most: int, number: int, near: str | None = None) -> list[Choice]:
        """Nodes for up to that many tasks; with `near`, only those with this value of the label the shape gathers by.

        They are as if used, or out of the index, until they are put back. `number` is another one each time, and the
        same after a restart: for placements that draw.
        """
        raise NotImplementedError

    def fits(self, shape: Shape) -> bool:
        """Whether some node has room for one task."""
        raise NotImplementedError

    def withdraw(self, joins: Iterable[int]) -> list[int]:
        """Take nodes out of the index until they are put back. Returns those that were not out already."""
        gone = [node_id for node_id in joins if node_id not in self._out]
        for node_id in gone:
            self._out[node_id] = None
            self._leave(node_id)
        return gone

    def put_back(self, joins: Iterable[int]) -> None:
        """Nodes stand in the index again, where they belong by now."""
        for node_id in joins:
            self._out.pop(node_id, None)
            self.nodes.used_since[node_id] = None
        self.refresh()

    def put_all_back(self) -> None:
        if self._out:
            self.put_back(list(self._out))
        else:
            self.refresh()

    def refresh(self) -> None:
        """Take in what changed on the nodes since the last look, and new shapes."""
        # Entries of nodes that moved on may never come up; now and then all of them are cleared away.
        if self._stale or self._pushes > 16 * len(self._at) + 1_000:
            self._rebuild()
            return
        nodes = self.nodes
        if nodes.altered_since:
            if self._is_outgrown():
                self._rebuild()
                return
            for node_id in nodes.altered_since:
                self._enter(node_id)
            nodes.altered_since.clear()
        if nodes.used_since:
            for node_id in nodes.used_since:
                self._move(node_id)
            nodes.used_since.clear()

    def values(self, shape: Shape) -> list[str]:
        """The values of the label that a shape gathers by, on nodes that may take it; empty for those without it."""
        at = self._labels.index(shape.key.near)
        return sorted({kind.key.labels[at] or "" for kind in self._kinds_for(shape, None)})

    # -- inside

    def _is_outgrown(self) -> bool:
        """Whether the nodes have something by now that the index was not made for."""
        return False

    def _kind(self, key: KindKey) -> K:
        """A new kind."""
        raise NotImplementedError

    def _place(self, node_id: int, row: int, kind: K) -> None:
        """Put a node where it belongs now, unless it is out."""
        raise NotImplementedError

    def _leave(self, node_id: int) -> None:
        self._at.pop(node_id, None)

    def _kinds_for(self, shape: Shape, near: str | None) -> list[K]:
        kinds = self._accepted.get((shape, near))
        if kinds is None:
            kinds = [kind for key, kind in self._kinds.items() if self._accepts(shape, key, near)]
            self._accepted[shape, near] = kinds
        return kinds

    def _accepts(self, shape: Shape, key: KindKey, near: str | None) -> bool:
        labels = {label: value for label, value in zip(self._labels, key.labels, strict=True) if value is not None}
        if near is not None and labels.get(shape.key.near, "") != near:
            return False
        return key.manager == shape.key.manager and shape.accepts(labels, key.taints, key.pool, key.users)

    def _enter(self, node_id: int) -> None:
        """Look at a node anew: of which kind it is, and where it belongs."""
        nodes = self.nodes
        row = nodes.rows.get(node_id)
        if row is None or not nodes.placeable(row) or node_id in nodes.held:
            self._leave(node_id)
            return
        key = KindKey(
            nodes.manager[row],
            nodes.pool[row],
            nodes.taints[row],
            nodes.users[row],
            tuple([nodes.labels[row].get(label) for label in self._labels]),
            nodes.device_count(row) > 0,
        )
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = self._kind(key)
            self._accepted.clear()
        self._place(node_id, row, kind)

    def _move(self, node_id: int) -> None:
        """Follow a node whose use changed; its kind is the same as before."""
        where = self._at.get(node_id)
        if where is None:
            self._enter(node_id)
            return
        row = self.nodes.rows[node_id]
        if row in self.nodes.over_rows:
            self._leave(node_id)
        else:
            self._place(node_id, row, where[0])

    def _rebuild(self) -> None:
        self._stale = False
        self._pushes = 0
        self._kinds.clear()
        self._accepted.clear()
        self._at.clear()
        self.nodes.altered_since.clear()
        self.nodes.used_since.clear()
        self._labels = sorted({label for shape in self._shapes for label in _labels_of(shape)})
        self._learn_shapes()
        for node_id in self.nodes.rows:
            self._enter(node_id)

    def _learn_shapes(self) -> None:
        """Make ready for the shapes that are known now."""
        raise NotImplementedError


def _labels_of(shape: Shape) -> Iterator[str]:
    for label, _ in shape.key.selectors:
        yield label
    if shape.key.near:
        yield shape.key.near
