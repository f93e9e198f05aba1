"""Holds by job and age, held and promised nodes, and tasks that do not stop, as the last cycle left them.

Ages are those at the time of the look.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.core.model import Micros
from fairlead.core.ranges import count
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition

HOLDS = 50
"""So many holds of a partition have series of their own: the oldest."""


class EarmarkFigures(NamedTuple):
    holds: tuple[tuple[str, str, Micros], ...] = ()
    """Job, stage, and since when; the oldest first."""
    held: int = 0
    promised: int = 0
    overdue: tuple[tuple[str, str, str, int], ...] = ()
    """Job, stage and node of tasks that were told to stop and have not in time, and how many; the oldest first."""


class Rooms(Collector):
    """The writer's thread leaves what it saw; any thread may ask for it."""

    def __init__(self) -> None:
        self.now: Micros = 0
        """The time of the look that is about to collect."""
        self._kept: dict[str, EarmarkFigures] = {}

    def see(self, partition: Partition) -> None:
        overdue = _overdue(partition) if partition.overdue else ()
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
        ages = GaugeMetricFamily(
            "fairlead_hold_age_seconds",
            "How long nodes have been held for a job that waited too long. "
            f"The {HOLDS} oldest holds of a partition are shown.",
            labels=("partition", "job", "stage"),
        )
        held = GaugeMetricFamily(
            "fairlead_held_nodes", "Nodes that are held for jobs that waited too long.", labels=("partition",)
        )
        promised = GaugeMetricFamily(
            "fairlead_promised_nodes",
            "Nodes where others stop for somebody, and only it may use the room.",
            labels=("partition",),
        )
        overdue = GaugeMetricFamily(
            "fairlead_tasks_not_stopping",
            "Tasks that were told to stop and have not within preempt_grace and a margin. "
            f"At most {HOLDS} series of a partition are shown.",
            labels=("partition", "job", "stage", "node"),
        )
        for partition, kept in list(self._kept.items()):
            for job, stage, since in kept.holds:
                ages.add_metric((partition, job, stage), (self.now - since) / SECOND)
            held.add_metric((partition,), kept.held)
            promised.add_metric((partition,), kept.promised)
            for job, stage, node, tasks in kept.overdue:
                overdue.add_metric((partition, job, stage, node), tasks)
        yield ages
        yield held
        yield promised
        yield overdue


def _overdue(partition: Partition) -> tuple[tuple[str, str, str, int], ...]:
    found: dict[tuple[str, str, str], int] = {}
    for each in sorted(partition.overdue.values(), key=lambda each: (each.since, each.id)):
        series = (each.stage.job.id, each.stage.name, partition.nodes.name[partition.nodes.rows[each.node]])
        found[series] = found.get(series, 0) + count(each.indices)
    return tuple((*series, tasks) for series, tasks in found.items())[:HOLDS]
