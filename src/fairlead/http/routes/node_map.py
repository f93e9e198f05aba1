"""Handlers for the map of nodes and queues on the web page, now and in the past."""

from __future__ import annotations

import msgspec

from fairlead.core.resources import HOUR
from fairlead.http.context import NOT_STORED, Request, streamed
from fairlead.http.dispatch import serves
from fairlead.http.responses import Response
from fairlead.http.routes.forecast import ask
from fairlead.http.routes.history import span_of
from fairlead.views.nodemap import map_tasks
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire import preview


@serves(op.Map)
async def node_map(request: Request, asked: op.Map) -> Response:
    board = request.services.boards.of(request.leader(asked))
    headers = {**NOT_STORED, "content-encoding": "gzip"}
    return Response(await board.map(), headers=headers)


@serves(op.Live)
async def live(request: Request, asked: op.Live) -> Response:
    board = request.services.boards.of(request.leader(asked))
    return streamed(request, board.lines(asked.after))


@serves(op.MapTasks)
async def tasks_of_nodes(request: Request, asked: op.MapTasks) -> wire.MapTasks:
    served = request.leader(asked)
    return await served.read(lambda state: map_tasks(state, asked.node, request.sees, served.now))


@serves(op.PastMap)
async def past_map(request: Request, asked: op.PastMap) -> wire.PastMap:
    served = request.leader(asked)
    _, at = span_of("", asked.until)
    at = served.now if at is None else at
    reply = await ask(request.services, served, preview.PastMapQuestion, preview.Document, at=at)
    return msgspec.convert(reply.document, wire.PastMap)


@serves(op.PastQueues)
async def past_queues(request: Request, asked: op.PastQueues) -> wire.PastQueues:
    served = request.leader(asked)
    first, last = span_of(asked.since, asked.until)
    end = served.now if last is None else last
    span = {"since": end - HOUR if first is None else first, "until": end, "points": asked.points}
    reply = await ask(request.services, served, preview.PastQueuesQuestion, preview.Document, **span)
    return msgspec.convert(reply.document, wire.PastQueues)
