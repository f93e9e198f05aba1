"""Which nodes fit a shape: one index for all shapes, touched only where nodes changed.

A node stands in a bucket: how many of its GPUs are wholly free, how much is left on the best split one, and how much
of each other resource is free, counted in the thresholds that the shapes ask for, so that a bucket fits or does not,
exactly. Nodes of one kind (manager, pool, taints, and the labels that somebody selects by) share a row of buckets,
ordered from the fullest to the emptiest. The buckets that hold nodes are the bits of one integer, and so are those
that fit a shape: the lowest common bit is the fullest node that fits. Buckets come into being when they are first
needed, so that there are as many as there are different nodes, not as many as could be thought of.

The index is derived and rebuilt at will; nothing about it is ever written down.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from fairlead.core.nodes import NodeTable
from fairlead.core.resources import GPU
from fairlead.core.shape import WHOLE_DEVICE, Shape

Bucket = tuple[int, ...]
"""Wholly free GPUs, the level of the best split GPU, then the level of each other resource."""

KindKey = tuple[str, str, tuple[str, ...], tuple[str | None, ...], bool]
"""Manager, pool, taints, the selected labels' values, and whether it has GPUs at all."""

Entry = tuple[tuple[int, ...], int]
"""What is free on a node, exactly, and its join number."""


class Kind:
    """The buckets of the nodes of one kind."""

    __slots__ = ("at", "buckets", "filled", "gpus", "heaps", "key", "masks")

    def __init__(self, key: KindKey) -> None:
        self.key = key
        self.gpus = key[4]
        self.buckets: list[Bucket] = []
        self.at: dict[Bucket, int] = {}
        """Bucket → where it stands."""
        self.heaps: list[list[Entry]] = []
        """The nodes of each bucket, the fullest first; those that moved on are dropped when they come up."""
        self.filled = 0
        """The buckets that may hold nodes, as bits."""
        self.masks: dict[Shape, int] = {}
        """The buckets that fit a shape, as bits."""

    def open(self, bucket: Bucket, index: FitIndex) -> int:
        """Make a new bucket; those behind it move up by one."""
        at = bisect_left(self.buckets, bucket)
        self.buckets.insert(at, bucket)
        self.heaps.insert(at, [])
        self.at = {each: position for position, each in enumerate(self.buckets)}
        below = (1 << at) - 1
        self.filled = (self.filled & below) | ((self.filled & ~below) << 1)
        for shape, mask in self.masks.items():
            fits = index.bucket_fits(bucket, shape)
            self.masks[shape] = (mask & below) | ((mask & ~below) << 1) | (fits << at)
        return at

    def mask_of(self, shape: Shape, index: FitIndex) -> int:
        mask = 0
        for at, bucket in enumerate(self.buckets):
            mask |= index.bucket_fits(bucket, shape) << at
        self.masks[shape] = mask
        return mask


