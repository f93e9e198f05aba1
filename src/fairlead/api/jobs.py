"""Handlers for jobs: submit, list, explain, scale and kill them."""

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
    MinRevision,
    PartitionName,
    Services,
    Shaped,
    caller_fields,
    caller_of,
    may_see,
    seen_by,
    services_of,
)
from fairlead.api.following import FollowedPartition
from fairlead.api.problems import Unserved, problem_of
from fairlead.api.service import PartitionService, accepted_in, offered
from fairlead.api.tokens import Token
from fairlead.core.commands import AnyCommand, HoldJob, Kill, Origin, ReleaseJob, Requeue, Scale, SetPriority, Submit
from fairlead.core.documents import MAX_PRIORITY, MIN_PRIORITY, ONE_CPU, parse_job
from fairlead.core.errors import Refused
from fairlead.core.explain import may_never_run, never_runs
from fairlead.core.intake.access import is_owner
from fairlead.core.intake.jobs import no_such_job
from fairlead.core.model import Job, JobSpec
from fairlead.core.reader import Reader
from fairlead.core.reasons import NoNodeYet, Reason
from fairlead.core.resources import MEMORY, SECOND, shown
from fairlead.core.state import Partition
from fairlead.views.answers import by_id, job_answer, task_answers
from fairlead.views.documents import shown_state
from fairlead.views.explaining import explained, remedies_of, why_never_told, with_remedies
from fairlead.views.whyanswers import explained_answer, explanation
from fairlead.wire import api as wire
from fairlead.writer.inbox import Slot

MAX_BATCH = 10_000
MAX_CURSOR = 2**63 - 1
AT_ONCE = 500
"""Jobs of one batch that may await their answers at a time, so that one caller does not fill the inbox."""
READ_AT_ONCE = 50
"""Jobs of a batch to parse before other requests get a turn."""
PAGE_BYTES = 4 * 2**20
"""Size in bytes at which a page of jobs ends."""
SCANNED = 10_000
"""Jobs to pre-filter before other requests get a turn."""
SEARCHING = 1.0
"""Seconds to search for remedies."""
MAX_EXPLAINED = 200
"""Jobs that one request may have explained."""
LOOKING = 0.005
"""Seconds to check jobs in full between two cycles of the writer."""

HttpRequest = Request[Any, Any, Any]
JobId = Annotated[str, PathParameter(max_length=63)]


# -- submitting --------------------------------------------------------------------------------------------------


SpecCache = dict[bytes, JobSpec]
"""Parsed documents of one request, by their bytes: equal documents are parsed once."""


def submission(
    caller: Token,
    document: object,
    key: str,
    cache: SpecCache,
    field: str = "",
    origin: Origin | msgspec.UnsetType = msgspec.UNSET,
) -> Submit:
    """Return the command that submits a document. Its user is the caller, unless an operator names another user."""
    values: dict[str, Any] = dict(Reader(document, field, "a job").doc)
    chosen = values.pop("id", None)
    if chosen is not None and not isinstance(chosen, str):
        raise Refused(f"{field}.id" if field else "id", f"{shown(chosen)} is not text; write it in quotes")
    values.setdefault("user", caller.user)
    content = msgspec.json.encode(values)
    spec = cache.get(content)
    if spec is None:
        spec = cache[content] = parse_job(values, field, ONE_CPU)
        _check_memory(spec, field)
    return Submit(
        spec=spec,
        id=chosen or "",
        user=caller.user,
        groups=caller.groups,
        operator=caller.operator,
        key=key,
        origin=origin,
    )


LEAST_MEMORY = 2**20


def _check_memory(spec: JobSpec, field: str) -> None:
    """Refuse memory in which no process runs: a unit was forgotten."""
    for at, stage in enumerate(spec.stages):
        memory = dict(stage.resources).get(MEMORY, 0)
        if 0 < memory < LEAST_MEMORY:
            place = f"{field}.stages[{at}]" if field else f"stages[{at}]"
            raise Refused(
                f"{place}.resources.memory",
                f"{memory} bytes are too little for a process; write {memory}Gi or {memory}Mi if that is meant"
                if memory < 1024
                else f"{memory} bytes are too little for a process; write at least 1Mi",
            )


