"""The index of placements that score nodes: nodes in equal states form a group, which is scored once.

So the cost of a task grows with the number of different states among the nodes, not with the number of nodes. A node
that is chosen for a task moves to the group of its new state at once, so that the next score includes the task.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop, heappush

from fairlead.core.index.kinds import Choice, KindKey, NodeIndex, NodeKind
from fairlead.core.node_table import NodeTable
from fairlead.core.policy.fragmentation import Task, Workload
from fairlead.core.policy.placement import MISSING, PLACEMENTS, Fleet, Key, Node, Placement, draw
from fairlead.core.resources import CPU, GPU
from fairlead.core.shape import WHOLE_DEVICE, Shape


class Group:
    """Nodes of one kind in one state."""

    __slots__ = ("heap", "size", "state")

    def __init__(self, state: Node) -> None:
        self.state = state
        self.size = 0
        self.heap: list[int] = []
        """Node ids. Those of nodes that moved are dropped when they reach the top."""


class Groups(NodeKind):
    __slots__ = ("fleet", "groups")

    def __init__(self, key: KindKey) -> None:
        super().__init__(key)
        self.groups: dict[Node, Group] = {}
        self.fleet: Fleet | None = None


class ScoreIndex(NodeIndex[Groups]):
    _kind = Groups

    def __init__(self, nodes: NodeTable, place: str, seed: int) -> None:
        super().__init__(nodes)
        self.placement = PLACEMENTS.get(place, MISSING)
        self._spares_gpus = not self.placement.drawn
        self.seed = seed
        self._tight = False
        self._names: list[str] = []
        self._columns: list[tuple[list[int], list[int]]] = []
        """Capacity and use of each resource except GPUs: CPU, then the others by name."""
        self._weights: dict[Shape, int] = {}
        self._largest: tuple[int, int, int] = (-1, 0, 0)
        """The version of the nodes, and the most CPU and the most devices of one node at that version."""

    def forget(self, shape: Shape) -> None:
        super().forget(shape)
        self._weights.pop(shape, None)

    def choose(self, shape: Shape, most: int, number: int, near: str | None = None) -> list[Choice]:
        task, placement = self._shapes[shape], self._placement()
        chosen: dict[int, tuple[int, tuple[int, ...]]] = {}
        for at in range(most):
            best = self._best(shape, task, near, number + at)
            if best is None:
                break
            kind, group, node_id = best
            devices = placement.devices(group.state, task, self._fleet(kind))
            tasks, before = chosen.get(node_id, (0, ()))
            chosen[node_id] = (tasks + 1, before + devices)
            if shape.key.apart:
                self.withdraw((node_id,))
            else:
                self._stand(node_id, kind, _after(group.state, task, devices))
        return [Choice(node_id, tasks, devices) for node_id, (tasks, devices) in chosen.items()]

    @contextmanager
    def tightly(self) -> Iterator[None]:
        """Context manager: place tasks by `bestfit` instead of the placement of the settings."""
        self._tight = True
        try:
            yield
        finally:
            self._tight = False

    def fits(self, shape: Shape) -> bool:
        task = self._shapes[shape]
        return any(
            _fits(state, task) for kinds in self._kinds_for(shape, None) for kind in kinds for state in kind.groups
        )

    def put_all_back(self) -> None:
        # The typical workload is the demand of all known jobs. It changes only between cycles.
        weights = {shape: shape.stages for shape in self._shapes} if self.placement.weighs else {}
        if weights != self._weights:
            self._weights = weights
            for kind in self._kinds.values():
                kind.fleet = None
        super().put_all_back()

    # -- inside

    def _placement(self) -> Placement:
        return PLACEMENTS["bestfit"] if self._tight else self.placement

    def _best(self, shape: Shape, task: Task, near: str | None, number: int) -> tuple[Groups, Group, int] | None:
        for kinds in self._kinds_for(shape, near):
            best = self._best_of(kinds, task, number)
            if best is not None:
                return best
        return None

    def _best_of(self, kinds: list[Groups], task: Task, number: int) -> tuple[Groups, Group, int] | None:
        best: list[tuple[int, Groups, Group]] = []
        score: Key | None = None
        placement = self._placement()
        for kind in kinds:
            fleet = self._fleet(kind)
            for group in kind.groups.values():
                if not _fits(group.state, task):
                    continue
                key = placement.score(group.state, task, fleet)
                if score is None or key < score:
                    score, best = key, []
                if key == score:
                    best.append((self._first(group), kind, group))
        if not best:
            return None
        best.sort(key=lambda entry: entry[0])
        at = 0
        if placement.drawn:
            at = draw(self.seed, number, [group.size for _, _, group in best])
        node_id, kind, group = best[at]
        return kind, group, node_id

    def _first(self, group: Group) -> int:
        heap = group.heap
        while self._at.get(heap[0], (None, None))[1] is not group:
            heappop(heap)
        return heap[0]

    def _fleet(self, kind: Groups) -> Fleet:
        if self._largest[0] != self.nodes.version:
            rows = self.nodes.rows.values()
            capacity, _ = self.nodes.columns(CPU)
            self._largest = (
                self.nodes.version,
                max((capacity[row] for row in rows), default=0),
                max((self.nodes.gpus[row] for row in rows), default=0),
            )
        _, cpu, devices = self._largest
        if kind.fleet is None or kind.fleet[:2] != (cpu, devices):
            kind.fleet = Fleet(cpu, devices, self._workload(kind))
        return kind.fleet

    def _workload(self, kind: Groups) -> Workload:
        usual = [(shape, weight) for shape, weight in self._weights.items() if self._accepts(shape, kind.key, None)]
        elsewhere = sum(self._weights.values()) - sum(weight for _, weight in usual)
        return Workload([(self._shapes[shape], weight) for shape, weight in usual], elsewhere)

    def _place(self, node_id: int, row: int, kind: Groups) -> None:
        self._leave(node_id)
        if node_id in self._out:
            return
        capacity = tuple([column[row] for column, _ in self._columns])
        free = tuple([column[row] - used[row] for column, used in self._columns])
        self._stand(node_id, kind, Node(capacity, free, tuple(self.nodes.devices[row])))

    def _stand(self, node_id: int, kind: Groups, state: Node) -> None:
        self._leave(node_id)
        group = kind.groups.get(state)
        if group is None:
            group = kind.groups[state] = Group(state)
        group.size += 1
        heappush(group.heap, node_id)
        self._pushes += 1
        self._at[node_id] = (kind, group, None)

    def _leave(self, node_id: int) -> None:
        where = self._at.pop(node_id, None)
        if where is not None:
            kind, group, _ = where
            group.size -= 1
            if not group.size:
                del kind.groups[group.state]

    def _learn_shapes(self) -> None:
        asked = {name for shape in self._shapes for name, _ in shape.amounts}
        self._names = [CPU, *sorted(asked - {CPU, GPU})]
        self._columns = [self.nodes.columns(name) for name in self._names]
        for shape in self._shapes:
            amounts = dict(shape.amounts)
            asks = tuple([amounts.get(name, 0) for name in self._names])
            self._shapes[shape] = Task(asks, shape.devices, shape.device_milli)


def _fits(state: Node, task: Task) -> bool:
    for free, amount in zip(state.free, task.amounts, strict=True):
        if free < amount:
            return False
    if not task.devices:
        return True
    return sum(1 for used in state.device_use if used + task.milli <= WHOLE_DEVICE) >= task.devices


def _after(state: Node, task: Task, devices: tuple[int, ...]) -> Node:
    used = list(state.device_use)
    for device in devices:
        used[device] += task.milli
    free = tuple([have - amount for have, amount in zip(state.free, task.amounts, strict=True)])
    return Node(state.capacity, free, tuple(used))
