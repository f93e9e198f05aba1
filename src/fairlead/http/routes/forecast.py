"""Handlers for predictions: dry runs, starts of jobs, and effects of changes. A second process simulates the future."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from fairlead.control.partition import PartitionService
from fairlead.core.commands import Rejected, SetPriority
from fairlead.core.errors import Refused
from fairlead.core.model import JobSpec, Micros, pack_spec
from fairlead.core.reader import Reader
from fairlead.core.resources import DAY, HOUR, MINUTE, SECOND
from fairlead.core.state import Partition
from fairlead.history.promised_starts import Promise
from fairlead.http.context import Request, Services, caller_fields
from fairlead.http.dispatch import serves
from fairlead.http.routes.history import span_of
from fairlead.http.routes.jobs import (
    SEARCHING,
    as_missing,
    checked,
    deadline,
    find,
    read_jobs,
    read_priority,
    submission,
    why_never,
)
from fairlead.http.scopes import costs_of
from fairlead.views.answers import by_id
from fairlead.views.dryrun import stopped_by, try_submission
from fairlead.views.summaries import shown_state
from fairlead.views.why_answers import dry_run_answer, priority_answer
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire import preview
from fairlead.wire.unserved import Unserved

MOST_JOBS = 1_000
Reply = TypeVar("Reply", bound=msgspec.Struct)


async def ask(
    services: Services,
    served: PartitionService,
    kind: Callable[..., preview.AnyQuestion],
    reply: type[Reply],
    **fields: object,
) -> Reply:
    """Return the answer of the second process to a question. Each user has one question in progress at a time."""
    if services.preview is None:
        raise Unserved("unavailable", "this server has no second process for questions about past and future", 60)
    question = kind(partition=served.name, seq=served.writer.seq, now=served.now, **fields)
    async with services.preview_turns.take():
        try:
            answer = await services.preview.ask(question)
        except preview.Unanswered as problem:
            raise Unserved("unavailable", f"{problem}; ask again in a moment", 1) from None
    if isinstance(answer, preview.Failure):
        raise Refused(answer.field or "question", answer.problem)
    assert isinstance(answer, reply)
    return answer


async def foretell(
    services: Services, served: PartitionService, jobs: Sequence[str] = (), specs: Sequence[JobSpec] = ()
) -> preview.Etas:
    """Return the predicted starts of waiting jobs, and of specifications as if they were submitted now."""
    packed = tuple(pack_spec(spec) for spec in specs)
    return await ask(services, served, preview.EtaQuestion, preview.Etas, jobs=tuple(jobs), submissions=packed)


@serves(op.DryRun)
async def dry_run(request: Request, asked: op.DryRun) -> wire.DryRun:
    command = submission(request, asked.document, "", {})
    served = request.leader(asked)
    checked(request.services, served, command)
    costs_of(request.caller, [command.spec])

    def attempt(state: Partition) -> wire.DryRun | Rejected:
        expired = deadline(SEARCHING)
        tried = try_submission(state, command, served.writer.reasons, served.now)
        if isinstance(tried, Rejected):
            return tried
        return dry_run_answer(tried, tried.explained(by_id(state, request.sees), expired))

    tried = await _on_copy(served, attempt, wire.DryRun)
    if not asked.eta or tried.starts or tried.never:
        return tried
    spec = msgspec.structs.replace(command.spec, user=command.user, groups=command.groups)
    foretold = await foretell(request.services, served, specs=[spec])
    (found,) = foretold.submissions
    if isinstance(found, str):
        return tried  # the state has changed meanwhile: the job would be refused now
    found, _ = _corrected(request.services, served, found, foretold.now)
    return msgspec.structs.replace(tried, eta=_answer("", "pending", None, found, foretold, served.now))


@serves(op.TryPriority)
async def try_other_priority(request: Request, asked: op.TryPriority) -> wire.PriorityStops:
    command = SetPriority(job=asked.job, priority=read_priority(asked.document), **caller_fields(request))
    served = request.leader(asked)

    def attempt(state: Partition) -> wire.PriorityStops | Rejected:
        tried = stopped_by(state, command, served.now)
        return tried if isinstance(tried, Rejected) else priority_answer(state, tried, request.sees)

    try:
        return await _on_copy(served, attempt, wire.PriorityStops)
    except Refused as refusal:
        raise as_missing(asked.job, refusal) from None


async def _on_copy(
    served: PartitionService, attempt: Callable[[Partition], Reply | Rejected], kind: type[Reply]
) -> Reply:
    """Return the answer of a dry run on a copy of the state. Raise `Refused` if the dry run was rejected."""
    answer = await served.on_copy(lambda state: msgspec.json.encode(attempt(state)), SEARCHING)
    if not answer:
        raise Unserved("busy", "the dry run took too long; try it again")
    outcome = msgspec.json.decode(answer)
    if outcome.get("type") == "rejected":
        raise Refused(outcome["field"], outcome["problem"], outcome["code"])
    return msgspec.convert(outcome, kind)


@serves(op.Eta)
async def eta(request: Request, asked: op.Eta) -> wire.Eta:
    return (await _etas(request, asked, [asked.job]))[0]


@serves(op.Etas)
async def etas(request: Request, asked: op.Etas) -> wire.Etas:
    return wire.Etas(etas=await _etas(request, asked, read_jobs(asked.document, MOST_JOBS)))


async def _etas(request: Request, asked: op.Eta | op.Etas, names: list[str]) -> list[wire.Eta]:
    served = request.leader(asked)
    without: dict[str, str] = {}
    """Job whose start is not predicted → the reason."""

    def look(state: Partition) -> list[tuple[str, str, Micros | None]]:
        """Return id, state and start of each job. The start is None if no task has been sent to a node."""
        found = []
        for name in names:
            job = find(state, request, name)
            times = [
                allocation.since if allocation.started is None else allocation.started
                for stage in job.stages
                for allocation in (stage.live or {}).values()
                if not allocation.slots
            ]
            found.append((job.id, shown_state(job), min(times, default=None)))
            if job.held_by is not None and not times:
                without[job.id] = f"it is held; `fairlead release {job.id}` lets it start"
        return found

    found = await served.read(look)
    waiting = [job for job, state, started in found if state == "pending" and started is None]
    without |= await why_never(served, waiting)
    waiting = [job for job in waiting if job not in without]
    foretold = await _promised(request.services, served, waiting) if waiting else None
    now = served.now
    return [
        _answer(job, state, started, foretold.jobs[job], foretold, now)
        if foretold is not None and job in foretold.jobs
        else _known(job, state, started, without.get(job, ""))
        for job, state, started in found
    ]


async def _promised(services: Services, served: PartitionService, waiting: list[str]) -> preview.Etas:
    """Return the predicted starts of jobs, with intervals that past promises corrected, and keep them as promises."""
    promises: dict[int, Promise] = {}
    numbers = await served.read(lambda state: services.promised.expect(state, waiting))
    try:
        foretold = await foretell(services, served, waiting)
        jobs = dict(foretold.jobs)
        for job, found in foretold.jobs.items():
            jobs[job], promise = _corrected(services, served, found, foretold.now)
            if promise is not None and job in numbers:
                promises[numbers[job]] = promise
        return msgspec.structs.replace(foretold, jobs=jobs)
    finally:
        services.promised.note(served.name, numbers.values(), promises)


def _corrected(
    services: Services, served: PartitionService, found: preview.Eta, now: Micros
) -> tuple[preview.Eta, Promise | None]:
    """Return a prediction with the corrected interval, and the promise that it makes; None if it names no start."""
    if found.likely is None or found.earliest is None:
        return found, None
    promise = Promise(now, found.likely, found.earliest, found.latest)
    if found.latest != now:  # else it starts now, in all futures
        promise = promise.stretched(services.promised.stretch(served.name))
    return msgspec.structs.replace(found, earliest=promise.earliest, latest=promise.latest), promise


@serves(op.PromisedStarts)
async def promised_starts(request: Request, asked: op.PromisedStarts) -> wire.PromisedStarts:
    services, served = request.services, request.leader(asked)
    first, _ = span_of(asked.since, "")
    since = served.now - 7 * DAY if first is None else first
    first_ones = await services.recorded(services.promised.figures, served.name, since)
    last_ones = await services.threads.run(services.promised.figures, served.name, since, True)
    kept, late = first_ones.results.get("kept", 0), last_ones.results.get("kept", 0)
    error = first_ones.median_error
    part = f"{100 * kept / first_ones.scored:.0f} %" if first_ones.scored else "none"
    text = f"kept {part} of {first_ones.scored:,} promises"
    return wire.PromisedStarts(
        since=since / SECOND,
        scored=first_ones.scored,
        kept=kept,
        earlier=first_ones.results.get("earlier", 0),
        later=first_ones.results.get("later", 0),
        changed=first_ones.results.get("changed", 0),
        ended=first_ones.results.get("ended", 0),
        open=services.promised.open,
        median_error=_seconds(error),
        last_kept=late,
        last_median_error=_seconds(last_ones.median_error),
        stretch=services.promised.stretch(served.name),
        text=text if error is None else f"{text}, median error {rounded(error)}",
    )


PRESENT = {"pending": "starts at this moment", "running": "has started already", "stopping": "stops at this moment"}
"""State → phrase for a job whose start is not predicted."""


def _known(job: str, state: str, started: Micros | None, why: str) -> wire.Eta:
    """Return the answer for a job without a prediction. `why` is the reason, empty if it has started or ended."""
    text = f"job {job}: {why}" if why else f"job {job} {PRESENT.get(state, f'has ended: {state}')}"
    return _eta(job, state, started, preview.Eta(likely=None, median=None, earliest=None, latest=None), why, text)


def _answer(
    job: str, state: str, started: Micros | None, found: preview.Eta, etas: preview.Etas, now: Micros
) -> wire.Eta:
    notes = [*_gaps(job, found, etas), *_weaknesses(found, etas)]
    return _eta(job, state, started, found, "; ".join(notes), _told(job, sentence(found, etas.now, now), notes))


def _eta(job: str, state: str, started: Micros | None, found: preview.Eta, note: str, text: str) -> wire.Eta:
    return wire.Eta(
        job=job,
        state=state,
        started=_seconds(started),
        start=_seconds(found.likely),
        median=_seconds(found.median),
        earliest=_seconds(found.earliest),
        latest=_seconds(found.latest),
        not_before=_seconds(found.not_before),
        note=note,
        text=text,
    )


def _gaps(job: str, found: preview.Eta, etas: preview.Etas) -> list[str]:
    """Return why the start may be earlier than predicted, or cannot be predicted."""
    notes = []
    if etas.unknown_running:
        earlier = "" if found.likely is None or found.likely <= etas.now else ", so it may start earlier"
        notes.append(f"{unknown_running(etas.unknown_running)}{earlier}")
    if found.stuck:
        notes.append(f"`fairlead explain {job}` says why" if job else "the reasons above say why")
    if found.unknown_ahead:
        tasks = "1 task that starts" if found.unknown_ahead == 1 else f"{found.unknown_ahead} tasks that start"
        notes.append(f"{tasks} before it {_no_end(found.unknown_ahead)}")
    if not notes and found.likely is None and found.not_before is None:
        notes.append("tasks of jobs that are expected to be submitted have no known end")
    return notes


def _weaknesses(found: preview.Eta, etas: preview.Etas) -> list[str]:
    """Return what makes the prediction less reliable."""
    notes = []
    if found.cut:
        notes.append("the server had no time to look further ahead")
    if found.new and found.likely is not None and found.latest != etas.now:
        notes.append("nothing like it has run before" if etas.ran else "no job has ended yet to learn run times from")
    if not etas.recorded_jobs:
        notes.append("no jobs are on record, so no new ones are expected")
    return notes


def _told(job: str, start: str, notes: list[str]) -> str:
    """Return the answer as one line. If `start` is empty, the notes say why no start is predicted."""
    if start:
        return "; ".join([f"{f'job {job}' if job else 'it'} {start}", *notes])
    unpredictable = f"{f'the start of job {job}' if job else 'its start'} cannot be predicted"
    return f"{unpredictable}: {'; '.join(notes)}" if notes else unpredictable


def unknown_running(tasks: int) -> str:
    return f"{'1 running task' if tasks == 1 else f'{tasks} running tasks'} {_no_end(tasks)}"


def _no_end(tasks: int) -> str:
    return f"{'has' if tasks == 1 else 'have'} no known end (--estimate or --time-limit gives one)"


def sentence(eta: preview.Eta, began: Micros, now: Micros) -> str:
    """Return the predicted start as a phrase; empty if there is none. `began` is the start of the simulation."""
    if eta.stuck:
        return "does not start as the cluster is now"
    if eta.likely is None:
        if eta.not_before is None or eta.not_before - now < SECOND:
            return ""
        return f"does not start within {rounded(eta.not_before - now)}"
    if eta.latest == began:
        return "starts now"
    waits = 0 if eta.earliest is None else eta.earliest - now
    earliest = f"in {rounded(waits)}" if waits >= SECOND else "now"
    if eta.latest is None:
        sure = f"{earliest} or later"
    else:
        latest = rounded(eta.latest - now)
        sure = f"{earliest} to {latest}" if waits >= SECOND else f"within {latest}"
    return f"starts in about {rounded(max(SECOND, eta.likely - now))} (90 % sure: {sure})"


def rounded(span: Micros) -> str:
    """Return a duration as text, rounded to seconds, minutes or hours, depending on its length."""
    span = max(0, span)
    if span < 100 * SECOND:
        return f"{round(span / SECOND)}s"
    step = MINUTE if span < HOUR else 5 * MINUTE if span < 2 * DAY else HOUR
    span = round(span / step) * step
    parts = [(span // DAY, "d"), (span % DAY // HOUR, "h"), (span % HOUR // MINUTE, "min")]
    return "".join(f"{number}{unit}" for number, unit in parts if number)


def _seconds(when: Micros | None) -> float | None:
    return None if when is None else when / SECOND


@serves(op.WhatIf)
async def what_if(request: Request, asked: op.WhatIf) -> wire.WhatIf:
    read = Reader(asked.document, "", "a what-if")
    replay = read.optional_duration("replay")
    if replay == 0:
        raise Refused("replay", "a period of 0 has no jobs; write one such as 7d, or leave it out")
    served, fields = request.leader(asked), {"changes": dict(read.doc), "replay": replay or 0}
    reply = await ask(request.services, served, preview.WhatIfQuestion, preview.Document, **fields)
    found = reply.document
    notes = [unknown_running(found["unknown_running"])] if found.get("unknown_running") else []
    if found.get("waiting", 0) > found["compared"]:
        notes.append(f"the first {found['compared']} of {found['waiting']} waiting jobs are compared")
    if not found.get("whole", True):
        notes.append("the server had no time to replay all of it")
    return msgspec.convert(found | {"note": "; ".join(notes)}, wire.WhatIf)