def _origin(request: HttpRequest, served: PartitionService) -> Origin:
    return Origin(served.now, request.headers.get("traceparent", ""))


@post("/jobs", operation_id="submit", guards=[USERS], summary="Submit a job")
async def submit(
    request: HttpRequest, data: Annotated[Any, Shaped(wire.JobDocument)], partition: PartitionName = "", key: Key = None
) -> wire.Submitted:
    """Submit a job. When the answer arrives, the job is durable. The answer has its id, and a warning if the job can
    never run as the cluster is now."""
    services = services_of(request)
    served = services.control.find(partition)
    command = submission(caller_of(request), data, key or "", {}, origin=_origin(request, served))
    accepted = await accepted_in(_offered(services, served, command))
    warnings = await why_never(served, [accepted.job])
    return wire.Submitted(job=accepted.job, partition=served.name, warning=warnings.get(accepted.job, ""))


@post("/jobs/batch", operation_id="submitMany", guards=[USERS], summary="Submit many jobs", status_code=200)
async def submit_many(
    request: HttpRequest,
    data: Annotated[Any, Shaped(wire.BatchDocument)],
    partition: PartitionName = "",
    key: Key = None,
) -> wire.Batch:
    """Submit many jobs. Each is accepted or refused separately; the answer has one item per job, in the same order."""
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
    origin = _origin(request, served)
    cache: SpecCache = {}
    items: list[wire.BatchItem] = []
    for start in range(0, len(documents), AT_ONCE):
        pending: list[Slot | wire.BatchItem] = []
        for at, document in enumerate(documents[start : start + AT_ONCE], start):
            item_key = f"{key}#{at}" if key else ""
            pending.append(_offer_item(services, served, caller, document, item_key, at, cache, origin))
            if at % READ_AT_ONCE == READ_AT_ONCE - 1:
                await asyncio.sleep(0)
        for entry in pending:
            items.append(entry if isinstance(entry, wire.BatchItem) else await _item(entry))
        warnings = await why_never(served, [item.job for item in items[start:] if item.job])
        for at, item in enumerate(items[start:] if warnings else (), start):
            items[at] = msgspec.structs.replace(item, warning=warnings.get(item.job, ""))
    return wire.Batch(items=items)


def _offer_item(
    services: Services,
    served: PartitionService,
    caller: Token,
    document: object,
    key: str,
    at: int,
    cache: SpecCache,
    origin: Origin,
) -> Slot | wire.BatchItem:
    """Put a job of a batch into the inbox. Return the slot of its answer, or the answer if it is refused at once."""
    try:
        command = submission(caller, document, key, cache, f"jobs[{at}]", origin)
        return _offered(services, served, command)
    except (Refused, Unserved) as refusal:
        return wire.BatchItem(problem=problem_of(refusal))


def _offered(services: Services, served: PartitionService, command: Submit) -> Slot:
    """Put a submission into the inbox. Refuse it if it refers to secrets or jobs of other users, or exceeds a quota."""
    size = checked(services, served, command)
    slot = offered(served, command)
    if size is not None:
        services.quotas.offered(served.name, command.spec.user, size, slot)
    return slot


def checked(services: Services, served: PartitionService, command: Submit) -> int | None:
    """Check secrets, references to other users' jobs, and quotas. Return the job's size for quotas."""
    services.secrets.check(command.spec, command.user)
    if command.operator:
        return None
    jobs = served.partition.jobs
    for at, name in enumerate(command.spec.after):
        # The owner of a job never changes, so it can be read without waiting for the writer.
        earlier = jobs.get(name)
        if earlier is not None and not is_owner(command, earlier):
            raise no_such_job(f"after[{at}]", name)
    return services.quotas.check(served.name, served.partition.settings, command.spec)


