"""The index behind `pack`: which is the fullest node that fits? One for all shapes, touched where nodes changed.

The fullest node is the one with the fewest wholly free GPUs, then the least CPU, then the least of the other resources
by name, then the least on its best split GPU. That is a fact about the nodes alone: neither other shapes nor what was
there before have a say.

A node stands in a bucket: the same figures, counted in the thresholds that the shapes ask for, so that a bucket fits
or does not, exactly. Nodes of one kind share a row of buckets, ordered from the fullest to the emptiest. The buckets
that hold nodes are the bits of one integer, and so are those that fit a shape: where the lowest common bit leads, and
in the buckets after it with as much of GPUs and CPU, is the fullest node that fits. Buckets come into being when they
are first needed, so that there are as many as there are different nodes, not as many as could be thought of.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from heapq import heappop, heappush

from fairlead.core.index.kinds import Choice, KindKey, NodeIndex, NodeKind
from fairlead.core.nodes import NodeTable
from fairlead.core.policy.fit import choose_devices, room
from fairlead.core.resources import CPU, GPU
from fairlead.core.shape import WHOLE_DEVICE, Shape

Bucket = tuple[int, ...]
"""Wholly free GPUs, the level of CPU, of each other resource by name, and of the best split GPU."""

Entry = tuple[tuple[int, ...], int]
"""What is free on a node, exactly, and its join number. It counts if it is the very one that the index names."""


class Buckets(NodeKind):
    """The nodes of one kind."""

    __slots__ = ("at", "buckets", "filled", "gpus", "heaps", "masks")

    def __init__(self, key: KindKey) -> None:
        super().__init__(key)
        self.gpus = key.gpus
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


class FitIndex(NodeIndex[Buckets]):
    def __init__(self, nodes: NodeTable) -> None:
        super().__init__(nodes)
        self._known: set[tuple[str, int]] = set()
        """The thresholds by resource that the index tells apart, and the labels with 0; some that nobody needs now."""
        self._names: list[str] = []
        self._columns: list[tuple[list[int], list[int], list[int]]] = []
        """Of each resource by name: thresholds, capacities, and what is used."""
        self._parts: list[int] = []
        """Thresholds of parts of a GPU."""

    def add(self, shape: Shape) -> None:
        self._stale |= not self._known.issuperset(_thresholds(shape))
        self._shapes[shape] = () if self._stale else self._need(shape)

    def forget(self, shape: Shape) -> None:
        # Thresholds that are not needed do no harm; they go when the index is built anew.
        del self._shapes[shape]
        self._accepted.clear()
        for kind in self._kinds.values():
            kind.masks.pop(shape, None)

    def choose(self, shape: Shape, most: int, number: int, near: str | None = None) -> list[Choice]:
        chosen: list[Choice] = []
        each = 1 if shape.key.apart else most
        while most:
            found = self._first(shape, near)
            if found is None:
                break
            (_, node_id), heap = found
            tasks, devices = self.room_on(node_id, shape, min(most, each))
            chosen.append(Choice(node_id, tasks, devices))
            most -= tasks
            if not most or len(self._at) == 1:
                break  # nobody looks for another: this one may stay where it is
            heappop(heap)
            self._out[node_id] = None
        return chosen

    def room_on(self, node_id: int, shape: Shape, most: int) -> tuple[int, tuple[int, ...]]:
        """How many tasks of a shape fit a node that fits one, up to a number, and the devices they get."""
        nodes, row = self.nodes, self.nodes.rows[node_id]
        if most > 1:
            free = [
                (nodes.capacity[name][row] - nodes.used[name][row], amount)
                for name, amount in shape.amounts
                if name != GPU
            ]
            most = room(free, most)
        if not shape.devices:
            return most, ()
        devices = choose_devices(nodes.devices[row], nodes.gpus[row], shape.devices, shape.device_milli, most)
        return len(devices) // shape.devices, devices

    def fits(self, shape: Shape) -> bool:
        return self._first(shape, None) is not None

    def take(self, shape: Shape) -> int | None:
        """The join number of the fullest node that fits one task of a shape. It is out of the index until put back."""
        found = self._first(shape, None)
        if found is None:
            return None
        (_, node_id), heap = found
        heappop(heap)
        self._out[node_id] = None
        return node_id

    def bucket_fits(self, bucket: Bucket, shape: Shape) -> bool:
        need = self._shapes[shape]
        if shape.devices and not (
            bucket[0] >= need[0] if shape.device_milli == WHOLE_DEVICE else (bucket[0] > 0 or bucket[-1] >= need[-1])
        ):
            return False
        return all(bucket[at] >= need[at] for at in range(1, len(need) - 1))

    # -- inside

    def _is_outgrown(self) -> bool:
        # A node that brings a resource nobody had before makes a column more.
        capacity = self.nodes.capacity
        return len(self._names) < len(capacity) - (GPU in capacity)

    def _first(self, shape: Shape, near: str | None) -> tuple[Entry, list[Entry]] | None:
        """The entry of the fullest node that fits, and the heap at whose top it stands."""
        best: Entry | None = None
        heap: list[Entry] = []
        sparing = False
        stands = self._at
        for kind in self._accepted.get((shape, near)) or self._kinds_for(shape, near):
            # Work that asks for no GPU goes where there are none, if it can.
            spares = bool(shape.devices) or not kind.gpus
            if sparing and not spares:
                continue
            mask = kind.masks.get(shape)
            if mask is None:
                mask = kind.mask_of(shape, self)
            fitting = kind.filled & mask
            alike: Bucket | None = None
            while fitting:
                lowest = fitting & -fitting
                fitting ^= lowest
                at = lowest.bit_length() - 1
                if alike is not None and kind.buckets[at][:2] != alike:
                    break
                entries = kind.heaps[at]
                while entries:
                    where = stands.get(entries[0][1])
                    if where is not None and where[2] is entries[0]:
                        break
                    heappop(entries)
                else:
                    kind.filled ^= lowest
                    continue
                alike = kind.buckets[at][:2]
                if best is None or (spares and not sparing) or entries[0] < best:
                    best, heap, sparing = entries[0], entries, spares
        return None if best is None else (best, heap)

    def _kind(self, key: KindKey) -> Buckets:
        return Buckets(key)

    def _place(self, node_id: int, row: int, kind: Buckets) -> None:
        if node_id in self._out:
            return
        whole, part = self.nodes.whole_part[row]
        levels = [whole]
        frees = [whole]
        for thresholds, capacity, used in self._columns:
            free = capacity[row] - used[row]
            levels.append(bisect_right(thresholds, free))
            frees.append(free)
        levels.append(bisect_right(self._parts, part) if part else 0)
        frees.append(part)
        bucket = tuple(levels)
        entry = (tuple(frees), node_id)
        self._at[node_id] = (kind, bucket, entry)
        at = kind.at.get(bucket)
        if at is None:
            at = kind.open(bucket, self)
        heappush(kind.heaps[at], entry)
        self._pushes += 1
        kind.filled |= 1 << at

    def _need(self, shape: Shape) -> Bucket:
        """The bucket that a shape needs at least."""
        amounts = dict(shape.amounts)
        gpu = amounts.pop(GPU, 0)
        part = 0 if not gpu or shape.device_milli == WHOLE_DEVICE else bisect_right(self._parts, gpu)
        levels = [shape.devices if shape.device_milli == WHOLE_DEVICE else 0]
        for name, (thresholds, _, _) in zip(self._names, self._columns, strict=True):
            levels.append(bisect_right(thresholds, amounts[name]) if name in amounts else 0)
        return (*levels, part)

    def _learn_shapes(self) -> None:
        self._known = {threshold for shape in self._shapes for threshold in _thresholds(shape)}
        amounts: dict[str, list[int]] = {CPU: [], GPU: [], **{name: [] for name in self.nodes.capacity}}
        for name, amount in sorted(self._known):
            if not name.startswith(LABEL):
                amounts.setdefault(name, []).append(amount)
        self._parts = amounts.pop(GPU)
        self._names = sorted(amounts, key=lambda name: (name != CPU, name))
        self._columns = [(amounts[name], *self.nodes.columns(name)) for name in self._names]
        for shape in self._shapes:
            self._shapes[shape] = self._need(shape)


LABEL = "="
"""Stands before a label's name, so that it is never taken for a resource's."""


def _thresholds(shape: Shape) -> Iterator[tuple[str, int]]:
    """What a shape makes the index tell apart: amounts, parts of a GPU, and labels."""
    for name, amount in shape.amounts:
        if name != GPU or shape.device_milli < WHOLE_DEVICE:
            yield name, amount
    for label, _ in shape.key.selectors:
        yield LABEL + label, 0
    if shape.key.near:
        yield LABEL + shape.key.near, 0
