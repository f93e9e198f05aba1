"""Handlers for health, readiness, metrics and the OpenAPI document."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

from litestar import Request, Response, get

from fairlead.api.context import USERS, caller_of, services_of
from fairlead.api.problems import Unserved
from fairlead.core.errors import Refused
from fairlead.views.metrics.scraped import InboxFigures
from fairlead.wire import api as wire
from fairlead.writer.inbox import Inbox

HttpRequest = Request[Any, Any, Any]


def _health(request: HttpRequest) -> wire.Health:
    services = services_of(request)
    control = services.control
    # The readiness of a partition is one flag, so it can be read without waiting for the writer.
    ready, problem = control.readiness(), control.problem
    return wire.Health(
        version=services.version,
        ready=not problem and all(ready.values()),
        partitions=ready,
        problem=problem,
        failing=["history"] if services.records.failing else [],
        alarms=[
            f"partition {name}: {len(nodes)} {'nodes know' if len(nodes) > 1 else 'node knows'} tasks or leaders that "
            "are not in the journal: its data were set back; see `unknown attempt` and `epoch not known` in the log"
            for name, nodes in services.hub.ahead().items()
        ],
    )


@get("/healthz", operation_id="healthz", summary="Liveness of the server", security=[{}])
async def healthz(request: HttpRequest) -> wire.Health:
    """Answer 200 while the process is alive."""
    return _health(request)


@get("/readyz", operation_id="readyz", summary="Readiness of the partitions", security=[{}])
async def readyz(request: HttpRequest) -> Response[wire.Health]:
    """Answer 503 until every partition is ready: its agents and resource managers have reported, or `ready_after` has
    passed."""
    health = _health(request)
    return Response(health, status_code=200 if health.ready else 503)


@get("/metrics", operation_id="metrics", guards=[USERS], media_type="text/plain", summary="Metrics for Prometheus")
async def metrics(request: HttpRequest) -> Response[str]:
    """Return the metrics described in docs/metrics.md. Series of single jobs are left out for ordinary users."""
    services = services_of(request)
    for name in services.control.led():
        with suppress(Refused, Unserved):  # the partition was removed, or is not served now
            served = services.control.find(name)
            inbox = _inbox_figures(served.live.inbox)
            await served.read(partial(services.metrics.look, inbox=inbox))
    text = services.metrics.text(services.control.now, with_jobs=caller_of(request).operator)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _inbox_figures(inbox: Inbox) -> InboxFigures:
    return InboxFigures(inbox.waiting_commands, inbox.waiting_reports, inbox.refused_commands, inbox.refused_reports)


@get("/api/v1/openapi.json", include_in_schema=False)
async def openapi(request: HttpRequest) -> Response[bytes]:
    """Return the OpenAPI document, which is built on the first request."""
    state = request.app.state
    if isinstance(state.described, bytes):
        return Response(state.described, media_type="application/json")
    state.described = await asyncio.to_thread(state.described)
    return Response(state.described, media_type="application/json")


HANDLERS = [healthz, readyz, metrics, openapi]
