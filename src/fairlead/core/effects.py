"""Effects: messages to agents, resource managers and pools, sent after the commit.

Effects are not journaled. They can be derived from the state at any time (a launch for each assigned task, a stop for
each stopping task), so a restart loses none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from fairlead.core.changes import (
    Change,
    GivenBack,
    JobNews,
    News,
    NodeMoved,
    NodeNews,
    Ordered,
)
from fairlead.core.model import Allocation
from fairlead.core.state import Partition


class Launch(msgspec.Struct, frozen=True, gc=False, tag="launch"):
    """Start these tasks. `devices` lists the devices of the first task, then of the second, and so on."""

    job: str
    number: int
    """The number of the job, which reports repeat: an id may be used again, a number never is."""
    stage: str
    indices: tuple[int, ...]
    attempt: int
    devices: tuple[int, ...]
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    time_limit: int | None
    chain: int = 0
    """The number of the tasks' chain on this node; 0 for none."""
    slots: int = 0
    """If above 0, the tasks wait: they start as other tasks of the chain end, the lowest index first, so that at most
    `slots` tasks run at a time."""


class Stop(msgspec.Struct, frozen=True, gc=False, tag="stop"):
    """Stop these tasks and confirm. With the cause `return`, stop only tasks that have not started."""

    job: str
    number: int
    stage: str
    indices: tuple[int, ...]
    attempt: int
    cause: str


class ForNode(msgspec.Struct, frozen=True, gc=False, tag="for node"):
    """All messages of a cycle for one node."""

    node: str
    launches: tuple[Launch, ...] = ()
    stops: tuple[Stop, ...] = ()


class Event(msgspec.Struct, frozen=True, gc=False):
    """An event for a resource manager.

    `what` is allocated, release (the manager must stop the task), released, ended, node, accepted or rejected. The last
    two answer one item of an update; `item` is the kind of that item.
    """

    what: str
    job: str = ""
    ask: str = ""
    indices: tuple[int, ...] = ()
    attempt: int = 0
    node: str = ""
    devices: tuple[int, ...] = ()
    reason: str = ""
    item: str = ""


class ForManager(msgspec.Struct, frozen=True, gc=False, tag="for manager"):
    manager: str
    events: tuple[Event, ...]


class NodesOrdered(msgspec.Struct, frozen=True, gc=False):
    """Create nodes with these names. Order numbers and names are never reused."""

    order: int
    names: tuple[str, ...]


class ForPool(msgspec.Struct, frozen=True, gc=False, tag="for pool"):
    """All messages of a cycle for the provider of a pool: nodes to create and nodes to remove, by name."""

    pool: str
    orders: tuple[NodesOrdered, ...] = ()
    unwanted: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    """Lost nodes. Their machines may be gone, and the provider may replace them."""


Effect = ForNode | ForManager | ForPool

Done = Iterable[tuple[Change[Any], Any]]
"""Changes with the results of their `apply`."""


def effects_of(partition: Partition, done: Done, strays: Sequence[tuple[str, Stop]] = ()) -> list[Effect]:
    """Return the effects of a cycle's changes: one message per node, manager and pool.

    `strays` are stop messages for tasks that a node still runs although their attempt was given up.
    """
    numbers: set[int] = set()
    events: dict[str, list[Event]] = {}
    scaled: list[Any] = []
    for change, before in done:
        numbers.update(change.allocations_to_send())
        if type(change) in FOR_POOLS:
            scaled.append(change)
        if partition.managers and (manager := change.manager_to_notify(partition, before)):
            events.setdefault(manager, []).extend(_events(partition, change.news(partition, before)))
    for_pools = _for_pools(partition, scaled) if scaled else []
    if not numbers and not events and not strays:
        return for_pools
    effects: list[Effect] = list(
        _for_nodes(
            partition, (partition.allocations[number] for number in sorted(numbers) if number in partition.allocations)
        )
    )
    if strays:
        effects = _with_strays(effects, strays)
    effects += [ForManager(manager, tuple(events[manager])) for manager in sorted(events)]
    return effects + for_pools


FOR_POOLS = frozenset((Ordered, GivenBack, NodeMoved))
"""The changes that cause messages to pools."""


def _with_strays(effects: list[Effect], strays: Iterable[tuple[str, Stop]]) -> list[Effect]:
    """Add the stops of strays to the messages for their nodes, so that each node gets one message."""
    stops: dict[str, tuple[Stop, ...]] = {}
    for node, stop in strays:
        stops[node] = (*stops.get(node, ()), stop)
    merged: list[Effect] = [
        ForNode(effect.node, effect.launches, effect.stops + stops.pop(effect.node, ()))
        if isinstance(effect, ForNode)
        else effect
        for effect in effects
    ]
    return merged + [ForNode(node, stops=stops[node]) for node in sorted(stops)]


