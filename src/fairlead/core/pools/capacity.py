"""The outlook of capacity: packs waiting asks onto existing, coming and new nodes, without altering the state.

A node that is avoided after failed launches counts as existing if it will be tried again soon. Asks for which nodes
were ordered keep these nodes. The others follow, the largest tasks first, because this needs the fewest nodes. If pools
may not grow enough for all, the first asks in the order of turns get the nodes.
"""

from __future__ import annotations

from itertools import islice

import msgspec

from fairlead.core.ahead.whatif import WhatIf
from fairlead.core.entitlement import Entitlements
from fairlead.core.holds.earmarks import back_soon
from fairlead.core.model import Meant, Pool, Stage
from fairlead.core.node_fit import fitting_in
from fairlead.core.pools.eligible import Want, wants_in_turn
from fairlead.core.pools.priced import losses
from fairlead.core.pools.sizes import coming_nodes, grows, nodes_left, takes
from fairlead.core.resources import GPU, Vector, add
from fairlead.core.shape import WHOLE_DEVICE, Shape
from fairlead.core.state import Partition

AskKey = tuple[str, int, int]
"""A job, the position of a stage in it, and the kind."""


class Outlook(msgspec.Struct):
    new: dict[str, list[tuple[Meant, ...]]]
    """Pool → the nodes to order, each with the tasks that it is meant for."""
    used: dict[int, None]
    """The ids of empty nodes that waiting tasks would use."""
    coming: dict[str, int]
    """Pool → the number of coming nodes that waiting tasks would use."""
    looked: int
    """The number of asks, nodes and allocations examined, as a measure of the cost."""
    left: int = 0
    """The number of asks that were not examined."""


