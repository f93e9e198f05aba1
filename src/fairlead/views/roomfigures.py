"""Holds by job and age, held and promised nodes: as the last cycle left them, with ages at the time of the look."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.core.model import Micros
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition

HOLDS = 50
"""So many holds of a partition have series of their own: the oldest."""


class Kept(NamedTuple):
    holds: tuple[tuple[str, str, Micros], ...] = ()
    """Job, stage, and since when; the oldest first."""
    held: int = 0
    promised: int = 0


class Rooms(Collector):
    """The writer's thread leaves what it saw; any thread may ask for it."""

    def __init__(self) -> None:
        self.now: Micros = 0
        """The time of the look that is about to collect."""
        self._kept: dict[str, Kept] = {}

    def see(self, p: Partition) -> None:
        if not p.nodes.held:
            self._kept[p.name] = Kept()
            return
        oldest = sorted(p.holds.values(), key=lambda hold: (hold.since, hold.seq))[:HOLDS]
        self._kept[p.name] = Kept(
            tuple((hold.job, p.jobs[hold.job].stages[hold.stage].name, hold.since) for hold in oldest),
            len({join for hold in p.holds.values() for join in hold.nodes}),
            len({join for promise in p.promises.values() for join in promise.nodes}),
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
        for partition, kept in list(self._kept.items()):
            for job, stage, since in kept.holds:
                ages.add_metric((partition, job, stage), (self.now - since) / SECOND)
            held.add_metric((partition,), kept.held)
            promised.add_metric((partition,), kept.promised)
        yield ages
        yield held
        yield promised
