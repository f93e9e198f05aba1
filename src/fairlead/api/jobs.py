"""Jobs: submit one or many, look at them, scale, kill, ask why they wait."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import islice
from time import monotonic
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.params import PathParameter, QueryParameter

from fairlead.api.context import (
    USERS,
    Key,
    Limit,
    PartitionName,
    Services,
    Shaped,
    asks,
    caller_of,
    may_see,
    services_of,
)
from fairlead.api.control import PartitionService, accepted_in, offered
from fairlead.api.problems import Unserved, problem_of
from fairlead.api.tokens import Token
from fairlead.core.commands import AnyCommand, Kill, Scale, SetPriority, Submit
from fairlead.core.documents import parse_job
from fairlead.core.errors import Refused
from fairlead.core.intake.access import is_owner
from fairlead.core.intake.jobs import no_such_job
from fairlead.core.model import Job, JobSpec
from fairlead.core.reader import Reader
from fairlead.core.resources import shown
from fairlead.core.state import Partition
from fairlead.views.answers import explanation, job_answer, task_answers
from fairlead.wire import api as wire
from fairlead.writer.inbox import Slot

MAX_BATCH = 10_000
MAX_CURSOR = 2**63 - 1
AT_ONCE = 500
"""So many jobs of a batch wait for their answers at a time, so that one caller does not fill the inbox."""
READ_AT_ONCE = 50
"""Jobs of a batch that are read at a time; then other requests get their turn."""
PAGE_BYTES = 4 * 2**20
"""A page of jobs ends when it has this many bytes."""
SCANNED = 10_000
"""Jobs that are looked through quickly at a time; then other requests get their turn."""
LOOKING = 0.005
"""Seconds for which jobs are looked at closely, between two turns of the writer."""

HttpRequest = Request[Any, Any, Any]
JobId = Annotated[str, PathParameter(max_length=63)]


# -- submitting --------------------------------------------------------------------------------------------------


Known = dict[bytes, JobSpec]
"""What documents of one request said, by their bytes: equal ones are read once."""


def submission(caller: Token, document: object, key: str, known: Known, field: str = "") -> Submit:
    """A submission as its document says; the caller is its user unless an operator names another."""
    values: dict[str, Any] = dict(Reader(document, field, "a job").doc)
    chosen = values.pop("id", None)
    if chosen is not None and not isinstance(chosen, str):
        raise Refused(f"{field}.id" if field else "id", f"{shown(chosen)} is not text; write it in quotes")
    values.setdefault("user", caller.user)
    alike = msgspec.json.encode(values)
    spec = known.get(alike)
    if spec is None:
        spec = known[alike] = parse_job(values, field)
    return Submit(spec=spec, id=chosen or "", user=caller.user, groups=caller.groups, operator=caller.operator, key=key)


@post("/jobs", operation_id="submit", guards=[USERS], summary="Submit a job")
async def submit(
    request: HttpRequest, data: Annotated[Any, Shaped(wire.JobDocument)], partition: PartitionName = "", key: Key = None
) -> wire.Submitted:
    """The answer means that the job is durable. It carries the id by which the job is known from now on."""
    services = services_of(request)
    command = submission(caller_of(request), data, key or "", {})
    served = services.control.find(partition)
    accepted = await accepted_in(_offered(services, served, command))
    return wire.Submitted(job=accepted.job, partition=served.name)


@post("/jobs/batch", operation_id="submitMany", guards=[USERS], summary="Submit many jobs", status_code=200)
async def submit_many(
    request: HttpRequest,
    data: Annotated[Any, Shaped(wire.BatchDocument)],
    partition: PartitionName = "",
    key: Key = None,
) -> wire.Batch:
    """Each job is accepted or refused for itself; the items of the answer are in the order of the jobs."""
    caller = caller_of(request)
    services = services_of(request)
    read = Reader(data, "", "a batch")
    documents = read.get("jobs")
    read.close()
    if not isinstance(documents, list) or not documents:
        raise Refused("jobs", "a batch needs at least one job; write a list of jobs")
    if len(documents) > MAX_BATCH:
        raise Refused("jobs", f"{len(documents)} jobs are too many; send at most {MAX_BATCH} at once")
    for at, document in enumerate(documents):
        if not isinstance(document, dict):
            Reader(document, f"jobs[{at}]", "a job")
    served = services.control.find(partition)
    known: Known = {}
    items: list[wire.BatchItem] = []
    for start in range(0, len(documents), AT_ONCE):
        asked: list[Slot | wire.BatchItem] = []
        for at, document in enumerate(documents[start : start + AT_ONCE], start):
            asked.append(_ask(services, served, caller, document, f"{key}#{at}" if key else "", at, known))
            if at % READ_AT_ONCE == READ_AT_ONCE - 1:
                await asyncio.sleep(0)
        for each in asked:
            items.append(each if isinstance(each, wire.BatchItem) else await _item(each))
    return wire.Batch(items=items)


def _ask(
    services: Services, served: PartitionService, caller: Token, document: object, key: str, at: int, known: Known
) -> Slot | wire.BatchItem:
    """Offer a job of a batch: its answer comes later, unless it is refused at once."""
    try:
        command = submission(caller, document, key, known, f"jobs[{at}]")
        return _offered(services, served, command)
    except (Refused, Unserved) as refusal:
        return wire.BatchItem(problem=problem_of(refusal))


def _offered(services: Services, served: PartitionService, command: Submit) -> Slot:
    """Offer a submission that names only secrets of its user and jobs that it may see, and is within the quotas."""
    services.secrets.check(command.spec, command.user)
    if command.operator:
        return offered(served, command)
    jobs = served.partition.jobs
    for at, name in enumerate(command.spec.after):
        # The owner of a job never changes, so it may be looked up at any time.
        before = jobs.get(name)
        if before is not None and not is_owner(command, before):
            raise no_such_job(f"after[{at}]", name)
    size = services.quotas.check(served.name, served.partition.settings, command.spec)
    slot = offered(served, command)
    services.quotas.offered(served.name, command.spec.user, size, slot)
    return slot


async def _item(slot: Slot) -> wire.BatchItem:
    try:
        return wire.BatchItem(job=(await accepted_in(slot)).job)
    except (Refused, Unserved) as refusal:
        return wire.BatchItem(problem=problem_of(refusal))


# -- looking -----------------------------------------------------------------------------------------------------


def find(partition: Partition, caller: Token, job_id: str) -> Job:
    """A job that the caller may see; one that it may not see does not exist for it."""
    job = partition.jobs.get(job_id)
    if job is None or not may_see(caller, job):
        raise missing(job_id)
    return job


def missing(job_id: str) -> Refused:
    return Refused("job", f"there is no job {shown(job_id)}; `fairlead ps` lists those that are known", "missing")


@get("/jobs/{job_id:str}", operation_id="job", guards=[USERS], summary="One job")
async def job(
    request: HttpRequest,
    job_id: JobId,
    partition: PartitionName = "",
    wait: Annotated[
        float, QueryParameter(ge=0, le=60, required=False, description="Seconds to wait for the job to be over.")
    ] = 0.0,
) -> wire.Job:
    """With `wait`, the answer comes when the job is over, or after so many seconds, whatever comes first."""
    services = services_of(request)
    caller = caller_of(request)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(wait, services.bounds.poll_seconds)
    while True:
        served = services.control.find(partition)
        moved: asyncio.Future[None] | None = None

        def look(state: Partition, served: PartitionService = served) -> wire.Job:
            nonlocal moved
            found = find(state, caller, job_id)
            if not found.over and loop.time() < deadline:
                moved = served.when_moved(found)
            return job_answer(state, found)

        answer = await served.read(look)
        if moved is None:
            return answer
        try:
            async with asyncio.timeout_at(deadline):
                await moved
        except TimeoutError:
            return answer


@get("/jobs", operation_id="jobs", guards=[USERS], summary="Jobs, the newest first")
async def jobs(
    request: HttpRequest,
    partition: PartitionName = "",
    states: Annotated[
        list[str] | None,
        QueryParameter(name="state", required=False, description="One or more of the states a job can be in."),
    ] = None,
    user: Annotated[str, QueryParameter(required=False, max_length=63)] = "",
    queue: Annotated[
        str, QueryParameter(required=False, max_length=1_000, description="A queue, with all below it.")
    ] = "",
    name: Annotated[str, QueryParameter(required=False, max_length=63)] = "",
    label: Annotated[
        str, QueryParameter(required=False, max_length=400, description="`key=value`, as a label of the job.")
    ] = "",
    cursor: Annotated[
        str, QueryParameter(required=False, max_length=20, description="`next` of the page before.")
    ] = "",
    limit: Limit = 100,
) -> wire.JobPage:
    """All jobs that the caller may see and that pass all filters given."""
    services = services_of(request)
    caller = caller_of(request)
    served = services.control.find(partition)
    before = number_of(cursor)
    wanted = _filter(caller, states, user, queue, name, label)
    found: list[wire.Job] = []
    size = 0

    def full() -> bool:
        return len(found) > limit or size > PAGE_BYTES

    def look(state: Partition, part: Iterator[Job]) -> bool:
        """Look at jobs for a while; True if there may be more to find."""
        nonlocal size
        until = monotonic() + LOOKING
        for each in part:
            if state.jobs.get(each.id) is each and wanted(each):
                found.append(job_answer(state, each))
                size += len(msgspec.json.encode(found[-1]))
            if full():
                return False
            if monotonic() > until:
                return True
        return False

    def newest(state: Partition) -> tuple[list[Job], bool]:
        part = islice(reversed(state.jobs.values()), SCANNED)
        return list(part), any(each.settings.admin for each in state.queues.values())

    part, administered = await served.read(newest)
    # Where no queue has administrators, users see their own jobs only.
    owner = "" if caller.operator or administered else caller.user
    hint = max((user, name, owner), key=len).encode()

    async def look_through(part: list[Job]) -> None:
        likely = iter([each for each in part if hint in each.packed] if hint else part)
        while await served.read(lambda state: look(state, likely)):
            await asyncio.sleep(0)

    if before is None:
        # The newest are mostly what is asked for, and then the others need not be looked at.
        await look_through(part)
    if not full() and (before is not None or len(part) == SCANNED):
        found.clear()
        size = 0
        for part in _slices(await served.read(lambda state: list(state.jobs.values())), before):
            await look_through(part)
            if full():
                break
            await asyncio.sleep(0)
    page = found[:limit]
    return wire.JobPage(jobs=page, next=str(page[-1].number) if full() else "")


def _slices(known: list[Job], before: int | None) -> Iterator[list[Job]]:
    """The newest first, a part at a time. They are in the order of their numbers."""
    end = len(known) if before is None else bisect_left(known, before, key=lambda job: job.number)
    for stop in range(end, 0, -SCANNED):
        yield known[max(0, stop - SCANNED) : stop][::-1]


def number_of(cursor: str) -> int | None:
    if not cursor:
        return None
    if not cursor.isascii() or not cursor.isdigit() or int(cursor) > MAX_CURSOR:
        raise Refused("cursor", f"{shown(cursor)} is not one; use `next` of the page before")
    return int(cursor)


STATES = ("pending", "running", "succeeded", "failed", "killed")


def _filter(
    caller: Token, states: list[str] | None, user: str, queue: str, name: str, label: str
) -> Callable[[Job], bool]:
    for each in states or ():
        if each not in STATES:
            raise Refused("state", f"{shown(each)} is not one of {', '.join(STATES)}; write one of them")
    key, equals, value = label.partition("=")
    if label and not equals:
        raise Refused("label", f"{shown(label)} is not a label with its value; write key=value")

    def wanted(job: Job) -> bool:
        if states and job.state not in states:
            return False
        if queue and job.queue.path != queue and not job.queue.path.startswith(f"{queue}."):
            return False
        if user and job.user != user:
            return False
        if name or label:
            spec = job.spec
            if name and spec.name != name:
                return False
            if label and (key, value) not in spec.labels:
                return False
        return may_see(caller, job)

    return wanted


@get("/jobs/{job_id:str}/tasks", operation_id="tasks", guards=[USERS], summary="The tasks of a job")
async def tasks(
    request: HttpRequest,
    job_id: JobId,
    partition: PartitionName = "",
    stage: Annotated[str, QueryParameter(required=False, max_length=63)] = "",
    cursor: Annotated[str, QueryParameter(required=False, max_length=20)] = "",
    limit: Limit = 100,
) -> wire.TaskPage:
    """By stage and index."""
    caller = caller_of(request)
    after = number_of(cursor) or 0

    def look(state: Partition) -> wire.TaskPage:
        job = find(state, caller, job_id)
        stages = [each for each in job.stages if stage in ("", each.name)]
        if stage and not stages:
            known = ", ".join(each.name for each in job.stages[:20])
            raise Refused("stage", f"job {job.id} has no stage {shown(stage)}; it has {known}", "missing")
        return task_answers(state, job, stages, after, limit)

    control = services_of(request).control
    return await control.find(partition).read(look)


@get("/jobs/{job_id:str}/explain", operation_id="explain", guards=[USERS], summary="Why a job waits")
async def explain(request: HttpRequest, job_id: JobId, partition: PartitionName = "") -> wire.Explanation:
    """What keeps each of its stages back, where it stands in its lane, and what is missing."""
    caller = caller_of(request)
    control = services_of(request).control
    served = control.find(partition)
    return await served.read(
        lambda state: explanation(state, find(state, caller, job_id), served.writer.reasons, served.now)
    )


# -- touching ----------------------------------------------------------------------------------------------------


async def touch(request: HttpRequest, partition: str, job_id: str, command: AnyCommand) -> wire.Done:
    """A command about a job. Who may not touch it may not know of it either."""
    control = services_of(request).control
    try:
        accepted = await control.ask(control.find(partition), command)
    except Refused as refusal:
        hidden = refusal.code == "forbidden" and refusal.field == "user"
        if hidden or (refusal.code == "unknown" and refusal.field == "job"):
            raise missing(job_id) from None
        raise
    return wire.Done(note=accepted.note)


@post("/jobs/{job_id:str}/kill", operation_id="kill", guards=[USERS], summary="Kill a job", status_code=200)
async def kill(request: HttpRequest, job_id: JobId, partition: PartitionName = "", key: Key = None) -> wire.Done:
    """What waits is given up, what runs is told to stop. A job that is over stays as it is."""
    return await touch(request, partition, job_id, Kill(job=job_id, **asks(request, key)))


@post("/jobs/{job_id:str}/scale", operation_id="scale", guards=[USERS], summary="Scale a stage", status_code=200)
async def scale(
    request: HttpRequest,
    job_id: JobId,
    data: Annotated[Any, Shaped(wire.ScaleDocument)],
    partition: PartitionName = "",
    key: Key = None,
) -> wire.Done:
    """Give a stage another number of tasks. The stage may be left out if the job has only one."""
    read = Reader(data, "", "a scaling")
    count = read.count("count")
    stage = read.name("stage", "") if read.get("stage") is not None else ""
    read.close()
    if not stage:
        stage = await _only_stage(request, partition, job_id)
    command = Scale(job=job_id, stage=stage, count=count, **asks(request, key))
    return await touch(request, partition, job_id, command)


async def _only_stage(request: HttpRequest, partition: str, job_id: str) -> str:
    caller = caller_of(request)
    control = services_of(request).control
    names = await control.find(partition).read(
        lambda state: [stage.name for stage in find(state, caller, job_id).stages]
    )
    if len(names) != 1:
        raise Refused("stage", f"job {job_id} has {len(names)} stages; name one of {', '.join(names[:20])}")
    return names[0]


@post("/jobs/{job_id:str}/priority", operation_id="setPriority", guards=[USERS], status_code=200)
async def set_priority(
    request: HttpRequest,
    job_id: JobId,
    data: Annotated[Any, Shaped(wire.PriorityDocument)],
    partition: PartitionName = "",
    key: Key = None,
) -> wire.Done:
    """Owners may lower the priority of a job, operators may raise it too."""
    read = Reader(data, "", "a priority")
    priority = read.count("priority", low=-1_000_000, high=1_000_000)
    read.close()
    return await touch(request, partition, job_id, SetPriority(job=job_id, priority=priority, **asks(request, key)))


HANDLERS = [submit, submit_many, jobs, job, tasks, explain, kill, scale, set_priority]
