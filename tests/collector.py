"""An OpenTelemetry collector for tests: it takes spans by OTLP over HTTP, as any collector does, and keeps them."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Thread

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

SECONDS = 60.0


class Collector:
    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self._changed = Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                collector._take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def _take(self, request: ExportTraceServiceRequest) -> None:
        with self._changed:
            for resource in request.resource_spans:
                self.services |= {
                    each.value.string_value for each in resource.resource.attributes if each.key == "service.name"
                }
                for scope in resource.scope_spans:
                    self.spans += scope.spans
            self._changed.notify_all()

    def wait(self, enough: Callable[[list[Span]], bool]) -> list[Span]:
        """Return the spans as soon as they are enough."""
        with self._changed:
            assert self._changed.wait_for(lambda: enough(self.spans), SECONDS), self.spans
            return list(self.spans)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def fields_of(span: Span) -> dict[str, object]:
    """Return the attributes of a span as plain values."""
    found: dict[str, object] = {}
    for each in span.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        found[each.key] = [part.string_value for part in value.values] if kind == "array_value" else value
    return found
