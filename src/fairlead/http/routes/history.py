"""Handlers for the history: finished jobs, and ended attempts of tasks."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Protocol

import msgspec

from fairlead.core.errors import Refused
from fairlead.core.model import Amounts, Micros
from fairlead.core.resources import MEMORY, MILLI, SECOND, shown
from fairlead.core.state import Partition
from fairlead.history.filter import JobFilter
from fairlead.history.recorder import JobRow, asked_for
from fairlead.history.store import History
from fairlead.history.usage_report import waste_of
from fairlead.http.context import InPartition, Request
from fairlead.http.dispatch import serves
from fairlead.http.routes.jobs import check_state, missing, number_of, past_job, read_label, with_seconds
from fairlead.views.answers import amounts, optional_seconds
from fairlead.wire import api as wire
from fairlead.wire import operations as op

LATEST = 2**40
"""The latest time of a filter, in seconds."""
MOST_ATTEMPTS = 10_000
"""Attempts of one job in a list of jobs."""
MANY = 1_000
"""Attempts of a job in which the resources of its stages are looked up."""
STATES = ("succeeded", "failed", "killed")


@serves(op.History)
async def history(request: Request, asked: op.History) -> wire.HistoryPage:
    services, caller = request.services, request.caller
    name = request.leader(asked).name
    if asked.state:
        check_state(asked.state, STATES)
    first, last = span_of(asked.since, asked.until)
    if not caller.operator and asked.user not in ("", caller.user):
        return wire.HistoryPage(jobs=[], next="")
    wanted = JobFilter(
        user=asked.user if caller.operator else caller.user,
        queue=asked.queue,
        state=asked.state,
        name=asked.name,
        label=read_label(asked.label),
        since=first,
        until=last,
        node=asked.node,
        ids=tuple(asked.id),
    )
    rows = await services.recorded(services.records.jobs, name, wanted, number_of(asked.cursor), asked.limit + 1)
    page = rows[: asked.limit]
    starts = await services.threads.run(services.records.starts, name, [row.number for row in page])
    used = await services.threads.run(services.records.used_by_job, name, [row.number for row in page])
    found: dict[int, list[wire.Attempt]] = {}
    if asked.attempts:
        found = await services.threads.run(_attempts_of, services.records, name, [row.number for row in page])
    return wire.HistoryPage(
        jobs=[
            msgspec.convert(
                with_seconds(
                    row,
                    **_use_of(used.get(row.number)),
                    started=starts.get(row.number),
                    attempts=found.get(row.number, []),
                    stages=_stages(row) if asked.attempts else [],
                ),
                wire.PastJob,
            )
            for row in page
        ],
        next=str(page[-1].number) if len(rows) > asked.limit else "",
    )


def _use_of(used: tuple[float, float, int] | None) -> dict[str, float | int]:
    """Return the fields of a job with what its tasks used; empty if that was not measured."""
    if used is None:
        return {}
    cpu, ran, memory = used
    return {"cpu_seconds": cpu / SECOND, "ran_seconds": ran / SECOND, "most_memory": memory}


def _stages(row: JobRow) -> list[wire.PastStage]:
    spec = asked_for(row)
    return [
        wire.PastStage(
            name=stage.name,
            count=stage.count,
            resources=amounts(stage.resources),
            time_limit=optional_seconds(stage.time_limit),
        )
        for stage in (spec.stages if spec is not None else ())
    ]


def _attempts_of(records: History, partition: str, numbers: list[int]) -> dict[int, list[wire.Attempt]]:
    return {
        number: [
            msgspec.convert(
                with_seconds(row, cpu_seconds=None if cpu is None else cpu / SECOND, most_memory=memory), wire.Attempt
            )
            for row, cpu, memory in records.attempts_used(partition, number, MOST_ATTEMPTS)
        ]
        for number in numbers
    }


@serves(op.Attempts)
async def attempts(request: Request, asked: op.Attempts) -> wire.Attempts:
    services = request.services
    number, _ = await find_job(request, asked)
    name = request.leader(asked).name
    skip = number_of(asked.cursor) or 0
    rows = await services.recorded(services.records.attempts, name, number, skip, asked.limit + 1)
    used = await services.threads.run(services.records.used, name, number)
    return wire.Attempts(
        attempts=[msgspec.convert(with_seconds(row), wire.Attempt) for row in rows[: asked.limit]],
        used=stages_used(used, {row.stage: row.amounts for row in rows}),
        next=str(skip + asked.limit) if len(rows) > asked.limit else "",
    )


@serves(op.JobUsage)
async def job_usage(request: Request, asked: op.JobUsage) -> wire.JobUsage:
    services = request.services
    number, _ = await find_job(request, asked)
    name = request.leader(asked).name
    skip = number_of(asked.cursor) or 0
    attempts = await services.recorded(services.records.attempts, name, number, 0, MANY)
    used = await services.threads.run(services.records.used, name, number)
    rows = await services.threads.run(services.records.used_by_task, name, number, skip, asked.limit + 1)
    return wire.JobUsage(
        stages=stages_used(used, {row.stage: row.amounts for row in attempts}),
        tasks=[
            wire.TaskUse(
                stage=row.stage,
                index=row.index,
                attempt=row.attempt,
                ran=max(0, row.ran) / SECOND,
                cpu_seconds=row.cpu / SECOND,
                memory=row.memory,
            )
            for row in rows[: asked.limit]
        ],
        next=str(skip + asked.limit) if len(rows) > asked.limit else "",
    )


def stages_used(used: dict[str, tuple[int, int, int, int]], asked: dict[str, Amounts]) -> dict[str, wire.StageUse]:
    """Return the use by stage, with what each task asked for and a hint if that is much more."""
    stages: dict[str, wire.StageUse] = {}
    for stage, (cpu, ran, memory, reports) in used.items():
        amounts = dict(asked.get(stage, ()))
        stages[stage] = wire.StageUse(
            attempts=reports,
            cpu_seconds=cpu / SECOND,
            most_memory=memory,
            ran_seconds=ran / SECOND,
            asked={name: amount / (1 if name == MEMORY else MILLI) for name, amount in amounts.items()},
            hint=waste_of(amounts, cpu, ran, memory),
        )
    return stages


def span_of(since: str, until: str) -> tuple[Micros | None, Micros | None]:
    """Return the period that a request names. None for a missing bound."""
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


class AboutJob(InPartition, Protocol):
    """An operation about a job."""

    job: str


async def find_job(request: Request, asked: AboutJob) -> tuple[int, str]:
    """Return the number and the user of a job, present or past. Refuse it as missing if the caller may not see it."""
    served = request.leader(asked)

    def look(state: Partition) -> tuple[int, str] | None:
        job = state.jobs.get(asked.job)
        if job is None:
            return None
        if not request.sees(job):
            raise missing(asked.job)
        return job.number, job.spec.user

    current = await served.read(look)
    if current is not None:
        return current
    row = await past_job(request, served.name, asked.job)
    if row is None:
        raise missing(asked.job)
    return row.number, row.user
