"""The past: what happened to a job, and all jobs as a trace. A second process reads the journal for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from litestar import Request, get

from fairlead.api.attempts import FLUSH_TIMEOUT
from fairlead.api.context import OPERATORS, USERS, PartitionName, Services, caller_of, may_see, services_of
from fairlead.api.future import ask
from fairlead.api.history import Moment, find_job, span_of
from fairlead.api.jobs import JobId
from fairlead.core.model import Micros
from fairlead.core.ranges import count
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition
from fairlead.history.recorder import AttemptRow
from fairlead.wire import api as wire
from fairlead.wire import preview

HttpRequest = Request[Any, Any, Any]
MOST_ATTEMPTS = 1_000
LEFT_OUT = ("job", "level", "number")
"""Fields that a line of a story does not repeat."""
ANOTHER = "a job of another user"


@get("/jobs/{job_id:str}/story", operation_id="story", guards=[USERS], summary="What happened to a job")
async def story(request: HttpRequest, job_id: JobId, partition: PartitionName = "") -> wire.Story:
    """Tell what happened to a job, in order, with reasons: submission, holds, starts, stops and for which job, ends.
    Of a time before the journal's last snapshots, only the submission and the attempts of its tasks are known."""
    services, caller = services_of(request), caller_of(request)
    number, user = await find_job(request, job_id, partition)
    served = services.control.find(partition)
    question = preview.StoryQuestion(
        partition=served.name, seq=served.writer.seq, now=served.now, job=job_id, number=number
    )
    told = await ask(services, question, preview.Story)

    def look(state: Partition) -> tuple[Micros | None, list[str]]:
        job = state.jobs.get(job_id)
        hidden = [
            name
            for line in told.lines
            for name in [str(line.fields.get("for", "")).removeprefix("job ")]
            if name in state.jobs and not may_see(caller, state.jobs[name])
        ]
        return (job.submitted if job is not None and job.number == number else None), hidden

    submitted, hidden = await served.read(look)
    earlier = await _earlier(services, served.name, job_id, number, user, submitted, told)
    lines = [*earlier, *(line for line in told.lines)]
    return wire.Story(
        job=job_id,
        lines=[_line(line, lambda name: name in hidden) for line in lines],
        complete_since=told.since / SECOND,
    )


async def _earlier(
    services: Services,
    partition: str,
    job_id: str,
    number: int,
    user: str,
    submitted: Micros | None,
    told: preview.Story,
) -> list[preview.StoryLine]:
    """Return what the history knows of a time before the journal's lines."""
    lines: list[preview.StoryLine] = []
    if submitted is None:
        row = await services.threads.run(services.records.job, partition, job_id)
        submitted = None if row is None or row.number != number else row.submitted
        if row is not None and row.number == number and row.ended < told.since:
            lines.append(preview.StoryLine(row.ended, "job over", {"state": row.state, "reason": row.reason}))
    if submitted is not None and submitted < told.since:
        lines.append(preview.StoryLine(submitted, "job submitted", {"user": user}))
    await services.threads.run(services.records.flush, FLUSH_TIMEOUT)
    rows = await services.threads.run(services.records.attempts, partition, number, 0, MOST_ATTEMPTS)
    for attempt in rows:
        lines += _of_attempt(attempt, told.since)
    order = {"job submitted": 0, "tasks running": 1, "tasks ended": 2, "job over": 3}
    return sorted(lines, key=lambda line: (line.at, order.get(line.event, 1)))


def _of_attempt(row: AttemptRow, before: Micros) -> list[preview.StoryLine]:
    fields: dict[str, Any] = {"stage": row.stage, "tasks": count(row.indices), "attempt": row.attempt}
    if row.node:
        fields["node"] = row.node
    lines = []
    if row.started is not None and row.started < before:
        lines.append(preview.StoryLine(row.started, "tasks running", fields))
    if row.ended < before:
        end: dict[str, Any] = {**fields, "outcome": row.outcome}
        if row.reason:
            end["reason"] = row.reason
        if row.exit_code is not None:
            end["exit_code"] = row.exit_code
        lines.append(preview.StoryLine(row.ended, "tasks ended", end))
    return lines


def _line(line: preview.StoryLine, hidden: Callable[[str], bool]) -> wire.StoryLine:
    fields = {name: value for name, value in line.fields.items() if name not in LEFT_OUT}
    if hidden(str(fields.get("for", "")).removeprefix("job ")):
        fields["for"] = ANOTHER
    details = ", ".join(
        f"{name.replace('_', ' ')} {_shown(value)}" for name, value in fields.items() if _is_told(value)
    )
    return wire.StoryLine(
        at=line.at / SECOND, event=line.event, fields=fields, text=f"{line.event}: {details}" if details else line.event
    )


def _is_told(value: object) -> bool:
    return value is not None and value is not False and value not in ("", [])


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.1f}"
    return "yes" if value is True else str(value)


@get("/trace", operation_id="trace", guards=[OPERATORS], summary="The past as a trace")
async def trace(request: HttpRequest, partition: PartitionName = "", since: Moment = "") -> wire.RecordedTrace:
    """Return the jobs that were submitted since a time, ran and have ended, and the present nodes, as a trace for
    `fairlead simulate`. Commands, environments and files of the jobs are not part of it."""
    services = services_of(request)
    served = services.control.find(partition)
    first, _ = span_of(since, "")
    await services.threads.run(services.records.flush, FLUSH_TIMEOUT)
    question = preview.TraceQuestion(partition=served.name, seq=served.writer.seq, now=served.now, since=first or 0)
    found = (await ask(services, question, preview.Document)).document
    return msgspec.convert(found, wire.RecordedTrace)


HANDLERS = [story, trace]
