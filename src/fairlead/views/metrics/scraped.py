"""Figures that are counted for each scrape: nodes and jobs by state, tasks by queue, pools, and the inbox.

Counting visits all nodes, queues and pools, so it is not done in every cycle. The server does it between two cycles,
before it answers a scrape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import nlargest
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.core.state import Partition
from fairlead.views.metrics.pool_metrics import PoolFigures, pool_figures
from fairlead.views.metrics.share_metrics import QUEUES

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
    pools: Mapping[str, PoolFigures]
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
        nodes = GaugeMetricFamily("fairlead_nodes", "Nodes by state.", labels=("partition", "state"))
        jobs = GaugeMetricFamily(
            "fairlead_jobs",
            "Jobs by state: they have a live task (running), have none yet or again (waiting), or are over and still "
            "known (ended).",
            labels=("partition", "state"),
        )
        tasks = GaugeMetricFamily(
            "fairlead_queue_running_tasks",
            f"Tasks of a leaf queue that use capacity. The {QUEUES} queues with most are shown.",
            labels=("partition", "queue"),
        )
        pools = [
            GaugeMetricFamily(f"fairlead_pool_{name}_nodes", meaning, labels=("partition", "pool"))
            for name, meaning in (
                ("available", "Empty nodes of a pool that take work."),
                ("pending", "Nodes of a pool that waiting tasks need."),
                ("idle", "Available nodes of a pool that no waiting task needs; below 0, the nodes that are missing."),
                ("ordered", "Nodes of a pool that are on their way."),
            )
        ]
        inbox = GaugeMetricFamily(
            "fairlead_inbox_messages",
            "Commands and reports that wait for their cycle.",
            labels=("partition", "kind"),
        )
        refused = CounterMetricFamily(
            "fairlead_inbox_refused",
            "Commands and reports that were refused because too many waited.",
            labels=("partition", "kind"),
        )
        for partition, figures in list(self._figures.items()):
            for state, number in figures.nodes.items():
                nodes.add_metric((partition, state), number)
            for state, number in figures.jobs.items():
                jobs.add_metric((partition, state), number)
            for queue, number in figures.tasks.items():
                tasks.add_metric((partition, queue), number)
            for pool, use in figures.pools.items():
                for family, number in zip(pools, (use.available, use.pending, use.idle, use.ordered), strict=True):
                    family.add_metric((partition, pool), number)
            waiting = figures.inbox
            inbox.add_metric((partition, "commands"), waiting.commands)
            inbox.add_metric((partition, "reports"), waiting.reports)
            refused.add_metric((partition, "commands"), waiting.refused_commands)
            refused.add_metric((partition, "reports"), waiting.refused_reports)
        yield from (nodes, jobs, tasks, *pools, inbox, refused)


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