async def why_never(served: PartitionService, job_ids: list[str]) -> dict[str, str]:
    """Return why jobs can never run as the cluster is now, or that they wait for the first node, by job id."""
    state = served.partition
    # Mostly this needs no wait for the writer: counts of nodes are cached with the shapes of tasks.
    jobs = [job for job in map(state.jobs.get, job_ids) if job is not None and may_never_run(state, job)]

    def look(state: Partition) -> dict[str, str]:
        reasons = [(job.id, never_runs(state, job)) for job in jobs]
        return {name: _warning(reason) for name, reason in reasons if reason is not None}

    return await served.read(look) if jobs else {}


def _warning(reason: Reason) -> str:
    if isinstance(reason, NoNodeYet):
        return f"{reason}; it waits until one does"
    return f"it can never run as the cluster is now: {why_never_told(reason)}"


async def _item(slot: Slot) -> wire.BatchItem:
    try:
        return wire.BatchItem(job=(await accepted_in(slot)).job)
    except (Refused, Unserved) as refusal:
        return wire.BatchItem(problem=problem_of(refusal))


# -- reading -----------------------------------------------------------------------------------------------------


def find(partition: Partition, caller: Token, job_id: str) -> Job:
    """Return a job. Refuse it as missing if the caller may not see it."""
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
    min_revision: MinRevision = 0,
    wait: Annotated[
        float, QueryParameter(ge=0, le=60, required=False, description="Seconds to wait for the job to be over.")
    ] = 0.0,
) -> wire.Job:
    """Return a job. With `wait`, answer when the job has ended, at the latest after `wait` seconds. A killed job has
    ended when its last process is gone. A job that the scheduler has forgotten is answered from the history."""
    services = services_of(request)
    caller, sees = caller_of(request), seen_by(request)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(wait, services.bounds.poll_seconds)
    while True:
        served = await services.control.reader(partition, min_revision)
        if loop.time() < deadline and isinstance(served, FollowedPartition):
            served = services.control.find(partition)  # refuses: only the leader is notified of changed jobs
        moved: asyncio.Future[None] | None = None

        def look(state: Partition, served: PartitionService | FollowedPartition = served) -> wire.Job:
            nonlocal moved
            job = find(state, caller, job_id)
            if (not job.over or job.allocations) and isinstance(served, PartitionService) and loop.time() < deadline:
                moved = served.when_moved(job)
            return job_answer(state, job, served.reasons, sees)

        try:
            answer = await served.read(look)
        except Refused:
            return await _forgotten(services, served.name, caller, job_id)
        if moved is None:
            return answer
        try:
            async with asyncio.timeout_at(deadline):
                await moved
        except TimeoutError:
            return answer


async def _forgotten(services: Services, partition: str, caller: Token, job_id: str) -> wire.Job:
    """Return a job from the history. Refuse it as missing if it is not there either."""
    row = await services.threads.run(services.records.job, partition, job_id)
    if row is None or not (caller.operator or row.user == caller.user):
        raise missing(job_id)
    return wire.Job(
        id=row.id,
        number=row.number,
        partition=row.partition,
        name=row.name,
        user=row.user,
        queue=row.queue,
        state=row.state,
        priority=0,
        labels=row.labels,
        after=[],
        submitted=row.submitted / SECOND,
        waiting_since=None,
        ended=row.ended / SECOND,
        reason=row.reason,
        stages=[],
        forgotten=True,
    )


