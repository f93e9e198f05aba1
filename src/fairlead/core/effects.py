"""Effects: messages to agents, resource managers and pools, sent after the commit.

Effects are not journaled. The state gives them at any time, a launch for each assigned task and a stop for each
stopping task, so a restart loses none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from fairlead.core.changes import Change, GivenBack, JobNews, News, NodeMoved, NodeNews, Ordered
from fairlead.core.model import Allocation
from fairlead.core.state import Partition


class Launch(msgspec.Struct, frozen=True, gc=False, tag="launch"):
    """Start these tasks. `devices` lists the devices of the first task, then of the second, and so on."""

    job: str
    number: int
    """The number of the job, which is never used again. Reports return it, because an id may be used again."""
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
    """If above 0, the tasks wait in their chain, which runs at most this number of tasks. They start as other tasks of
    the chain end, the lowest index first."""


class Stop(msgspec.Struct, frozen=True, gc=False, tag="stop"):
    """Stop these tasks and confirm it. With the cause `return`, only recall tasks that have not started."""

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
    two answer an item of an update, and `item` is the kind of that item.
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
    """Create nodes with these names. Names and order numbers are never used again."""

    order: int
    names: tuple[str, ...]


class ForPool(msgspec.Struct, frozen=True, gc=False, tag="for pool"):
    """All messages of a cycle for the provider of a pool: the names of nodes to create and to remove."""

    pool: str
    orders: tuple[NodesOrdered, ...] = ()
    unwanted: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    """Lost nodes. Their machines may be gone or come back, and the provider may replace them."""


Effect = ForNode | ForManager | ForPool

T = TypeVar("T")
Lists = dict[str, list[T]]

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
        return [*for_pools]
    allocations = [partition.allocations[number] for number in sorted(numbers) if number in partition.allocations]
    for_managers = [ForManager(manager, tuple(events[manager])) for manager in sorted(events)]
    return [*_for_nodes(partition, allocations, strays), *for_managers, *for_pools]


FOR_POOLS = frozenset((Ordered, GivenBack, NodeMoved))
"""The changes that cause messages to pools."""


def outstanding_effects(partition: Partition, node: int | None = None) -> list[ForNode]:
    """Return the launches and stops that the state requires now, for all nodes or for one."""
    allocations = partition.allocations if node is None else partition.nodes.allocations[partition.nodes.rows[node]]
    return _for_nodes(partition, (allocations[number] for number in sorted(allocations)))


def outstanding_orders(partition: Partition) -> list[ForPool]:
    """Return the orders of nodes and the nodes to give back that the state requires now, by pool."""
    orders: Lists[NodesOrdered] = {}
    unwanted: Lists[str] = {}
    for number in sorted(partition.orders):
        order = partition.orders[number]
        orders.setdefault(order.pool, []).append(NodesOrdered(number, tuple(order.coming)))
    for node_id in sorted(partition.unwanted):
        row = partition.nodes.rows[node_id]
        unwanted.setdefault(partition.nodes.pool[row], []).append(partition.nodes.name[row])
    return _by_pool(orders, unwanted, {})


def _for_pools(partition: Partition, scaled: Iterable[Ordered | GivenBack | NodeMoved]) -> list[ForPool]:
    orders: Lists[NodesOrdered] = {}
    unwanted: Lists[str] = {}
    lost: Lists[str] = {}
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
    return _by_pool(orders, unwanted, lost)


def _by_pool(orders: Lists[NodesOrdered], unwanted: Lists[str], lost: Lists[str]) -> list[ForPool]:
    return [
        ForPool(pool, tuple(orders.get(pool, ())), tuple(unwanted.get(pool, ())), tuple(lost.get(pool, ())))
        for pool in sorted({**orders, **unwanted, **lost})
    ]


def _for_nodes(
    partition: Partition, allocations: Iterable[Allocation], strays: Iterable[tuple[str, Stop]] = ()
) -> list[ForNode]:
    launches: dict[int, list[Launch]] = {}
    stops: dict[int, list[Stop]] = {}
    nodes = partition.nodes
    for allocation in allocations:
        if allocation.stage.job.manager:
            continue
        if allocation.state == "assigned" and not allocation.cause:
            if allocation.known_until:
                continue  # it may have run already: its node says whether it does
            launches.setdefault(allocation.node, []).append(_launch(allocation))
        elif allocation.state != "running":
            stops.setdefault(allocation.node, []).append(stop_of(allocation))
    gone: dict[str, list[Stop]] = {}
    for name, stop in strays:
        node_id = nodes.joins.get(name)
        (gone.setdefault(name, []) if node_id is None else stops.setdefault(node_id, [])).append(stop)
    return [
        ForNode(nodes.name[nodes.rows[node_id]], tuple(launches.get(node_id, ())), tuple(stops.get(node_id, ())))
        for node_id in sorted(launches.keys() | stops.keys())
    ] + [ForNode(name, stops=tuple(gone[name])) for name in sorted(gone)]


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
