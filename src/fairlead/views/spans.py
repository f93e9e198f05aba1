"""Spans of jobs from submit to running, as OpenTelemetry defines them, from sealed plans; and their way to a collector.

`Spans` is an observer of writers. A job is a trace of its own, unless its submission names another one:

    job            from the request to the first task that runs
      submit       from the request to the durable record
      waiting      from the ask to the placement of its last task, with the last reason
      launch       from the placement to the report that tasks run, one for each stage and cycle

The ids follow from the job, so a server that takes over continues the trace. `SpanSender` sends spans by OTLP over
HTTP, in a thread of its own. Only it loads the packages of OpenTelemetry (extra `otel`). The writer never waits: spans
that do not fit into the queue are dropped and counted.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import CollectorRegistry, Counter

from fairlead.core.changes import Acknowledged, Ended, JobNews, SinglesEnded
from fairlead.core.commands import Origin, Submit
from fairlead.core.cycle import Cycle
from fairlead.core.lifecycle import JOB
from fairlead.core.model import KINDS, Allocation, Ask, Job, Micros
from fairlead.core.ranges import count
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition
from fairlead.core.why.reasons import Reason

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

TRACED = 100_000
"""Maximum number of unfinished jobs of a partition with spans. Jobs beyond it get none."""
CHILDREN = 100
"""Maximum number of spans of a job besides its own."""
NAMED = 8
"""Number of nodes that a span names."""
PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
"""The header `traceparent`: version, trace, span, flags."""


class Span(msgspec.Struct, frozen=True, gc=False):
    """A span that has ended. Times are in microseconds since 1970."""

    name: str
    trace: int
    id: int
    parent: int
    """The id of the parent; 0 for none."""
    remote: bool
    """True if the parent is a span of the caller."""
    start: Micros
    end: Micros
    fields: dict[str, Any]
    problem: str = ""
    """Why it did not succeed; empty if it did."""


class Traced(msgspec.Struct):
    """A job that is not over."""

    trace: int
    id: int
    parent: int
    since: Micros
    ran: bool = False
    """True if its own span was sent."""
    children: int = 0
    reasons: dict[tuple[str, int], Reason] = {}
    """Stage and kind of ask → why it waited, as of the last cycle that tried it."""


class Spans:
    """Gives the spans of jobs to `send`, which must be quick; an observer of writers.

    Calls `left_out` for each job that gets no spans because `TRACED` jobs have them already.
    """

    def __init__(self, send: Callable[[Span], None], left_out: Callable[[], None] = lambda: None) -> None:
        self._send = send
        self._left_out = left_out
        self._jobs: dict[str, dict[str, Traced | None]] = {}
        """Partition → job → its trace; None for a job whose caller does not record spans."""

    # -- as an observer ------------------------------------------------------------------------------------------

    def began(self, partition: Partition) -> None:
        known = self._jobs[partition.name] = {}
        ran = {part.stage.job.id for part in partition.allocations.values() if part.started is not None}
        for job in partition.jobs.values():
            if not job.over and len(known) < TRACED:
                known[job.id] = trace = _traced(partition, job)
                trace.ran = job.id in ran or any(stage.ended for stage in job.stages)

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        partition = decided.plan.partition
        if partition.removed:
            self._jobs.pop(partition.name, None)
            return
        known = self._jobs[partition.name]
        now = decided.plan.now
        jobs = [news for news in decided.plan.news() if isinstance(news, JobNews)]
        if any(news.what == "submitted" for news in jobs):
            self._submitted(decided, known, now + round(sum(seconds.values()) * SECOND))
        for change, before in decided.plan.done:
            for ask in change.completed(before):
                self._waited(known, ask, now)
        self._launched(decided, known)
        for news in jobs:
            if JOB.terminal(news.state):
                trace = known.pop(news.job.id, None)
                if trace is not None and not trace.ran:
                    self._send(_own(partition, news.job, trace, now, news.reason or news.state))
        for (job, stage, kind), reason in decided.reasons.items():
            trace = known.get(job)
            if trace is not None:
                trace.reasons[stage, kind] = reason

    def stopped(self, partition: Partition, why: str) -> None:
        self._jobs.pop(partition.name, None)

    # -- inside --------------------------------------------------------------------------------------------------

    def _submitted(self, decided: Cycle, known: dict[str, Traced | None], durable: Micros) -> None:
        partition = decided.plan.partition
        origins = {
            getattr(answer, "job", ""): command.origin
            for command, answer in zip(decided.commands, decided.answers, strict=True)
            if isinstance(command, Submit) and isinstance(command.origin, Origin)
        }
        for news in decided.plan.news():
            if not isinstance(news, JobNews) or news.what != "submitted":
                continue
            job = news.job
            if len(known) >= TRACED:
                self._left_out()
                continue
            origin = origins.get(job.id)
            trace = known[job.id] = _continued(_traced(partition, job), origin)
            if trace is not None and origin is not None:
                self._child("submit", job, trace, origin.received, durable, {"fairlead.user": job.user})

    def _waited(self, known: dict[str, Traced | None], ask: Ask, now: Micros) -> None:
        trace = known.get(ask.stage.job.id)
        if trace is None:
            return
        fields = {"fairlead.stage": ask.stage.name, "fairlead.kind": KINDS[ask.kind]}
        reason = trace.reasons.pop((ask.stage.name, ask.kind), None)
        if reason is not None:
            fields["fairlead.reason"] = str(reason)
        self._child("waiting", ask.stage.job, trace, ask.waiting_since, now, fields)

    def _launched(self, decided: Cycle, known: dict[str, Traced | None]) -> None:
        """Send the spans of launches that were acknowledged or ended in a cycle, and of jobs that run since then."""
        partition, now = decided.plan.partition, decided.plan.now
        launches: dict[tuple[str, str, int, str], list[tuple[Allocation, int]]] = {}
        for allocation, tasks, problem in _first_reports(decided):
            stage = allocation.stage
            key = (stage.job.id, stage.name, allocation.attempt, problem)
            launches.setdefault(key, []).append((allocation, tasks))
        for (name, stage_name, attempt, problem), parts in launches.items():
            trace = known.get(name)
            if trace is None:
                continue
            job = parts[0][0].stage.job
            rows = partition.nodes.rows
            nodes = list(dict.fromkeys(allocation.node for allocation, _ in parts))
            fields = {
                "fairlead.stage": stage_name,
                "fairlead.attempt": attempt,
                "fairlead.tasks": sum(tasks for _, tasks in parts),
                "fairlead.nodes": [partition.nodes.name[rows[node]] for node in nodes[:NAMED] if node in rows],
                "fairlead.node_count": len(nodes),
            }
            self._child("launch", job, trace, min(part.since for part, _ in parts), now, fields, problem)
            if not trace.ran and not problem:
                trace.ran = True
                self._send(_own(partition, job, trace, now, ""))

    def _child(
        self, name: str, job: Job, trace: Traced, start: Micros, end: Micros, fields: dict[str, Any], problem: str = ""
    ) -> None:
        if trace.children >= CHILDREN:
            return
        trace.children += 1
        span = _hashed(8, trace.id, name, start, end, trace.children)
        fields = {"fairlead.job": job.id, **fields}
        self._send(Span(name, trace.trace, span, trace.id, False, start, max(start, end), fields, problem))


def _first_reports(decided: Cycle) -> Iterator[tuple[Allocation, int, str]]:
    """Yield allocations that got their first report, with the number of tasks and the reason if they do not run."""
    for change, before in decided.plan.done:
        if isinstance(change, Acknowledged):
            yield before.allocation, count(change.indices), ""
        elif isinstance(change, SinglesEnded):
            yield from [(allocation, 1, "") for allocation in before if allocation.state == "assigned"]
        elif isinstance(change, Ended) and before.allocation.state == "assigned":
            # A short task may end before it is reported to run.
            ran = change.outcome == "succeeded" or change.exit_code is not None
            yield before.allocation, count(change.indices), "" if ran else change.reason or change.outcome


def _own(partition: Partition, job: Job, trace: Traced, end: Micros, problem: str) -> Span:
    spec = job.spec
    fields = {
        "fairlead.job": job.id,
        "fairlead.job_number": job.number,
        "fairlead.job_name": spec.name,
        "fairlead.user": spec.user,
        "fairlead.queue": job.queue.path,
        "fairlead.partition": partition.name,
        "fairlead.tasks": sum(stage.size for stage in job.stages),
    }
    return Span("job", trace.trace, trace.id, trace.parent, trace.parent > 0, trace.since, end, fields, problem)


def _traced(partition: Partition, job: Job) -> Traced:
    parts = (partition.name, job.number, job.submitted)
    return Traced(_hashed(16, *parts), _hashed(8, *parts), 0, job.submitted)


def _continued(trace: Traced, origin: Origin | None) -> Traced | None:
    """Make a job's trace a part of its caller's trace. None if the caller says that it is not recorded."""
    if origin is None:
        return trace
    trace.since = min(trace.since, origin.received)
    found = PARENT.fullmatch(origin.traceparent)
    if found is not None:
        if not int(found[3], 16) & 1:
            return None
        trace.trace, trace.parent = int(found[1], 16), int(found[2], 16)
    return trace


def _hashed(size: int, *parts: object) -> int:
    """Return a hash of the parts: a number above 0 with at most `size` bytes."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=size).digest(), "big") or 1


