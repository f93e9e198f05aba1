"""Demand: what waits and finds no room is packed onto nodes that pools could bring, and these are ordered, once.

Nodes that nobody needs are given back. One order a pool a cycle; what is ordered already counts, and so does room that
will be there when what stops is gone. So a burst is one order, and nothing is ordered for work that fits.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.core.changes import GivenBack, Idled, NodeMoved, Ordered, OrderFailed, Promised, Released
from fairlead.core.model import Meant, Micros, OrderCause, Pool
from fairlead.core.phases.outlook import Outlook, look_ahead
from fairlead.core.plan import Plan
from fairlead.core.policy.scaling import nodes_to_add, nodes_to_give_back
from fairlead.core.pooling import coming_nodes, grows, nodes_left, paused_until, size_of
from fairlead.core.resources import format_duration
from fairlead.core.state import Partition

LOOK_COST: Micros = 100
"""How long to leave the outlook alone for each thing looked at: more than ten times what looking takes."""

LITTLE = 1_000
"""So many things are looked at as often as somebody likes."""


def demand(plan: Plan) -> None:
    p, scaling = plan.partition, plan.partition.scaling
    scaling.dirty = scaling.dirty or len(plan) > 0
    pools = [p.pools[name] for name in sorted(p.pools) if p.pools[name].elastic]
    if not pools:  # the last may have just left the configuration: nothing falls due any more
        scaling.next_look, scaling.paused, scaling.shrink_at = None, [], None
    if not p.pools and not p.idle:
        return
    _note_idle(plan)
    if not pools or not p.reign.ready or plan.more or not _is_due(p):
        return
    outlook = look_ahead(p) if _matters(p, pools) else Outlook({}, {}, {}, 0)
    for pool in pools:
        _grow(plan, pool, outlook)
        _shrink(plan, pool, outlook)
    scaling.dirty = False
    scaling.next_look = p.now + outlook.looked * LOOK_COST if outlook.looked > LITTLE else None
    scaling.paused = [pool.name for pool in pools if paused_until(p, pool) > p.now]
    times = [when for pool in pools if not pool.paused for when in _shrinks(p, pool) if when > p.now]
    scaling.shrink_at = min(times, default=None)


def demand_due(p: Partition) -> Iterator[Micros]:
    """When time alone makes it look again."""
    scaling = p.scaling
    for order in p.orders.values():
        yield _late_at(p, order.since)
    if scaling.next_look is not None and scaling.dirty:
        yield scaling.next_look
    for name in scaling.paused:
        if name in p.pools:
            yield paused_until(p, p.pools[name])
    if scaling.shrink_at is not None:
        yield scaling.shrink_at


def give_up_late(plan: Plan) -> None:
    """Nodes that did not come in time are not waited for any longer."""
    p = plan.partition
    for number in sorted(p.orders):
        order = p.orders[number]
        if _late_at(p, order.since) <= p.now:
            reason = f"not there within {format_duration(p.settings.promise_for)}"
            plan.do(OrderFailed(number, tuple(order.coming), reason, p.now + p.settings.pool_pause))


def order_nodes(plan: Plan, pool: Pool, nodes: list[tuple[Meant, ...]], cause: OrderCause) -> None:
    """Order nodes, each with what it is meant for. Equal ones next to each other are written once."""
    runs: list[tuple[int, tuple[Meant, ...]]] = []
    for meant in nodes:
        if runs and runs[-1][1] == meant:
            runs[-1] = (runs[-1][0] + 1, meant)
        else:
            runs.append((1, meant))
    plan.do(Ordered(plan.partition.counters.order, pool.name, tuple(runs), cause))


def give_back(plan: Plan, pool: Pool, joins: list[int]) -> None:
    for join in joins:
        plan.do(NodeMoved(join, "draining"))
    plan.do(GivenBack(pool.name, tuple(joins)))


def idle_nodes(p: Partition, pool: Pool) -> list[int]:
    """The nodes of a pool that could take work and have none, those first that have had none for longest."""
    nodes = p.nodes
    found = [
        join
        for join in p.idle
        if nodes.pool[nodes.rows[join]] == pool.name
        and nodes.state[nodes.rows[join]] == "up"
        and join not in nodes.held
    ]
    return sorted(found, key=lambda join: (p.idle[join], join))


def _note_idle(plan: Plan) -> None:
    """Write down since when nodes of pools have had nothing to do."""
    p = plan.partition
    joins = p.touched.nodes
    if p.scaling.pools != p.pools_version:
        joins = set(p.nodes.rows)
        p.scaling.pools = p.pools_version
    elastic = {name for name, pool in p.pools.items() if pool.elastic}
    if not elastic and not p.idle:
        return
    idle: list[int] = []
    busy: list[int] = []
    for join in sorted(joins):
        row = p.nodes.rows.get(join)
        if row is not None:
            rests = p.nodes.pool[row] in elastic and not p.nodes.allocations[row]
            if rests != (join in p.idle):
                (idle if rests else busy).append(join)
    if idle or busy:
        plan.do(Idled(tuple(idle), tuple(busy)))


def _is_due(p: Partition) -> bool:
    scaling = p.scaling
    if scaling.shrink_at is not None and scaling.shrink_at <= p.now:
        return True
    if any(name in p.pools and paused_until(p, p.pools[name]) <= p.now for name in scaling.paused):
        return True
    return scaling.dirty and (scaling.next_look is None or scaling.next_look <= p.now)


def _matters(p: Partition, pools: list[Pool]) -> bool:
    """Whether anything can come of an outlook: a pool may grow, or has nodes that it might give back."""
    return bool(p.idle) or any(grows(p, pool, p.now) and nodes_left(p, pool) != 0 for pool in pools)


def _grow(plan: Plan, pool: Pool, outlook: Outlook) -> None:
    p, settings = plan.partition, pool.settings
    if not grows(p, pool, p.now):
        return
    meant = outlook.new.get(pool.name, [])
    idle = idle_nodes(p, pool)
    ordered = coming_nodes(p, pool)
    add = nodes_to_add(
        idle=len(idle),
        pending=sum(join in outlook.used for join in idle) + outlook.coming.get(pool.name, 0) + len(meant),
        ordered=ordered,
        min_idle=settings.min_idle,
        total=size_of(p, pool),
        least=settings.min,
    )
    left = nodes_left(p, pool)
    add = max(len(meant), add if left is None else min(add, left))
    if add:
        order_nodes(plan, pool, meant + [()] * (add - len(meant)), "demand" if meant else "spare")
        _renew(plan, meant)


def _renew(plan: Plan, nodes: list[tuple[Meant, ...]]) -> None:
    """Gangs for which more is ordered keep for as long what has come for them."""
    p = plan.partition
    for whom in dict.fromkeys(each[:3] for meant in nodes for each in meant):
        reservation = p.waits(*whom)
        promise = p.promises.get(reservation.seq) if reservation is not None else None
        if promise is not None and promise.ordered and promise.since < p.now:
            plan.do(Released(promise.seq, "more is ordered"))
            plan.do(Promised(promise.job, promise.stage, promise.kind, promise.places, (), "order"))


def _shrink(plan: Plan, pool: Pool, outlook: Outlook) -> None:
    p, settings = plan.partition, pool.settings
    if pool.paused or _cool_at(p, pool) > p.now:
        return
    idle = [join for join in idle_nodes(p, pool) if join not in outlook.used]
    surplus = nodes_to_give_back(
        idle=len(idle),
        pending=0,
        max_idle=settings.max_idle,
        min_idle=settings.min_idle,
        total=size_of(p, pool),
        least=settings.min,
    )
    rested = [join for join in idle[:surplus] if _idle_since(p, join) + settings.idle_for <= p.now]
    if rested:
        give_back(plan, pool, rested)


def _shrinks(p: Partition, pool: Pool) -> Iterator[Micros]:
    """When there may be something to give back."""
    for join in idle_nodes(p, pool):
        yield max(_idle_since(p, join) + pool.settings.idle_for, _cool_at(p, pool))


def _idle_since(p: Partition, join: int) -> Micros:
    """Since when a node has had nothing to do, for all that is known since the partition is ready."""
    return p.reign.counts_from(p.idle[join])


def _cool_at(p: Partition, pool: Pool) -> Micros:
    """It does not shrink right after it grew or shrank."""
    changed = [when for when in (pool.grew, pool.shrank) if when is not None]
    return max(changed) + p.settings.pool_pause if changed else 0


def _late_at(p: Partition, since: Micros) -> Micros:
    return p.reign.counts_from(since) + p.settings.promise_for
