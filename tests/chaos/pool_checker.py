"""Checks pools in a trial. It counts nodes, orders and waiting tasks, and uses none of the core's sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fairlead.core.changes import Change, GivenBack, Ordered
from fairlead.core.commands import Command, ScalePool
from fairlead.core.model import PoolSettings, Stage
from fairlead.core.resources import GPU
from fairlead.core.shape import WHOLE_DEVICE
from fairlead.core.state import Partition
from tests.chaos.checkers import need, takes_work, used_on
from tests.chaos.tasks import Micros, indices


class PoolChecker:
    """Checks that pools order nodes only for waiting asks, once and within bounds, give back only idle nodes, and keep
    `min_free` then.

    A pool may exceed its `max` if nodes that it gave up join after all. It orders no nodes then.
    """

    def __init__(self) -> None:
        self._orders: set[int] = set()
        self._names: set[str] = set()
        """All names that were ever ordered or registered."""

    def began(self, partition: Partition) -> None:
        """Record the orders of the last cycle, which may have been written before observers were called."""
        for number, order in partition.orders.items():
            self._orders.add(number)
            self._names.update(order.coming)

    def decided(self, partition: Partition, changes: Sequence[Change[Any]], commands: Sequence[Command] = ()) -> None:
        """Check the orders of a durable cycle, and the nodes it gave back. Operators may undercut `min_free`."""
        by_hand = {command.pool for command in commands if isinstance(command, ScalePool)}
        for change in changes:
            if isinstance(change, Ordered):
                self._check_ordered(partition, change, changes)
            elif isinstance(change, GivenBack):
                self._check_given_back(partition, change, change.pool in by_hand)
        self._names.update(partition.nodes.joins)

    def check(self, partition: Partition, now: Micros) -> None:
        """Check that overdue orders are given up in time, and promises of ordered nodes released in time."""
        if partition.readiness.ready:
            for promise in partition.promises.values():
                last = max(promise.since, partition.readiness.ready_at) + partition.settings.promise_for
                need(
                    not promise.ordered or now < last, f"nodes that came are kept for {promise.job} longer than {last}"
                )
            for number, order in partition.orders.items():
                last = max(order.since, partition.readiness.ready_at) + partition.settings.promise_for
                need(now < last, f"order {number} of {order.pool} is waited for longer than {last}")

    def unsettled(self, partition: Partition) -> str:
        """Return what pools still have to do although no ask waits; "" if nothing."""
        for pool in partition.pools.values():
            settings = pool.settings
            present, coming = _nodes_of(partition, pool.name), _coming(partition, pool.name)
            if coming or any(partition.nodes.state[partition.nodes.rows[node_id]] != "up" for node_id in present):
                return f"nodes of {pool.name} are coming or going"
            least, most = _bounds(settings)
            if not least <= len(present) <= most:
                return f"{pool.name} has {len(present)} nodes and should have {least} to {most}"
        return ""

    def _check_ordered(self, partition: Partition, change: Ordered, changes: Sequence[Change[Any]]) -> None:
        number, pool = change.number, change.pool
        need(number not in self._orders, f"order {number} was there before")
        self._orders.add(number)
        order = partition.orders.get(number)
        if order is None:
            return
        for name in order.coming:
            need(name not in self._names and name not in partition.nodes.joins, f"{name} is ordered, and was before")
        self._names.update(order.coming)
        most = partition.pools[pool].settings.max
        size = len(_nodes_of(partition, pool)) + _coming(partition, pool)
        need(most is None or size <= most, f"{pool} has {size} nodes, or has ordered them, and may have {most}")
        if change.cause == "demand":
            need(not _all_fit(partition, ()), f"order {number} of {pool} is made though all that waits would fit")
            self._check_fewest(partition, change, [order for order in changes if isinstance(order, Ordered)])
            for meant in order.coming.values():
                for job, position, kind, _ in meant:
                    self._check_once(partition, job, position, kind)

    def _check_fewest(self, partition: Partition, change: Ordered, made: list[Ordered]) -> None:
        """Check that the waiting tasks would not fit with one node fewer.

        This is certain only if all tasks and all new nodes are equal. Nodes in a short back-off count as usable.
        """
        shapes = {stage.shape.key for lane in partition.lanes.values() for ask in lane for stage in ask.stages}
        asked = next(iter(shapes))
        if len(shapes) > 1 or len(made) > 1 or asked.apart or GPU in dict(asked.resources):
            return
        coming = [
            order.pool for order in partition.orders.values() if order.number != change.number for _ in order.coming
        ]
        used = sum(bool(meant) for meant in partition.orders[change.number].coming.values())
        fewer = [*coming, *[change.pool] * (used - 1)]
        need(
            not _all_fit(partition, fewer, back=True),
            f"order {change.number} of {change.pool} is of more nodes than are needed",
        )

    def _check_once(self, partition: Partition, job: str, position: int, kind: int) -> None:
        """Check that nodes are not ordered for more tasks of an ask than wait."""
        stage = partition.jobs[job].stages[position]
        wanted = len(indices(stage.wanted(kind).flat()))
        meant = sum(
            tasks
            for order in partition.orders.values()
            for node in order.coming.values()
            for *ask, tasks in node
            if ask == [job, position, kind]
        )
        need(meant <= wanted, f"nodes are ordered for {meant} tasks of {job} {stage.name}, and {wanted} wait")

    def _check_given_back(self, partition: Partition, change: GivenBack, by_hand: bool) -> None:
        left = [
            node_id
            for node_id in _nodes_of(partition, change.pool)
            if node_id not in partition.unwanted and partition.nodes.state[partition.nodes.rows[node_id]] != "lost"
        ]
        if change.pool not in partition.pools:
            return  # the same cycle changed the configuration
        least = partition.pools[change.pool].settings.min
        size = len(left) + _coming(partition, change.pool)
        need(size >= least, f"{change.pool} gives nodes back, has {size} left, and should have {least}")
        for name, amount in () if by_hand else partition.pools[change.pool].settings.min_free:
            free = sum(_there(partition, partition.nodes.rows[node_id]).has(name) for node_id in left)
            need(free >= amount, f"{change.pool} gives nodes back, has {free} {name} free, and should have {amount}")
        for node_id in change.nodes:
            if node_id in partition.nodes.rows:
                name, busy = (
                    partition.nodes.name[partition.nodes.rows[node_id]],
                    partition.nodes.allocations[partition.nodes.rows[node_id]],
                )
                need(not busy, f"{name} is given back and has {busy}")
                need(node_id not in partition.nodes.held, f"{name} is given back and is held for an ask")


def _bounds(settings: PoolSettings) -> tuple[int, int]:
    """Return the minimum and maximum number of nodes of a pool without work."""
    node = dict(settings.node)
    free = max([0, *(-(-amount // node[name]) for name, amount in settings.min_free)])
    least = max(settings.min, settings.min_idle, free)
    most = max(least, settings.max_idle)
    return (least, most) if settings.max is None else (min(least, settings.max), most)


def _nodes_of(partition: Partition, pool: str) -> list[int]:
    return [node_id for node_id, row in partition.nodes.rows.items() if partition.nodes.pool[row] == pool]


def _coming(partition: Partition, pool: str) -> int:
    return sum(len(order.coming) for order in partition.orders.values() if order.pool == pool)


class _Room:
    """Free capacity of an existing or coming node."""

    def __init__(self, pool: str, free: dict[str, int], devices: list[int], stages: Iterable[Stage] = ()) -> None:
        self.pool = pool
        self.free = free
        self.devices = devices
        self.stages = {id(stage) for stage in stages}

    def has(self, name: str) -> int:
        """Return the free amount of a resource."""
        return sum(self.devices) if name == GPU else max(0, self.free.get(name, 0))

    def take(self, stage: Stage) -> bool:
        """Place a task of the stage; False if it does not fit."""
        key = stage.shape.key
        asked = dict(key.resources)
        gpu = asked.pop(GPU, 0)
        fitting = [at for at, device in enumerate(self.devices) if device >= gpu]
        if key.pool not in ("", self.pool) or (key.apart and id(stage) in self.stages) or (gpu and not fitting):
            return False
        if any(self.free.get(name, 0) < amount for name, amount in asked.items()):
            return False
        for name, amount in asked.items():
            self.free[name] -= amount
        if gpu:
            self.devices[min(fitting, key=lambda at: self.devices[at])] -= gpu
        self.stages.add(id(stage))
        return True


def _there(partition: Partition, row: int) -> _Room:
    used, devices = used_on(partition, row)
    free = {name: column[row] - used.get(name, 0) for name, column in partition.nodes.capacity.items()}
    stages = [allocation.stage for allocation in partition.nodes.allocations[row].values()]
    return _Room(partition.nodes.pool[row], free, [WHOLE_DEVICE - load for load in devices], stages)


def _coming_as(partition: Partition, pool: str) -> _Room:
    node = dict(partition.pools[pool].settings.node)
    return _Room(pool, node, [WHOLE_DEVICE] * (node.get(GPU, 0) // WHOLE_DEVICE))


def _is_back_soon(partition: Partition, node_id: int, row: int) -> bool:
    """True if a node is disconnected, or in a back-off that ends before a new node could join."""
    until = partition.nodes.avoided.get(node_id)
    if until is None and node_id not in partition.nodes.disconnected:
        return False
    failing = partition.nodes.failures[row] > 3
    if until is not None and (failing or until > partition.now + partition.settings.promise_for):
        return False
    return partition.nodes.state[row] == "up" and node_id not in partition.nodes.held


def _all_fit(partition: Partition, coming: Iterable[str], back: bool = False) -> bool:
    """True if all waiting tasks fit on nodes that accept work and on new nodes of these pools.

    True is certain, since every task got a place; False is not. No task here asks for more than one GPU.
    """
    rooms = [
        _there(partition, row) for node_id, row in partition.nodes.rows.items() if takes_work(partition, node_id, row)
    ]
    if back:
        rooms += [
            _there(partition, row)
            for node_id, row in partition.nodes.rows.items()
            if _is_back_soon(partition, node_id, row)
        ]
    rooms += [_coming_as(partition, pool) for pool in coming]
    waiting = [(stage, ask.kind) for lane in partition.lanes.values() for ask in lane for stage in ask.stages]
    tasks = [stage for stage, kind in waiting for _ in indices(stage.wanted(kind).flat())]
    tasks.sort(key=lambda stage: sorted(stage.shape.key.resources, reverse=True), reverse=True)
    return all(any(room.take(stage) for room in rooms) for stage in tasks)
