"""Handlers for past nodes and queues on the web page. A second process replays the journal for them."""

from __future__ import annotations

import msgspec

from fairlead.core.resources import HOUR
from fairlead.http.context import Request
from fairlead.http.dispatch import serves
from fairlead.http.routes.forecast import ask
from fairlead.http.routes.history import span_of
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire import preview


@serves(op.PastMap)
async def past_map(request: Request, asked: op.PastMap) -> wire.PastMap:
    services = request.services
    served = services.control.find(asked.partition)
    _, at = span_of("", asked.until)
    question = preview.PastMapQuestion(
        partition=served.name, seq=served.writer.seq, now=served.now, at=served.now if at is None else at
    )
    return msgspec.convert((await ask(services, question, preview.Document)).document, wire.PastMap)


@serves(op.PastQueues)
async def past_queues(request: Request, asked: op.PastQueues) -> wire.PastQueues:
    services = request.services
    served = services.control.find(asked.partition)
    first, last = span_of(asked.since, asked.until)
    end = served.now if last is None else last
    question = preview.PastQueuesQuestion(
        partition=served.name,
        seq=served.writer.seq,
        now=served.now,
        since=end - HOUR if first is None else first,
        until=end,
        points=asked.points,
    )
    return msgspec.convert((await ask(services, question, preview.Document)).document, wire.PastQueues)