@get("/jobs", operation_id="jobs", guards=[USERS], summary="Jobs, newest first")
async def jobs(
    request: HttpRequest,
    partition: PartitionName = "",
    min_revision: MinRevision = 0,
    states: Annotated[
        list[str] | None,
        QueryParameter(name="state", required=False, description="One or more states of jobs."),
    ] = None,
    user: Annotated[str, QueryParameter(required=False, max_length=63)] = "",
    queue: Annotated[
        str, QueryParameter(required=False, max_length=1_000, description="A queue, including the queues below it.")
    ] = "",
    name: Annotated[str, QueryParameter(required=False, max_length=63)] = "",
    label: Annotated[
        str, QueryParameter(required=False, max_length=400, description="`key=value`, as a label of the job.")
    ] = "",
    search: Annotated[
        str, QueryParameter(required=False, max_length=63, description="A part of the job's name or of its user.")
    ] = "",
    cursor: Annotated[
        str, QueryParameter(required=False, max_length=20, description="`next` of the page before.")
    ] = "",
    limit: Limit = 100,
) -> wire.JobPage:
    """List the jobs that the caller may see and that match all filters."""
    services = services_of(request)
    caller, sees = caller_of(request), seen_by(request)
    served = await services.control.reader(partition, min_revision)
    before = number_of(cursor)
    wanted = _filter(caller, states, user, queue, name, label, search)
    matches: list[wire.Job] = []
    size = 0

    def full() -> bool:
        return len(matches) > limit or size > PAGE_BYTES

    def look(state: Partition, part: Iterator[Job]) -> bool:
        """Add matching jobs to the page for at most `LOOKING` seconds; True if jobs are left to check."""
        nonlocal size
        until = monotonic() + LOOKING
        for job in part:
            if state.jobs.get(job.id) is job and wanted(job):
                matches.append(job_answer(state, job, served.reasons, sees))
                size += len(msgspec.json.encode(matches[-1]))
            if full():
                return False
            if monotonic() > until:
                return True
        return False

    def newest(state: Partition) -> tuple[list[Job], bool]:
        part = islice(reversed(state.jobs.values()), SCANNED)
        return list(part), any(queue.settings.admin for queue in state.queues.values())

    part, administered = await served.read(newest)
    # If no queue has administrators, users see only their own jobs.
    owner = "" if caller.operator or administered else caller.user
    hint = max((user, name, search, owner), key=len).encode()

    async def look_through(part: list[Job]) -> None:
        likely = iter([job for job in part if hint in job.packed] if hint else part)
        while await served.read(lambda state: look(state, likely)):
            await asyncio.sleep(0)

    if before is None:
        # The newest jobs mostly fill the page; then older jobs need no search.
        await look_through(part)
    if not full() and (before is not None or len(part) == SCANNED):
        matches.clear()
        size = 0
        for part in _slices(await served.read(lambda state: list(state.jobs.values())), before):
            await look_through(part)
            if full():
                break
            await asyncio.sleep(0)
    page = matches[:limit]
    return wire.JobPage(jobs=page, next=str(page[-1].number) if full() else "")


def _slices(jobs: list[Job], before: int | None) -> Iterator[list[Job]]:
    """Yield jobs in slices, newest first. `jobs` is sorted by number."""
    end = len(jobs) if before is None else bisect_left(jobs, before, key=lambda job: job.number)
    for stop in range(end, 0, -SCANNED):
        yield jobs[max(0, stop - SCANNED) : stop][::-1]


def number_of(cursor: str) -> int | None:
    """Return the number in a cursor; None for an empty cursor."""
    if not cursor:
        return None
    if not cursor.isascii() or not cursor.isdigit() or int(cursor) > MAX_CURSOR:
        raise Refused("cursor", f"{shown(cursor)} is not a cursor; use `next` of the page before")
    return int(cursor)


STATES = ("pending", "running", "stopping", "succeeded", "failed", "killed")


