"""Handlers for the history: finished jobs, and the attempts of their tasks."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from fairlead.core.errors import Refused
from fairlead.core.model import Micros
from fairlead.core.resources import SECOND, shown
from fairlead.core.state import Partition
from fairlead.history.filter import JobFilter
from fairlead.history.recorder import AttemptRow, JobRow
from fairlead.http.attempts import FLUSH_TIMEOUT
from fairlead.http.context import Request, may_see
from fairlead.http.dispatch import serves
from fairlead.http.routes.jobs import missing, number_of
from fairlead.wire import api as wire
from fairlead.wire import operations as op

LATEST = 2**40
"""The latest time, in seconds, that a filter may name."""


STATES = ("succeeded", "failed", "killed")


@serves(op.History)
async def history(request: Request, asked: op.History) -> wire.HistoryPage:
    services = request.services
    caller = request.caller
    served = services.control.find(asked.partition)
    if asked.state and asked.state not in STATES:
        raise Refused("state", f"{shown(asked.state)} is not one of {', '.join(STATES)}; write one of them")
    key, equals, value = asked.label.partition("=")
    if asked.label and not equals:
        raise Refused("label", f"{shown(asked.label)} is not a label with its value; write key=value")
    first, last = span_of(asked.since, asked.until)
    user = asked.user
    if not caller.operator:
        if user not in ("", caller.user):
            return wire.HistoryPage(jobs=[], next="")
        user = caller.user
    wanted = JobFilter(
        user=user,
        queue=asked.queue,
        state=asked.state,
        name=asked.name,
        label=(key, value) if asked.label else None,
        since=first,
        until=last,
        node=asked.node,
    )
    await services.threads.run(services.records.flush, FLUSH_TIMEOUT)
    rows = await services.threads.run(
        services.records.jobs, served.name, wanted, number_of(asked.cursor), asked.limit + 1
    )
    more = len(rows) > asked.limit
    starts = await services.threads.run(
        services.records.starts, served.name, [row.number for row in rows[: asked.limit]]
    )
    return wire.HistoryPage(
        jobs=[_past(row, starts.get(row.number)) for row in rows[: asked.limit]],
        next=str(rows[asked.limit - 1].number) if more else "",
    )


@serves(op.Attempts)
async def attempts(request: Request, asked: op.Attempts) -> wire.Attempts:
    services = request.services
    number, _ = await find_job(request, asked.job, asked.partition)
    name = services.control.find(asked.partition).name
    skip = number_of(asked.cursor) or 0
    await services.threads.run(services.records.flush, FLUSH_TIMEOUT)
    rows = await services.threads.run(services.records.attempts, name, number, skip, asked.limit + 1)
    used = await services.threads.run(services.records.used, name, number)
    return wire.Attempts(
        attempts=[_attempt(row) for row in rows[: asked.limit]],
        used={
            stage: wire.StageUse(attempts=count, cpu_seconds=cpu / SECOND, most_memory=memory)
            for stage, (cpu, memory, count) in used.items()
        },
        next=str(skip + asked.limit) if len(rows) > asked.limit else "",
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


async def find_job(request: Request, job_id: str, partition: str) -> tuple[int, str]:
    """Return number and user of a job that the caller may see, current or past."""
    services = request.services
    caller = request.caller
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
