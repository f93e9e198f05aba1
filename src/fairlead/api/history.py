"""The history: finished jobs, and the attempts of their tasks."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from litestar import Request, get
from litestar.params import QueryParameter

from fairlead.api.attempts import FLUSH_TIMEOUT
from fairlead.api.context import USERS, Limit, PartitionName, caller_of, may_see, services_of
from fairlead.api.jobs import JobId, missing, number_of
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition
from fairlead.history.recorder import AttemptRow, JobRow
from fairlead.wire import api as wire

HttpRequest = Request[Any, Any, Any]


@get("/history", operation_id="history", guards=[USERS], summary="Finished jobs, newest first")
async def history(
    request: HttpRequest,
    partition: PartitionName = "",
    user: Annotated[str, QueryParameter(required=False, max_length=63)] = "",
    outcome: Annotated[
        Literal["succeeded", "failed", "killed"] | None, QueryParameter(name="state", required=False)
    ] = None,
    cursor: Annotated[
        str, QueryParameter(required=False, max_length=20, description="`next` of the page before.")
    ] = "",
    limit: Limit = 100,
) -> wire.HistoryPage:
    """List finished jobs, including those already forgotten by the scheduler. Users see their own jobs."""
    services = services_of(request)
    caller = caller_of(request)
    served = services.control.find(partition)
    if not caller.operator:
        if user not in ("", caller.user):
            return wire.HistoryPage(jobs=[], next="")
        user = caller.user
    await asyncio.to_thread(services.records.flush, FLUSH_TIMEOUT)
    rows = await asyncio.to_thread(
        services.records.jobs, served.name, user, outcome or "", number_of(cursor), limit + 1
    )
    more = len(rows) > limit
    starts = await asyncio.to_thread(services.records.starts, served.name, [row.number for row in rows[:limit]])
    return wire.HistoryPage(
        jobs=[_past(row, starts.get(row.number)) for row in rows[:limit]],
        next=str(rows[limit - 1].number) if more else "",
    )


@get("/jobs/{job_id:str}/attempts", operation_id="attempts", guards=[USERS], summary="The attempts of a job")
async def attempts(
    request: HttpRequest,
    job_id: JobId,
    partition: PartitionName = "",
    cursor: Annotated[str, QueryParameter(required=False, max_length=20)] = "",
    limit: Limit = 100,
) -> wire.Attempts:
    """List the ended attempts of a job, with the use of its stages. The job may be in the history only."""
    services = services_of(request)
    number, _ = await find_job(request, job_id, partition)
    name = services.control.find(partition).name
    skip = number_of(cursor) or 0
    await asyncio.to_thread(services.records.flush, FLUSH_TIMEOUT)
    rows = await asyncio.to_thread(services.records.attempts, name, number, skip, limit + 1)
    used = await asyncio.to_thread(services.records.used, name, number)
    return wire.Attempts(
        attempts=[_attempt(row) for row in rows[:limit]],
        used={
            stage: wire.StageUse(attempts=count, cpu_seconds=cpu / SECOND, most_memory=memory)
            for stage, (cpu, memory, count) in used.items()
        },
        next=str(skip + limit) if len(rows) > limit else "",
    )


async def find_job(request: HttpRequest, job_id: str, partition: str) -> tuple[int, str]:
    """Return number and user of a job that the caller may see, current or past."""
    services = services_of(request)
    caller = caller_of(request)
    served = services.control.find(partition)

    def look(state: Partition) -> tuple[int, str] | None:
        job = state.jobs.get(job_id)
        if job is None:
            return None
        if not may_see(caller, job):
            raise missing(job_id)
        return job.number, job.spec.user

    current = await served.read(look)
    if current is not None:
        return current
    row = await asyncio.to_thread(services.records.job, served.name, job_id)
    if row is None or not (caller.operator or row.user == caller.user):
        raise missing(job_id)
    return row.number, row.user


def _past(row: JobRow, started: int | None) -> wire.PastJob:
    return wire.PastJob(
        id=row.id,
        number=row.number,
        partition=row.partition,
        name=row.name,
        user=row.user,
        queue=row.queue,
        state=row.state,
        reason=row.reason,
        submitted=row.submitted / SECOND,
        ended=row.ended / SECOND,
        tasks=row.tasks,
        started=None if started is None else started / SECOND,
    )


def _attempt(row: AttemptRow) -> wire.Attempt:
    return wire.Attempt(
        stage=row.stage,
        indices=list(row.indices),
        attempt=row.attempt,
        outcome=row.outcome,
        node=row.node,
        exit_code=row.exit_code,
        reason=row.reason,
        started=None if row.started is None else row.started / SECOND,
        ended=row.ended / SECOND,
    )


HANDLERS = [history, attempts]
