"""The future: when jobs start, and what a change would bring. A second process computes it on a copy of the state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from litestar import Request, get, post
from litestar.params import QueryParameter

from fairlead.api.context import OPERATORS, USERS, PartitionName, Services, Shaped, caller_of, seen_by, services_of
from fairlead.api.jobs import SEARCHING, JobId, checked, deadline, find, submission, why_never
from fairlead.api.problems import Unserved
from fairlead.api.service import PartitionService
from fairlead.core.commands import Rejected
from fairlead.core.errors import Refused
from fairlead.core.model import JobSpec, Micros, pack_spec
from fairlead.core.reader import Reader
from fairlead.core.resources import DAY, HOUR, MINUTE, SECOND
from fairlead.core.state import Partition
from fairlead.views.answers import by_id
from fairlead.views.documents import shown_state
from fairlead.views.dryrun import try_submission
from fairlead.views.whyanswers import dry_run_answer
from fairlead.wire import api as wire
from fairlead.wire import preview

HttpRequest = Request[Any, Any, Any]
MOST_JOBS = 1_000
Reply = TypeVar("Reply", bound=msgspec.Struct)


async def ask(services: Services, question: preview.AnyQuestion, kind: type[Reply]) -> Reply:
    """Return the answer of the second process to a question. One user asks one question at a time."""
    if services.preview is None:
        raise Unserved("unavailable", "this server has no second process for questions about past and future", 60)
    async with services.preview_turns.take():
        try:
            answer = await services.preview.ask(question)
        except preview.Unanswered as problem:
            raise Unserved("unavailable", f"{problem}; ask again in a moment", 1) from None
    if isinstance(answer, preview.Failure):
        raise Refused(answer.field or "question", answer.problem)
    assert isinstance(answer, kind)
    return answer


async def foretell(
    services: Services, served: PartitionService, jobs: Sequence[str] = (), specs: Sequence[JobSpec] = ()
) -> preview.Etas:
    """Return when waiting jobs start, and when jobs that are not submitted would if they were submitted now."""
    question = preview.EtaQuestion(
        partition=served.name,
        seq=served.writer.seq,
        now=served.now,
        jobs=tuple(jobs),
        submissions=tuple(pack_spec(spec) for spec in specs),
    )
    return await ask(services, question, preview.Etas)


@post("/jobs/dry-run", operation_id="dryRun", guards=[USERS], summary="Try a submission", status_code=200)
async def dry_run(
    request: HttpRequest,
    data: Annotated[Any, Shaped(wire.JobDocument)],
    partition: PartitionName = "",
    eta: Annotated[bool, QueryParameter(description="Say also when a job that would wait starts.")] = False,
) -> wire.DryRun:
    """Answer what the next cycle would do with a job, without submitting it: whether and where it would start, or what
    is ahead of it, what would be enough to start it, or why it can never run. What would refuse a submission refuses
    this too. Nothing is stored. With `eta`, the answer to a job that would wait has its start, and takes longer."""
    services, sees = services_of(request), seen_by(request)
    command = submission(caller_of(request), data, "", {})
    served = services.control.find(partition)
    checked(services, served, command)

    def attempt(state: Partition) -> bytes:
        expired = deadline(SEARCHING)
        tried = try_submission(state, command, served.writer.reasons, served.now)
        if isinstance(tried, Rejected):
            return msgspec.json.encode(tried)
        answer = dry_run_answer(tried, tried.explained(by_id(state, sees), expired))
        return msgspec.json.encode(answer)

    answer = await served.on_copy(attempt, SEARCHING)
    if not answer:
        raise Unserved("busy", "the dry run took too long; try it again")
    outcome = msgspec.json.decode(answer)
    if outcome.get("type") == "rejected":
        raise Refused(outcome["field"], outcome["problem"], outcome["code"])
    tried = msgspec.convert(outcome, wire.DryRun)
    if not eta or tried.starts or tried.never:
        return tried
    spec = msgspec.structs.replace(command.spec, user=command.user, groups=command.groups)
    foretold = await foretell(services, served, specs=[spec])
    (found,) = foretold.submissions
    if isinstance(found, str):
        return tried  # the state has changed meanwhile, and it would be refused now
    return msgspec.structs.replace(tried, eta=_answer("", "pending", None, found, foretold, served.now))


@get("/jobs/{job_id:str}/eta", operation_id="eta", guards=[USERS], summary="When a job starts")
async def eta(request: HttpRequest, job_id: JobId, partition: PartitionName = "") -> wire.Eta:
    """Say when a waiting job starts: the likely start by several futures, and an interval of 90 %."""
    return (await _etas(request, [job_id], partition))[0]


@post("/eta", operation_id="etas", guards=[USERS], summary="When several jobs start", status_code=200)
async def etas(
    request: HttpRequest, data: Annotated[Any, Shaped(wire.EtaDocument)], partition: PartitionName = ""
) -> wire.Etas:
    """Say when up to 1,000 jobs start. They are looked at in the same futures."""
    read = Reader(data, "", "a question")
    names = read.texts("jobs", most=MOST_JOBS)
    read.close()
    if not names:
        raise Refused("jobs", "missing; name at least one job")
    return wire.Etas(etas=await _etas(request, list(dict.fromkeys(names)), partition))


async def _etas(request: HttpRequest, names: list[str], partition: str) -> list[wire.Eta]:
    services, caller = services_of(request), caller_of(request)
    served = services.control.find(partition)

    without: dict[str, str] = {}
    """Jobs that have no start to foretell, with the reason."""

    def look(state: Partition) -> list[tuple[str, str, Micros | None]]:
        """Return the jobs with their states, and when those started that have."""
        found = []
        for name in names:
            job = find(state, caller, name)
            times = [
                allocation.since if allocation.started is None else allocation.started
                for stage in job.stages
                for allocation in (stage.live or {}).values()
                if not allocation.rooms
            ]
            found.append((job.id, shown_state(job), min(times, default=None)))
            if job.held_by is not None and not times:
                without[job.id] = "it is held, and starts after it is released"
        return found

    found = await served.read(look)
    waiting = [job for job, state, started in found if state == "pending" and started is None]
    without |= await why_never(served, waiting)
    waiting = [job for job in waiting if job not in without]
    foretold = await foretell(services, served, waiting) if waiting else None
    now = served.now
    return [
        _answer(job, state, started, foretold.jobs[job], foretold, now)
        if foretold is not None and job in foretold.jobs
        else _known(job, state, started, without.get(job, ""))
        for job, state, started in found
    ]


def _known(job: str, state: str, started: Micros | None, why: str) -> wire.Eta:
    """Return the answer for a job that does not wait for its start, or has none for a reason."""
    return wire.Eta(
        job=job,
        state=state,
        started=_seconds(started),
        start=None,
        median=None,
        earliest=None,
        latest=None,
        not_before=None,
        note=why,
        text=f"job {job}: {why}" if why else f"job {job} is {state}",
    )


def _answer(
    job: str, state: str, started: Micros | None, found: preview.Eta, etas: preview.Etas, now: Micros
) -> wire.Eta:
    notes = []
    if etas.unknown_running:
        earlier = "" if found.likely is None or found.likely <= etas.now else ", so it may start earlier"
        notes.append(f"{unknown_running(etas.unknown_running)}{earlier}")
    if found.stuck:
        notes.append(f"`fairlead explain {job}` says why" if job else "the reasons above say why")
    if found.unknown_ahead:
        tasks = "1 task that starts" if found.unknown_ahead == 1 else f"{found.unknown_ahead} tasks that start"
        notes.append(f"{tasks} before it {'has' if found.unknown_ahead == 1 else 'have'} no estimate")
    if not notes and found.likely is None and found.not_before is None and not found.stuck:
        notes.append("tasks of jobs that are expected have no estimate")
    if etas.cut:
        notes.append("there was no time to look further")
    if not etas.recorded_jobs:
        notes.append("no past jobs are recorded, so no new jobs are expected")
    return wire.Eta(
        job=job,
        state=state,
        started=_seconds(started),
        start=_seconds(found.likely),
        median=_seconds(found.median),
        earliest=_seconds(found.earliest),
        latest=_seconds(found.latest),
        not_before=_seconds(found.not_before),
        note="; ".join(notes),
        text=f"{f'job {job}' if job else 'it'} {sentence(found, etas.now, now)}"
        + (f"; {'; '.join(notes)}" if notes else ""),
    )


def unknown_running(tasks: int) -> str:
    return "1 running task has no estimate" if tasks == 1 else f"{tasks} running tasks have no estimate"


def sentence(eta: preview.Eta, began: Micros, now: Micros) -> str:
    """Return in words when something starts that waited as the futures began."""
    if eta.stuck:
        return "does not start as the cluster is now"
    if eta.likely is None:
        if eta.not_before is None:
            return "starts at a time that cannot be told"
        return f"does not start within {rounded(eta.not_before - now)}"
    if eta.latest == began:
        return "starts now"
    latest = "later than can be told" if eta.latest is None else rounded(eta.latest - now)
    earliest = rounded((now if eta.earliest is None else eta.earliest) - now)
    return f"starts in about {rounded(max(SECOND, eta.likely - now))} (90 %: between {earliest} and {latest})"


def rounded(span: Micros) -> str:
    """Return a duration with as many digits as an estimate deserves."""
    span = max(0, span)
    if span < 100 * SECOND:
        return f"{round(span / SECOND)}s"
    step = MINUTE if span < HOUR else 5 * MINUTE if span < 2 * DAY else HOUR
    span = round(span / step) * step
    parts = [(span // DAY, "d"), (span % DAY // HOUR, "h"), (span % HOUR // MINUTE, "min")]
    return "".join(f"{number}{unit}" for number, unit in parts if number)


def _seconds(when: Micros | None) -> float | None:
    return None if when is None else when / SECOND


@post("/whatif", operation_id="whatIf", guards=[OPERATORS], summary="What a change would bring", status_code=200)
async def what_if(
    request: HttpRequest, data: Annotated[Any, Shaped(wire.WhatIfDocument)], partition: PartitionName = ""
) -> wire.WhatIf:
    """Compare the start times of jobs with and without a supposed change: of the jobs that wait now, or, with `replay`,
    of the jobs that were submitted in that time, run again from an empty cluster. Nothing is changed."""
    services = services_of(request)
    served = services.control.find(partition)
    read = Reader(data, "", "a what-if")
    replay = read.optional_duration("replay")
    if replay == 0:
        raise Refused("replay", "0 is no time to run again; write one such as 7d, or leave it out")
    question = preview.WhatIfQuestion(
        partition=served.name, seq=served.writer.seq, now=served.now, changes=dict(read.doc), replay=replay or 0
    )
    found = (await ask(services, question, preview.Document)).document
    notes = [unknown_running(found["unknown_running"])] if found.get("unknown_running") else []
    if found.get("waiting", 0) > found["compared"]:
        notes.append(f"the first {found['compared']} of {found['waiting']} waiting jobs are compared")
    if not found.get("whole", True):
        notes.append("the replay was ended for lack of time")
    keys = [name for name in wire.WhatIf.__struct_fields__ if name not in ("jobs", "note")]
    moved = [wire.MovedStart(**{key: row[key] for key in wire.MovedStart.__struct_fields__}) for row in found["jobs"]]
    return wire.WhatIf(**{key: found[key] for key in keys}, jobs=moved, note="; ".join(notes))


HANDLERS = [dry_run, eta, etas, what_if]
