"""Logs of tasks: read where they are, on the node, and passed on as they come."""

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


class Where(NamedTuple):
    """Which attempt of which task, and on which node it is or was."""

    stage: str
    attempt: int
    node: str


@get(
    "/jobs/{job_id:str}/log",
    operation_id="log",
    guards=[USERS],
    media_type="text/plain",
    summary="What a task wrote",
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
            required=False, ge=-(2**53), le=2**53, description="From here on; below 0, the last so many bytes."
        ),
    ] = 0,
    follow: Annotated[bool, QueryParameter(required=False, description="Go on until the task ends.")] = False,
) -> Stream:
    """As the bytes that it wrote. The stage may be left out if the job has only one."""
    services = services_of(request)
    number, user = await find_job(request, job_id, partition)
    served = services.control.find(partition)
    where = await _find(request, job_id, number, partition, stage, index)
    asked = LogRequest(0, number, where.stage, index, where.attempt, stream, offset, follow, user)
    caller = caller_of(request)
    check_streams(services, caller)
    parts = aiter(services.hub.log(served.name, where.node, asked))
    with counted_stream(services, caller) as over:
        first = await _first(request, parts, over)
    if first.problem:
        raise Refused("log", first.problem, "conflict")

    return streamed(services, caller, _data(first, parts), "text/plain; charset=utf-8")


async def _first(request: HttpRequest, parts: AsyncIterator[LogPart], over: asyncio.Event) -> LogPart:
    """The first part of a log. A silent task may be long in coming to it, and the caller may leave before."""
    part = asyncio.ensure_future(anext(parts))
    others = [asyncio.create_task(_gone(request)), asyncio.create_task(over.wait())]
    try:
        await asyncio.wait((part, *others), return_when=asyncio.FIRST_COMPLETED)
        if part.done():
            return part.result()
        if over.is_set():
            raise Unserved("unauthenticated", "the token was revoked or has expired; ask with another one")
        others[0].result()
        raise Refused("log", "the caller has left", "conflict")  # it hears this no more
    finally:
        for each in (part, *others):
            each.cancel()  # which ends `parts` too


async def _gone(request: HttpRequest) -> None:
    """Wait until the caller has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _data(first: LogPart, parts: AsyncIterator[LogPart]) -> AsyncGenerator[bytes]:
    yield first.data
    async for part in parts:
        yield part.data
        if part.problem:
            yield f"\n[fairlead: {part.problem}]\n".encode()


async def _find(request: HttpRequest, job_id: str, number: int, partition: str, stage: str, index: int) -> Where:
    """The attempt that runs, or the last one that ended."""
    services = services_of(request)
    served = services.control.find(partition)

    def look(state: Partition) -> Where | str:
        job = state.jobs.get(job_id)
        if job is None:
            return stage
        names = [each.name for each in job.stages]
        found = job.stage(stage) if stage else job.stages[0] if len(names) == 1 else None
        if found is None:
            known = ", ".join(names[:20])
            raise Refused("stage", f"job {job.id} has no stage {shown(stage)}; it has {known}", "missing")
        if index >= found.count:
            raise Refused("index", f"stage {found.name} has {found.count} tasks, and they count from 0", "missing")
        allocation = (found.live or {}).get(index)
        if allocation is None or allocation.started is None:
            return found.name
        return Where(found.name, allocation.attempt, state.nodes.name[state.nodes.rows[allocation.node]])

    found = await served.read(look)
    if isinstance(found, Where):
        return found
    # What has just ended may still be on its way to the history.
    await asyncio.to_thread(services.records.flush, FLUSH_TIMEOUT)
    row = await asyncio.to_thread(services.records.attempt, served.name, number, found or "main", index)
    if row is None or not row.node:
        raise Refused("log", f"task {index} of job {job_id} has not run yet; wait until it has", "missing")
    return Where(row.stage, row.attempt, row.node)


HANDLERS = [log]
