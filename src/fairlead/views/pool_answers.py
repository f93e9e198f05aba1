"""Pools as documents of the API: their nodes, and the jobs for which nodes are ordered."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.core.model import Micros, NodeOrder, Pool
from fairlead.core.pools.sizes import paused_until
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition
from fairlead.views.answers import SeesJob, amounts, optional_seconds, seconds
from fairlead.views.metrics.pool_metrics import pool_figures
from fairlead.wire import api as wire


def usage_answer(partition: Partition) -> wire.Usage:
    """Return the use of configured pools, of pools that only nodes name, and of the nodes without a pool."""
    figures = pool_figures(partition, others=True)
    if figures is None:
        return wire.Usage(partition=partition.name, ready=False, pools={})
    return wire.Usage(partition=partition.name, ready=True, without_pool=figures.pop(""), pools=figures)


def pool_answers(partition: Partition, pools: Iterable[Pool], sees: SeesJob, now: Micros) -> list[wire.Pool]:
    """Return the pools at a time, as the state knows them. The caller adds the name and reports of each provider."""
    figures = pool_figures(partition)
    return [_pool_answer(partition, pool, None if figures is None else figures[pool.name], sees, now) for pool in pools]


def _pool_answer(partition: Partition, pool: Pool, use: wire.PoolUse | None, sees: SeesJob, now: Micros) -> wire.Pool:
    settings, nodes = pool.settings, partition.nodes
    return wire.Pool(
        name=pool.name,
        partition=partition.name,
        provider="",
        resources=amounts(settings.node),
        labels=dict(settings.labels),
        taints=list(settings.taints),
        min=settings.min,
        max=settings.max,
        min_idle=settings.min_idle,
        max_idle=settings.max_idle,
        idle_for=seconds(settings.idle_for),
        cost=settings.cost,
        min_free=amounts(settings.min_free),
        use=use,
        paused=pool.paused,
        paused_until=paused_until(partition, pool) / SECOND if paused_until(partition, pool) > now else None,
        problem=pool.problem,
        grew=optional_seconds(pool.grew),
        shrank=optional_seconds(pool.shrank),
        orders=[
            _order(partition, order, sees) for _, order in sorted(partition.orders.items()) if order.pool == pool.name
        ],
        leaving=[
            nodes.name[nodes.rows[node_id]]
            for node_id in sorted(partition.unwanted)
            if nodes.pool[nodes.rows[node_id]] == pool.name
        ],
        orphans=[],
    )


def _order(partition: Partition, order: NodeOrder, sees: SeesJob) -> wire.PoolOrder:
    by_stage: dict[tuple[str, int], int] = {}
    for (job, stage, _), tasks in order.tasks_by_ask.items():
        by_stage[job, stage] = by_stage.get((job, stage), 0) + tasks
    return wire.PoolOrder(
        order=order.number,
        cause=order.cause,
        since=seconds(order.since),
        nodes=list(order.coming),
        tasks=sum(by_stage.values()),
        jobs=[
            wire.OrderedFor(job=job, stage=partition.jobs[job].stages[stage].name, tasks=tasks)
            for (job, stage), tasks in by_stage.items()
            if job in partition.jobs and sees(partition.jobs[job])
        ],
    )
