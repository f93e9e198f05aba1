"""The log of a server, a file with a limit on its size, and its telemetry: metrics, and spans for OpenTelemetry.

A full disk never stops the server.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry

from fairlead.server.failure import Failed
from fairlead.server.start_options import Limits, LogLevel, ServerOptions
from fairlead.views.decision_log import Logs
from fairlead.views.metrics.metrics import Metrics
from fairlead.views.spans import Spans, SpanSender
from fairlead.writer.writer import Observer

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

OLDER = 4
"""Number of older log files: `server.log.1` to `server.log.4`."""


class LogFile:
    """A log file that all threads may write. It is rotated, so that all files together stay below `total` bytes."""

    def __init__(self, path: Path, total: int) -> None:
        self._path = path
        self._most = max(1, total // (OLDER + 1))
        self._lost = 0
        """Number of lines lost since the last written line."""
        self._lock = Lock()
        self._fd = -1
        self._size = 0
        with suppress(OSError):
            self._append(b"")

    def write(self, text: str) -> None:
        """Append a line, or lose it if that fails. The next line that can be written says how many were lost."""
        data = text.encode(errors="backslashreplace")
        with self._lock:
            try:
                if self._lost:
                    self._append(self._loss())
                    self._lost = 0
                self._append(data)
            except OSError:
                self._lost += 1
                self._close()

    def flush(self) -> None:
        """Do nothing: each line is written at once."""

    def isatty(self) -> bool:
        return False

    def close(self) -> None:
        with self._lock:
            self._close()

    def _append(self, data: bytes) -> None:
        if self._fd < 0:
            # The disk may have been full, or the file may have been moved away.
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._size = os.fstat(self._fd).st_size
        if self._size and self._size + len(data) > self._most:
            self._rotate()
            return self._append(data)
        written = os.write(self._fd, data)
        self._size += written
        if written < len(data):
            os.ftruncate(self._fd, self._size - written)  # leave no partial line
            raise OSError("the line was written in part")

    def _rotate(self) -> None:
        self._close()
        for number in range(OLDER, 0, -1):
            before = self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number - 1}")
            with suppress(FileNotFoundError):
                before.replace(self._path.with_name(f"{self._path.name}.{number}"))

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _loss(self) -> bytes:
        at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        line = {"lines": self._lost, "event": "log lines lost", "level": "warning", "timestamp": at}
        return json.dumps(line).encode() + b"\n"


def logger_to(
    out: TextIO | LogFile,
    form: Literal["json", "console"],
    level: LogLevel = "info",
) -> FilteringBoundLogger:
    """Return a logger that writes JSON, or lines for people, without changing global settings."""
    import structlog  # slow to import, and most commands log nothing

    render: Any = structlog.processors.JSONRenderer()
    if form == "console":
        render = structlog.dev.ConsoleRenderer(colors=out.isatty())
    logger: FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(cast(TextIO, out)),
        [structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True), render],
        structlog.make_filtering_bound_logger(level),
        dict,
    )
    return logger


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
