"""Definitions of all metrics, updated from sealed plans. docs/metrics.md has the same table for people.

`Metrics` is an observer of writers. One object serves all partitions of a process. It has its own registry, so that a
process can have several. A scrape never reads the state, so any thread may serve it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.core.changes import Placed
from fairlead.core.cycle import Cycle
from fairlead.core.model import Micros
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition
from fairlead.views.metrics.hold_metrics import Earmarks
from fairlead.views.metrics.lane_metrics import LaneFigures
from fairlead.views.metrics.scraped import InboxFigures, Scraped
from fairlead.views.metrics.share_metrics import ShareFigures, Shares

LANES = 50
"""Maximum number of lanes of a partition with their own series."""

# Bounds of histograms: seconds of a part of a cycle, seconds that an ask waited, seconds after a planned start,
# commands in a batch.
TAKEN = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
WAITED = (0.01, 0.1, 1, 5, 15, 60, 300, 900, 3_600, 14_400, 43_200, 86_400, 172_800, 604_800)
LATE = (-86_400, -3_600, -600, -60, -1, 0, 1, 60, 600, 3_600, 86_400)
SIZES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)

NO_MESSAGES = InboxFigures()

PHASES = "intake expiry match holds preempt demand seal encode"

Series = TypeVar("Series", Counter, Gauge, Histogram)


class Often(NamedTuple):
    """The series of a partition that every cycle updates. Cached, because finding a series by its labels is slow."""

    counters: dict[str, Counter]
    """Counters by the names that changes and plans use."""
    batch: Histogram
    parts: dict[str, Histogram]
    """Durations of the parts of a cycle."""


class Metrics:
    """All metrics of a process; an observer of writers."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._defined: list[tuple[Counter | Gauge | Histogram, list[str]]] = []
        define = self._define
        self._lanes = _Lanes(
            ("fairlead_lane_asks", "Asks in a lane."),
            (
                "fairlead_lane_pending_tasks",
                "Pending tasks of a lane, also of jobs that come after others and have no ask yet. "
                f"The {LANES} lanes of a partition where most wait are shown, and the others together as other.",
            ),
        )
        self._upserts = define(
            Counter,
            "fairlead_upserts_total",
            "Demand that arrived or came back: it got an ask (inserted), its ask got another size or "
            "place (replaced), or it was known already and changed nothing (ignored).",
            result="inserted replaced ignored",
        )
        self._to_tail = define(
            Counter,
            "fairlead_asks_to_tail_total",
            "Asks moved to the tail of their lane.",
        )
        self._set_aside = define(
            Counter,
            "fairlead_jobs_set_aside_total",
            "Jobs that users and operators held, released or requeued.",
            action="held released requeued",
        )
        self._ended = define(
            Counter,
            "fairlead_asks_ended_total",
            "Asks that left their lane: all of their tasks were placed (completed), or given up or asked for "
            "as another kind (cancelled).",
            how="completed cancelled",
        )
        self._waits = _Waits(
            "fairlead_head_of_lane_latency_seconds",
            "How long a completed ask had waited when its last task was placed; preempted tasks count from their stop.",
        )
        self._placed = define(Counter, "fairlead_tasks_placed_total", "Tasks that were assigned to a node.")
        self._launches = define(
            Counter,
            "fairlead_launches_total",
            "Placed tasks by their first report: they run (acknowledged), their node refused them (refused), no report "
            "within launch_timeout (silent), or they were lost.",
            outcome="acknowledged refused silent lost",
        )
        self._attempts = define(
            Counter,
            "fairlead_attempts_ended_total",
            "Attempts that ended: succeeded, failed, lost, preempted (also with their gang) or killed. Launches that "
            "were taken back are not among them.",
            outcome="succeeded failed lost preempted killed",
        )
        self._ready = define(
            Gauge,
            "fairlead_ready",
            "1 if the partition is ready. Before that, it accepts everything and places nothing.",
        )
        self._transitions = define(
            Counter,
            "fairlead_readiness_transitions_total",
            "How often the partition became ready, and how often it ceased to be (not_ready), because its writer "
            "stopped. The state at the start of the process is not counted.",
            to="ready not_ready",
        )
        self._batch = define(
            Histogram,
            "fairlead_batch_size",
            "Commands and reports that a cycle took; 0 if time or unfinished work started it.",
            buckets=SIZES,
        )
        self._cycle = define(
            Histogram,
            "fairlead_cycle_seconds",
            "Time of a cycle by phase: intake, expiry, match, holds, preempt, demand, seal (checks and effects) and "
            "encode. The journal is apart.",
            phase=PHASES,
            buckets=TAKEN,
        )
        self._journal = define(
            Histogram,
            "fairlead_journal_append_seconds",
            "Time that the journal took to make a cycle durable.",
            buckets=TAKEN,
        )
        self._stale = define(Counter, "fairlead_stale_reports_total", "Reports of old attempts, which were ignored.")
        self._unknown = define(
            Counter,
            "fairlead_unknown_attempts_total",
            "Reports of attempts that this journal never gave; an operator must look at each.",
        )
        self._foreign = define(
            Counter,
            "fairlead_foreign_reports_total",
            "Reports of tasks that were given to another node, which were refused; an operator must look at each.",
        )
        self._rebalances = define(
            Counter,
            "fairlead_rebalances_total",
            "How often loans were taken back because queues were too far from their shares.",
        )
        self._rebalanced = define(
            Counter,
            "fairlead_rebalance_victims_total",
            "Tasks on loan that were stopped for the entitlement of other queues.",
        )
        self._claims = define(
            Counter,
            "fairlead_claims_total",
            "How often tasks were stopped so that an ask can start, by its right: a higher priority in its queue, a "
            "guarantee that is not met, or its share (rebalance).",
            cause="priority guarantee share",
        )
        self._victims = define(
            Counter,
            "fairlead_victims_total",
            "Tasks that were stopped for an ask to which their capacity is promised, by its right.",
            cause="priority guarantee share",
        )
        self._ordered = define(
            Counter,
            "fairlead_nodes_ordered_total",
            "Nodes that pools were asked for: because work waits for them (demand), to keep some idle (spare), or "
            "by hand.",
            cause="demand spare hand",
        )
        self._expected = define(
            Counter,
            "fairlead_ordered_nodes_total",
            "What became of ordered nodes: they joined (arrived), or are not expected any more (failed).",
            outcome="arrived failed",
        )
        self._given_back = define(
            Counter, "fairlead_nodes_given_back_total", "Nodes of pools that had nothing to do and were given back."
        )
        self._backfilled = define(
            Counter,
            "fairlead_backfilled_tasks_total",
            "Tasks that were placed before the first ask without capacity, without delaying it.",
        )
        self._late = define(
            Histogram,
            "fairlead_planned_start_late_seconds",
            "With backfill: how much later than last planned the first ask without capacity started; below 0 it was "
            "earlier.",
            buckets=LATE,
        )
        self._counters: dict[str, tuple[Counter, str]] = {
            "inserted": (self._upserts, "inserted"),
            "replaced": (self._upserts, "replaced"),
            "asked for again": (self._upserts, "ignored"),
            "completed": (self._ended, "completed"),
            "cancelled": (self._ended, "cancelled"),
            "sent to the tail": (self._to_tail, ""),
            **{f"jobs {action}": (self._set_aside, action) for action in ("held", "released", "requeued")},
            "placed": (self._placed, ""),
            "acknowledged": (self._launches, "acknowledged"),
            "launch refused": (self._launches, "refused"),
            "launch not acknowledged": (self._launches, "silent"),
            "lost launch": (self._launches, "lost"),
            **{how: (self._attempts, how) for how in ("succeeded", "failed", "lost", "preempted", "killed")},
            "rebalanced": (self._rebalances, ""),
            "rebalance victims": (self._rebalanced, ""),
            **{f"claim by {cause}": (self._claims, cause) for cause in ("priority", "guarantee", "share")},
            **{f"victims by {cause}": (self._victims, cause) for cause in ("priority", "guarantee", "share")},
            **{f"ordered by {cause}": (self._ordered, cause) for cause in ("demand", "spare", "hand")},
            "arrived": (self._expected, "arrived"),
            "order failed": (self._expected, "failed"),
            "given back": (self._given_back, ""),
            "backfilled": (self._backfilled, ""),
            "stale report": (self._stale, ""),
            "unknown attempt": (self._unknown, ""),
            "foreign report": (self._foreign, ""),
        }
        """Name that changes count (see `Change.counts`) or plans note → the metric and the value of its label."""
        self._often: dict[str, Often] = {}
        """Partition → its series."""
        self._planned: dict[str, tuple[str, int, int]] = {}
        """Partition → job and kind of the first ask without capacity, and its planned start."""
        self._earmarks = Earmarks()
        self.registry.register(self._earmarks)
        self._shares = Shares()
        self.registry.register(self._shares)
        self._scraped = Scraped()
        self.registry.register(self._scraped)
        self.registry.register(self._lanes)
        self.registry.register(self._waits)
        self._was_ready: dict[str, bool] = {}
        """Partition → True if it was ready after its last cycle."""

    def text(self, now: Micros, with_jobs: bool = True) -> str:
        """Return the result of a scrape at a time, in Prometheus' text format, if wanted without series of jobs."""
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
        name = partition.name
        for metric, values in self._defined:
            # Create all series with 0: otherwise a rate misses the first event.
            for value in values:
                metric.labels(name, value)
            if not values:
                metric.labels(name)
        self._often[name] = Often(
            {
                what: metric.labels(name, value) if value else metric.labels(name)
                for what, (metric, value) in self._counters.items()
            },
            self._batch.labels(name),
            {part: self._cycle.labels(name, part) for part in PHASES.split()} | {"journal": self._journal.labels(name)},
        )
        figures = LaneFigures()
        figures.begin(partition)
        self._lanes.figures[name] = figures
        shares = self._shares.figures[name] = ShareFigures()
        shares.begin(partition)
        self._earmarks.update(partition)
        self._planned.pop(name, None)
        self._waits.add(name, [])
        self._set_ready(name, partition.readiness.ready)

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        partition = decided.plan.partition
        name = partition.name
        often = self._often[name]
        self._count(name, often.counters, decided)
        self._lanes.figures[name].follow(decided)
        self._shares.figures[name].follow(decided)
        self._earmarks.update(partition)
        self._follow_plan(name, decided)
        often.batch.observe(len(decided.answers))
        for part, taken in seconds.items():
            often.parts[part].observe(taken)
        self._set_ready(name, partition.readiness.ready)
        if partition.removed:
            self._earmarks.forget(name)
            self._scraped.forget(name)
            self._ready.remove(name)  # no readiness is expected of a removed partition; its lanes are empty

    def stopped(self, partition: Partition, why: str) -> None:
        self._set_ready(partition.name, False)

    # -- inside --------------------------------------------------------------------------------------------------

    def _define(self, kind: type[Series], name: str, meaning: str, buckets: Any = None, **label: str) -> Series:
        """Define a metric with the label `partition` and at most one other label, given with its possible values."""
        more = {} if buckets is None else {"buckets": buckets}
        metric = kind(name, meaning, ("partition", *label), registry=self.registry, **more)
        self._defined.append((metric, " ".join(label.values()).split()))
        return metric

    def _set_ready(self, name: str, ready: bool) -> None:
        before = self._was_ready.get(name)
        if before == ready:
            return
        self._was_ready[name] = ready
        self._ready.labels(name).set(ready)
        if before is not None:
            self._transitions.labels(name, "ready" if ready else "not_ready").inc()

    def _follow_plan(self, name: str, decided: Cycle) -> None:
        """Observe whether the first ask without capacity started as planned, and remember the present plan."""
        expected = self._planned.get(name)
        if expected is not None:
            job, kind, when = expected
            for change, _ in decided.plan.done:
                if isinstance(change, Placed) and (change.job, change.kind) == (job, kind):
                    self._late.labels(name).observe((decided.plan.now - when) / SECOND)
                    del self._planned[name]
                    break
        planned = decided.plan.planned
        if planned is not None and planned[2] is not None:
            self._planned[name] = (planned[0], planned[1], planned[2])

    def _count(self, name: str, counters: dict[str, Counter], decided: Cycle) -> None:
        tally, waits = _tally(decided)
        if waits:
            self._waits.add(name, waits)
        for what, number in (*tally.items(), *decided.notes.items()):
            if number and what in counters:
                counters[what].inc(number)


