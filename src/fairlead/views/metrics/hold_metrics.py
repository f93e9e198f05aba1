"""Metrics of holds by job and age, of held and promised nodes, and of overdue stops, as of the last cycle.

Ages are computed at the time of the scrape.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from fairlead.core.model import Micros
from fairlead.core.ranges import count
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition
from fairlead.views.metrics.families import gauge

HOLDS = 50
"""Maximum number of holds of a partition with series of their own: the oldest."""


class EarmarkFigures(NamedTuple):
    holds: tuple[tuple[str, str, Micros], ...] = ()
    """Job, stage, and start of each hold, the oldest first."""
    held: int = 0
    promised: int = 0
    overdue: tuple[tuple[str, str, str, int], ...] = ()
    """Job, stage, node and number of tasks that have not stopped in time, the oldest first."""


class Earmarks(Collector):
    """The series of holds and promises. The writer's thread updates them; any thread may collect them."""

    def __init__(self) -> None:
        self.now: Micros = 0
        """The time of the scrape; set before `collect`."""
        self.with_jobs = True
        """True if the scrape includes the series of single jobs; set before `collect`."""
        self._kept: dict[str, EarmarkFigures] = {}

    def update(self, partition: Partition) -> None:
        """Read the figures of a partition."""
        overdue = _overdue(partition) if partition.derived.overdue else ()
        if not partition.nodes.held:
            self._kept[partition.name] = EarmarkFigures(overdue=overdue)
            return
        oldest = sorted(partition.holds.values(), key=lambda hold: (hold.since, hold.seq))[:HOLDS]
        self._kept[partition.name] = EarmarkFigures(
            tuple((hold.job, partition.jobs[hold.job].stages[hold.stage].name, hold.since) for hold in oldest),
            len({node_id for hold in partition.holds.values() for node_id in hold.nodes}),
            len({node_id for promise in partition.promises.values() for node_id in promise.nodes}),
            overdue,
        )

    def forget(self, partition: str) -> None:
        self._kept.pop(partition, None)

    def collect(self) -> Iterator[Metric]:
        kept = list(self._kept.items())
        with_jobs = kept if self.with_jobs else []
        yield gauge(
            "hold_age_seconds",
            "How long nodes have been held for a job that waited too long. "
            f"The {HOLDS} oldest holds of a partition are shown.",
            ("job", "stage"),
            [
                ((partition, job, stage), (self.now - since) / SECOND)
                for partition, figures in with_jobs
                for job, stage, since in figures.holds
            ],
        )
        yield gauge(
            "held_nodes",
            "Nodes that are held for jobs that waited too long.",
            (),
            [((partition,), figures.held) for partition, figures in kept],
        )
        yield gauge(
            "promised_nodes",
            "Nodes on which capacity that becomes free is promised to one ask.",
            (),
            [((partition,), figures.promised) for partition, figures in kept],
        )
        yield gauge(
            "tasks_not_stopping",
            "Tasks that were told to stop and did not stop within preempt_grace and a margin. "
            f"At most {HOLDS} series of a partition are shown.",
            ("job", "stage", "node"),
            [((partition, *labels), tasks) for partition, figures in with_jobs for *labels, tasks in figures.overdue],
        )


def _overdue(partition: Partition) -> tuple[tuple[str, str, str, int], ...]:
    counts: dict[tuple[str, str, str], int] = {}
    for allocation in sorted(
        partition.derived.overdue.values(), key=lambda allocation: (allocation.since, allocation.id)
    ):
        node = partition.nodes.name[partition.nodes.rows[allocation.node]]
        series = (allocation.stage.job.id, allocation.stage.name, node)
        counts[series] = counts.get(series, 0) + count(allocation.indices)
    return tuple((*series, tasks) for series, tasks in counts.items())[:HOLDS]
