"""Handlers for the history: finished jobs, and the attempts of their tasks."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

from litestar import Request, get
from litestar.params import QueryParameter

from fairlead.api.attempts import FLUSH_TIMEOUT
from fairlead.api.context import USERS, Limit, PartitionName, caller_of, may_see, services_of
from fairlead.api.jobs import JobId, missing, number_of
from fairlead.core.errors import Refused
from fairlead.core.model import Micros
from fairlead.core.resources import SECOND, shown
from fairlead.core.state import Partition
from fairlead.history.filter import JobFilter
from fairlead.history.recorder import AttemptRow, JobRow
from fairlead.wire import api as wire

HttpRequest = Request[Any, Any, Any]
LATEST = 2**40
"""The latest time, in seconds, that a filter may name."""


STATES = ("succeeded", "failed", "killed")
Moment = Annotated[
    str,
    QueryParameter(required=False, max_length=40, description="Seconds since 1970."),
]


@get("/history", operation_id="history", guards=[USERS], summary="Finished jobs, newest first")
async def history(
    request: HttpRequest,
    partition: PartitionName = "",
    user: Annotated[str, QueryParameter(required=False, max_length=63)] = "",
    queue: Annotated[
        str, QueryParameter(required=False, max_length=1_000, description="A queue, including the queues below it.")
    ] = "",
    outcome: Annotated[
        str,
        QueryParameter(name="state", required=False, max_length=63, description="`succeeded`, `failed` or `killed`."),
    ] = "",
    name: Annotated[
        str,
        QueryParameter(
            required=False,
            max_length=100,
            description="A pattern for names: `*` is any text, `?` one character, `[abc]` one of these.",
        ),
    ] = "",
    label: Annotated[
        str, QueryParameter(required=False, max_length=400, description="`key=value`, as a label of the job.")
    ] = "",
    node: Annotated[
        str, QueryParameter(required=False, max_length=63, description="A node on which a task of the job ran.")
    ] = "",
    since: Moment = "",
    until: Moment = "",
    cursor: Annotated[
        str, QueryParameter(required=False, max_length=20, description="`next` of the page before.")
    ] = "",
    limit: Limit = 100,
) -> wire.HistoryPage:
    """List finished jobs that match all filters, including those already forgotten by the scheduler. `since` and
    `until` select by the time of the end. Users see their own jobs."""
    services = services_of(request)
    caller = caller_of(request)
    served = services.control.find(partition)
    if outcome and outcome not in STATES:
        raise Refused("state", f"{shown(outcome)} is not one of {', '.join(STATES)}; write one of them")
    key, equals, value = label.partition("=")
    if label and not equals:
        raise Refused("label", f"{shown(label)} is not a label with its value; write key=value")
    first, last = span_of(since, until)
    if not caller.operator:
        if user not in ("", caller.user):
            return wire.HistoryPage(jobs=[], next="")
        user = caller.user
    wanted = JobFilter(
        user=user,
        queue=queue,
        state=outcome,
        name=name,
        label=(key, value) if label else None,
        since=first,
        until=last,
        node=node,
    )
    await services.threads.run(services.records.flush, FLUSH_TIMEOUT)
    rows = await services.threads.run(services.records.jobs, served.name, wanted, number_of(cursor), limit + 1)
    more = len(rows) > limit
    starts = await services.threads.run(services.records.starts, served.name, [row.number for row in rows[:limit]])
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
    """List the ended attempts of a job, also of a forgotten one, with the resources used by its stages."""
    services = services_of(request)
    number, _ = await find_job(request, job_id, partition)
    name = services.control.find(partition).name
    skip = number_of(cursor) or 0
    await services.threads.run(services.records.flush, FLUSH_TIMEOUT)
    rows = await services.threads.run(services.records.attempts, name, number, skip, limit + 1)
    used = await services.threads.run(services.records.used, name, number)
    return wire.Attempts(
        attempts=[_attempt(row) for row in rows[:limit]],
        used={
            stage: wire.StageUse(attempts=count, cpu_seconds=cpu / SECOND, most_memory=memory)
            for stage, (cpu, memory, count) in used.items()
        },
        next=str(skip + limit) if len(rows) > limit else "",
    )


def span_of(since: str, until: str) -> tuple[Micros | None, Micros | None]:
    """Return the bounds of the period in a request; None for an absent bound."""
    first, last = _moment("since", since), _moment("until", until)
    if first is not None and last is not None and first >= last:
        raise Refused("until", "it is not later than since; exchange them, or leave one out")
    return first, last


def _moment(field: str, text: str) -> Micros | None:
    if not text:
        return None
    try:
        seconds = Decimal(text)
        if 0 <= seconds <= LATEST:
            return int(seconds * SECOND)
    except InvalidOperation:
        pass
    raise Refused(field, f"{shown(text)} is not a time; write seconds since 1970, such as 1790000000")


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
    row = await services.threads.run(services.records.job, served.name, job_id)
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
        labels=row.labels,
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
