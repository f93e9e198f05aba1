"""Handler for events of jobs, tasks and nodes as server-sent events. A reader can resume a broken stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

from fairlead.control.feed import Feed, Missed, event_lines
from fairlead.core.errors import Refused
from fairlead.core.resources import shown
from fairlead.http.context import Request, streamed
from fairlead.http.dispatch import serves
from fairlead.http.responses import Response
from fairlead.wire import api as wire
from fairlead.wire import operations as op


def start_of(feed: Feed, after: int | None, last: str) -> int:
    """Return the record after which a stream starts: the last one that the reader has, or else the newest one."""
    if last:
        if not (last.isascii() and last.isdigit()):
            raise Refused("Last-Event-ID", f"{shown(last)} is not the id of an event; leave it out to begin now")
        return int(last)
    return feed.seq if after is None else after


async def lines(feed: Feed, seq: int, wanted: Callable[[Any], bool]) -> AsyncGenerator[bytes]:
    """Yield the events after a record as they come. The event `reset` asks the reader to read the state again."""
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


@serves(op.Watch)
async def watch(request: Request, asked: op.Watch) -> Response:
    served = request.leader(asked)
    seq = start_of(served.feed, asked.after, asked.last)
    jobs = served.partition.jobs

    def wanted(event: wire.Event) -> bool:
        if asked.job and event.job != asked.job:
            return False
        if not event.job or request.caller.operator:
            return True
        # The owner of a job never changes, so it can be read without waiting for the writer. The event may be about an
        # earlier job with the same id.
        current = jobs.get(event.job)
        return current is not None and current.number == event.number and request.sees(current)

    return streamed(request, lines(served.feed, seq, wanted))