def _filter(
    caller: Token, states: list[str] | None, user: str, queue: str, name: str, label: str, search: str
) -> Callable[[Job], bool]:
    for state in states or ():
        if state not in STATES:
            raise Refused("state", f"{shown(state)} is not one of {', '.join(STATES)}; write one of them")
    key, equals, value = label.partition("=")
    if label and not equals:
        raise Refused("label", f"{shown(label)} is not a label with its value; write key=value")

    def wanted(job: Job) -> bool:
        if states and shown_state(job) not in states:
            return False
        if queue and job.queue.path != queue and not job.queue.path.startswith(f"{queue}."):
            return False
        if user and job.user != user:
            return False
        if search and search not in job.user and search not in job.spec.name:
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
    min_revision: MinRevision = 0,
    stage: Annotated[str, QueryParameter(required=False, max_length=63)] = "",
    cursor: Annotated[str, QueryParameter(required=False, max_length=20)] = "",
    limit: Limit = 100,
) -> wire.TaskPage:
    """List the tasks of a job by stage and index."""
    caller = caller_of(request)
    after = number_of(cursor) or 0

    def look(state: Partition) -> wire.TaskPage:
        job = find(state, caller, job_id)
        stages = [candidate for candidate in job.stages if stage in ("", candidate.name)]
        if stage and not stages:
            names = ", ".join(candidate.name for candidate in job.stages[:20])
            raise Refused("stage", f"job {job.id} has no stage {shown(stage)}; it has {names}", "missing")
        return task_answers(state, job, stages, after, limit)

    control = services_of(request).control
    return await (await control.reader(partition, min_revision)).read(look)


@get("/jobs/{job_id:str}/explain", operation_id="explain", guards=[USERS], summary="Why a job is in its state")
async def explain(
    request: HttpRequest,
    job_id: JobId,
    partition: PartitionName = "",
    remedies: Annotated[
        bool,
        QueryParameter(required=False, description="Also find what would be enough to start what waits."),
    ] = True,
) -> wire.Explanation:
    """Explain the state of a job: one sentence, then why its tasks wait, stop, or run on their nodes. Reasons for
    waiting carry remedies: what would be enough to start the tasks in the next cycle. Remedies are found by trials on a
    copy of the state, and take longer than the rest."""
    caller, sees = caller_of(request), seen_by(request)
    control = services_of(request).control
    served = control.find(partition)
    answer = await served.read(
        lambda state: explanation(state, find(state, caller, job_id), served.writer.reasons, served.now, sees)
    )
    if not remedies or not answer.waiting:
        return answer

    def search(state: Partition) -> bytes:
        expired = deadline(SEARCHING)
        job, seen, now = find(state, caller, job_id), by_id(state, sees), served.now
        view = explained(state, job, served.writer.reasons, now, seen)
        return msgspec.json.encode(explained_answer(with_remedies(view, remedies_of(state, job, now, expired), seen)))

    found = await served.on_copy(search, SEARCHING)
    return msgspec.json.decode(found, type=wire.Explanation) if found else answer


@post("/explain", operation_id="sentences", guards=[USERS], summary="Why several jobs wait", status_code=200)
async def sentences(
    request: HttpRequest, data: Annotated[Any, Shaped(wire.ExplainDocument)], partition: PartitionName = ""
) -> wire.Sentences:
    """Return the sentence of the explanation of up to 200 jobs. Jobs that the caller may not see are left out."""
    read = Reader(data, "", "a question")
    named = read.texts("jobs", most=MAX_EXPLAINED)
    read.close()
    if not named:
        raise Refused("jobs", "missing; name at least one job")
    names = iter(dict.fromkeys(named))
    caller, sees = caller_of(request), seen_by(request)
    served = services_of(request).control.find(partition)
    found: dict[str, str] = {}

    def look(state: Partition) -> bool:
        """Explain jobs for a while; True if there may be more jobs."""
        until = monotonic() + LOOKING
        for name in names:
            job = state.jobs.get(name)
            if job is not None and may_see(caller, job):
                found[name] = explanation(state, job, served.writer.reasons, served.now, sees).sentence
            if monotonic() > until:
                return True
        return False

    while await served.read(look):
        await asyncio.sleep(0)
    return wire.Sentences(sentences=found)


def deadline(seconds: float) -> Callable[[], bool]:
    """Return a function that is True once `seconds` have passed."""
    end = monotonic() + seconds
    return lambda: monotonic() > end


# -- changing ----------------------------------------------------------------------------------------------------


