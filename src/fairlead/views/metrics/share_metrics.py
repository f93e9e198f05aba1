"""Share, entitlement, use and loan by queue, updated from sealed plans. The cost depends only on the changes."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest
from threading import Lock
from typing import NamedTuple

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from fairlead.core.cycle import Cycle
from fairlead.core.model import Micros, Queue
from fairlead.core.past_use import past_part
from fairlead.core.resources import MINUTE
from fairlead.core.state import Partition
from fairlead.views.metrics.families import gauge

QUEUES = 200
"""Maximum number of queues of a partition with series of their own: those with the most use."""


class QueueFigures(NamedTuple):
    """Percentages of a queue: `share` is of the sum of its siblings' shares, the others are of the partition."""

    share: float
    entitlement: float
    use: float
    loan: float
    past: float


PERCENTAGES = (
    ("share", f"Share of a queue in the sum of its siblings' shares. The {QUEUES} queues with the most use are shown."),
    ("entitlement", "Entitlement of a queue, as a part of the partition."),
    ("use", "Use of a queue, as a part of the partition: the largest part of any resource, or slots."),
    ("loan", "Use of a queue beyond its entitlement, as a part of the partition."),
    ("past", "Average of the past use of a queue, as a part of the partition; 0 unless share_memory is set."),
)
"""Name and meaning of the metric of each field of `QueueFigures`."""


class ShareFigures:
    """The figures of one partition. The writer's thread updates them; any thread may read them."""

    def __init__(self, partition: Partition) -> None:
        self._lock = Lock()
        self._spread: dict[str, int] = {}
        self._read_all(partition)

    def _read_all(self, partition: Partition) -> None:
        """Compute the figures of all queues, and note when and by which entitlements."""
        self._entitlements, self._at = partition.entitlements(), partition.now
        queues = {path: figures_of(partition, queue, partition.now) for path, queue in partition.queues.items()}
        with self._lock:
            self._queues = queues

    def follow(self, decided: Cycle) -> None:
        """Update the queues of the jobs that a cycle touched, or all queues if capacity or shares changed."""
        partition = decided.plan.partition
        entitlements = partition.entitlements()
        fades = partition.settings.share_memory and partition.now > self._at + MINUTE
        if entitlements is not self._entitlements or fades:
            self._read_all(partition)
        else:
            jobs = [partition.jobs[name] for name in partition.touched.jobs if name in partition.jobs]
            leaves = {job.queue.path: job.queue for job in jobs}
            touched = {queue.path: queue for leaf in leaves.values() for queue in leaf.line()}
            figures = {
                path: figures_of(partition, queue, partition.now)
                for path, queue in touched.items()
                if path in partition.queues
            }
            with self._lock:
                self._queues.update(figures)
        with self._lock:
            self._spread = dict(decided.plan.spreads)

    def most(self, queues: int) -> dict[str, QueueFigures]:
        """Return the figures of the queues that use most, at most `queues`."""
        with self._lock:
            figures = dict(self._queues)
        return dict(nlargest(queues, figures.items(), key=lambda item: (item[1].use, item[0])))

    def spread(self) -> dict[str, int]:
        """Return how far the children of each queue are from their shares, in percent."""
        with self._lock:
            return self._spread


def figures_of(partition: Partition, queue: Queue, now: Micros) -> QueueFigures:
    """Return the figures of one queue."""
    entitlements = partition.entitlements()
    siblings = [queue] if queue.parent is None else queue.parent.children.values()
    total = entitlements.shared(queue.parent) if queue.parent is not None else 1
    share = 100 * entitlements.share(queue) / total if total else 100 / len(siblings)
    whole = entitlements.whole
    parts = (entitlements.of(queue), entitlements.used(queue), entitlements.loaned(queue))
    entitled, used, loaned = (100 * part / whole if whole else 0.0 for part in parts)
    return QueueFigures(share, entitled, used, loaned, 100 * past_part(partition, queue.account, now))


class Shares(Collector):
    """The series of all partitions."""

    def __init__(self) -> None:
        self.figures: dict[str, ShareFigures] = {}

    def collect(self) -> Iterator[Metric]:
        shares = list(self.figures.items())
        queues = [
            ((partition, queue), figures)
            for partition, figures_of_all in shares
            for queue, figures in sorted(figures_of_all.most(QUEUES).items())
        ]
        for at, (name, meaning) in enumerate(PERCENTAGES):
            samples = [(labels, figures[at]) for labels, figures in queues]
            yield gauge(f"queue_{name}_percent", meaning, ("queue",), samples)
        yield gauge(
            "spread_percent",
            "How far the queues below this one are from their shares; 0 unless an ask waits for what its queue is "
            "entitled to. Only while rebalance is on.",
            ("queue",),
            [
                ((partition, queue), percent)
                for partition, figures in shares
                for queue, percent in sorted(figures.spread().items())
            ],
        )
