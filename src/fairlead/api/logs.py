"""Logs of tasks: read on the node and passed on as they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any, Literal, NamedTuple

from litestar import Request, get
from litestar.params import QueryParameter
from litestar.response import Stream

from fairlead.api.context import (
    USERS,
    PartitionName,
    caller_of,
    check_streams,
    counted_stream,
    services_of,
    streamed,
)
from fairlead.api.history import FLUSH_TIMEOUT, find_job
from fairlead.api.jobs import JobId
from fairlead.api.problems import Unserved
from fairlead.core.errors import Refused
from fairlead.core.resources import shown
from fairlead.core.state import Partition
from fairlead.wire.agent import LogPart, LogRequest

HttpRequest = Request[Any, Any, Any]
MAX_INDEX = 10_000_000


class LogSource(NamedTuple):
    """The attempt of a task that has a log, and its node."""

    stage: str
    attempt: int
    node: str


@get(
    "/jobs/{job_id:str}/log",
    operation_id="log",
    guards=[USERS],
    media_type="text/plain",
    summary="The output of a task",
)
async def log(
    request: HttpRequest,
    job_id: JobId,
    partition: PartitionName = "",
    stage: Annotated[str, QueryParameter(required=False, max_length=63)] = "",
    index: Annotated[int, QueryParameter(required=False, ge=0, le=MAX_INDEX)] = 0,
    stream: Annotated[Literal["out", "err"], QueryParameter(required=False)] = "out",
    offset: Annotated[
        int,
        QueryParameter(
            required=False, ge=-(2**53), le=2**53, description="First byte; a negative offset counts from the end."
        ),
    ] = 0,
    follow: Annotated[bool, QueryParameter(required=False, description="Send new output until the task ends.")] = False,
) -> Stream:
    """Return the output of a task as raw bytes. The stage may be left out if the job has only one."""
    services = services_of(request)
    number, user = await find_job(request, job_id, partition)
    served = services.control.find(partition)
    source = await _find(request, job_id, number, partition, stage, index)
    log_request = LogRequest(0, number, source.stage, index, source.attempt, stream, offset, follow, user)
    caller = caller_of(request)
    check_streams(services, caller)
    parts = aiter(services.hub.log(served.name, source.node, log_request))
    with counted_stream(services, caller) as over:
        first = await _first(request, parts, over)
    if first.problem:
        raise Refused("log", first.problem, "conflict")

    return streamed(services, caller, _data(first, parts), "text/plain; charset=utf-8")


async def _first(request: HttpRequest, parts: AsyncIterator[LogPart], over: asyncio.Event) -> LogPart:
    """Return the first part of a log. It may take long for a silent task, and the caller may disconnect before."""
    part = asyncio.ensure_future(anext(parts))
    others = [asyncio.create_task(_gone(request)), asyncio.create_task(over.wait())]
    try:
        await asyncio.wait((part, *others), return_when=asyncio.FIRST_COMPLETED)
        if part.done():
            return part.result()
        if over.is_set():
            raise Unserved("unauthenticated", "the token was revoked or has expired; ask with another one")
        others[0].result()
        raise Refused("log", "the caller has disconnected", "conflict")  # the answer reaches no reader
    finally:
        for task in (part, *others):
            task.cancel()  # this ends `parts` too


async def _gone(request: HttpRequest) -> None:
    """Wait until the caller disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _data(first: LogPart, parts: AsyncIterator[LogPart]) -> AsyncGenerator[bytes]:
    yield first.data
    async for part in parts:
        yield part.data
        if part.problem:
            yield f"\n[fairlead: {part.problem}]\n".encode()


async def _find(request: HttpRequest, job_id: str, number: int, partition: str, stage: str, index: int) -> LogSource:
    """Return the running attempt of a task, or the last one that ended."""
    services = services_of(request)
    served = services.control.find(partition)

    def look(state: Partition) -> LogSource | str:
        job = state.jobs.get(job_id)
        if job is None:
            return stage
        names = [candidate.name for candidate in job.stages]
        chosen = job.stage(stage) if stage else job.stages[0] if len(names) == 1 else None
        if chosen is None:
            raise Refused(
                "stage", f"job {job.id} has no stage {shown(stage)}; it has {', '.join(names[:20])}", "missing"
            )
        if index >= chosen.count:
            raise Refused("index", f"stage {chosen.name} has {chosen.count} tasks, and they count from 0", "missing")
        allocation = (chosen.live or {}).get(index)
        if allocation is None or allocation.started is None:
            return chosen.name
        return LogSource(chosen.name, allocation.attempt, state.nodes.name[state.nodes.rows[allocation.node]])

    source = await served.read(look)
    if isinstance(source, LogSource):
        return source
    # A task that has just ended may not be in the history yet.
    await asyncio.to_thread(services.records.flush, FLUSH_TIMEOUT)
    row = await asyncio.to_thread(services.records.attempt, served.name, number, source or "main", index)
    if row is None or not row.node:
        raise Refused("log", f"task {index} of job {job_id} has not run yet; wait until it has", "missing")
    return LogSource(row.stage, row.attempt, row.node)


HANDLERS = [log]
