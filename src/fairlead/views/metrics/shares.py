"""Share, entitlement, use and loan by queue, kept up from sealed plans: a cycle costs what it changed."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest
from threading import Lock
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.core.cycle import Cycle
from fairlead.core.entitlement import Entitlements
from fairlead.core.model import Queue
from fairlead.core.state import Partition

QUEUES = 200
"""So many queues of a partition have series of their own: those that use most."""


class QueueFigures(NamedTuple):
    """In percent: of its siblings' shares together, then of the partition."""

    share: float
    entitlement: float
    use: float
    loan: float


class ShareFigures:
    """The figures of one partition. The writer's thread keeps them up; any thread may ask for them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._rights: Entitlements | None = None
        self._queues: dict[str, QueueFigures] = {}
        self._spread: dict[str, int] = {}

    def begin(self, partition: Partition) -> None:
        """Look at all queues."""
        rights = self._rights = partition.entitlements()
        queues = {path: figures_of(rights, queue) for path, queue in partition.queues.items()}
        with self._lock:
            self._queues = queues

    def follow(self, decided: Cycle) -> None:
        """Look again at the queues whose jobs a cycle touched; at all of them if capacity or shares are others."""
        partition = decided.plan.partition
        rights = partition.entitlements()
        if rights is not self._rights:
            self.begin(partition)
        else:
            jobs = [partition.jobs[name] for name in partition.touched.jobs if name in partition.jobs]
            leaves = {job.queue.path: job.queue for job in jobs}
            touched = {queue.path: queue for leaf in leaves.values() for queue in leaf.line()}
            found = {path: figures_of(rights, queue) for path, queue in touched.items() if path in partition.queues}
            with self._lock:
                self._queues.update(found)
        with self._lock:
            self._spread = dict(decided.plan.spreads)

    def most(self, queues: int) -> dict[str, QueueFigures]:
        with self._lock:
            known = dict(self._queues)
        return dict(nlargest(queues, known.items(), key=lambda item: (item[1].use, item[0])))

    def spread(self) -> dict[str, int]:
        with self._lock:
            return self._spread


def figures_of(rights: Entitlements, queue: Queue) -> QueueFigures:
    siblings = [queue] if queue.parent is None else queue.parent.children.values()
    whole = rights.shared(queue.parent) if queue.parent is not None else 1
    share = 100 * rights.share(queue) / whole if whole else 100 / len(siblings)
    used = rights.used(queue)
    parts = (rights.of(queue), used, rights.loaned(queue))
    return QueueFigures(share, *(100 * part / rights.whole if rights.whole else 0.0 for part in parts))


class Shares(Collector):
    """The series of all partitions."""

    def __init__(self) -> None:
        self.figures: dict[str, ShareFigures] = {}

    def collect(self) -> Iterator[Metric]:
        families = [
            GaugeMetricFamily(f"fairlead_queue_{name}_percent", meaning, labels=("partition", "queue"))
            for name, meaning in (
                (
                    "share",
                    f"Its share, of those of its siblings together. The {QUEUES} queues that use most are shown.",
                ),
                ("entitlement", "What a queue may call its own, of the partition."),
                ("use", "What a queue uses, of the partition: the largest part of any resource, or slots."),
                ("loan", "What a queue uses beyond its entitlement, of the partition."),
            )
        ]
        spread = GaugeMetricFamily(
            "fairlead_spread_percent",
            "How far the queues below this one are from their shares; 0 unless somebody waits for what it is entitled "
            "to. Only while rebalance is on.",
            labels=("partition", "queue"),
        )
        for partition, known in list(self.figures.items()):
            for queue, figures in sorted(known.most(QUEUES).items()):
                for family, value in zip(families, figures, strict=True):
                    family.add_metric((partition, queue), value)
            for queue, percent in sorted(known.spread().items()):
                spread.add_metric((partition, queue), percent)
        yield from families
        yield spread