async def touch(request: HttpRequest, partition: str, job_id: str, command: AnyCommand) -> wire.Done:
    """Execute a command about a job. Answer 404 if the caller may not change the job, as if it did not exist."""
    control = services_of(request).control
    try:
        accepted = await control.execute(control.find(partition), command)
    except Refused as refusal:
        raise as_missing(job_id, refusal) from None
    return wire.Done(note=accepted.note)


def as_missing(job_id: str, refusal: Refused) -> Refused:
    """Return a refusal of a command about a job.

    If the caller may not change the job, it reads as if the job did not exist.
    """
    hidden = refusal.code == "forbidden" and refusal.field == "user"
    return missing(job_id) if hidden or (refusal.code == "unknown" and refusal.field == "job") else refusal


@post("/jobs/{job_id:str}/kill", operation_id="kill", guards=[USERS], summary="Kill a job", status_code=200)
async def kill(request: HttpRequest, job_id: JobId, partition: PartitionName = "", key: Key = None) -> wire.Done:
    """Kill a job: cancel its waiting tasks and stop its running tasks. A finished job stays as it is."""
    return await touch(request, partition, job_id, Kill(job=job_id, **caller_fields(request, key)))


@post("/jobs/{job_id:str}/hold", operation_id="hold", guards=[USERS], summary="Hold a job back", status_code=200)
async def hold(request: HttpRequest, job_id: JobId, partition: PartitionName = "", key: Key = None) -> wire.Done:
    """Hold a job: running tasks continue, and no other task of it starts until it is released. The job keeps its place.
    A hold by an operator can be released only by an operator."""
    return await touch(request, partition, job_id, HoldJob(job=job_id, **caller_fields(request, key)))


@post("/jobs/{job_id:str}/release", operation_id="release", guards=[USERS], summary="Release a job", status_code=200)
async def release(request: HttpRequest, job_id: JobId, partition: PartitionName = "", key: Key = None) -> wire.Done:
    """Release a held job. Its tasks keep their place and start when their turn comes."""
    return await touch(request, partition, job_id, ReleaseJob(job=job_id, **caller_fields(request, key)))


@post("/jobs/{job_id:str}/requeue", operation_id="requeue", guards=[USERS], summary="Requeue a job", status_code=200)
async def requeue(request: HttpRequest, job_id: JobId, partition: PartitionName = "", key: Key = None) -> wire.Done:
    """Stop the running tasks of a job, with grace. They wait again at their earlier place and start under a new
    attempt; no try is used. A job that has ended cannot be requeued."""
    return await touch(request, partition, job_id, Requeue(job=job_id, **caller_fields(request, key)))


@post("/jobs/{job_id:str}/scale", operation_id="scale", guards=[USERS], summary="Scale a stage", status_code=200)
async def scale(
    request: HttpRequest,
    job_id: JobId,
    data: Annotated[Any, Shaped(wire.ScaleDocument)],
    partition: PartitionName = "",
    key: Key = None,
) -> wire.Done:
    """Change the number of tasks of a stage. The stage may be left out if the job has only one."""
    read = Reader(data, "", "a scaling")
    count = read.count("count")
    stage = read.name("stage", "") if read.get("stage") is not None else ""
    read.close()
    if not stage:
        stage = await _only_stage(request, partition, job_id)
    command = Scale(job=job_id, stage=stage, count=count, **caller_fields(request, key))
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
    """Change the priority of a job. Owners may lower it, or raise it up to their `max_priority` in its
    queue; operators may raise it further."""
    command = SetPriority(job=job_id, priority=read_priority(data), **caller_fields(request, key))
    return await touch(request, partition, job_id, command)


def read_priority(data: object) -> int:
    read = Reader(data, "", "a priority")
    priority = read.count("priority", low=MIN_PRIORITY, high=MAX_PRIORITY)
    read.close()
    return priority


HANDLERS = [
    submit,
    submit_many,
    jobs,
    job,
    tasks,
    explain,
    sentences,
    kill,
    hold,
    release,
    requeue,
    scale,
    set_priority,
]
