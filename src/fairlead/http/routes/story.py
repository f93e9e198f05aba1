"""Handlers for the past: the story of a job, and all jobs as a trace. A second process reads the journal for them."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.core.model import Job, Micros
from fairlead.core.ranges import count
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition
from fairlead.history.recorder import AttemptRow
from fairlead.http.context import Request, Services
from fairlead.http.dispatch import serves
from fairlead.http.routes.forecast import ask
from fairlead.http.routes.history import find_job, span_of
from fairlead.views.answers import by_id
from fairlead.views.narration import Narrator
from fairlead.views.summaries import Waiting, explain_view
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire import preview

MOST_ATTEMPTS = 1_000
LEFT_OUT = ("job", "level", "number")
"""Fields that the lines of a story do not have, because they are equal in all lines."""


@serves(op.Story)
async def story(request: Request, asked: op.Story) -> wire.Story:
    services, sees = request.services, request.sees
    number, user = await find_job(request, asked)
    served = request.leader(asked)
    told = await ask(services, served, preview.StoryQuestion, preview.Story, job=asked.job, number=number)

    def look(state: Partition) -> tuple[Micros | None, dict[str, str], list[wire.StoryLine]]:
        job = state.jobs.get(asked.job)
        claimants = {_claimant(line.fields): None for line in told.lines}
        named = {name: _named(name, state.jobs.get(name), request) for name in claimants}
        if job is None or job.number != number:
            return None, named, []
        views = explain_view(state, job, served.writer.reasons, served.now)
        waits = [_wait(view.shown_to(by_id(state, sees)), served.now) for view in views]
        return job.submitted, named, waits

    submitted, named, waits = await served.read(look)
    lines = [*await _earlier(services, served.name, asked.job, number, user, submitted, told), *told.lines]
    narrator = Narrator(several=any(line.fields.get("tasks", 1) > 1 for line in lines))
    return wire.Story(
        job=asked.job,
        lines=[*(_line(line, narrator, named) for line in lines), *waits],
        complete_since=told.since / SECOND,
    )


@serves(op.Bill)
async def bill(request: Request, asked: op.Bill) -> wire.Bill:
    services = request.services
    number, _ = await find_job(request, asked)
    served = request.leader(asked)

    def times(state: Partition) -> tuple[Micros, Micros | None] | None:
        job = state.jobs.get(asked.job)
        return None if job is None or job.number != number else (job.submitted, job.ended_at)

    known = await served.read(times)
    if known is None:
        row = await services.threads.run(services.records.job, served.name, asked.job)
        assert row is not None  # `find_job` found it there
        known = row.submitted, row.ended
    fields = {"job": asked.job, "number": number, "submitted": known[0], "ended": known[1]}
    reply = await ask(services, served, preview.BillQuestion, preview.Document, **fields)
    return msgspec.convert(reply.document, wire.Bill)


async def _earlier(
    services: Services,
    partition: str,
    job_id: str,
    number: int,
    user: str,
    submitted: Micros | None,
    told: preview.Story,
) -> list[preview.StoryLine]:
    """Return the lines for the time before the journal begins, from the history."""
    lines: list[preview.StoryLine] = []
    if submitted is None:
        row = await services.threads.run(services.records.job, partition, job_id)
        submitted = None if row is None or row.number != number else row.submitted
        if row is not None and row.number == number and row.ended < told.since:
            lines.append(preview.StoryLine(row.ended, "job over", {"state": row.state, "reason": row.reason}))
    if submitted is not None and submitted < told.since:
        lines.append(preview.StoryLine(submitted, "job submitted", {"user": user}))
    for attempt in await services.recorded(services.records.attempts, partition, number, 0, MOST_ATTEMPTS):
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


def _claimant(fields: dict[str, Any]) -> str:
    """Return the id of the job for which the tasks of a line were stopped; empty if there is none."""
    what, _, name = str(fields.get("for") or "").partition(" ")
    return name if what == "job" else ""


def _named(name: str, job: Job | None, request: Request) -> str:
    """Return how to name a job to the caller: by its id only if the caller may see it."""
    if request.caller.operator or (job is not None and request.sees(job)):
        return f"job {name}"
    return "another job" if job is None else "a job of another user"


def _line(line: preview.StoryLine, narrator: Narrator, named: dict[str, str]) -> wire.StoryLine:
    fields = {name: value for name, value in line.fields.items() if name not in LEFT_OUT}
    claimant = _claimant(fields)
    if claimant:
        fields["for"] = named[claimant]
    return wire.StoryLine(
        at=line.at / SECOND, event=line.event, fields=fields, text=narrator.sentence(line.event, fields)
    )


def _wait(view: Waiting, now: Micros) -> wire.StoryLine:
    """Return a line for the end of a story, which says why tasks of the job wait now."""
    fields = {"stage": view.stage, "kind": view.kind, "tasks": view.count, "reason": str(view.reason or "")}
    return wire.StoryLine(at=now / SECOND, event="tasks wait", fields=fields, text=f"now: {view}")


@serves(op.Trace)
async def trace(request: Request, asked: op.Trace) -> wire.RecordedTrace:
    services = request.services
    first, _ = span_of(asked.since, "")
    await services.flush()
    reply = await ask(services, request.leader(asked), preview.TraceQuestion, preview.Document, since=first or 0)
    return msgspec.convert(reply.document, wire.RecordedTrace)
