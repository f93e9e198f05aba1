"""Changes of pools: nodes are ordered, join or fail to join, become idle, and are given back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from fairlead.core.changes.change import NAMED, Change, Line, Names
from fairlead.core.model import Ask, Meant, Micros, NodeOrder, OrderCause
from fairlead.core.state import Partition


def node_name(pool: str, order: int, position: int) -> str:
    """Return the name of an ordered node.

    The provider creates the machine under this name, and its agent joins with the same name.
    """
    return f"{pool}-{order}-{position}"


class OrderedUndo(msgspec.Struct, frozen=True, gc=False):
    next_order: int
    grew: Micros | None


class Ordered(Change[OrderedUndo], frozen=True, tag="ordered"):
    """Orders nodes from a pool. `nodes` has pairs: a number of equal nodes, and the tasks that each is meant for."""

    number: int
    pool: str
    nodes: tuple[tuple[int, tuple[Meant, ...]], ...]
    cause: OrderCause

    def apply(self, partition: Partition) -> OrderedUndo:
        meant_by_node = [meant for count, meant in self.nodes for _ in range(count)]
        coming = {node_name(self.pool, self.number, at): meant for at, meant in enumerate(meant_by_node)}
        order = NodeOrder(self.number, self.pool, partition.now, self.cause, coming)
        pool = partition.pools[self.pool]
        before = OrderedUndo(partition.counters.order, pool.grew)
        partition.orders[self.number] = order
        partition.order_of.update(dict.fromkeys(order.coming, self.number))
        partition.counters.order = max(partition.counters.order, self.number + 1)
        pool.grew = partition.now
        return before

    def undo(self, partition: Partition, before: OrderedUndo) -> None:
        for name in partition.orders.pop(self.number).coming:
            del partition.order_of[name]
        partition.counters.order, partition.pools[self.pool].grew = before.next_order, before.grew

    def counts(self, partition: Partition, before: OrderedUndo) -> Iterable[tuple[str, int]]:
        return ((f"ordered by {self.cause}", self._size),)

    def lines(self, names: Names, before: OrderedUndo) -> Iterator[Line]:
        jobs = list(dict.fromkeys(job for _, meant in self.nodes for job, *_ in meant))
        fields = {"pool": self.pool, "order": self.number, "nodes": self._size, "cause": self.cause}
        yield Line("info", "nodes ordered", {**fields, "jobs": len(jobs), "for": jobs[:NAMED]})

    @property
    def _size(self) -> int:
        return sum(count for count, _ in self.nodes)


class ArrivedUndo(msgspec.Struct, frozen=True, gc=False):
    order: NodeOrder
    coming: dict[str, tuple[Meant, ...]]
    pool_problem: str


class Arrived(Change[ArrivedUndo], frozen=True, tag="arrived"):
    """Records that an ordered node has joined."""

    number: int
    name: str

    def apply(self, partition: Partition) -> ArrivedUndo:
        order = partition.orders[self.number]
        pool = partition.pools[order.pool]
        before = ArrivedUndo(order, dict(order.coming), pool.problem)
        _end_wait(partition, order, (self.name,))
        pool.problem = ""
        return before

    def undo(self, partition: Partition, before: ArrivedUndo) -> None:
        _expect(partition, before.order, before.coming)
        partition.pools[before.order.pool].problem = before.pool_problem

    def counts(self, partition: Partition, before: ArrivedUndo) -> Iterable[tuple[str, int]]:
        return (("arrived", 1),)

    def lines(self, names: Names, before: ArrivedUndo) -> Iterator[Line]:
        order = before.order
        fields = {"pool": order.pool, "order": self.number, "node": self.name}
        yield Line("info", "ordered node joined", {**fields, "after": names.seconds_since(order.since)})


AskRow = tuple[str, int, int]
"""An ask: job, position of the stage, kind."""


class OrderFailedUndo(msgspec.Struct, frozen=True, gc=False):
    order: NodeOrder
    coming: dict[str, tuple[Meant, ...]]
    failed: tuple[AskRow, ...]
    """The asks for which the order had been counted as failed before."""
    waiting: list[Ask]
    """The asks for which this change counts the order as failed."""
    paused_until: Micros
    pool_problem: str


class OrderFailed(Change[OrderFailedUndo], frozen=True, tag="order failed"):
    """Gives up ordered nodes. With `until` above 0, the pool gets no new order before that time.

    Then one failed order is also counted for each ask that the nodes were meant for.
    """

    number: int
    names: tuple[str, ...]
    reason: str
    until: Micros = 0

    warns = True

    def apply(self, partition: Partition) -> OrderFailedUndo:
        order = partition.orders[self.number]
        pool = partition.pools[order.pool]
        waiting = _newly_failed(partition, order, self.names) if self.until else []
        before = OrderFailedUndo(order, dict(order.coming), order.failed, waiting, pool.paused_until, pool.problem)
        for ask in waiting:
            ask.failed_orders += 1
        order.failed += tuple(_row_of(ask) for ask in waiting)
        _end_wait(partition, order, self.names)
        if self.until:
            pool.paused_until, pool.problem = self.until, self.reason
        return before

    def undo(self, partition: Partition, before: OrderFailedUndo) -> None:
        order = before.order
        for ask in before.waiting:
            ask.failed_orders -= 1
        order.failed = before.failed
        _expect(partition, order, before.coming)
        pool = partition.pools[order.pool]
        pool.paused_until, pool.problem = before.paused_until, before.pool_problem

    def counts(self, partition: Partition, before: OrderFailedUndo) -> Iterable[tuple[str, int]]:
        return (("order failed", len(self.names)),)

    def lines(self, names: Names, before: OrderFailedUndo) -> Iterator[Line]:
        fields = {"pool": before.order.pool, "order": self.number, "nodes": len(self.names), "reason": self.reason}
        yield Line("warning", "order failed", fields)


class PoolMovedUndo(msgspec.Struct, frozen=True, gc=False):
    paused: bool
    paused_until: Micros
    problem: str
    failed: list[tuple[Ask, int]]
    """The asks with failed orders, and how many each had."""


class PoolMoved(Change[PoolMovedUndo], frozen=True, tag="pool moved"):
    """Pauses or resumes a pool. Resuming forgets failed orders, so that asks get nodes ordered again."""

    pool: str
    paused: bool

    def apply(self, partition: Partition) -> PoolMovedUndo:
        pool = partition.pools[self.pool]
        before = PoolMovedUndo(pool.paused, pool.paused_until, pool.problem, [])
        pool.paused = self.paused
        if not self.paused:
            pool.paused_until, pool.problem = 0, ""
            for lane in partition.lanes.values():
                for ask in lane:
                    if ask.failed_orders:
                        before.failed.append((ask, ask.failed_orders))
                        ask.failed_orders = 0
        return before

    def undo(self, partition: Partition, before: PoolMovedUndo) -> None:
        pool = partition.pools[self.pool]
        pool.paused, pool.paused_until, pool.problem = before.paused, before.paused_until, before.problem
        for ask, orders in before.failed:
            ask.failed_orders = orders

    def lines(self, names: Names, before: PoolMovedUndo) -> Iterator[Line]:
        yield Line("info", "pool paused" if self.paused else "pool resumed", {"pool": self.pool})


class Idled(Change[dict[int, Micros]], frozen=True, tag="idled"):
    """Records which nodes of pools became idle or busy."""

    idle: tuple[int, ...]
    busy: tuple[int, ...]

    def apply(self, partition: Partition) -> dict[int, Micros]:
        before = {node_id: partition.idle.pop(node_id) for node_id in self.busy}
        partition.idle.update(dict.fromkeys(self.idle, partition.now))
        return before

    def undo(self, partition: Partition, before: dict[int, Micros]) -> None:
        for node_id in self.idle:
            del partition.idle[node_id]
        partition.idle.update(before)


class GivenBack(Change[Micros | None], frozen=True, tag="given back"):
    """Gives nodes of a pool back: they drain, and the provider removes them."""

    pool: str
    nodes: tuple[int, ...]

    def apply(self, partition: Partition) -> Micros | None:
        pool = partition.pools[self.pool]
        before, pool.shrank = pool.shrank, partition.now
        partition.unwanted.update(dict.fromkeys(self.nodes, partition.now))
        return before

    def undo(self, partition: Partition, before: Micros | None) -> None:
        partition.pools[self.pool].shrank = before
        for node_id in self.nodes:
            del partition.unwanted[node_id]

    def counts(self, partition: Partition, before: Micros | None) -> Iterable[tuple[str, int]]:
        return (("given back", len(self.nodes)),)

    def lines(self, names: Names, before: Micros | None) -> Iterator[Line]:
        fields = {"pool": self.pool, "nodes": len(self.nodes), "on": names.nodes(self.nodes)}
        yield Line("info", "nodes given back", fields)


def _end_wait(partition: Partition, order: NodeOrder, names: tuple[str, ...]) -> None:
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
    """Return the waiting asks that these nodes were meant for, and that do not count the order as failed yet."""
    asks: dict[int, Ask] = {}
    for name in names:
        for job, stage, kind, _ in order.coming[name]:
            ask = partition.waits(job, stage, kind)
            if ask is not None and _row_of(ask) not in order.failed:
                asks[ask.seq] = ask
    return [asks[seq] for seq in sorted(asks)]


def _row_of(ask: Ask) -> AskRow:
    return ask.stage.job.id, ask.stage.position, ask.kind
