"""Sends spans to an OpenTelemetry collector, by OTLP over HTTP, in a thread of its own.

The packages of OpenTelemetry (extra `otel`) are loaded only here. The writer never waits: spans that do not fit into
the queue are dropped and counted.
"""

from __future__ import annotations

from collections import deque
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter

from fairlead.views.spans import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

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
