"""Handler for watching: events of jobs, tasks and nodes as server-sent events. A reader can resume a broken stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Annotated, Any

from litestar import Request, get
from litestar.params import HeaderParameter, QueryParameter
from litestar.response import Stream

from fairlead.api.context import USERS, PartitionName, caller_of, may_see, services_of, streamed
from fairlead.api.feed import Feed, Missed, event_lines
from fairlead.core.errors import Refused
from fairlead.core.resources import shown
from fairlead.wire import api as wire

HttpRequest = Request[Any, Any, Any]
After = Annotated[
    int | None, QueryParameter(name="after", required=False, ge=0, description="Only events after this event id.")
]
LastEvent = Annotated[str | None, HeaderParameter(name="Last-Event-ID", required=False, max_length=20)]


def start_of(feed: Feed, after: int | None, last: str | None) -> int:
    """Return the record after which a stream starts: the reader's last one, or else the newest."""
    if last:
        if not (last.isascii() and last.isdigit()):
            raise Refused("Last-Event-ID", f"{shown(last)} is not the id of an event; leave it out to begin now")
        return int(last)
    return feed.seq if after is None else after


async def lines(feed: Feed, seq: int, wanted: Callable[[Any], bool]) -> AsyncGenerator[bytes]:
    """Yield the events after a record, without end. After `reset` the reader has to read the state again."""
    yield b"retry: 1000\n\n"
    while not feed.closed:
        try:
            async for batch in feed.follow(seq):
                if batch is None:
                    yield b": still here\n\n"
                    continue
                seq = batch.seq
                chosen = [event for event in batch.news if wanted(event)]
                for event in chosen:
                    yield event_lines(event.what, event, seq if event is chosen[-1] else None)
        except Missed as missed:
            seq = missed.seq
            yield event_lines("reset", wire.Done(note="some events were missed; read the state again"), seq)


@get("/watch", operation_id="watch", guards=[USERS], media_type="text/event-stream", summary="Watch events")
async def watch(
    request: HttpRequest,
    partition: PartitionName = "",
    job: Annotated[str, QueryParameter(required=False, max_length=63, description="Only events of this job.")] = "",
    after: After = None,
    last: LastEvent = None,
) -> Stream:
    """Stream events of jobs that the caller may see, and of nodes. A broken stream resumes after the last event id."""
    services = services_of(request)
    caller = caller_of(request)
    served = services.control.find(partition)
    seq = start_of(served.feed, after, last)
    jobs = served.partition.jobs

    def wanted(event: wire.Event) -> bool:
        if job and event.job != job:
            return False
        if not event.job or caller.operator:
            return True
        # The owner of a job never changes, so it can be read without waiting for the writer. The event may be about an
        # earlier job with the same id.
        current = jobs.get(event.job)
        return current is not None and current.number == event.number and may_see(caller, current)

    return streamed(services, caller, lines(served.feed, seq, wanted))


HANDLERS = [watch]
