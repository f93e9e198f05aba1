"""Definitions of all metrics, updated from sealed plans. docs/metrics.md has the same table for people.

`Metrics` is an observer of writers. One object serves all partitions of a process. It has its own registry, so that a
process can have several. A scrape never reads the state, so any thread may serve it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.core.changes import Placed
from fairlead.core.cycle import Cycle
from fairlead.core.model import Micros
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition
from fairlead.views.metrics.hold_metrics import Earmarks
from fairlead.views.metrics.lane_metrics import LaneFigures, Lanes
from fairlead.views.metrics.scraped import InboxFigures, Scraped
from fairlead.views.metrics.share_metrics import ShareFigures, Shares

# Bounds of histograms: seconds of a part of a cycle, seconds that an ask waited, seconds after a planned start,
# commands in a batch.
TAKEN = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
WAITED = (0.01, 0.1, 1, 5, 15, 60, 300, 900, 3_600, 14_400, 43_200, 86_400, 172_800, 604_800)
LATE = (-86_400, -3_600, -600, -60, -1, 0, 1, 60, 600, 3_600, 86_400)
SIZES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)

NO_MESSAGES = InboxFigures()
PHASES = ("intake", "expiry", "match", "holds", "preempt", "demand", "seal", "encode")
RIGHTS = ("priority", "guarantee", "share")


class Counted(NamedTuple):
    """A counter by partition, and by one more label if `label` is given."""

    name: str
    meaning: str
    events: Mapping[str, str]
    """Event, as changes count it (see `Change.counts`) or plans note it → the value of the label."""
    label: str = ""


COUNTERS = (
    Counted(
        "fairlead_upserts_total",
        "Demand that arrived or came back: it got an ask (inserted), its ask got another size or "
        "place (replaced), or it was known already and changed nothing (ignored).",
        {"inserted": "inserted", "replaced": "replaced", "asked for again": "ignored"},
        "result",
    ),
    Counted("fairlead_asks_to_tail_total", "Asks moved to the tail of their lane.", {"sent to the tail": ""}),
    Counted(
        "fairlead_jobs_set_aside_total",
        "Jobs that users and operators held, released or requeued.",
        {f"jobs {action}": action for action in ("held", "released", "requeued")},
        "action",
    ),
    Counted(
        "fairlead_asks_ended_total",
        "Asks that left their lane: all of their tasks were placed (completed), or given up or asked for as another "
        "kind (cancelled).",
        {"completed": "completed", "cancelled": "cancelled"},
        "how",
    ),
    Counted("fairlead_tasks_placed_total", "Tasks that were assigned to a node.", {"placed": ""}),
    Counted(
        "fairlead_launches_total",
        "Placed tasks by their first report: they run (acknowledged), their node refused them (refused), no report "
        "came within launch_timeout (silent), or they were lost.",
        {
            "acknowledged": "acknowledged",
            "launch refused": "refused",
            "launch not acknowledged": "silent",
            "lost launch": "lost",
        },
        "outcome",
    ),
    Counted(
        "fairlead_attempts_ended_total",
        "Attempts that ended: succeeded, failed, lost, preempted (also with their gang) or killed. Launches that "
        "were taken back are not counted.",
        {outcome: outcome for outcome in ("succeeded", "failed", "lost", "preempted", "killed")},
        "outcome",
    ),
    Counted(
        "fairlead_readiness_transitions_total",
        "How often the partition became ready, and how often it ceased to be ready (not_ready) because its writer "
        "stopped. The state at the start of the process is not counted.",
        {"ready": "ready", "not ready": "not_ready"},
        "to",
    ),
    Counted("fairlead_stale_reports_total", "Reports of old attempts, which were ignored.", {"stale report": ""}),
    Counted(
        "fairlead_unknown_attempts_total",
        "Reports of attempt numbers that this journal never issued. An operator must look at each.",
        {"unknown attempt": ""},
    ),
    Counted(
        "fairlead_foreign_reports_total",
        "Refused reports of tasks that were given to another node. An operator must look at each.",
        {"foreign report": ""},
    ),
    Counted(
        "fairlead_rebalances_total",
        "How often loans were taken back because queues were too far from their shares.",
        {"rebalanced": ""},
    ),
    Counted(
        "fairlead_rebalance_victims_total",
        "Tasks on loan that were stopped for the entitlement of other queues.",
        {"rebalance victims": ""},
    ),
    Counted(
        "fairlead_claims_total",
        "How often tasks were stopped so that an ask can start, by its right: a higher priority in its queue, a "
        "guarantee that is not met, or its share (rebalance).",
        {f"claim by {right}": right for right in RIGHTS},
        "cause",
    ),
    Counted(
        "fairlead_victims_total",
        "Tasks that were stopped for an ask to which their capacity is promised, by the right of the ask.",
        {f"victims by {right}": right for right in RIGHTS},
        "cause",
    ),
    Counted(
        "fairlead_nodes_ordered_total",
        "Nodes that pools were asked for: because work waits for them (demand), to keep some idle (spare), or by hand.",
        {f"ordered by {cause}": cause for cause in ("demand", "spare", "hand")},
        "cause",
    ),
    Counted(
        "fairlead_ordered_nodes_total",
        "Ordered nodes by outcome: they joined (arrived), or are not expected any more (failed).",
        {"arrived": "arrived", "order failed": "failed"},
        "outcome",
    ),
    Counted("fairlead_nodes_given_back_total", "Idle nodes of pools that were given back.", {"given back": ""}),
    Counted(
        "fairlead_backfilled_tasks_total",
        "Tasks that were placed before the first ask without capacity, without delaying it.",
        {"backfilled": ""},
    ),
)


class Series(NamedTuple):
    """The series of a partition that every cycle updates. Cached, because finding a series by its labels is slow."""

    counters: dict[str, Counter]
    """Event → its counter."""
    batch: Histogram
    parts: dict[str, Histogram]
    """Part of a cycle → its durations."""
    late: Histogram


class Metrics:
    """All metrics of a process; an observer of writers."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._counters = [
            (row, Counter(row.name, row.meaning, ("partition", row.label)[: 1 + bool(row.label)], registry=registry))
            for row in COUNTERS
        ]
        self._ready = Gauge(
            "fairlead_ready",
            "1 if the partition is ready. Before that, it accepts everything and places nothing.",
            ("partition",),
            registry=registry,
        )
        self._batch = Histogram(
            "fairlead_batch_size",
            "Commands and reports in a cycle; 0 if time or unfinished work started the cycle.",
            ("partition",),
            registry=registry,
            buckets=SIZES,
        )
        self._cycle = Histogram(
            "fairlead_cycle_seconds",
            "Time of a cycle by phase: intake, expiry, match, holds, preempt, demand, seal (checks and effects) and "
            "encode. The journal has its own metric.",
            ("partition", "phase"),
            registry=registry,
            buckets=TAKEN,
        )
        self._journal = Histogram(
            "fairlead_journal_append_seconds",
            "Time that the journal took to make a cycle durable.",
            ("partition",),
            registry=registry,
            buckets=TAKEN,
        )
        self._late = Histogram(
            "fairlead_planned_start_late_seconds",
            "With backfill: how much later than last planned the first ask without capacity started; below 0 it was "
            "earlier.",
            ("partition",),
            registry=registry,
            buckets=LATE,
        )
        self._series: dict[str, Series] = {}
        self._planned: dict[str, tuple[str, int, int]] = {}
        """Partition → job and kind of the first ask without capacity, and its planned start."""
        self._was_ready: dict[str, bool] = {}
        """Partition → True if it was ready after its last cycle."""
        self._lanes, self._waits = Lanes(), _Waits()
        self._earmarks, self._shares, self._scraped = Earmarks(), Shares(), Scraped()
        for collector in (self._earmarks, self._shares, self._scraped, self._lanes, self._waits):
            registry.register(collector)

    def text(self, now: Micros, with_jobs: bool = True) -> str:
        """Return a scrape at a time, in Prometheus' text format. Only `with_jobs` includes the series of jobs."""
        self._earmarks.now, self._earmarks.with_jobs = now, with_jobs
        return generate_latest(self.registry).decode()

    def look(self, partition: Partition, inbox: InboxFigures = NO_MESSAGES) -> None:
        """Count the figures that only a scrape needs: nodes, jobs, tasks by queue, pools. Called between cycles."""
        self._scraped.look(partition, inbox)

    def lanes(self, partition: str) -> LaneFigures:
        """Return the figures of the lanes of a partition."""
        return self._lanes.figures[partition]

    # -- calls from writers --------------------------------------------------------------------------------------

    def began(self, partition: Partition) -> None:
        # All series are created with 0: otherwise a rate misses the first event.
        name = partition.name
        self._series[name] = Series(
            {
                event: metric.labels(name, value) if row.label else metric.labels(name)
                for row, metric in self._counters
                for event, value in row.events.items()
            },
            self._batch.labels(name),
            {part: self._cycle.labels(name, part) for part in PHASES} | {"journal": self._journal.labels(name)},
            self._late.labels(name),
        )
        self._lanes.figures[name] = LaneFigures(partition)
        self._shares.figures[name] = ShareFigures(partition)
        self._earmarks.update(partition)
        self._planned.pop(name, None)
        self._waits.add(name, [])
        self._set_ready(name, partition.readiness.ready)

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        partition = decided.plan.partition
        name = partition.name
        series = self._series[name]
        self._count(name, series.counters, decided)
        self._lanes.figures[name].follow(decided)
        self._shares.figures[name].follow(decided)
        self._earmarks.update(partition)
        self._follow_plan(name, series.late, decided)
        series.batch.observe(len(decided.answers))
        for part, taken in seconds.items():
            series.parts[part].observe(taken)
        self._set_ready(name, partition.readiness.ready)
        if partition.removed:
            self._forget_shown(name)  # its lanes are empty

    def forget(self, name: str) -> None:
        """Drop the gauges of a partition that is not served here any more; another server may show it."""
        self._forget_shown(name)
        self._lanes.figures.pop(name, None)
        self._shares.figures.pop(name, None)

    def _forget_shown(self, name: str) -> None:
        self._earmarks.forget(name)
        self._scraped.forget(name)
        if self._was_ready.pop(name, None) is not None:
            self._ready.remove(name)

    def stopped(self, partition: Partition, why: str) -> None:
        self._set_ready(partition.name, False)

    # -- inside --------------------------------------------------------------------------------------------------

    def _set_ready(self, name: str, ready: bool) -> None:
        before = self._was_ready.get(name)
        if before == ready:
            return
        self._was_ready[name] = ready
        self._ready.labels(name).set(ready)
        if before is not None:
            self._series[name].counters["ready" if ready else "not ready"].inc()

    def _follow_plan(self, name: str, late: Histogram, decided: Cycle) -> None:
        """Measure how late the first ask without capacity started, and remember its present plan."""
        expected = self._planned.get(name)
        if expected is not None:
            job, kind, when = expected
            for change, _ in decided.plan.done:
                if isinstance(change, Placed) and (change.job, change.kind) == (job, kind):
                    late.observe((decided.plan.now - when) / SECOND)
                    del self._planned[name]
                    break
        planned = decided.plan.planned
        if planned is not None and planned[2] is not None:
            self._planned[name] = (planned[0], planned[1], planned[2])

    def _count(self, name: str, counters: dict[str, Counter], decided: Cycle) -> None:
        """Count the events of a cycle, and the waiting times of the asks that it completed."""
        now, partition = decided.plan.now, decided.plan.partition
        tally: Tally[str] = Tally()
        waits: list[int] = []
        for change, before in decided.plan.done:
            for event, number in change.counts(partition, before):
                tally[event] += number
            waits += [now - ask.waiting_since for ask in change.completed(before)]
        tally["completed"] = len(waits)
        if waits:
            self._waits.add(name, waits)
        for event, number in (*tally.items(), *decided.notes.items()):
            if number and event in counters:
                counters[event].inc(number)


class _Waits(Collector):
    """The histogram of waiting times. It takes all values of a cycle at once: there may be thousands."""

    def __init__(self) -> None:
        self._bounds = [round(bound * SECOND) for bound in WAITED]
        self._seen: dict[str, tuple[list[int], int]] = {}
        """Partition → the number of values in each bucket, and their sum."""

    def add(self, partition: str, waits: list[int]) -> None:
        counts, total = self._seen.get(partition) or ([0] * (len(WAITED) + 1), 0)
        counts = counts.copy()  # a scrape may be reading them
        for waited in waits:
            counts[bisect_left(self._bounds, waited)] += 1
        self._seen[partition] = (counts, total + sum(waits))

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(
            "fairlead_head_of_lane_latency_seconds",
            "How long a completed ask had waited when its last task was placed. Preempted tasks count from their stop.",
            labels=("partition",),
        )
        bounds = [*map(str, map(float, WAITED)), "+Inf"]
        for partition, (counts, total) in list(self._seen.items()):
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            family.add_metric((partition,), buckets, total / SECOND)
        yield family