def _tally(decided: Cycle) -> tuple[Tally[str], list[int]]:
    """Return the counts of a cycle's changes, and the waiting time of each ask that it completed."""
    now, partition = decided.plan.now, decided.plan.partition
    tally: Tally[str] = Tally()
    waits: list[int] = []
    for change, before in decided.plan.done:
        for what, number in change.counts(partition, before):
            tally[what] += number
        waits += [now - ask.waiting_since for ask in change.completed(before)]
    tally["completed"] = len(waits)
    return tally, waits


# -- series that are computed by a scrape ------------------------------------------------------------------------


class _Lanes(Collector):
    def __init__(self, asks: tuple[str, str], tasks: tuple[str, str]) -> None:
        self.figures: dict[str, LaneFigures] = {}
        self._asks, self._tasks = asks, tasks

    def collect(self) -> Iterator[Metric]:
        labels = ("partition", "queue", "shape")
        asks = GaugeMetricFamily(*self._asks, labels=labels)
        tasks = GaugeMetricFamily(*self._tasks, labels=labels)
        for partition, lanes in list(self.figures.items()):
            for lane, figures in sorted(lanes.most(LANES).items()):
                asks.add_metric((partition, *lane), figures.asks)
                tasks.add_metric((partition, *lane), figures.tasks)
        yield asks
        yield tasks


class _Waits(Collector):
    """A histogram that takes all values of a cycle at once: there may be thousands."""

    def __init__(self, name: str, meaning: str) -> None:
        self._name, self._meaning = name, meaning
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
        family = HistogramMetricFamily(self._name, self._meaning, labels=("partition",))
        bounds = [*map(str, map(float, WAITED)), "+Inf"]
        for partition, (counts, total) in list(self._seen.items()):
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            family.add_metric((partition,), buckets, total / SECOND)
        yield family
