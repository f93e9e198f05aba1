"""The common part of all node indexes: groups nodes by kind, and follows the changes of the node table.

Nodes of one kind differ for a shape only in their free capacity: they have the same manager, pool, taints, users and
values of the labels that shapes use, and all or none of them have GPUs. An index can be rebuilt from the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from fairlead.core.node_table import NodeTable
from fairlead.core.resources import GPU
from fairlead.core.shape import Shape


class KindKey(NamedTuple):
    manager: str
    pool: str
    taints: tuple[str, ...]
    users: tuple[str, ...]
    labels: tuple[str | None, ...]
    """The values of the labels that shapes use, in the order of the labels' names."""
    gpus: str
    """The name of the resource of its GPUs that are counted as such; empty without."""


class NodeKind:
    __slots__ = ("key",)

    def __init__(self, key: KindKey) -> None:
        self.key = key

    def forget(self, shape: Shape) -> None:
        """Drop what is remembered about a shape."""


class Choice(NamedTuple):
    """A node for some tasks of a turn: the number of the tasks, and the devices of each task in turn."""

    node_id: int
    tasks: int
    devices: tuple[int, ...]


K = TypeVar("K", bound=NodeKind)


class NodeIndex(Generic[K]):
    """Base class of the indexes. A subclass defines how the nodes of a kind are stored and chosen."""

    def __init__(self, nodes: NodeTable) -> None:
        self.nodes = nodes
        self._shapes: dict[Shape, Any] = {}
        """Shape of an existing stage → data of the subclass."""
        self._labels: list[str] = []
        self._kinds: dict[KindKey, K] = {}
        self._accepted: dict[tuple[Shape, str | None], list[list[K]]] = {}
        """(Shape, value of its `near` label) → the kinds that accept the shape, in lists of equal preference, the most
        preferred first."""
        self._at: dict[int, tuple[K, Any, Any]] = {}
        """Node id → the kind of the node, and its place in the index."""
        self._out: dict[int, None] = {}
        """The nodes that were taken out of the index and not put back yet."""
        self._pushes = 0
        self._stale = True

    _spares_gpus = True
    """True if tasks without GPUs go to nodes without GPUs if they can."""

    # -- for the state

    def add(self, shape: Shape) -> None:
        self._shapes[shape] = ()
        self._stale = True

    def forget(self, shape: Shape) -> None:
        del self._shapes[shape]
        self._stale = True

    def rank_again(self) -> None:
        """Recompute the preferences on the next use, because the costs of pools changed."""
        self._accepted.clear()

    # -- for matching

    def choose(self, shape: Shape, most: int, number: int, near: str | None = None) -> list[Choice]:
        """Choose nodes for up to `most` tasks; with `near`, only nodes with this value of the shape's `near` label.

        The chosen nodes count as used, or are out of the index, until they are put back. `number` is the seed for
        placements that draw at random. It differs for each call, and is the same after a restart.
        """
        raise NotImplementedError

    def fits(self, shape: Shape) -> bool:
        """True if a node has capacity for one task."""
        raise NotImplementedError

    def withdraw(self, node_ids: Iterable[int]) -> list[int]:
        """Take nodes out of the index until they are put back. Return those that were not out already."""
        withdrawn = [node_id for node_id in node_ids if node_id not in self._out]
        for node_id in withdrawn:
            self._out[node_id] = None
            self._leave(node_id)
        return withdrawn

    def put_back(self, node_ids: Iterable[int]) -> None:
        """Put nodes back into the index, with their present capacity."""
        for node_id in node_ids:
            self._out.pop(node_id, None)
            self.nodes.used_since[node_id] = None
        self.refresh()

    def put_all_back(self) -> None:
        if self._out:
            self.put_back(list(self._out))
        else:
            self.refresh()

    def refresh(self) -> None:
        """Apply changes of nodes since the last call, and new shapes."""
        # Outdated entries may never reach the top of a heap, so a rebuild removes them now and then.
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
        """Return the values of a shape's `near` label on nodes that accept the shape; "" stands for no label."""
        at = self._labels.index(shape.key.near)
        return sorted({kind.key.labels[at] or "" for kinds in self._kinds_for(shape, None) for kind in kinds})

    # -- inside

    def _kind(self, key: KindKey) -> K:
        raise NotImplementedError

    def _is_outgrown(self) -> bool:
        """True if a node has a resource that the index was not built for."""
        return False

    def _place(self, node_id: int, row: int, kind: K) -> None:
        raise NotImplementedError

    def _leave(self, node_id: int) -> None:
        self._at.pop(node_id, None)

    def _kinds_for(self, shape: Shape, near: str | None) -> list[list[K]]:
        ranked = self._accepted.get((shape, near))
        if ranked is None:
            by_rank: dict[tuple[int, ...], list[K]] = {}
            for key, kind in self._kinds.items():
                if (key.gpus == GPU or not shape.devices) and self._accepts(shape, key, near):
                    by_rank.setdefault(self._rank(shape, key), []).append(kind)
            ranked = self._accepted[shape, near] = [by_rank[rank] for rank in sorted(by_rank)]
        return ranked

    def _rank(self, shape: Shape, key: KindKey) -> tuple[int, ...]:
        """Return the rank of a kind for a shape: by preferences, then GPUs that it does not need, then cost."""
        spared = self._spares_gpus and key.gpus != "" and not shape.devices
        return *shape.rank(self._labels_of(key), key.taints, key.pool), spared, self.nodes.cost_of(key.pool)

    def _labels_of(self, key: KindKey) -> dict[str, str]:
        return {label: value for label, value in zip(self._labels, key.labels, strict=True) if value is not None}

    def _accepts(self, shape: Shape, key: KindKey, near: str | None) -> bool:
        labels = self._labels_of(key)
        if near is not None and labels.get(shape.key.near, "") != near:
            return False
        return key.manager == shape.key.manager and shape.accepts(labels, key.taints, key.pool, key.users)

    def _enter(self, node_id: int) -> None:
        nodes = self.nodes
        row = nodes.rows.get(node_id)
        if row is None or not nodes.placeable(row) or node_id in nodes.held:
            self._leave(node_id)
            return
        key = self._key_of(row)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = self._kind(key)
            self._accepted.clear()
        self._place(node_id, row, kind)

    def _key_of(self, row: int) -> KindKey:
        nodes = self.nodes
        return KindKey(
            nodes.manager[row],
            nodes.pool[row],
            nodes.taints[row],
            nodes.users[row],
            tuple([nodes.labels[row].get(label) for label in self._labels]),
            self._gpus_of(row),
        )

    def _gpus_of(self, row: int) -> str:
        return GPU if self.nodes.gpus[row] else ""

    def _move(self, node_id: int) -> None:
        """Move a node after its use changed. Its kind is the same as before."""
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
        self._labels = sorted({label for shape in self._shapes for label in shape.labels})
        self._learn_shapes()
        for node_id in self.nodes.rows:
            self._enter(node_id)

    def _learn_shapes(self) -> None:
        raise NotImplementedError