WAITING = 20_000
"""Maximum number of waiting spans."""
AT_ONCE = 1_000
"""Maximum number of spans in one message to the collector."""
PAUSE = 1.0
"""Seconds in which spans are collected before they are sent."""
SECONDS = 5.0
"""Seconds that a collector has to accept a message, with all repetitions."""


class SpanSender:
    def __init__(self, endpoint: str, version: str, registry: CollectorRegistry) -> None:
        """Raise `ImportError` if the packages of OpenTelemetry are not installed."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._exporter = OTLPSpanExporter(endpoint, timeout=SECONDS)
        self._resource = Resource.create({"service.name": "fairlead", "service.version": version})
        self._scope = InstrumentationScope("fairlead", version)
        self._sent = Counter(
            "fairlead_spans_sent_total", "Spans that the collector accepted. Only with --traces.", registry=registry
        )
        self._dropped = Counter(
            "fairlead_spans_dropped_total",
            "Spans that were not sent: too many waited (full), or the collector did not accept them (failed). A job "
            "that gets no spans because too many jobs have them counts as one (jobs). Only with --traces.",
            ["why"],
            registry=registry,
        )
        for why in ("full", "failed", "jobs"):
            self._dropped.labels(why)
        self._waiting: deque[Span] = deque()
        self._closing = Event()
        self._thread = Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def send(self, span: Span) -> None:
        """Queue a span, or drop it if too many wait."""
        if len(self._waiting) < WAITING:
            self._waiting.append(span)
        else:
            self._dropped.labels("full").inc()

    def left_out(self) -> None:
        """Count a job without spans."""
        self._dropped.labels("jobs").inc()

    def close(self) -> None:
        """Send the waiting spans until the collector accepts no more, and end the thread."""
        self._closing.set()
        self._thread.join(SECONDS)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _run(self) -> None:
        while not self._closing.wait(PAUSE):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
            if not self._export(batch) and self._closing.is_set():
                self._dropped.labels("failed").inc(len(self._waiting))
                return

    def _export(self, batch: list[Span]) -> bool:
        """Send spans, and return True if the collector accepted them. Otherwise they are lost."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            taken = self._exporter.export([self._readable(span) for span in batch]) is SpanExportResult.SUCCESS
        except Exception:  # the exporter raises errors of its HTTP client, which depend on its version
            taken = False
        if taken:
            self._sent.inc(len(batch))
        else:
            self._dropped.labels("failed").inc(len(batch))
        return taken

    def _readable(self, span: Span) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
        from opentelemetry.trace.status import Status, StatusCode

        def context(number: int, remote: bool) -> Any:
            return SpanContext(span.trace, number, remote, TraceFlags(TraceFlags.SAMPLED))

        return ReadableSpan(
            span.name,
            context(span.id, False),
            context(span.parent, span.remote) if span.parent else None,
            self._resource,
            span.fields,
            kind=SpanKind.SERVER if span.remote or span.name == "submit" else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, span.problem) if span.problem else Status(StatusCode.OK),
            start_time=span.start * 1_000,
            end_time=span.end * 1_000,
            instrumentation_scope=self._scope,
        )
