"""Handlers for jobs: submit, list, explain, scale and kill them."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import islice
from time import monotonic
from typing import Any

import msgspec

from fairlead.control.follower import FollowedPartition
from fairlead.control.partition import PartitionService, accepted_in
from fairlead.core.commands import (
    AnyCommand,
    HoldJob,
    Kill,
    Origin,
    ReleaseJob,
    Requeue,
    Scale,
    SetPriority,
    StopTasks,
    Submit,
)
from fairlead.core.documents import MAX_PRIORITY, MAX_TASKS, MIN_PRIORITY, ONE_CPU, parse_job
from fairlead.core.errors import Refused
from fairlead.core.intake.jobs import no_such_job
from fairlead.core.intake.rights import is_owner
from fairlead.core.model import Job, JobSpec
from fairlead.core.ranges import Ranges
from fairlead.core.reader import MAX_COMPARED, Reader, nearest_name
from fairlead.core.resources import MEMORY, SECOND, parse_count, shown
from fairlead.core.state import Partition
from fairlead.core.why.never import may_never_run, never_runs
from fairlead.core.why.reasons import NoNodeYet, Reason
from fairlead.http.context import Request, Services, caller_fields, may_see, seen_by
from fairlead.http.dispatch import serves
from fairlead.http.problems import problem_of
from fairlead.identity.tokens import Token
from fairlead.views.answers import by_id, job_answer, task_answers
from fairlead.views.explanation import explained, remedies_of, why_never_told, with_remedies
from fairlead.views.summaries import shown_state
from fairlead.views.whyanswers import explained_answer, explanation
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire.unserved import Unserved
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


def _origin(request: Request, served: PartitionService) -> Origin:
    return Origin(served.now, request.header("traceparent"))


@serves(op.Submit)
async def submit(request: Request, asked: op.Submit) -> wire.Submitted:
    services = request.services
    served = services.control.find(asked.partition)
    command = submission(request.caller, asked.document, asked.key, {}, origin=_origin(request, served))
    accepted = await accepted_in(_offered(services, served, command))
    warnings = await why_never(served, [accepted.job])
    return wire.Submitted(job=accepted.job, partition=served.name, warning=warnings.get(accepted.job, ""))


@serves(op.SubmitMany)
async def submit_many(request: Request, asked: op.SubmitMany) -> wire.Batch:
    caller = request.caller
    services = request.services
    read = Reader(asked.document, "", "a batch")
    documents = read.get("jobs")
    read.close()
    if not isinstance(documents, list) or not documents:
        raise Refused("jobs", "a batch needs at least one job; write a list of jobs")
    if len(documents) > MAX_BATCH:
        raise Refused("jobs", f"{len(documents)} jobs are too many; send at most {MAX_BATCH} at once")
    for at, document in enumerate(documents):
        if not isinstance(document, dict):
            Reader(document, f"jobs[{at}]", "a job")
    served = services.control.find(asked.partition)
    origin = _origin(request, served)
    cache: SpecCache = {}
    items: list[wire.BatchItem] = []
    for start in range(0, len(documents), AT_ONCE):
        pending: list[Slot | wire.BatchItem] = []
        for at, document in enumerate(documents[start : start + AT_ONCE], start):
            item_key = f"{asked.key}#{at}" if asked.key else ""
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
    slot = served.offer(command)
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
        raise missing(job_id, _near_job(partition, caller, job_id))
    return job


def missing(job_id: str, near: str = "") -> Refused:
    problem = f"there is no job {shown(job_id)}{near}; `fairlead ps` lists those that are known"
    return Refused("job", problem, "missing")


def _near_job(partition: Partition, caller: Token, wrong: str) -> str:
    """Return ` (did you mean …?)` with the newest job whose name is close, of those that the caller may see."""
    named: dict[str, str] = {}
    for job in islice(reversed(partition.jobs.values()), MAX_COMPARED):
        if may_see(caller, job):
            named.setdefault(job.spec.name, job.id)
    near = nearest_name(wrong, named)
    return f" (did you mean job {named[near]}, {near}?)" if near else ""


@serves(op.Job)
async def job(request: Request, asked: op.Job) -> wire.Job:
    services = request.services
    caller, sees = request.caller, seen_by(request)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(asked.wait, services.bounds.poll_seconds)
    while True:
        served = await services.control.reader(asked.partition, asked.min_revision)
        if loop.time() < deadline and isinstance(served, FollowedPartition):
            served = services.control.find(asked.partition)  # refuses: only the leader is notified of changed jobs
        moved: asyncio.Future[None] | None = None

        def look(state: Partition, served: PartitionService | FollowedPartition = served) -> wire.Job:
            nonlocal moved
            job = find(state, caller, asked.job)
            if (not job.over or job.allocations) and isinstance(served, PartitionService) and loop.time() < deadline:
                moved = served.when_moved(job)
            return job_answer(state, job, served.reasons, sees)

        try:
            answer = await served.read(look)
        except Refused as refusal:
            return await _forgotten(services, served.name, caller, asked.job, refusal)
        if moved is None:
            return answer
        try:
            async with asyncio.timeout_at(deadline):
                await moved
        except TimeoutError:
            return answer


async def _forgotten(services: Services, partition: str, caller: Token, job_id: str, refusal: Refused) -> wire.Job:
    """Return a job from the history. Raise the refusal that says that it is missing if it is not there either."""
    row = await services.threads.run(services.records.job, partition, job_id)
    if row is None or not (caller.operator or row.user == caller.user):
        raise refusal
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


@serves(op.Jobs)
async def jobs(request: Request, asked: op.Jobs) -> wire.JobPage:
    services = request.services
    caller, sees = request.caller, seen_by(request)
    served = await services.control.reader(asked.partition, asked.min_revision)
    before = number_of(asked.cursor)
    wanted = _filter(caller, asked)
    matches: list[wire.Job] = []
    size = 0

    def full() -> bool:
        return len(matches) > asked.limit or size > PAGE_BYTES

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
    hint = max((asked.user, asked.name, asked.search, owner), key=len).encode()

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
    page = matches[: asked.limit]
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


def _filter(caller: Token, asked: op.Jobs) -> Callable[[Job], bool]:
    for state in asked.state:
        if state not in STATES:
            raise Refused("state", f"{shown(state)} is not one of {', '.join(STATES)}; write one of them")
    key, equals, value = asked.label.partition("=")
    if asked.label and not equals:
        raise Refused("label", f"{shown(asked.label)} is not a label with its value; write key=value")

    def wanted(job: Job) -> bool:
        if asked.state and shown_state(job) not in asked.state:
            return False
        if asked.queue and job.queue.path != asked.queue and not job.queue.path.startswith(f"{asked.queue}."):
            return False
        if asked.user and job.user != asked.user:
            return False
        if asked.search and asked.search not in job.user and asked.search not in job.spec.name:
            return False
        if asked.name or asked.label:
            spec = job.spec
            if asked.name and spec.name != asked.name:
                return False
            if asked.label and (key, value) not in spec.labels:
                return False
        return may_see(caller, job)

    return wanted


@serves(op.Tasks)
async def tasks(request: Request, asked: op.Tasks) -> wire.TaskPage:
    caller = request.caller
    after = number_of(asked.cursor) or 0

    def look(state: Partition) -> wire.TaskPage:
        job = find(state, caller, asked.job)
        stages = [candidate for candidate in job.stages if asked.stage in ("", candidate.name)]
        if asked.stage and not stages:
            names = ", ".join(candidate.name for candidate in job.stages[:20])
            raise Refused("stage", f"job {job.id} has no stage {shown(asked.stage)}; it has {names}", "missing")
        return task_answers(state, job, stages, after, asked.limit)

    control = request.services.control
    return await (await control.reader(asked.partition, asked.min_revision)).read(look)


@serves(op.Explain)
async def explain(request: Request, asked: op.Explain) -> wire.Explanation:
    caller, sees = request.caller, seen_by(request)
    control = request.services.control
    served = control.find(asked.partition)
    answer = await served.read(
        lambda state: explanation(state, find(state, caller, asked.job), served.writer.reasons, served.now, sees)
    )
    if not asked.remedies or not answer.waiting:
        return answer

    def search(state: Partition) -> bytes:
        expired = deadline(SEARCHING)
        job, seen, now = find(state, caller, asked.job), by_id(state, sees), served.now
        view = explained(state, job, served.writer.reasons, now, seen)
        return msgspec.json.encode(explained_answer(with_remedies(view, remedies_of(state, job, now, expired), seen)))

    found = await served.on_copy(search, SEARCHING)
    return msgspec.json.decode(found, type=wire.Explanation) if found else answer


@serves(op.Sentences)
async def sentences(request: Request, asked: op.Sentences) -> wire.Sentences:
    read = Reader(asked.document, "", "a question")
    named = read.texts("jobs", most=MAX_EXPLAINED)
    read.close()
    if not named:
        raise Refused("jobs", "missing; name at least one job")
    names = iter(dict.fromkeys(named))
    caller, sees = request.caller, seen_by(request)
    served = request.services.control.find(asked.partition)
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


async def touch(request: Request, partition: str, job_id: str, command: AnyCommand) -> wire.Done:
    """Execute a command about a job. Answer 404 if the caller may not change the job, as if it did not exist."""
    control = request.services.control
    try:
        accepted = await control.find(partition).execute(command)
    except Refused as refusal:
        refused = as_missing(job_id, refusal)
        if refused.code == "missing":
            await control.find(partition).read(lambda state: find(state, request.caller, job_id))  # names a near one
        raise refused from None
    return wire.Done(note=accepted.note)


def as_missing(job_id: str, refusal: Refused) -> Refused:
    """Return a refusal of a command about a job.

    If the caller may not change the job, it reads as if the job did not exist.
    """
    hidden = refusal.code == "forbidden" and refusal.field == "user"
    return missing(job_id) if hidden or (refusal.code == "unknown" and refusal.field == "job") else refusal


@serves(op.Kill)
async def kill(request: Request, asked: op.Kill) -> wire.Done:
    return await touch(request, asked.partition, asked.job, Kill(job=asked.job, **caller_fields(request, asked.key)))


@serves(op.Hold)
async def hold(request: Request, asked: op.Hold) -> wire.Done:
    return await touch(request, asked.partition, asked.job, HoldJob(job=asked.job, **caller_fields(request, asked.key)))


@serves(op.Release)
async def release(request: Request, asked: op.Release) -> wire.Done:
    return await touch(
        request, asked.partition, asked.job, ReleaseJob(job=asked.job, **caller_fields(request, asked.key))
    )


@serves(op.Requeue)
async def requeue(request: Request, asked: op.Requeue) -> wire.Done:
    return await touch(request, asked.partition, asked.job, Requeue(job=asked.job, **caller_fields(request, asked.key)))


@serves(op.StopTasks)
async def stop_tasks(request: Request, asked: op.StopTasks) -> wire.Done:
    read = Reader(asked.document, "", "the tasks")
    given = read.get("indices")
    if not isinstance(given, list) or not given or len(given) > wire.MAX_STOPPED:
        raise Refused(
            "indices", f"they are not a list of 1 to {wire.MAX_STOPPED} indices of tasks; write such as [1, 3]"
        )
    chosen = [parse_count(index, f"indices[{at}]", 0, MAX_TASKS - 1) for at, index in enumerate(given)]
    stage = read.name("stage", "") if read.get("stage") is not None else ""
    read.close()
    if not stage:
        stage = await _only_stage(request, asked.partition, asked.job)
    tasks, who = Ranges.from_indices(chosen).flat(), caller_fields(request, asked.key)
    command = StopTasks(job=asked.job, stage=stage, indices=tasks, action=asked.action, **who)
    return await touch(request, asked.partition, asked.job, command)


@serves(op.Scale)
async def scale(request: Request, asked: op.Scale) -> wire.Done:
    read = Reader(asked.document, "", "a scaling")
    count = read.count("count")
    stage = read.name("stage", "") if read.get("stage") is not None else ""
    read.close()
    if not stage:
        stage = await _only_stage(request, asked.partition, asked.job)
    command = Scale(job=asked.job, stage=stage, count=count, **caller_fields(request, asked.key))
    return await touch(request, asked.partition, asked.job, command)


async def _only_stage(request: Request, partition: str, job_id: str) -> str:
    caller = request.caller
    control = request.services.control
    names = await control.find(partition).read(
        lambda state: [stage.name for stage in find(state, caller, job_id).stages]
    )
    if len(names) != 1:
        raise Refused("stage", f"job {job_id} has {len(names)} stages; name one of {', '.join(names[:20])}")
    return names[0]


@serves(op.SetPriority)
async def set_priority(request: Request, asked: op.SetPriority) -> wire.Done:
    command = SetPriority(job=asked.job, priority=read_priority(asked.document), **caller_fields(request, asked.key))
    return await touch(request, asked.partition, asked.job, command)


def read_priority(data: object) -> int:
    read = Reader(data, "", "a priority")
    priority = read.count("priority", low=MIN_PRIORITY, high=MAX_PRIORITY)
    read.close()
    return priority