class FitIndex:
    def __init__(self, nodes: NodeTable) -> None:
        self.nodes = nodes
        self._shapes: dict[Shape, Bucket] = {}
        """The shapes that some stage has, with the bucket each needs at least."""
        self._asked: dict[tuple[str, int], int] = {}
        """(Resource, threshold) → how many of the shapes ask for it; a label with 0 → how many select by it."""
        self._names: list[str] = []
        self._columns: list[tuple[list[int], list[int], list[int]]] = []
        """Of each resource by name: thresholds, capacities, and what is used."""
        self._parts: list[int] = []
        """Thresholds of parts of a GPU."""
        self._labels: list[str] = []
        self._kinds: dict[KindKey, Kind] = {}
        self._accepted: dict[Shape, list[Kind]] = {}
        self._at: dict[int, tuple[Kind, Bucket, Entry]] = {}
        """Join number → where the node stands now. An entry of a heap counts if it is the very one named here."""
        self._out: dict[int, None] = {}
        """The nodes that were taken and not put back yet."""
        self._pushes = 0
        self._stale = True

    def add(self, shape: Shape) -> None:
        """A stage has this shape. The buckets depend on all shapes that are known, and on nothing that was before."""
        self._shapes[shape] = ()
        new = False
        for threshold in _thresholds(shape):
            self._asked[threshold] = self._asked.get(threshold, 0) + 1
            new |= self._asked[threshold] == 1
        if new or self._stale:
            self._stale = True
        else:
            self._shapes[shape] = self._need(shape)

    def forget(self, shape: Shape) -> None:
        """No stage has this shape any more."""
        del self._shapes[shape]
        self._accepted.pop(shape, None)
        for kind in self._kinds.values():
            kind.masks.pop(shape, None)
        for threshold in _thresholds(shape):
            self._asked[threshold] -= 1
            if not self._asked[threshold]:
                del self._asked[threshold]
                self._stale = True

    def refresh(self) -> None:
        """Take in what changed on the nodes since the last look, and the thresholds of new shapes."""
        # Entries of nodes that moved on may never come up; now and then all of them are cleared away.
        if self._stale or self._pushes > 16 * len(self._at) + 1_000:
            self._rebuild()
            return
        nodes = self.nodes
        if nodes.altered_since:
            for join in nodes.altered_since:
                self._enter(join)
            nodes.altered_since.clear()
        if nodes.used_since:
            for join in nodes.used_since:
                self._move(join)
            nodes.used_since.clear()

    def bucket_fits(self, bucket: Bucket, shape: Shape) -> bool:
        need = self._shapes[shape]
        if shape.devices and not (
            bucket[0] >= need[0] if shape.device_milli == WHOLE_DEVICE else (bucket[0] > 0 or bucket[1] >= need[1])
        ):
            return False
        return all(bucket[at] >= need[at] for at in range(2, len(need)))

    def first(self, shape: Shape) -> int | None:
        """The join number of the fullest node that fits one task of a shape."""
        found = self._first(shape)
        return None if found is None else found[0][1]

    def take(self, shape: Shape) -> int | None:
        """The same, and the node is out of the index until put back."""
        found = self._first(shape)
        if found is None:
            return None
        (_, join), heap = found
        heappop(heap)
        self._out[join] = None
        return join

    def put_back(self, joins: Iterable[int]) -> None:
        """Nodes that were taken stand in the index again, where they belong by now."""
        for join in joins:
            self._out.pop(join, None)
            self.nodes.used_since[join] = None
        self.refresh()

    def put_all_back(self) -> None:
        self.put_back(list(self._out))

    # -- inside --------------------------------------------------------------------------------------------------

    def _first(self, shape: Shape) -> tuple[Entry, list[Entry]] | None:
        """The entry of the fullest node that fits, and the heap at whose top it stands."""
        best: tuple[bool, Bucket, Entry] | None = None
        heap: list[Entry] = []
        stands = self._at
        for kind in self._accepted.get(shape) or self._kinds_for(shape):
            # Work that asks for no GPU goes where there are none, if it can.
            wasteful = kind.gpus and not shape.devices
            if best is not None and wasteful and not best[0]:
                continue
            mask = kind.masks.get(shape)
            if mask is None:
                mask = kind.mask_of(shape, self)
            fitting = kind.filled & mask
            while fitting:
                at = (fitting & -fitting).bit_length() - 1
                entries = kind.heaps[at]
                while entries:
                    where = stands.get(entries[0][1])
                    if where is not None and where[2] is entries[0]:
                        break
                    heappop(entries)
                else:
                    kind.filled &= ~(1 << at)
                    fitting = kind.filled & mask
                    continue
                found = (wasteful, kind.buckets[at], entries[0])
                if best is None or found < best:
                    best, heap = found, entries
                break
        return None if best is None else (best[2], heap)

    def _kinds_for(self, shape: Shape) -> list[Kind]:
        kinds = self._accepted[shape] = [kind for key, kind in self._kinds.items() if self._accepts(shape, key)]
        return kinds

    def _accepts(self, shape: Shape, key: KindKey) -> bool:
        manager, pool, taints, values, _ = key
        labels = {label: value for label, value in zip(self._labels, values, strict=True) if value is not None}
        return manager == shape.key.manager and shape.accepts(labels, taints, pool)

    def _enter(self, join: int) -> None:
        """Look at a node anew: of which kind it is, and where it belongs."""
        nodes = self.nodes
        row = nodes.rows.get(join)
        if row is None or not nodes.placeable(row):
            self._at.pop(join, None)
            return
        key: KindKey = (
            nodes.manager[row],
            nodes.pool[row],
            nodes.taints[row],
            tuple([nodes.labels[row].get(label) for label in self._labels]),
            nodes.device_count(row) > 0,
        )
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = Kind(key)
            self._accepted.clear()
        self._place(join, row, kind)

    def _move(self, join: int) -> None:
        """Follow a node whose use changed; its kind is the same as before."""
        where = self._at.get(join)
        if where is None:
            self._enter(join)
            return
        row = self.nodes.rows[join]
        if row in self.nodes.over_rows:
            del self._at[join]
        else:
            self._place(join, row, where[0])

    def _place(self, join: int, row: int, kind: Kind) -> None:
        if join in self._out:
            return
        whole, part = self.nodes.whole_part[row]
        levels = [whole, bisect_right(self._parts, part) if part else 0]
        frees = [whole, part]
        for thresholds, capacity, used in self._columns:
            free = capacity[row] - used[row]
            levels.append(bisect_right(thresholds, free))
            frees.append(free)
        bucket = tuple(levels)
        entry = (tuple(frees), join)
        self._at[join] = (kind, bucket, entry)
        at = kind.at.get(bucket)
        if at is None:
            at = kind.open(bucket, self)
        heappush(kind.heaps[at], entry)
        self._pushes += 1
        kind.filled |= 1 << at

    def _need(self, shape: Shape) -> Bucket:
        amounts = dict(shape.amounts)
        gpu = amounts.pop(GPU, 0)
        part = 0 if not gpu or shape.device_milli == WHOLE_DEVICE else bisect_right(self._parts, gpu)
        levels = [shape.devices if shape.device_milli == WHOLE_DEVICE else 0, part]
        for name, (thresholds, _, _) in zip(self._names, self._columns, strict=True):
            levels.append(bisect_right(thresholds, amounts[name]) if name in amounts else 0)
        return tuple(levels)

    def _rebuild(self) -> None:
        self._stale = False
        self._pushes = 0
        self._kinds.clear()
        self._accepted.clear()
        self._at.clear()
        self.nodes.altered_since.clear()
        self.nodes.used_since.clear()
        self._labels = sorted(name[1:] for name, _ in self._asked if name.startswith(LABEL))
        self._names = sorted({name for name, _ in self._asked if not name.startswith(LABEL) and name != GPU})
        self._columns = [
            (sorted(amount for each, amount in self._asked if each == name), *self.nodes.columns(name))
            for name in self._names
        ]
        self._parts = sorted(amount for name, amount in self._asked if name == GPU)
        for shape in self._shapes:
            self._shapes[shape] = self._need(shape)
        for join in self.nodes.rows:
            self._enter(join)


LABEL = "="
"""Stands before a label's name, so that it is never taken for a resource's."""


def _thresholds(shape: Shape) -> Iterator[tuple[str, int]]:
    """What a shape makes the index tell apart: amounts, parts of a GPU, and labels."""
    for name, amount in shape.amounts:
        if name != GPU or shape.device_milli < WHOLE_DEVICE:
            yield name, amount
    for label, _ in shape.key.selectors:
        yield LABEL + label, 0
