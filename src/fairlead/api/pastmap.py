"""Handlers for past nodes and queues on the web page. A second process replays the journal for them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, get
from litestar.params import QueryParameter

from fairlead.api.context import USERS, PartitionName, services_of
from fairlead.api.future import ask
from fairlead.api.history import Moment, span_of
from fairlead.core.resources import HOUR
from fairlead.wire import api as wire
from fairlead.wire import preview

HttpRequest = Request[Any, Any, Any]


@get("/map/past", operation_id="pastMap", guards=[USERS], summary="All nodes and queues as they were")
async def past_map(request: HttpRequest, partition: PartitionName = "", until: Moment = "") -> wire.PastMap:
    """Return the map of nodes and queues as it was at the time `until`, replayed from the journal. The map is absent if
    the journal does not reach back that far."""
    services = services_of(request)
    served = services.control.find(partition)
    _, at = span_of("", until)
    question = preview.PastMapQuestion(
        partition=served.name, seq=served.writer.seq, now=served.now, at=served.now if at is None else at
    )
    return msgspec.convert((await ask(services, question, preview.Document)).document, wire.PastMap)


@get("/map/queues", operation_id="pastQueues", guards=[USERS], summary="Queues over time")
async def past_queues(
    request: HttpRequest,
    partition: PartitionName = "",
    since: Moment = "",
    until: Moment = "",
    points: Annotated[int, QueryParameter(required=False, ge=2, le=500, description="The number of times.")] = 60,
) -> wire.PastQueues:
    """Return share, entitlement, use and loan of each queue at evenly spaced times, replayed from the journal as far as
    it reaches back. The default is the last hour."""
    services = services_of(request)
    served = services.control.find(partition)
    first, last = span_of(since, until)
    end = served.now if last is None else last
    question = preview.PastQueuesQuestion(
        partition=served.name,
        seq=served.writer.seq,
        now=served.now,
        since=end - HOUR if first is None else first,
        until=end,
        points=points,
    )
    return msgspec.convert((await ask(services, question, preview.Document)).document, wire.PastQueues)


HANDLERS = [past_map, past_queues]
