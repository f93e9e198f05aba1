"""The map of nodes and queues for the web page, and its changes as server-sent events."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, Response, get
from litestar.params import QueryParameter
from litestar.response import Stream

from fairlead.api.context import NOT_STORED, USERS, PartitionName, caller_of, services_of, streamed
from fairlead.wire import api as wire

HttpRequest = Request[Any, Any, Any]


@get("/map", operation_id="map", guards=[USERS], summary="All nodes and queues, for the web page")
async def node_map(request: HttpRequest, partition: PartitionName = "") -> wire.NodeMap:
    """Return all nodes of a partition in columns, with the queue tree. It is at most a second old. The answer is always
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
    """Stream the changes of a map, at most one a second. After `reset` the map has to be read again."""
    services = services_of(request)
    board = services.boards.of(services.control.find(partition))
    return streamed(services, caller_of(request), board.lines(after))


HANDLERS = [node_map, live]
