"""The outlook: where all that waits would go, on the room there is, on nodes that are coming, and on new ones.

A node that is backed off and will be tried again soon counts as room there is.

Whoever nodes were ordered for keeps them; the others follow, the largest tasks first, because they then need fewest
nodes. Where pools may not grow enough for all, the first by turn get what there is. Nothing is altered.
"""

from __future__ import annotations

from itertools import islice

import msgspec

from fairlead.core.entitlement import Entitlements
from fairlead.core.holds.room import is_back_soon, room_for
from fairlead.core.model import Meant, Pool, Stage
from fairlead.core.pools.eligible import Want, wants_in_turn
from fairlead.core.pools.sizes import coming_nodes, grows, nodes_left, takes
from fairlead.core.resources import GPU, Vector, add
from fairlead.core.shape import WHOLE_DEVICE, Shape
from fairlead.core.state import Partition
from fairlead.core.whatif import WhatIf

Whom = tuple[str, int, int]
"""A job, a stage of it by position, and the kind."""


NO_DEVICES: tuple[int, ...] = ()


class Outlook(msgspec.Struct):
    new: dict[str, list[tuple[Meant, ...]]]
    """Pool → the nodes that it lacks, and what each would be for."""
    used: dict[int, None]
    """The nodes without work, by join number, on which some of what waits would go."""
    coming: dict[str, int]
    """Pool → how many nodes that are coming somebody waits for."""
    looked: int
    """How much was looked at."""
    left: int = 0
    """How many asks were not."""