class Bin:
    """A coming or new node, and the tasks that would be on it."""

    __slots__ = ("_alone", "_devices", "_free", "_meant", "coming", "pool")

    def __init__(self, pool: Pool, coming: bool) -> None:
        self.pool = pool
        self.coming = coming
        self._free: Vector = dict(pool.settings.node)
        self._devices = [0] * (self._free.get(GPU, 0) // WHOLE_DEVICE)
        self._meant: dict[AskKey, int] = {}
        self._alone: dict[tuple[str, int], None] = {}
        """The stages with `apart` of which a task is here."""

    @property
    def meant(self) -> tuple[Meant, ...]:
        return tuple((*ask_key, tasks) for ask_key, tasks in self._meant.items() if tasks)

    def take(self, stage: Stage, kind: int, most: int) -> tuple[int, tuple[int, ...]]:
        """Put up to `most` tasks here, as far as they fit. Returns their number and devices."""
        shape, own = stage.shape, (stage.job.id, stage.position)
        if shape.key.apart:
            most = 0 if own in self._alone else min(most, 1)
        tasks, devices = fitting_in(self._free, self._devices, shape, most)
        if tasks:
            self._put(stage, kind, tasks, devices)
        return tasks, devices

    def give_back(self, stage: Stage, kind: int, tasks: int, devices: tuple[int, ...]) -> None:
        """Undo `take`."""
        self._put(stage, kind, -tasks, devices)

    def _put(self, stage: Stage, kind: int, tasks: int, devices: tuple[int, ...]) -> None:
        shape, ask_key = stage.shape, (stage.job.id, stage.position, kind)
        for name, amount in shape.amounts:
            self._free[name] -= amount * tasks
        for device in devices:
            self._devices[device] += shape.device_milli if tasks > 0 else -shape.device_milli
        self._meant[ask_key] = self._meant.get(ask_key, 0) + tasks
        if shape.key.apart and tasks > 0:
            self._alone[ask_key[:2]] = None
        elif shape.key.apart:
            del self._alone[ask_key[:2]]


Step = tuple[Bin | int, Stage, int, int, tuple[int, ...]]
"""One placement: a bin or the id of an existing node, then stage, kind, number of tasks, and devices."""


class Packing:
    """One way to pack the waiting tasks."""

    def __init__(self, partition: Partition, bounded: bool) -> None:
        self.partition = partition
        self.short = False
        """True if an ask was left out because pools may not have more nodes."""
        self.looked = len(partition.allocations) // 10
        self._on: dict[int, int] = {}
        """Existing node → the number of tasks that were packed there."""
        self.bins: list[Bin] = []
        self._bounded = bounded
        self._future = WhatIf(partition)
        self._freed: dict[int, None] = {}
        for allocation in partition.allocations.values():
            if allocation.leaving:
                self._future.end(allocation)
                self._freed[allocation.node] = None
        for node_id in back_soon(partition):
            self._future.count_on(node_id)
            self._freed[node_id] = None
        for _, promise in sorted(partition.promises.items()):
            if promise.ordered:
                self._future.set_aside(promise)
                self._freed.update(promise.nodes)
        self._fitting: dict[Shape, list[int]] = {}
        self._apart: dict[tuple[str, int], dict[int, None]] = {}
        self._from: dict[Shape, int] = {}
        """Shape → the number of bins at the beginning of `bins` without capacity for it."""
        pools = [pool for pool in partition.pools.values() if not bounded or grows(partition, pool, partition.now)]
        self._pools = sorted(pools, key=lambda pool: (pool.settings.cost, pool.name))
        self._left = {pool.name: nodes_left(partition, pool) if bounded else None for pool in pools}
        self._fits: dict[Shape, list[Pool]] = {}
        self._taking: dict[Shape, set[str]] = {}
        """Shape → the names of pools whose nodes accept it."""
        self._steps: list[Step] = []
        self._not_fitting: set[int] = set()
        """The asks, by number, of gangs that do not fit."""

    @property
    def used(self) -> dict[int, None]:
        """Return the empty nodes that waiting tasks would use."""
        nodes = self.partition.nodes
        return {
            node_id: None for node_id, tasks in self._on.items() if tasks and not nodes.allocations[nodes.rows[node_id]]
        }

    def expect(self, wants: list[Want]) -> None:
        """Add the coming nodes with the tasks that they were ordered for. These tasks need no other nodes.

        The same is true of gang tasks for which ordered nodes have joined.
        """
        for want in wants if self.partition.promises else ():
            self._leave_out_kept(want)
        left: dict[AskKey, list[tuple[Want, int]]] = {}
        for want in wants:
            for at, (stage, _) in enumerate(want.needs):
                left.setdefault((stage.job.id, stage.position, want.ask.kind), []).append((want, at))
        for number in sorted(self.partition.orders):
            order = self.partition.orders[number]
            for meant in order.coming.values():
                coming = Bin(self.partition.pools[order.pool], True)
                self.bins.append(coming)
                for job, position, kind, tasks in meant:
                    free = tasks
                    for want, at in left.get((job, position, kind), ()):
                        stage, wanted = want.needs[at]
                        if order.pool not in self._takers(stage.shape):
                            continue
                        taken, _ = coming.take(stage, kind, min(free, wanted))
                        want.needs[at] = (stage, wanted - taken)
                        free -= taken

    def pack(self, wants: list[Want]) -> None:
        """Pack all wants. Further tasks of a gang are packed only if the tasks that start together fit."""
        gangs = {want.ask.seq for want in wants if want.together}
        self._pack([want for want in wants if want.together or want.ask.seq not in gangs])
        rest = [want for want in wants if not want.together and want.ask.seq in gangs]
        self._pack([want for want in rest if want.ask.seq not in self._not_fitting])

    def _pack(self, wants: list[Want]) -> None:
        for want in wants:
            self.looked += 1
            self._steps = []
            first = dict(self._from) if want.together else {}
            missing = 0
            for stage, tasks in want.needs:
                missing += self._put(stage, want.ask.kind, tasks) if tasks > 0 else 0
                if missing and want.together:
                    self._not_fitting.add(want.ask.seq)
                    self._take_back()
                    self._from = first
                    break

    def _leave_out_kept(self, want: Want) -> None:
        """Leave out tasks of a gang for which ordered nodes have joined."""
        promise = self.partition.promises.get(want.ask.seq)
        if promise is None or not want.together:
            return
        arrived: dict[int, int] = {}
        for _, position, tasks in promise.places:
            arrived[position] = arrived.get(position, 0) + tasks
        want.needs = [(stage, max(0, wanted - arrived.get(stage.position, 0))) for stage, wanted in want.needs]

    def _put(self, stage: Stage, kind: int, tasks: int) -> int:
        """Put tasks on existing nodes, bins and new bins. Returns the number of tasks that do not fit."""
        tasks -= self._on_nodes(stage, kind, tasks)
        tasks -= self._on_bins(stage, kind, tasks) if tasks else 0
        while tasks:
            pool = self._choose(stage.shape)
            if pool is None:
                break
            new_bin = Bin(pool, False)
            left = self._left[pool.name]
            if left is not None:
                self._left[pool.name] = left - 1
            self.bins.append(new_bin)
            taken, devices = new_bin.take(stage, kind, tasks)
            self._steps.append((new_bin, stage, kind, taken, devices))
            tasks -= taken
        return tasks

    def _on_nodes(self, stage: Stage, kind: int, most: int) -> int:
        """Use existing nodes, including the capacity of stopping tasks. Returns the number of tasks that fit."""
        shape, taken = stage.shape, 0
        node_ids = self._fitting.get(shape)
        if node_ids is None:
            node_ids = self._fitting[shape] = self._with_capacity(shape)
        if shape.key.apart:
            near = self._nodes_with(stage)
            for node_id in [node_id for node_id in reversed(node_ids) if node_id not in near][:most]:
                taken += self._use(node_id, stage, kind, 1)
            return taken
        while node_ids and taken < most:
            taken += self._use(node_ids[-1], stage, kind, most - taken)
            if taken < most:
                node_ids.pop()
        return taken

    def _use(self, node_id: int, stage: Stage, kind: int, most: int) -> int:
        tasks = self._future.fitting(node_id, stage.shape, most)
        if tasks:
            devices = self._future.put(node_id, stage.shape, tasks)
            self._steps.append((node_id, stage, kind, tasks, devices))
            self._on[node_id] = self._on.get(node_id, 0) + tasks
            if stage.shape.key.apart:
                self._nodes_with(stage)[node_id] = None
        return tasks

    def _with_capacity(self, shape: Shape) -> list[int]:
        """Return the nodes with capacity for a task. The last one is used first."""
        partition = self.partition
        partition.derived.index.put_all_back()
        node_ids = sorted(partition.nodes.rows if partition.derived.index.fits(shape) else self._freed, reverse=True)
        self.looked += len(node_ids)
        return [node_id for node_id in node_ids if self._future.fitting(node_id, shape, 1)]

    def _nodes_with(self, stage: Stage) -> dict[int, None]:
        own = (stage.job.id, stage.position)
        if own not in self._apart:
            self._apart[own] = {allocation.node: None for allocation in (stage.live or {}).values()}
        return self._apart[own]

    def _on_bins(self, stage: Stage, kind: int, most: int) -> int:
        shape, taken = stage.shape, 0
        at = 0 if shape.key.apart else self._from.get(shape, 0)
        taking = self._takers(shape)
        while taken < most and at < len(self.bins):
            if self.bins[at].pool.name in taking:
                tasks, devices = self.bins[at].take(stage, kind, most - taken)
                if tasks:
                    self._steps.append((self.bins[at], stage, kind, tasks, devices))
                    taken += tasks
            at += taken < most
        if not shape.key.apart:
            self._from[shape] = at
        return taken

    def _takers(self, shape: Shape) -> set[str]:
        pool_names = self._taking.get(shape)
        if pool_names is None:
            pool_names = self._taking[shape] = {
                name for name, pool in self.partition.pools.items() if takes(pool, shape)
            }
        return pool_names

    def _choose(self, shape: Shape) -> Pool | None:
        """Return the cheapest pool that may grow and whose nodes accept a shape; of equal ones, that of least loss."""
        fitting = self._fits.get(shape)
        if fitting is None:
            fitting = [pool for pool in self._pools if pool.name in self._takers(shape)]
            lost = losses(self.partition, shape, fitting)
            fitting.sort(key=lambda pool: (pool.settings.cost, lost.get(pool.name, 0)))
            self._fits[shape] = fitting
        for pool in fitting:
            if self._left[pool.name] != 0:
                return pool
        self.short = self.short or bool(fitting)
        return None

    def _take_back(self) -> None:
        """Undo the placements of a gang that does not fit whole."""
        for where, stage, kind, tasks, devices in reversed(self._steps):
            if isinstance(where, Bin):
                where.give_back(stage, kind, tasks, devices)
            else:
                self._future.take(where, stage.shape, -tasks, devices)
                self._fitting.pop(stage.shape, None)
                self._on[where] -= tasks
                self._nodes_with(stage).pop(where, None)
        while self.bins and not self.bins[-1].coming and not self.bins[-1].meant:
            left = self._left[self.bins[-1].pool.name]
            if left is not None:
                self._left[self.bins[-1].pool.name] = left + 1
            self.bins.pop()


def plan_capacity(partition: Partition, bounded: bool = True, most: int | None = None) -> Outlook:
    """Pack all waiting asks that may start, or the first `most` wants in turn order.

    Without `bounded`, pools have no size limit and no pause.
    """
    if not partition.lanes:
        return Outlook({}, {}, {}, 0)
    packing = _packed(partition, bounded, most, by_size=True)
    if packing.short:
        packing = _packed(partition, bounded, most, by_size=False)
    new: dict[str, list[tuple[Meant, ...]]] = {}
    coming: dict[str, int] = {}
    for node in packing.bins:
        if node.coming and node.meant:
            coming[node.pool.name] = coming.get(node.pool.name, 0) + 1
        elif node.meant:
            new.setdefault(node.pool.name, []).append(node.meant)
    left = 0 if most is None else sum(lane.size for lane in partition.lanes.values()) - most
    return Outlook(new, packing.used, coming, packing.looked, max(0, left))


def _packed(partition: Partition, bounded: bool, most: int | None, by_size: bool) -> Packing:
    packing = Packing(partition, bounded)
    wants = list(islice(wants_in_turn(partition, _rights(partition)), most))
    packing.expect(wants)
    if by_size:
        shapes = {stage.shape for want in wants for stage, _ in want.needs}
        sizes = {shape: _size(partition, shape) for shape in shapes}
        wants.sort(key=lambda want: -max(sizes[stage.shape] for stage, _ in want.needs))
    packing.pack(wants)
    return packing


def _size(partition: Partition, shape: Shape) -> int:
    """Return the size of a task: its parts of a node, summed over resources, in millionths; the smallest of all pools.

    Packing in the order of this sum needs fewer nodes than in the order of the largest part (see `bench.bursts`).
    """
    sizes = [
        sum(amount * 1_000_000 // dict(pool.settings.node)[name] for name, amount in shape.amounts)
        for pool in partition.pools.values()
        if takes(pool, shape)
    ]
    return min(sizes, default=0)


def _rights(partition: Partition) -> Entitlements:
    """Return the entitlements that would hold with all pools at full size. The order of turns depends on them."""
    capacity, nodes = dict(partition.nodes.total), partition.nodes.up_count
    for pool in partition.pools.values():
        left = nodes_left(partition, pool)
        more = (1 if left is None else left) + coming_nodes(partition, pool)
        add(capacity, dict(pool.settings.node), more)
        nodes += more
    return Entitlements(partition.settings.unit, capacity, nodes)
