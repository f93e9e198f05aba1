"""The map of nodes and queues for the web page, and its changes as server-sent events."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, Response, get
from litestar.params import QueryParameter
from litestar.response import Stream

from fairlead.api.context import NOT_STORED, USERS, PartitionName, caller_of, seen_by, services_of, streamed
from fairlead.views.nodemap import map_tasks
from fairlead.wire import api as wire

MAX_NAMED = 300

HttpRequest = Request[Any, Any, Any]


@get("/map", operation_id="map", guards=[USERS], summary="All nodes and queues, for the web page")
async def node_map(request: HttpRequest, partition: PartitionName = "") -> wire.NodeMap:
    """Return all nodes of a partition in columns, with the queue tree, at most a second old. The answer is always
    compressed with gzip."""
    services = services_of(request)
    board = services.boards.of(services.control.find(partition))
    headers = {**NOT_STORED, "content-encoding": "gzip"}
    answer = Response(await board.map(), media_type="application/json", headers=headers)
    return answer  # type: ignore[return-value]  # the annotation is the document's type, for OpenAPI


@get("/live", operation_id="live", guards=[USERS], media_type="text/event-stream", summary="Changes of the map")
async def live(
    request: HttpRequest,
    partition: PartitionName = "",
    after: Annotated[
        str, QueryParameter(required=False, max_length=40, description="`at` of the map, or of the last change.")
    ] = "",
) -> Stream:
    """Stream the changes of the map, at most one a second. After `reset` the map has to be read again."""
    services = services_of(request)
    board = services.boards.of(services.control.find(partition))
    return streamed(services, caller_of(request), board.lines(after))


@get("/map/tasks", operation_id="mapTasks", guards=[USERS], summary="The tasks of some nodes")
async def tasks_of_nodes(
    request: HttpRequest,
    node: Annotated[list[str], QueryParameter(min_items=1, max_items=MAX_NAMED, description="Names of nodes.")],
    partition: PartitionName = "",
) -> wire.MapTasks:
    """List the live tasks of up to 300 nodes, by node and stage. The web page asks for the nodes that it shows large.
    Tasks of jobs that the caller may not see are without names."""
    served = services_of(request).control.find(partition)
    sees = seen_by(request)
    return await served.read(lambda state: map_tasks(state, node, sees, served.now))


HANDLERS = [node_map, live, tasks_of_nodes]
