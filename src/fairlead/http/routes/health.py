"""Handlers for health, readiness, metrics and the OpenAPI document."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from fairlead.core.errors import Refused
from fairlead.http.context import Request
from fairlead.http.dispatch import HANDLERS, serves
from fairlead.http.openapi import described
from fairlead.http.responses import Response
from fairlead.views.metrics.scraped import InboxFigures
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire.unserved import Unserved


def _health(request: Request) -> wire.Health:
    services = request.services
    control = services.control
    # Read without waiting for the writer, because the readiness of a partition is one flag.
    ready, problem = control.readiness(), control.problem
    return wire.Health(
        version=services.version,
        ready=not problem and all(ready.values()),
        partitions=ready,
        problem=problem,
        failing=["history"] if services.records.failing else [],
        alarms=[
            f"partition {name}: {len(nodes)} {'nodes know' if len(nodes) > 1 else 'node knows'} tasks or leaders that "
            "are not in the journal: its data were set back to an earlier time; see `unknown attempt` and `epoch not "
            "known` in the log"
            for name, nodes in services.hub.ahead().items()
        ]
        + [
            f"partition {name}: its journal is damaged; the log of this server says where, and `fairlead journal "
            "verify` checks all of it"
            for name in control.damaged
        ],
    )


@serves(op.Healthz)
async def healthz(request: Request, asked: op.Healthz) -> wire.Health:
    return _health(request)


@serves(op.Readyz)
async def readyz(request: Request, asked: op.Readyz) -> Response:
    health = _health(request)
    return Response(health, 200 if health.ready else 503)


@serves(op.Metrics)
async def metrics(request: Request, asked: op.Metrics) -> Response:
    services = request.services
    for name in services.control.led():
        with suppress(Refused, Unserved):  # the partition was removed, or is not served now
            served = services.control.find(name)
            inbox = served.live.inbox
            messages = (inbox.waiting_commands, inbox.waiting_reports, inbox.refused_commands, inbox.refused_reports)
            await served.read(partial(services.metrics.look, inbox=InboxFigures(*messages)))
    text = services.metrics.text(services.control.now, with_jobs=request.caller.operator)
    return Response(text, media="text/plain; version=0.0.4; charset=utf-8")


@serves(op.Openapi)
async def openapi(request: Request, asked: op.Openapi) -> Response:
    return Response(await asyncio.to_thread(described, tuple(HANDLERS), request.services.version))