def outstanding_effects(partition: Partition, node: int | None = None) -> list[ForNode]:
    """Return the launches and stops that the state requires now, for all nodes or for one."""
    allocations = partition.allocations if node is None else partition.nodes.allocations[partition.nodes.rows[node]]
    return _for_nodes(partition, (allocations[number] for number in sorted(allocations)))


def outstanding_orders(partition: Partition) -> list[ForPool]:
    """Return the nodes that are ordered or given back in the present state, by pool."""
    orders: dict[str, list[NodesOrdered]] = {}
    unwanted: dict[str, list[str]] = {}
    for number in sorted(partition.orders):
        order = partition.orders[number]
        orders.setdefault(order.pool, []).append(NodesOrdered(number, tuple(order.coming)))
    for node_id in sorted(partition.unwanted):
        row = partition.nodes.rows[node_id]
        unwanted.setdefault(partition.nodes.pool[row], []).append(partition.nodes.name[row])
    return [
        ForPool(pool, tuple(orders.get(pool, ())), tuple(unwanted.get(pool, ())))
        for pool in sorted(orders.keys() | unwanted.keys())
    ]


def _for_pools(partition: Partition, scaled: Iterable[Ordered | GivenBack | NodeMoved]) -> list[Effect]:
    """Return the effects of a cycle for pools: one message per pool."""
    orders: dict[str, list[NodesOrdered]] = {}
    unwanted: dict[str, list[str]] = {}
    lost: dict[str, list[str]] = {}
    for change in scaled:
        if isinstance(change, GivenBack):
            names = [_node_name(partition, node_id) for node_id in change.nodes if node_id in partition.nodes]
            unwanted.setdefault(change.pool, []).extend(names)
        elif isinstance(change, Ordered):
            if change.number in partition.orders:  # otherwise the order ended in the same cycle
                order = NodesOrdered(change.number, tuple(partition.orders[change.number].coming))
                orders.setdefault(change.pool, []).append(order)
        elif change.state == "lost" and change.node_id in partition.nodes:
            pool = partition.nodes.pool[partition.nodes.rows[change.node_id]]
            if pool in partition.pools:
                lost.setdefault(pool, []).append(_node_name(partition, change.node_id))
    return [
        ForPool(pool, tuple(orders.get(pool, ())), tuple(unwanted.get(pool, ())), tuple(lost.get(pool, ())))
        for pool in sorted({**orders, **unwanted, **lost})
    ]


def _for_nodes(partition: Partition, allocations: Iterable[Allocation]) -> list[ForNode]:
    launches: dict[int, list[Launch]] = {}
    stops: dict[int, list[Stop]] = {}
    for allocation in allocations:
        if allocation.stage.job.manager:
            continue
        if allocation.state == "assigned" and not allocation.cause:
            launches.setdefault(allocation.node, []).append(_launch(allocation))
        elif allocation.state != "running":
            stops.setdefault(allocation.node, []).append(stop_of(allocation))
    return [
        ForNode(
            partition.nodes.name[partition.nodes.rows[node_id]],
            tuple(launches.get(node_id, ())),
            tuple(stops.get(node_id, ())),
        )
        for node_id in sorted(launches.keys() | stops.keys())
    ]


def _launch(allocation: Allocation) -> Launch:
    stage = allocation.stage
    spec = stage.spec
    return Launch(
        stage.job.id,
        stage.job.number,
        spec.name,
        allocation.indices,
        allocation.attempt,
        allocation.devices,
        spec.command,
        spec.environment,
        spec.time_limit,
        allocation.chain,
        allocation.slots,
    )


def stop_of(allocation: Allocation) -> Stop:
    stage = allocation.stage
    return Stop(stage.job.id, stage.job.number, stage.name, allocation.indices, allocation.attempt, allocation.cause)


def _events(partition: Partition, all_news: Iterable[News]) -> Iterator[Event]:
    """Yield events for a resource manager: news of tasks and nodes, and of jobs that were killed or failed."""
    for news in all_news:
        if isinstance(news, NodeNews):
            yield Event("node", node=news.name, reason=news.state)
        elif isinstance(news, JobNews):
            yield Event("ended", news.job.id, reason=news.reason)
        elif news.what in EVENTS:
            job, stage, node = news.stage.job.id, news.stage.name, _node_name(partition, news.node)
            what = EVENTS[news.what]
            yield Event(what, job, stage, news.indices, news.attempt, node, news.devices, news.reason)


EVENTS = {"placed": "allocated", "stopping": "release", "ended": "released"}
"""News of tasks → event for their resource manager."""


def _node_name(partition: Partition, node_id: int) -> str:
    row = partition.nodes.rows.get(node_id)
    return "" if row is None else partition.nodes.name[row]
