"""The index of placement `pack`: finds the fullest node that fits. One index serves all shapes.

The fullest node has the fewest wholly free GPUs, then the least free CPU, then the least of each other resource in the
order of their names, then the least free on the GPU that is used in part and has most left. This order depends on the
nodes alone. A shape gets the fullest of the nodes that it prefers most.

The amounts that shapes ask for are thresholds. A bucket contains nodes whose free amounts reach the same thresholds, so
all nodes of a bucket fit a shape, or none does. The buckets of a kind are sorted from the fullest to the emptiest. An
integer has a bit for each bucket with nodes, another integer a bit for each bucket that fits a shape. The fullest node
that fits is in the bucket of their lowest common bit, or in a later bucket with the same GPUs and CPU. Buckets are made
when they are first needed. Only changed nodes move.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

from fairlead.core.index.kinds import Choice, KindKey, NodeIndex, NodeKind
from fairlead.core.node_table import NodeTable
from fairlead.core.policy.fit import choose_devices, count_fitting
from fairlead.core.resources import CPU, GPU
from fairlead.core.shape import WHOLE_DEVICE, Shape

Bucket = tuple[int, ...]
"""The wholly free GPUs, then the thresholds reached: of CPU, of each other resource by name, of parts of a GPU."""

Entry = tuple[tuple[int, ...], int]
"""The exact free amounts of a node, and its id. An entry is outdated unless `_at` has this object for the node."""


class Buckets(NodeKind):
    """The nodes of one kind."""

    __slots__ = ("at", "buckets", "filled", "heaps", "masks")

    def __init__(self, key: KindKey) -> None:
        super().__init__(key)
        self.buckets: list[Bucket] = []
        self.at: dict[Bucket, int] = {}
        """Bucket → its position in `buckets`."""
        self.heaps: list[list[Entry]] = []
        """The nodes of each bucket, the fullest first. Outdated entries are dropped when they reach the top."""
        self.filled = 0
        """The buckets that may contain nodes, as bits."""
        self.masks: dict[Shape, int] = {}
        """The buckets that fit a shape, as bits."""

    def open(self, bucket: Bucket, index: FitIndex) -> int:
        """Add a bucket and return its position. Later buckets move up by one."""
        at = bisect_left(self.buckets, bucket)
        self.buckets.insert(at, bucket)
        self.heaps.insert(at, [])
        self.at = {other: position for position, other in enumerate(self.buckets)}
        below = (1 << at) - 1
        self.filled = (self.filled & below) | ((self.filled & ~below) << 1)
        for shape, mask in self.masks.items():
            fits = index.bucket_fits(bucket, shape)
            self.masks[shape] = (mask & below) | ((mask & ~below) << 1) | (fits << at)
        return at

    def forget(self, shape: Shape) -> None:
        self.masks.pop(shape, None)

    def mask_of(self, shape: Shape, index: FitIndex) -> int:
        mask = 0
        for at, bucket in enumerate(self.buckets):
            mask |= index.bucket_fits(bucket, shape) << at
        self.masks[shape] = mask
        return mask


class FitIndex(NodeIndex[Any]):
    """An index with `Buckets` as kinds. A subclass may have other kinds beside them."""

    def __init__(self, nodes: NodeTable) -> None:
        super().__init__(nodes)
        self._thresholds: set[tuple[str, int]] = set()
        """Pairs of a resource and a threshold, and of a label and 0, that the index distinguishes."""
        self._names: list[str] = []
        self._columns: list[tuple[list[int], list[int], list[int]]] = []
        """For each resource of `_names`: thresholds, capacities and use."""
        self._parts: list[int] = []
        """Thresholds of parts of a GPU."""

    def add(self, shape: Shape) -> None:
        self._stale |= not self._knows(shape)
        self._shapes[shape] = () if self._stale else self._need(shape)

    def forget(self, shape: Shape) -> None:
        # Unused thresholds stay until the next rebuild.
        del self._shapes[shape]
        self._accepted.clear()
        for kind in self._kinds.values():
            kind.forget(shape)

    def choose(self, shape: Shape, most: int, number: int, near: str | None = None) -> list[Choice]:
        chosen: list[Choice] = []
        for kinds in self._accepted.get((shape, near)) or self._kinds_for(shape, near):
            more = self._choose_among(kinds, shape, most, number)
            if more:
                chosen += more
                most -= more[0].tasks if len(more) == 1 else sum([choice.tasks for choice in more])
                if not most:
                    break
        return chosen

    def fitting_on(self, node_id: int, shape: Shape, most: int) -> tuple[int, tuple[int, ...]]:
        """Return how many tasks of a shape, up to `most`, fit a node, and their devices. At least one must fit."""
        nodes, row = self.nodes, self.nodes.rows[node_id]
        if most > 1:
            free = [
                (nodes.capacity[name][row] - nodes.used[name][row], amount)
                for name, amount in shape.amounts
                if name != GPU
            ]
            most = count_fitting(free, most)
        if not shape.devices:
            return most, ()
        devices = choose_devices(nodes.devices[row], nodes.gpus[row], shape.devices, shape.device_milli, most)
        return len(devices) // shape.devices, devices

    def fits(self, shape: Shape) -> bool:
        return self._first(shape, None) is not None

    def take(self, shape: Shape) -> int | None:
        """Take the fullest node that fits one task out of the index, and return its id."""
        first = self._first(shape, None)
        if first is None:
            return None
        (_, node_id), heap = first
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

    def _kind(self, key: KindKey) -> NodeKind:
        return Buckets(key)

    def _knows(self, shape: Shape) -> bool:
        """True if the index has all thresholds and labels of a shape."""
        return self._thresholds.issuperset(_thresholds(shape))

    def _choose_among(self, kinds: list[Any], shape: Shape, most: int, number: int) -> list[Choice]:
        """Choose nodes of some kinds for up to `most` tasks."""
        chosen: list[Choice] = []
        per_node = 1 if shape.key.apart else most
        while most:
            first = self._fullest(shape, kinds)
            if first is None:
                break
            (_, node_id), heap = first
            tasks, devices = self.fitting_on(node_id, shape, min(most, per_node))
            chosen.append(Choice(node_id, tasks, devices))
            most -= tasks
            if not most or len(self._at) == 1:
                break  # the search ends here, so this node may stay in its heap
            heappop(heap)
            self._out[node_id] = None
        return chosen

    def _is_outgrown(self) -> bool:
        # A new resource needs one more column.
        capacity = self.nodes.capacity
        return len(self._names) < len(capacity) - (GPU in capacity)

    def _first(self, shape: Shape, near: str | None) -> tuple[Entry, list[Entry]] | None:
        """Return the entry of the fullest of the most preferred nodes that fit, and the heap with it at the top."""
        for kinds in self._accepted.get((shape, near)) or self._kinds_for(shape, near):
            first = self._fullest(shape, kinds)
            if first is not None:
                return first
        return None

    def _fullest(self, shape: Shape, kinds: list[Any]) -> tuple[Entry, list[Entry]] | None:
        best: Entry | None = None
        heap: list[Entry] = []
        places = self._at
        for kind in kinds:
            mask = kind.masks.get(shape)
            if mask is None:
                mask = kind.mask_of(shape, self)
            fitting = kind.filled & mask
            gpus_and_cpu: Bucket | None = None
            while fitting:
                lowest = fitting & -fitting
                fitting ^= lowest
                at = lowest.bit_length() - 1
                if gpus_and_cpu is not None and kind.buckets[at][:2] != gpus_and_cpu:
                    break
                entries = kind.heaps[at]
                while entries:
                    place = places.get(entries[0][1])
                    if place is not None and place[2] is entries[0]:
                        break
                    heappop(entries)
                else:
                    kind.filled ^= lowest
                    continue
                gpus_and_cpu = kind.buckets[at][:2]
                if best is None or entries[0] < best:
                    best, heap = entries[0], entries
        return None if best is None else (best, heap)

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
        """Return the bucket with the least free amounts that fits a shape."""
        amounts = dict(shape.amounts)
        gpu = amounts.pop(GPU, 0)
        part = 0 if not gpu or shape.device_milli == WHOLE_DEVICE else bisect_right(self._parts, gpu)
        levels = [shape.devices if shape.device_milli == WHOLE_DEVICE else 0]
        for name, (thresholds, _, _) in zip(self._names, self._columns, strict=True):
            levels.append(bisect_right(thresholds, amounts[name]) if name in amounts else 0)
        return (*levels, part)

    def _learn_shapes(self) -> None:
        self._thresholds = {threshold for shape in self._shapes for threshold in _thresholds(shape)}
        amounts: dict[str, list[int]] = {CPU: [], GPU: [], **{name: [] for name in self.nodes.capacity}}
        for name, amount in sorted(self._thresholds):
            if not name.startswith(LABEL):
                amounts.setdefault(name, []).append(amount)
        self._parts = amounts.pop(GPU)
        self._names = sorted(amounts, key=lambda name: (name != CPU, name))
        self._columns = [(amounts[name], *self.nodes.columns(name)) for name in self._names]
        for shape in self._shapes:
            self._shapes[shape] = self._need(shape)


LABEL = "="
"""The prefix of a label's name, which distinguishes it from the name of a resource."""


def _thresholds(shape: Shape) -> Iterator[tuple[str, int]]:
    """Yield the thresholds and labels of a shape, which the index must distinguish."""
    for name, amount in shape.amounts:
        if name != GPU or shape.device_milli < WHOLE_DEVICE:
            yield name, amount
    for label in shape.labels:
        yield LABEL + label, 0
