"""The index of placements that score nodes: nodes in equal states form a group, which is scored once for each shape.

Each shape has a ranking of the groups, and when it is used next, only groups that have come since are scored. So the
cost of a task grows with the number of states that changed, not with the number of nodes. A node that is chosen for a
task moves to the group of its new state at once, so that the next score includes the task.

With a placement by prices, only nodes with GPUs are scored; the others are ordered as for `pack`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Any

from msgspec.structs import replace

from fairlead.core.index.kinds import Choice, KindKey, NodeKind
from fairlead.core.index.pack import Buckets, Entry, FitIndex
from fairlead.core.model import Mix
from fairlead.core.node_table import NodeTable
from fairlead.core.policy.expected_loss import Good, Prices, Usual, prices_of, waste_of
from fairlead.core.policy.fragmentation import Task, Workload
from fairlead.core.policy.placement import MISSING, PLACEMENTS, Fleet, Key, Node, Placement, draw
from fairlead.core.resources import CPU, GPU
from fairlead.core.shape import WHOLE_DEVICE, Shape, ShapeKey

TYPICAL = 95
"""The percentage of all tasks that are typical."""
MAX_RANKINGS = 500
"""The number of rankings that are kept for a kind; the longest unused ones are dropped first."""

COUNTED_DIGITS = 5
"""The binary digits of a number of equal nodes that prices depend on."""

EmptyNode = tuple[tuple[int, ...], int]
"""The resources of a node, and its number of GPUs."""

Top = tuple[Key, int, int, "Group"]
"""The score of a group, its first node, a number that breaks ties, and the group."""


class Group:
    """Nodes of one kind in one state."""

    __slots__ = ("heap", "size", "state")

    def __init__(self, state: Node) -> None:
        self.state = state
        self.size = 0
        self.heap: list[int] = []
        """Node ids. Those of nodes that moved are dropped when they reach the top."""


class Ranking:
    """The groups of a kind that fit a shape, the best first."""

    __slots__ = ("heap", "read", "round")

    def __init__(self) -> None:
        self.heap: list[Top] = []
        """Entries of groups that ended, or whose first node left, are corrected when they reach the top."""
        self.round = -1
        self.read = 0
        """The part of `Groups.news` that is included, of this round of it."""


class Groups(NodeKind):
    __slots__ = ("fleet", "groups", "news", "rankings", "round")

    def __init__(self, key: KindKey) -> None:
        super().__init__(key)
        self.groups: dict[Node, Group] = {}
        self.fleet: Fleet | None = None
        self.news: list[Group] = []
        """Groups that are new or have an earlier first node."""
        self.round = 0
        """Grows when `news` is emptied."""
        self.rankings: dict[tuple[Shape, bool], Ranking] = {}
        """Shape, and True if placed tightly → its ranking; the last used ones are at the end."""

    def tell(self, group: Group) -> None:
        """Note a group that is new or has an earlier first node."""
        if len(self.news) > 4 * len(self.groups) + 1_000:
            self.news.clear()
            self.round += 1
        self.news.append(group)

    def forget(self, shape: Shape) -> None:
        self.rankings.pop((shape, False), None)
        self.rankings.pop((shape, True), None)


class ScoreIndex(FitIndex):
    def __init__(self, nodes: NodeTable, place: str, seed: int) -> None:
        super().__init__(nodes)
        self.placement = PLACEMENTS.get(place, MISSING)
        self._spares_gpus = not self.placement.drawn
        self.seed = seed
        self._tight = False
        self._packs = False
        """True if some nodes are not scored."""
        self._resources: list[str] = []
        """The resources of states, without GPUs: CPU, then those that shapes ask for, by name."""
        self._state_columns: list[tuple[list[int], list[int]]] = []
        """Capacity and use of each of them."""
        self._tasks: dict[Shape, Task] = {}
        self._mix: list[tuple[Shape, int]] = []
        """The usual requests, with the number of their tasks."""
        self._ending = 0
        """The percentage of tasks that end."""
        self._typical: list[tuple[Shape, int]] = []
        """The most frequent of them by CPU and GPU, which are nearly all tasks."""
        self._largest: tuple[int, int, int] = (-1, 0, 0)
        """The version of the nodes, and the most CPU and the most devices of one node at that version."""
        self._waste: Sequence[int] | None = None
        self._prices: dict[KindKey, Prices] | None = None
        """What is expected to be lost on nodes of each kind with GPUs; None if it has to be computed again."""
        self._empty: dict[int, tuple[KindKey, EmptyNode]] = {}
        """For prices: the nodes with GPUs, whether they take work or not, as if nothing ran there."""
        self._counts: dict[KindKey, Counter[EmptyNode]] = {}
        """The number of equal ones among them."""
        self._numbers = count()

    # -- for the state

    def add(self, shape: Shape) -> None:
        super().add(shape)
        if not self._stale:
            self._tasks[shape] = self._task(shape)

    def forget(self, shape: Shape) -> None:
        super().forget(shape)
        self._tasks.pop(shape, None)

    def learn(self, mix: Mix) -> None:
        """Set the usual requests."""
        self._mix = [(Shape(key), tasks) for key, tasks in mix.requests]
        self._ending = mix.ending
        self._typical = _typical(self._mix)
        self._waste = None
        self._stale |= not all(self._distinguishes(shape) for shape, _ in self._mix)
        self._value_again()

    # -- for matching

    @contextmanager
    def tightly(self) -> Iterator[None]:
        """Context manager: place tasks by `bestfit` instead of the placement of the settings."""
        self._tight = True
        try:
            yield
        finally:
            self._tight = False

    def fits(self, shape: Shape) -> bool:
        return any(self._fits_any(kinds, shape) for kinds in self._kinds_for(shape, None))

    # -- for explanations

    def good_about(self, node_id: int, shape: Shape, devices: Sequence[int]) -> Good:
        """Return why a placement by prices chose these devices of a node for a task."""
        self.refresh()
        row = self.nodes.rows[node_id]
        free = [capacity[row] - used[row] for capacity, used in self._state_columns]
        used = self._devices_of(row)
        parts = [used[device] for device in devices if device < len(used)] if shape.device_milli < WHOLE_DEVICE else []
        return self._price_of(self._key_of(row)).good(free, used, parts)

    # -- inside

    def _kind(self, key: KindKey) -> NodeKind:
        return Groups(key) if key.gpus or not self.placement.prices else Buckets(key)

    def _is_outgrown(self) -> bool:
        return super()._is_outgrown() if self._packs else self._has_packed(self.nodes.altered_since)

    def _has_packed(self, node_ids: Iterable[int]) -> bool:
        """True if one of the nodes has no GPUs, so that it is ordered as for `pack`."""
        rows = self.nodes.rows
        return self.placement.prices and any(
            node_id in rows and not self._gpus_of(rows[node_id]) for node_id in node_ids
        )

    def _gpus_of(self, row: int) -> str:
        return super()._gpus_of(row) or (self.nodes.plugged[row] if self.placement.prices else "")

    def _devices_of(self, row: int) -> tuple[int, ...]:
        """Return the use of each GPU of a node. Those of a device plugin have no numbers: the used ones come first."""
        nodes, name = self.nodes, self.nodes.plugged[row]
        if not name or not self.placement.prices:
            return tuple(nodes.devices[row])
        count = nodes.capacity[name][row] // WHOLE_DEVICE
        used = min(count, -(-nodes.used[name][row] // WHOLE_DEVICE))
        return (WHOLE_DEVICE,) * used + (0,) * (count - used)

    def _knows(self, shape: Shape) -> bool:
        # The thresholds are only for nodes that are ordered as for `pack`.
        return self._distinguishes(shape) and (not self._packs or shape.devices > 0 or super()._knows(shape))

    def _distinguishes(self, shape: Shape) -> bool:
        """True if states and kinds have all resources and labels that a shape asks for."""
        return {name for name, _ in shape.amounts} <= {GPU, *self._resources} and {*shape.labels} <= {*self._labels}

    def _choose_among(self, kinds: list[Any], shape: Shape, most: int, number: int) -> list[Choice]:
        """Choose nodes of some kinds, which are either all scored or all ordered as for `pack`."""
        if not isinstance(kinds[0], Groups):
            return super()._choose_among(kinds, shape, most, number)
        placement = self._placement()
        chosen: dict[int, tuple[int, tuple[int, ...]]] = {}
        for at in range(most):
            best = self._drawn(kinds, self._tasks[shape], number + at) if placement.drawn else self._best(kinds, shape)
            if best is None:
                break
            kind, group, node_id = best
            task = self._task_on(kind, shape)
            devices = placement.devices(group.state, task, self._fleet(kind))
            tasks, before = chosen.get(node_id, (0, ()))
            chosen[node_id] = (tasks + 1, before + devices if shape.devices else ())
            if shape.key.apart:
                self.withdraw((node_id,))
            else:
                self._stand(node_id, kind, group.state.after(task, devices))
        return [Choice(node_id, tasks, devices) for node_id, (tasks, devices) in chosen.items()]

    def _first(self, shape: Shape, near: str | None) -> tuple[Entry, list[Entry]] | None:
        for kinds in self._kinds_for(shape, near):
            if isinstance(kinds[0], Groups):
                if self._fits_any(kinds, shape):
                    return None  # scored nodes are chosen for each task by itself
            elif (first := self._fullest(shape, kinds)) is not None:
                return first
        return None

    def _fits_any(self, kinds: list[Any], shape: Shape) -> bool:
        if not isinstance(kinds[0], Groups):
            return self._fullest(shape, kinds) is not None
        if self._placement().drawn:
            return any(_fits(state, self._tasks[shape]) for kind in kinds for state in kind.groups)
        return any(kind.groups and self._top(kind, shape) is not None for kind in kinds)

    def _placement(self) -> Placement:
        return PLACEMENTS["bestfit"] if self._tight else self.placement

    def _drawn(self, kinds: list[Groups], task: Task, number: int) -> tuple[Groups, Group, int] | None:
        """Return a random one of the best nodes."""
        best: list[tuple[int, Groups, Group]] = []
        score: Key | None = None
        for kind in kinds:
            if not kind.groups:
                continue
            fleet = self._fleet(kind)
            for group in kind.groups.values():
                if not _fits(group.state, task):
                    continue
                key = self.placement.score(group.state, task, fleet)
                if score is None or key < score:
                    score, best = key, []
                if key == score:
                    best.append((self._first_of(group), kind, group))
        if not best:
            return None
        best.sort(key=lambda entry: entry[0])
        node_id, kind, group = best[draw(self.seed, number, [group.size for _, _, group in best])]
        return kind, group, node_id

    def _best(self, kinds: list[Groups], shape: Shape) -> tuple[Groups, Group, int] | None:
        """Return the best node, of equal ones the one that joined first."""
        best: Top | None = None
        of: Groups | None = None
        for kind in kinds:
            top = self._top(kind, shape) if kind.groups else None
            if top is not None and (best is None or top < best):
                best, of = top, kind
        return None if best is None or of is None else (of, best[3], best[1])

    def _top(self, kind: Groups, shape: Shape) -> Top | None:
        task = self._task_on(kind, shape)
        fleet = self._fleet(kind)
        ranking = kind.rankings.pop((shape, self._tight), None)
        if ranking is None:
            ranking = Ranking()
            if len(kind.rankings) >= MAX_RANKINGS:
                del kind.rankings[next(iter(kind.rankings))]
        kind.rankings[shape, self._tight] = ranking
        if ranking.round != kind.round or len(ranking.heap) > 4 * len(kind.groups) + 100:
            ranking.round = kind.round
            ranking.heap = self._scored(kind.groups.values(), task, fleet)
            heapify(ranking.heap)
        elif ranking.read < len(kind.news):
            for entry in self._scored(dict.fromkeys(kind.news[ranking.read :]), task, fleet):
                heappush(ranking.heap, entry)
        ranking.read = len(kind.news)
        heap = ranking.heap
        while heap:
            key, node_id, number, group = heap[0]
            first = self._first_of(group) if group.size else node_id
            if group.size and first == node_id:
                return heap[0]
            if first > node_id:
                heapreplace(heap, (key, first, number, group))
            else:
                heappop(heap)  # the group ended, or has another entry
        return None

    def _scored(self, groups: Iterable[Group], task: Task, fleet: Fleet) -> list[Top]:
        score = self._placement().score
        return [
            (score(group.state, task, fleet), self._first_of(group), next(self._numbers), group)
            for group in groups
            if group.size and _fits(group.state, task)
        ]

    def _first_of(self, group: Group) -> int:
        heap = group.heap
        while self._at.get(heap[0], (None, None))[1] is not group:
            heappop(heap)
        return heap[0]

    # -- the values that scores depend on, beside the states

    def _fleet(self, kind: Groups) -> Fleet:
        if self._largest[0] != self.nodes.version:
            rows = self.nodes.rows.values()
            capacity, _ = self.nodes.columns(CPU)
            largest = (
                max((capacity[row] for row in rows), default=0),
                max((self.nodes.gpus[row] for row in rows), default=0),
            )
            if largest != self._largest[1:]:
                self._value_again()
            self._largest = (self.nodes.version, *largest)
        if kind.fleet is None:
            _, cpu, devices = self._largest
            prices = self._price_of(kind.key) if self.placement.prices else None
            kind.fleet = Fleet(cpu, devices, self._workload(kind.key), prices)
        return kind.fleet

    def _value_again(self) -> None:
        """Score all nodes again when they are next looked at."""
        self._prices = None
        for kind in self._kinds.values():
            if isinstance(kind, Groups):
                kind.fleet = None
                kind.rankings.clear()

    def _workload(self, key: KindKey) -> Workload:
        if not self.placement.weighs:
            return Workload(())
        usual = [(shape, tasks) for shape, tasks in self._typical if self._accepts(shape, key, None)]
        elsewhere = sum(tasks for _, tasks in self._typical) - sum(tasks for _, tasks in usual)
        return Workload([(self._task(shape), tasks) for shape, tasks in usual], elsewhere)

    def _price_of(self, kind: KindKey) -> Prices:
        if self._prices is None:
            tasks = [(self._task(shape), tasks) for shape, tasks in self._mix]
            self._waste = self._waste or waste_of(tasks)
            accepted = {
                key: tuple(
                    [
                        at
                        for at, (shape, _) in enumerate(self._mix)
                        if self._accepts(shape, key, None) and shape.gpu_name in ("", key.gpus)
                    ]
                )
                for key in self._counts
            }
            # Kinds that accept the same requests have the same prices.
            classes = sorted(set(accepted.values()))
            nodes: list[Counter[EmptyNode]] = [Counter() for _ in classes]
            for key, counts in self._counts.items():
                nodes[classes.index(accepted[key])].update({node: _rounded(count) for node, count in counts.items()})
            usual = [
                Usual(task, weight, frozenset([number for number, those in enumerate(classes) if at in those]))
                for at, (task, weight) in enumerate(tasks)
            ]
            prices = prices_of(usual, nodes, self._waste, self._ending)
            self._prices = {key: prices[classes.index(those)] for key, those in accepted.items()}
        return self._prices[kind]

    # -- where nodes are

    def _enter(self, node_id: int) -> None:
        if self.placement.prices:
            self._count_empty(node_id)
        super()._enter(node_id)

    def _count_empty(self, node_id: int) -> None:
        row = self.nodes.rows.get(node_id)
        now = None
        if row is not None and self._gpus_of(row):
            capacity = tuple([column[row] for column, _ in self._state_columns])
            now = self._key_of(row), (capacity, self.nodes.gpus[row] or len(self._devices_of(row)))
        before = self._empty.get(node_id)
        if now == before:
            return
        if before is not None:
            del self._empty[node_id]
            self._count(*before, -1)
        if now is not None:
            self._empty[node_id] = now
            self._count(*now, 1)

    def _count(self, key: KindKey, node: EmptyNode, more: int) -> None:
        counts = self._counts.setdefault(key, Counter())
        before = counts[node]
        counts[node] += more
        if not counts[node]:
            del counts[node]
            if not counts:
                del self._counts[key]
        if _rounded(before) != _rounded(before + more):
            self._value_again()

    def _place(self, node_id: int, row: int, kind: Any) -> None:
        if not isinstance(kind, Groups):
            if isinstance(self._at.get(node_id, (None,))[0], Groups):
                self._leave(node_id)  # the node has no GPUs any more
            super()._place(node_id, row, kind)
            return
        if node_id in self._out:
            self._leave(node_id)
            return
        capacity = tuple([column[row] for column, _ in self._state_columns])
        free = tuple([column[row] - used[row] for column, used in self._state_columns])
        self._stand(node_id, kind, Node(capacity, free, self._devices_of(row)))

    def _stand(self, node_id: int, kind: Groups, state: Node) -> None:
        group = kind.groups.get(state)
        if group is not None and self._at.get(node_id, (None, None))[1] is group:
            return
        self._leave(node_id)
        group = kind.groups.get(state)
        if group is None:
            group = kind.groups[state] = Group(state)
        if not group.heap or node_id < group.heap[0]:
            kind.tell(group)
        group.size += 1
        heappush(group.heap, node_id)
        self._pushes += len(group.heap) > group.size
        self._at[node_id] = (kind, group, None)

    def _leave(self, node_id: int) -> None:
        where = self._at.pop(node_id, None)
        if where is not None and isinstance(where[0], Groups):
            kind, group, _ = where
            group.size -= 1
            if not group.size:
                del kind.groups[group.state]

    def _learn_shapes(self) -> None:
        self._packs = self._has_packed(self.nodes.rows)
        if self._packs:
            super()._learn_shapes()
        known = [*self._shapes, *[shape for shape, _ in self._mix]]
        asked = {name for shape in known for name, _ in shape.amounts}
        self._resources = [CPU, *sorted(asked - {CPU, GPU})]
        self._state_columns = [self.nodes.columns(name) for name in self._resources]
        self._labels = sorted({label for shape in known for label in shape.labels})
        self._tasks = {shape: self._task(shape) for shape in self._shapes}
        self._empty.clear()
        self._counts.clear()
        self._value_again()

    def _task(self, shape: Shape) -> Task:
        amounts = dict(shape.amounts)
        asks = tuple([amounts.get(name, 0) for name in self._resources])
        if self.placement.prices:
            return Task(asks, shape.gpus, shape.gpu_milli)
        return Task(asks, shape.devices, shape.device_milli)

    def _task_on(self, kind: Groups, shape: Shape) -> Task:
        """Return the request as nodes of a kind see it: beside other GPUs, those of a plugin are a plain amount."""
        task = self._tasks[shape]
        return task if not shape.plugged or kind.key.gpus == shape.plugged else Task(task.amounts, 0, 0)


def _rounded(count: int) -> int:
    """Return a number of nodes without its lower binary digits, so that few nodes that join change no prices."""
    lower = max(0, count.bit_length() - COUNTED_DIGITS)
    return count >> lower << lower


def _fits(state: Node, task: Task) -> bool:
    for free, amount in zip(state.free, task.amounts, strict=True):
        if free < amount:
            return False
    if not task.devices:
        return True
    used = state.device_use
    if task.milli == WHOLE_DEVICE:
        return used.count(0) >= task.devices
    return bool(used) and min(used) + task.milli <= WHOLE_DEVICE


def _typical(mix: Iterable[tuple[Shape, int]]) -> list[tuple[Shape, int]]:
    """Return the most frequent requests for CPU and GPU that make up the typical part of all tasks."""
    tasks: dict[ShapeKey, int] = {}
    for shape, number in mix:
        amounts = tuple([(name, amount) for name, amount in shape.amounts if name in (CPU, GPU)])
        key = replace(shape.key, resources=amounts)
        tasks[key] = tasks.get(key, 0) + number
    left = TYPICAL * sum(tasks.values())
    typical: list[tuple[Shape, int]] = []
    for number, key in sorted([(-number, key) for key, number in tasks.items()]):
        if left <= 0:
            break
        typical.append((Shape(key), -number))
        left += 100 * number
    return typical
