"""Changes of pools: nodes are ordered, come or do not, stand idle, and are given back."""

from __future__ import annotations

from typing import Any

from fairlead.core.changes.base import Change
from fairlead.core.model import Ask, Meant, Micros, NodeOrder, OrderCause
from fairlead.core.state import Partition


def name_of(pool: str, order: int, at: int) -> str:
    """The name of an ordered node: whoever brings it gives it this name, and so it is known when it comes."""
    return f"{pool}-{order}-{at}"


class Ordered(Change, frozen=True, tag="ordered"):
    """A pool is asked for nodes. `nodes` says, for so many of them each, what they are meant for."""

    number: int
    pool: str
    nodes: tuple[tuple[int, tuple[Meant, ...]], ...]
    cause: OrderCause

    def apply(self, partition: Partition) -> tuple[int, Micros | None]:
        each = [meant for count, meant in self.nodes for _ in range(count)]
        coming = {name_of(self.pool, self.number, at): meant for at, meant in enumerate(each)}
        order = NodeOrder(self.number, self.pool, partition.now, self.cause, coming)
        pool = partition.pools[self.pool]
        before = (partition.counters.order, pool.grew)
        partition.orders[self.number] = order
        partition.order_of.update(dict.fromkeys(order.coming, self.number))
        partition.counters.order = max(partition.counters.order, self.number + 1)
        pool.grew = partition.now
        return before

    def undo(self, partition: Partition, kept: tuple[int, Micros | None]) -> None:
        for name in partition.orders.pop(self.number).coming:
            del partition.order_of[name]
        partition.counters.order, partition.pools[self.pool].grew = kept


class Arrived(Change, frozen=True, tag="arrived"):
    """An ordered node has joined."""

    number: int
    name: str

    def apply(self, partition: Partition) -> tuple[NodeOrder, dict[str, tuple[Meant, ...]], str]:
        order = partition.orders[self.number]
        pool = partition.pools[order.pool]
        before = (order, dict(order.coming), pool.problem)
        _no_more(partition, order, (self.name,))
        pool.problem = ""
        return before

    def undo(self, partition: Partition, kept: tuple[NodeOrder, dict[str, tuple[Meant, ...]], str]) -> None:
        order, coming, problem = kept
        _expect(partition, order, coming)
        partition.pools[order.pool].problem = problem


AskRow = tuple[str, int, int]
"""A job, a stage of it by position, and the kind."""

FailedBefore = tuple[NodeOrder, dict[str, tuple[Meant, ...]], tuple[AskRow, ...], list[Ask], Micros, str]
"""An order, what was coming and which asks counted it as failed, the asks that do now, and the pool's old pause."""


class OrderFailed(Change, frozen=True, tag="order failed"):
    """Ordered nodes are not expected any more. Above 0, `until` is when the pool is asked again.

    The asks they were meant for then count the order as failed, once for all its nodes. With 0 no ask counts it.
    """

    number: int
    names: tuple[str, ...]
    reason: str
    until: Micros = 0

    def apply(self, partition: Partition) -> FailedBefore:
        order = partition.orders[self.number]
        pool = partition.pools[order.pool]
        waiting = _newly_failed(partition, order, self.names) if self.until else []
        before = (order, dict(order.coming), order.failed, waiting, pool.paused_until, pool.problem)
        for ask in waiting:
            ask.orders += 1
        order.failed += tuple(_ask_of(ask) for ask in waiting)
        _no_more(partition, order, self.names)
        if self.until:
            pool.paused_until, pool.problem = self.until, self.reason
        return before

    def undo(self, partition: Partition, kept: FailedBefore) -> None:
        order, coming, failed, waiting, until, problem = kept
        for ask in waiting:
            ask.orders -= 1
        order.failed = failed
        _expect(partition, order, coming)
        pool = partition.pools[order.pool]
        pool.paused_until, pool.problem = until, problem


class PoolMoved(Change, frozen=True, tag="pool moved"):
    """Somebody paused a pool, or let it go on: then failed orders are forgotten, and all who wait may order anew."""

    pool: str
    paused: bool

    def apply(self, partition: Partition) -> tuple[bool, Micros, str, list[tuple[Ask, int]]]:
        pool = partition.pools[self.pool]
        vain: list[tuple[Ask, int]] = []
        before = (pool.paused, pool.paused_until, pool.problem, vain)
        pool.paused = self.paused
        if not self.paused:
            pool.paused_until, pool.problem = 0, ""
            for lane in partition.lanes.values():
                for each in lane:
                    if each.orders:
                        vain.append((each, each.orders))
                        each.orders = 0
        return before

    def undo(self, partition: Partition, kept: tuple[bool, Micros, str, list[tuple[Ask, int]]]) -> None:
        pool = partition.pools[self.pool]
        pool.paused, pool.paused_until, pool.problem, vain = kept
        for ask, orders in vain:
            ask.orders = orders


class Idled(Change, frozen=True, tag="idled"):
    """Nodes of pools have nothing to do from now on, and others have."""

    idle: tuple[int, ...]
    busy: tuple[int, ...]

    def apply(self, partition: Partition) -> dict[int, Micros]:
        before = {node_id: partition.idle.pop(node_id) for node_id in self.busy}
        partition.idle.update(dict.fromkeys(self.idle, partition.now))
        return before

    def undo(self, partition: Partition, kept: dict[int, Micros]) -> None:
        for node_id in self.idle:
            del partition.idle[node_id]
        partition.idle.update(kept)


class GivenBack(Change, frozen=True, tag="given back"):
    """Nodes of a pool are not wanted any more: they drain already, and are taken away."""

    pool: str
    nodes: tuple[int, ...]

    def apply(self, partition: Partition) -> Micros | None:
        pool = partition.pools[self.pool]
        before, pool.shrank = pool.shrank, partition.now
        partition.unwanted.update(dict.fromkeys(self.nodes, partition.now))
        return before

    def undo(self, partition: Partition, kept: Micros | None) -> None:
        partition.pools[self.pool].shrank = kept
        for node_id in self.nodes:
            del partition.unwanted[node_id]


def _no_more(partition: Partition, order: NodeOrder, names: tuple[str, ...]) -> None:
    for name in names:
        del order.coming[name]
        del partition.order_of[name]
    if not order.coming:
        del partition.orders[order.number]


def _expect(partition: Partition, order: NodeOrder, coming: dict[str, tuple[Meant, ...]]) -> None:
    order.coming = coming
    partition.orders[order.number] = order
    partition.order_of.update(dict.fromkeys(coming, order.number))


def _newly_failed(partition: Partition, order: NodeOrder, names: tuple[str, ...]) -> list[Ask]:
    """The asks that these nodes were meant for, still wait, and do not count the order as failed yet."""
    found: dict[int, Ask] = {}
    for name in names:
        for job, stage, kind, _ in order.coming[name]:
            ask = partition.waits(job, stage, kind)
            if ask is not None and _ask_of(ask) not in order.failed:
                found[ask.seq] = ask
    return [found[seq] for seq in sorted(found)]


def _ask_of(ask: Ask) -> AskRow:
    return ask.stage.job.id, ask.stage.position, ask.kind


CHANGES: tuple[type[Any], ...] = (Ordered, Arrived, OrderFailed, PoolMoved, Idled, GivenBack)
