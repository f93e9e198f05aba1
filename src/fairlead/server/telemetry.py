"""Log file and metrics of a server, and spans of jobs for an OpenTelemetry collector."""

from __future__ import annotations

import threading
from contextlib import suppress
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry

from fairlead.server.failure import Failed
from fairlead.server.logfile import LogFile, logger_to
from fairlead.server.start_options import Limits, ServerOptions
from fairlead.views.decision_log import Logs
from fairlead.views.metrics.metrics import Metrics
from fairlead.views.spans import Spans
from fairlead.views.spansender import SpanSender
from fairlead.writer.observer import Observer


class Telemetry:
    """The log, the metrics and the spans of a server."""

    def __init__(self, options: ServerOptions, limits: Limits) -> None:
        self._file = LogFile(options.directory / "server.log", limits.log_size)
        self.log = logger_to(self._file, "json", options.log_level)
        self.metrics = Metrics()
        self._spans = span_sender(options.traces, options.version, self.metrics.registry) if options.traces else None
        threading.excepthook = lambda ended: self.log.error(
            "thread ended", thread=ended.thread.name if ended.thread else "", error=repr(ended.exc_value)
        )

    def observers(self) -> list[Observer]:
        """Return the observers of the writers."""
        spans = [] if self._spans is None else [Spans(self._spans.send, self._spans.left_out)]
        return [self.metrics, Logs(self.log), *spans]

    def close(self) -> None:
        if self._spans is not None:
            self._spans.close()
        self._file.close()


def span_sender(endpoint: str, version: str, registry: CollectorRegistry) -> SpanSender:
    """Return a sender of spans to a collector. Raise `Failed` if the address or the installation does not allow it."""
    with suppress(ValueError):
        parts = urlsplit(endpoint)
        if parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port):
            try:
                return SpanSender(endpoint, version, registry)
            except ImportError as problem:
                raise Failed(f"{problem}; install the extra: pip install 'fairlead[otel]'", "--traces") from problem
    raise Failed(f"{endpoint} is not an address such as http://127.0.0.1:4318/v1/traces", "--traces")
