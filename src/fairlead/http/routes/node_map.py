"""The map of nodes and queues for the web page, and its changes as server-sent events."""

from __future__ import annotations

from fairlead.http.context import NOT_STORED, Request, seen_by, streamed
from fairlead.http.dispatch import serves
from fairlead.http.responses import Response
from fairlead.views.nodemap import map_tasks
from fairlead.wire import api as wire
from fairlead.wire import operations as op


@serves(op.Map)
async def node_map(request: Request, asked: op.Map) -> Response:
    services = request.services
    board = services.boards.of(services.control.find(asked.partition))
    headers = {**NOT_STORED, "content-encoding": "gzip"}
    return Response(await board.map(), headers=headers)


@serves(op.Live)
async def live(request: Request, asked: op.Live) -> Response:
    services = request.services
    board = services.boards.of(services.control.find(asked.partition))
    return streamed(services, request.caller, board.lines(asked.after))


@serves(op.MapTasks)
async def tasks_of_nodes(request: Request, asked: op.MapTasks) -> wire.MapTasks:
    served = request.services.control.find(asked.partition)
    sees = seen_by(request)
    return await served.read(lambda state: map_tasks(state, asked.node, sees, served.now))
