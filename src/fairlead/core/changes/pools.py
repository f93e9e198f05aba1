"""Changes of pools: nodes are ordered, come or do not, stand idle, and are given back."""

from __future__ import annotations

from typing import Any

from fairlead.core.changes.base import Change
from fairlead.core.model import Meant, Micros, NodeOrder, OrderCause, Reservation
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

    def apply(self, p: Partition) -> tuple[int, Micros | None]:
        each = [meant for count, meant in self.nodes for _ in range(count)]
        coming = {name_of(self.pool, self.number, at): meant for at, meant in enumerate(each)}
        order = NodeOrder(self.number, self.pool, p.now, self.cause, coming)
        pool = p.pools[self.pool]
        before = (p.counters.order, pool.grew)
        p.orders[self.number] = order
        p.order_of.update(dict.fromkeys(order.coming, self.number))
        p.counters.order = max(p.counters.order, self.number + 1)
        pool.grew = p.now
        return before

    def undo(self, p: Partition, kept: tuple[int, Micros | None]) -> None:
        for name in p.orders.pop(self.number).coming:
            del p.order_of[name]
        p.counters.order, p.pools[self.pool].grew = kept


class Arrived(Change, frozen=True, tag="arrived"):
    """An ordered node has joined."""

    number: int
    name: str

    def apply(self, p: Partition) -> tuple[NodeOrder, dict[str, tuple[Meant, ...]], str]:
        order = p.orders[self.number]
        pool = p.pools[order.pool]
        before = (order, dict(order.coming), pool.problem)
        _no_more(p, order, (self.name,))
        pool.problem = ""
        return before

    def undo(self, p: Partition, kept: tuple[NodeOrder, dict[str, tuple[Meant, ...]], str]) -> None:
        order, coming, problem = kept
        _expect(p, order, coming)
        p.pools[order.pool].problem = problem


Ask = tuple[str, int, int]
"""A job, a stage of it by position, and the kind."""

FailedBefore = tuple[NodeOrder, dict[str, tuple[Meant, ...]], tuple[Ask, ...], list[Reservation], Micros, str]
"""An order, what was coming and which asks counted it as failed, the asks that do now, and the pool's old pause."""


class OrderFailed(Change, frozen=True, tag="order failed"):
    """Ordered nodes are not expected any more. Above 0, `until` is when the pool is asked again.

    The asks they were meant for then count the order as failed, once for all its nodes. With 0 no ask counts it.
    """

    number: int
    names: tuple[str, ...]
    reason: str
    until: Micros = 0

    def apply(self, p: Partition) -> FailedBefore:
        order = p.orders[self.number]
        pool = p.pools[order.pool]
        waiting = _newly_failed(p, order, self.names) if self.until else []
        before = (order, dict(order.coming), order.failed, waiting, pool.paused_until, pool.problem)
        for reservation in waiting:
            reservation.orders += 1
        order.failed += tuple(_ask_of(reservation) for reservation in waiting)
        _no_more(p, order, self.names)
        if self.until:
            pool.paused_until, pool.problem = self.until, self.reason
        return before

    def undo(self, p: Partition, kept: FailedBefore) -> None:
        order, coming, failed, waiting, until, problem = kept
        for reservation in waiting:
            reservation.orders -= 1
        order.failed = failed
        _expect(p, order, coming)
        pool = p.pools[order.pool]
        pool.paused_until, pool.problem = until, problem


class PoolMoved(Change, frozen=True, tag="pool moved"):
    """Somebody paused a pool, or let it go on: then failed orders are forgotten, and all who wait may order anew."""

    pool: str
    paused: bool

    def apply(self, p: Partition) -> tuple[bool, Micros, str, list[tuple[Reservation, int]]]:
        pool = p.pools[self.pool]
        vain: list[tuple[Reservation, int]] = []
        before = (pool.paused, pool.paused_until, pool.problem, vain)
        pool.paused = self.paused
        if not self.paused:
            pool.paused_until, pool.problem = 0, ""
            for lane in p.lanes.values():
                for each in lane:
                    if each.orders:
                        vain.append((each, each.orders))
                        each.orders = 0
        return before

    def undo(self, p: Partition, kept: tuple[bool, Micros, str, list[tuple[Reservation, int]]]) -> None:
        pool = p.pools[self.pool]
        pool.paused, pool.paused_until, pool.problem, vain = kept
        for reservation, orders in vain:
            reservation.orders = orders


class Idled(Change, frozen=True, tag="idled"):
    """Nodes of pools have nothing to do from now on, and others have."""

    idle: tuple[int, ...]
    busy: tuple[int, ...]

    def apply(self, p: Partition) -> dict[int, Micros]:
        before = {join: p.idle.pop(join) for join in self.busy}
        p.idle.update(dict.fromkeys(self.idle, p.now))
        return before

    def undo(self, p: Partition, kept: dict[int, Micros]) -> None:
        for join in self.idle:
            del p.idle[join]
        p.idle.update(kept)


class GivenBack(Change, frozen=True, tag="given back"):
    """Nodes of a pool are not wanted any more: they drain already, and are taken away."""

    pool: str
    nodes: tuple[int, ...]

    def apply(self, p: Partition) -> Micros | None:
        pool = p.pools[self.pool]
        before, pool.shrank = pool.shrank, p.now
        p.unwanted.update(dict.fromkeys(self.nodes, p.now))
        return before

    def undo(self, p: Partition, kept: Micros | None) -> None:
        p.pools[self.pool].shrank = kept
        for join in self.nodes:
            del p.unwanted[join]


def _no_more(p: Partition, order: NodeOrder, names: tuple[str, ...]) -> None:
    for name in names:
        del order.coming[name]
        del p.order_of[name]
    if not order.coming:
        del p.orders[order.number]


def _expect(p: Partition, order: NodeOrder, coming: dict[str, tuple[Meant, ...]]) -> None:
    order.coming = coming
    p.orders[order.number] = order
    p.order_of.update(dict.fromkeys(coming, order.number))


def _newly_failed(p: Partition, order: NodeOrder, names: tuple[str, ...]) -> list[Reservation]:
    """The asks that these nodes were meant for, still wait, and do not count the order as failed yet."""
    found: dict[int, Reservation] = {}
    for name in names:
        for job, stage, kind, _ in order.coming[name]:
            reservation = p.waits(job, stage, kind)
            if reservation is not None and _ask_of(reservation) not in order.failed:
                found[reservation.seq] = reservation
    return [found[seq] for seq in sorted(found)]


def _ask_of(reservation: Reservation) -> Ask:
    return reservation.stage.job.id, reservation.stage.position, reservation.kind


CHANGES: tuple[type[Any], ...] = (Ordered, Arrived, OrderFailed, PoolMoved, Idled, GivenBack)
