"""Figures that are counted for each scrape: nodes and jobs by state, tasks by queue, pools, and the inbox.

Counting visits all nodes, queues and pools, so it is not done in every cycle. The server does it between two cycles,
before it answers a scrape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from heapq import nlargest
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.core.state import Partition
from fairlead.views.metrics.families import Sample, gauge
from fairlead.views.metrics.pool_metrics import pool_figures
from fairlead.views.metrics.share_metrics import QUEUES
from fairlead.wire.api import PoolUse

POOL_GAUGES = {
    "available": "Empty nodes of a pool that take work.",
    "pending": "Nodes of a pool that waiting tasks need.",
    "idle": "Available nodes of a pool that no waiting task needs; below 0, the number of missing nodes.",
    "ordered": "Nodes of a pool that are ordered and have not joined yet.",
}
KINDS = ("commands", "reports")
NODE_STATES = ("up", "disconnected", "draining", "disabled", "lost")


class InboxFigures(NamedTuple):
    """Messages that wait for their cycle, and messages refused because too many waited."""

    commands: int = 0
    reports: int = 0
    refused_commands: int = 0
    refused_reports: int = 0


class ScrapedFigures(NamedTuple):
    nodes: Mapping[str, int]
    jobs: Mapping[str, int]
    tasks: Mapping[str, int]
    """Leaf queue → its live tasks."""
    pools: Mapping[str, PoolUse]
    inbox: InboxFigures


class Scraped(Collector):
    """The series of all partitions."""

    def __init__(self) -> None:
        self._figures: dict[str, ScrapedFigures] = {}

    def look(self, partition: Partition, inbox: InboxFigures) -> None:
        """Count the figures of a partition. Called between two cycles."""
        self._figures[partition.name] = ScrapedFigures(
            _nodes(partition), _jobs(partition), _tasks(partition), pool_figures(partition) or {}, inbox
        )

    def forget(self, partition: str) -> None:
        self._figures.pop(partition, None)

    def collect(self) -> Iterator[Metric]:
        scraped = list(self._figures.items())
        yield gauge("nodes", "Nodes by state.", ("state",), _samples(scraped, lambda figures: figures.nodes))
        yield gauge(
            "jobs",
            "Jobs by state: they have a live task (running), have no live task yet or at present (waiting), or are "
            "over and not yet forgotten (ended).",
            ("state",),
            _samples(scraped, lambda figures: figures.jobs),
        )
        yield gauge(
            "queue_running_tasks",
            f"Tasks of a leaf queue that use capacity. The {QUEUES} queues with the most such tasks are shown.",
            ("queue",),
            _samples(scraped, lambda figures: figures.tasks),
        )
        for name, meaning in POOL_GAUGES.items():
            samples = [
                ((partition, pool), getattr(use, name))
                for partition, figures in scraped
                for pool, use in figures.pools.items()
            ]
            yield gauge(f"pool_{name}_nodes", meaning, ("pool",), samples)
        yield gauge(
            "inbox_messages",
            "Commands and reports that wait for their cycle.",
            ("kind",),
            _samples(scraped, lambda figures: {kind: getattr(figures.inbox, kind) for kind in KINDS}),
        )
        refused = CounterMetricFamily(
            "fairlead_inbox_refused",
            "Commands and reports that were refused because too many waited.",
            labels=("partition", "kind"),
        )
        for labels, number in _samples(
            scraped, lambda figures: {kind: getattr(figures.inbox, f"refused_{kind}") for kind in KINDS}
        ):
            refused.add_metric(labels, number)
        yield refused


def _samples(
    scraped: list[tuple[str, ScrapedFigures]], of: Callable[[ScrapedFigures], Mapping[str, int]]
) -> list[Sample]:
    return [((partition, label), number) for partition, figures in scraped for label, number in of(figures).items()]


def _nodes(partition: Partition) -> dict[str, int]:
    nodes = partition.nodes
    states: Counter[str] = Counter(nodes.state[row] for row in nodes.rows.values())
    up = [node_id for node_id in nodes.disconnected if nodes.state[nodes.rows[node_id]] == "up"]
    states["up"] -= len(up)
    return {state: len(up) if state == "disconnected" else states[state] for state in NODE_STATES}


def _jobs(partition: Partition) -> dict[str, int]:
    listed = sum(queue.jobs for queue in partition.queues.values())
    root = partition.queues.get("root")
    running = root.account.running if root is not None else 0
    return {"waiting": listed - running, "running": running, "ended": len(partition.jobs) - listed}


def _tasks(partition: Partition) -> dict[str, int]:
    tasks = {leaf.path: leaf.account.tasks for leaf in partition.leaves()}
    return dict(sorted(nlargest(QUEUES, tasks.items(), key=lambda item: (item[1], item[0]))))