class Bin:
    """A node that is not there yet, and what would be on it."""

    __slots__ = ("_alone", "_devices", "_free", "_meant", "coming", "pool")

    def __init__(self, pool: Pool, coming: bool) -> None:
        self.pool = pool
        self.coming = coming
        self._free: Vector = dict(pool.settings.node)
        self._devices = [0] * (self._free.get(GPU, 0) // WHOLE_DEVICE)
        self._meant: dict[Whom, int] = {}
        self._alone: dict[tuple[str, int], None] = {}
        """The stages whose tasks keep apart from each other and that have one here."""

    @property
    def meant(self) -> tuple[Meant, ...]:
        return tuple((*whom, tasks) for whom, tasks in self._meant.items() if tasks)

    def take(self, stage: Stage, kind: int, most: int) -> tuple[int, tuple[int, ...]]:
        """Set down as many tasks, which it takes, as there is room for, up to a number. Returns how many, on what."""
        shape, own = stage.shape, (stage.job.id, stage.position)
        if shape.key.apart:
            most = 0 if own in self._alone else min(most, 1)
        tasks, devices = room_for(self._free, self._devices, shape, most)
        if tasks:
            self._put(stage, kind, tasks, devices)
        return tasks, devices

    def give_back(self, stage: Stage, kind: int, tasks: int, devices: tuple[int, ...]) -> None:
        """The reverse of `take`."""
        self._put(stage, kind, -tasks, devices)

    def _put(self, stage: Stage, kind: int, tasks: int, devices: tuple[int, ...]) -> None:
        shape, whom = stage.shape, (stage.job.id, stage.position, kind)
        for name, amount in shape.amounts:
            self._free[name] -= amount * tasks
        for device in devices:
            self._devices[device] += shape.device_milli if tasks > 0 else -shape.device_milli
        self._meant[whom] = self._meant.get(whom, 0) + tasks
        if shape.key.apart and tasks > 0:
            self._alone[whom[:2]] = None
        elif shape.key.apart:
            del self._alone[whom[:2]]


Step = tuple[Bin | int, Stage, int, int, tuple[int, ...]]
"""Where tasks were set down, a node that is there or one that is not; whose, of which kind, how many, on what."""


class Packing:
    """One way to set down what waits."""

    def __init__(self, partition: Partition, bounded: bool) -> None:
        self.partition = partition
        self.short = False
        """Whether somebody was left out because a pool may not have more nodes."""
        self.looked = len(partition.allocations) // 10
        self._on: dict[int, int] = {}
        """How many tasks would go on nodes that are there."""
        self.bins: list[Bin] = []
        self._bounded = bounded
        self._future = WhatIf(partition)
        self._freed: dict[int, None] = {}
        for allocation in partition.allocations.values():
            if allocation.leaving:
                self._future.end(allocation)
                self._freed[allocation.node] = None
        for node_id in sorted(partition.nodes.avoided):
            if is_back_soon(partition, node_id):
                self._future.count_on(node_id)
                self._freed[node_id] = None
        for _, promise in sorted(partition.promises.items()):
            if promise.ordered:
                self._future.set_aside(promise)
                self._freed.update(promise.nodes)
        self._fitting: dict[Shape, list[int]] = {}
        self._apart: dict[tuple[str, int], dict[int, None]] = {}
        self._from: dict[Shape, int] = {}
        """For each shape, how many of the first bins are full."""
        pools = [pool for pool in partition.pools.values() if not bounded or grows(partition, pool, partition.now)]
        self._pools = sorted(pools, key=lambda pool: (pool.settings.cost, pool.name))
        self._left = {pool.name: nodes_left(partition, pool) if bounded else None for pool in pools}
        self._fits: dict[Shape, list[Pool]] = {}
        self._taking: dict[Shape, set[str]] = {}
        """The pools whose nodes take a shape."""
        self._steps: list[Step] = []
        self._without_room: set[int] = set()
        """The gangs that were left out."""

    @property
    def used(self) -> dict[int, None]:
        """The nodes without work that would get some."""
        nodes = self.partition.nodes
        return {
            node_id: None for node_id, tasks in self._on.items() if tasks and not nodes.allocations[nodes.rows[node_id]]
        }

    def expect(self, wants: list[Want]) -> None:
        """Leave out what has nodes already, and put up those that are coming, with what they were ordered for.

        What a gang keeps counts for what has to start together. So the nodes that are coming are left for its rest.
        """
        for want in wants if self.partition.promises else ():
            self._leave_out_kept(want)
        left: dict[Whom, list[tuple[Want, int]]] = {}
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
        """Set all of it down. What a gang wants beyond what has to start together follows only if that has room."""
        gangs = {want.ask.seq for want in wants if want.together}
        self._pack([want for want in wants if want.together or want.ask.seq not in gangs])
        rest = [want for want in wants if not want.together and want.ask.seq in gangs]
        self._pack([want for want in rest if want.ask.seq not in self._without_room])

    def _pack(self, wants: list[Want]) -> None:
        for want in wants:
            self.looked += 1
            self._steps = []
            first = dict(self._from) if want.together else {}
            missing = 0
            for stage, tasks in want.needs:
                missing += self._set_down(stage, want.ask.kind, tasks) if tasks > 0 else 0
                if missing and want.together:
                    self._without_room.add(want.ask.seq)
                    self._take_back()
                    self._from = first
                    break

    def _leave_out_kept(self, want: Want) -> None:
        """Take out the tasks of a gang for which nodes have come."""
        promise = self.partition.promises.get(want.ask.seq)
        if promise is None or not want.together:
            return
        there: dict[int, int] = {}
        for _, position, tasks in promise.places:
            there[position] = there.get(position, 0) + tasks
        want.needs = [(stage, max(0, wanted - there.get(stage.position, 0))) for stage, wanted in want.needs]

    def _set_down(self, stage: Stage, kind: int, tasks: int) -> int:
        """Returns how many found no room."""
        tasks -= self._on_nodes(stage, kind, tasks)
        tasks -= self._on_bins(stage, kind, tasks) if tasks else 0
        while tasks:
            pool = self._choose(stage.shape)
            if pool is None:
                break
            fresh = Bin(pool, False)
            left = self._left[pool.name]
            if left is not None:
                self._left[pool.name] = left - 1
            self.bins.append(fresh)
            taken, devices = fresh.take(stage, kind, tasks)
            self._steps.append((fresh, stage, kind, taken, devices))
            tasks -= taken
        return tasks

    def _on_nodes(self, stage: Stage, kind: int, most: int) -> int:
        """Use room that is there, or will be when what stops is gone and what is backed off is tried again."""
        shape, taken = stage.shape, 0
        joins = self._fitting.get(shape)
        if joins is None:
            joins = self._fitting[shape] = self._with_room(shape)
        if shape.key.apart:
            near = self._near(stage)
            for node_id in [node_id for node_id in reversed(joins) if node_id not in near][:most]:
                taken += self._use(node_id, stage, kind, 1)
            return taken
        while joins and taken < most:
            taken += self._use(joins[-1], stage, kind, most - taken)
            if taken < most:
                joins.pop()
        return taken

    def _use(self, node_id: int, stage: Stage, kind: int, most: int) -> int:
        tasks = self._future.room(node_id, stage.shape, most)
        if tasks:
            devices = self._future.put(node_id, stage.shape, tasks)
            self._steps.append((node_id, stage, kind, tasks, devices))
            self._on[node_id] = self._on.get(node_id, 0) + tasks
            if stage.shape.key.apart:
                self._near(stage)[node_id] = None
        return tasks

    def _with_room(self, shape: Shape) -> list[int]:
        """The nodes with room for a task, the last one to be used first."""
        partition = self.partition
        partition.index.put_all_back()
        among = sorted(partition.nodes.rows if partition.index.fits(shape) else self._freed, reverse=True)
        self.looked += len(among)
        return [node_id for node_id in among if self._future.room(node_id, shape, 1)]

    def _near(self, stage: Stage) -> dict[int, None]:
        """The nodes that have a task of a stage already, or would have."""
        own = (stage.job.id, stage.position)
        if own not in self._apart:
            self._apart[own] = {each.node: None for each in (stage.live or {}).values()}
        return self._apart[own]

    def _on_bins(self, stage: Stage, kind: int, most: int) -> int:
        shape, taken = stage.shape, 0
        at = 0 if shape.key.apart else self._from.get(shape, 0)
        taking = self._takers(shape)
        while taken < most and at < len(self.bins):
            tasks, devices = 0, NO_DEVICES
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
        known = self._taking.get(shape)
        if known is None:
            known = self._taking[shape] = {name for name, pool in self.partition.pools.items() if takes(pool, shape)}
        return known

    def _choose(self, shape: Shape) -> Pool | None:
        """The cheapest pool whose nodes take such tasks and that may have one more."""
        fitting = self._fits.get(shape)
        if fitting is None:
            fitting = self._fits[shape] = [pool for pool in self._pools if pool.name in self._takers(shape)]
        for pool in fitting:
            if self._left[pool.name] != 0:
                return pool
        self.short = self.short or bool(fitting)
        return None

    def _take_back(self) -> None:
        """What has to start together does not: nothing of it is set down."""
        for where, stage, kind, tasks, devices in reversed(self._steps):
            if isinstance(where, Bin):
                where.give_back(stage, kind, tasks, devices)
            else:
                self._future.take(where, stage.shape, -tasks, devices)
                self._fitting.pop(stage.shape, None)
                self._on[where] -= tasks
                self._near(stage).pop(where, None)
        while self.bins and not self.bins[-1].coming and not self.bins[-1].meant:
            left = self._left[self.bins[-1].pool.name]
            if left is not None:
                self._left[self.bins[-1].pool.name] = left + 1
            self.bins.pop()


def plan_capacity(partition: Partition, bounded: bool = True, most: int | None = None) -> Outlook:
    """Where all that waits and is allowed would go, or the first so many of it in turn.

    Without bounds, every pool gets as many nodes as it would need.
    """
    if not partition.lanes:
        return Outlook({}, {}, {}, 0)
    packing = _packed(partition, bounded, most, by_size=True)
    if packing.short:
        packing = _packed(partition, bounded, most, by_size=False)
    new: dict[str, list[tuple[Meant, ...]]] = {}
    coming: dict[str, int] = {}
    for each in packing.bins:
        if each.coming and each.meant:
            coming[each.pool.name] = coming.get(each.pool.name, 0) + 1
        elif each.meant:
            new.setdefault(each.pool.name, []).append(each.meant)
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
    """How large a task is: the parts, in millionths, that it takes of each resource of a node, in the best pool for it.

    Their sum needs fewer nodes than the largest of them: 9 % above the bound instead of 11 % in `bench.bursts`.
    """
    sizes = [
        sum(amount * 1_000_000 // dict(pool.settings.node)[name] for name, amount in shape.amounts)
        for pool in partition.pools.values()
        if takes(pool, shape)
    ]
    return min(sizes, default=0)


def _rights(partition: Partition) -> Entitlements:
    """What the queues would be entitled to if all pools were as large as they may be; turns go by that."""
    capacity, nodes = dict(partition.nodes.total), partition.nodes.up_count
    for pool in partition.pools.values():
        left = nodes_left(partition, pool)
        more = (1 if left is None else left) + coming_nodes(partition, pool)
        add(capacity, dict(pool.settings.node), more)
        nodes += more
    return Entitlements(partition.settings.unit, capacity, nodes)
