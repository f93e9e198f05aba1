"""Handlers for jobs: submit, list, explain, change and kill them."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from time import monotonic
from typing import Any, cast

import msgspec

from fairlead.control.follower import FollowedPartition
from fairlead.control.partition import PartitionService, accepted_in
from fairlead.core.arrays import MAX_TASKS
from fairlead.core.commands import (
    Command,
    HoldJob,
    Kill,
    Origin,
    Past,
    ReleaseJob,
    Requeue,
    Scale,
    SetPriority,
    StopTasks,
    Submit,
)
from fairlead.core.documents import MAX_AFTER, MAX_PRIORITY, MIN_PRIORITY, ONE_CPU, check_amounts, parse_job
from fairlead.core.errors import Refused
from fairlead.core.intake.jobs import no_such_job
from fairlead.core.intake.lookup import is_owner
from fairlead.core.model import Job, JobSpec, JobState, after_of
from fairlead.core.ranges import Ranges
from fairlead.core.reader import MAX_COMPARED, NAME, Reader, nearest_name
from fairlead.core.resources import SECOND, parse_count, shown
from fairlead.core.state import Partition
from fairlead.core.why.never import may_never_run, never_runs
from fairlead.core.why.reasons import NoNodeYet, Reason
from fairlead.history.recorder import AttemptRow, JobRow
from fairlead.http.context import TOKEN_ENDED, InPartition, Request, Services, caller_fields, change, token_end
from fairlead.http.dispatch import serves, serves_command
from fairlead.http.responses import problem_of
from fairlead.http.scopes import costs_of, without_token
from fairlead.views.answers import by_id, job_answer, task_answers
from fairlead.views.explanation import explained, remedies_of, why_never_told, with_remedies
from fairlead.views.summaries import shown_state
from fairlead.views.why_answers import explained_answer, explanation
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire.unserved import Unserved
from fairlead.writer.inbox import Slot

MAX_BATCH = 10_000
MAX_CURSOR = 2**63 - 1
AT_ONCE = 500
"""Jobs of a batch in the inbox at a time, so that one caller does not fill the inbox."""
READ_AT_ONCE = 50
"""Jobs of a batch that are parsed before other requests get a turn."""
PAGE_BYTES = 4 * 2**20
"""Size of a page of jobs or tasks, in bytes, at which it ends before its limit."""
SCANNED = 10_000
"""Jobs that are filtered by a quick search before other requests get a turn."""
SEARCHING = 1.0
"""Seconds for a dry run or for the search for remedies."""
MAX_EXPLAINED = 200
"""Largest number of jobs that one request explains."""
READ_SECONDS = 0.005
"""Seconds for which a request may block the writer at a time."""


# -- submitting --------------------------------------------------------------------------------------------------


SpecCache = dict[bytes, JobSpec]
"""JSON of a document → its specification, so that equal documents of a request are parsed once."""


def submission(
    request: Request,
    document: object,
    key: str,
    cache: SpecCache,
    field: str = "",
    origin: Origin | msgspec.UnsetType = msgspec.UNSET,
    past: Past = (),
) -> Submit:
    """Return the command that submits a document. The job's user is the caller; only operators may name another."""
    values: dict[str, Any] = dict(Reader(document, field, "a job").doc)
    chosen = values.pop("id", None)
    if chosen is not None and not isinstance(chosen, str):
        raise Refused(f"{field}.id" if field else "id", f"{shown(chosen)} is not text; write it in quotes")
    values.setdefault("user", request.caller.user)
    if request.caller.queue:
        values.setdefault("queue", request.caller.queue)
    content = msgspec.json.encode(values)
    spec = cache.get(content)
    if spec is None:
        spec = cache[content] = parse_job(values, field, ONE_CPU)
        for at, stage in enumerate(spec.stages):
            check_amounts(stage.resources, f"{field}.stages[{at}].resources" if field else f"stages[{at}].resources")
    spec = without_token(request.caller, spec)
    _check_mail(spec.notify, request.services.bounds.mail_domains, f"{field}.notify" if field else "notify")
    return Submit(spec=spec, id=chosen or "", origin=origin, past=past, **caller_fields(request, key))


def _check_mail(targets: Iterable[str], domains: Sequence[str], field: str) -> None:
    for target in targets if domains else ():
        domain = target.rpartition("@")[2].lower()
        if target.startswith("mailto:") and domain not in domains:
            known = ", ".join(domains)
            raise Refused(field, f"mail to {shown(domain)} is not allowed here; use an address of {known}", "forbidden")


async def past_of(request: Request, served: PartitionService, documents: Iterable[object]) -> Past:
    """Return the jobs in `after` of these documents that only the history knows, with their states."""
    past: dict[str, JobState] = {}
    for document in documents:
        names = document.get("after") if isinstance(document, dict) else None
        for text in names[:MAX_AFTER] if isinstance(names, list) else ():
            name = text.partition(":")[0] if isinstance(text, str) else ""
            if NAME.fullmatch(name) and name not in past and name not in served.partition.jobs:
                row = await past_job(request, served.name, name)
                if row is not None:
                    past[name] = cast(JobState, row.state)
    return tuple(past.items())


async def check_snapshots(request: Request, served: PartitionService, documents: Iterable[object]) -> None:
    """Refuse documents with snapshots that are not stored."""
    outputs = request.services.outputs
    for at, document in enumerate(documents):
        stages = document.get("stages") if isinstance(document, dict) else None
        for number, stage in enumerate(stages if isinstance(stages, list) else ()):
            digest = stage.get("snapshot") if isinstance(stage, dict) else None
            if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest) or outputs is None:
                continue  # a wrong one is refused with the document
            if await asyncio.to_thread(outputs.content_size, served.name, request.caller.user, digest) is None:
                prefix = f"jobs[{at}]." if at else ""
                raise Refused(
                    f"{prefix}stages[{number}].snapshot", f"{digest[:16]}… is not stored; store it first", "missing"
                )


@serves(op.Submit)
async def submit(request: Request, asked: op.Submit) -> wire.Submitted:
    served = request.leader(asked)
    origin = Origin(served.now, request.header("traceparent"))
    past = await past_of(request, served, [asked.document])
    await check_snapshots(request, served, [asked.document])
    command = submission(request, asked.document, asked.key, {}, origin=origin, past=past)
    return await submitted(request, served, command)


async def submitted(request: Request, served: PartitionService, command: Submit) -> wire.Submitted:
    """Carry out a submission, and return the answer to the request."""
    async with charged(request, command.spec):
        accepted = await accepted_in(_offered(request.services, served, command))
    warnings = await why_never(served, [accepted.job])
    warning = accepted.note or warnings.get(accepted.job, "")
    return wire.Submitted(job=accepted.job, partition=served.name, warning=warning)


@asynccontextmanager
async def charged(request: Request, *specs: JobSpec) -> AsyncIterator[None]:
    """Charge the budget of the caller's token, if it has one, for jobs that are submitted meanwhile.

    The charge is the most that they may use. It is given back if they are refused.
    """
    caller, services = request.caller, request.services
    costs = costs_of(caller, specs) if caller.budget else {}
    if not costs:
        yield
        return
    await services.threads.run(services.tokens.charge, caller, costs)
    try:
        yield
    except Refused:
        back = {name: -cost for name, cost in costs.items()}
        await services.threads.run(services.tokens.charge, caller, back)
        raise


@serves(op.SubmitMany)
async def submit_many(request: Request, asked: op.SubmitMany) -> wire.Batch:
    documents = _documents(asked.document)
    served = request.leader(asked)
    origin = Origin(served.now, request.header("traceparent"))
    past = await past_of(request, served, documents)
    cache: SpecCache = {}

    def offer(document: object, at: int) -> Slot | wire.BatchItem:
        """Put a job into the inbox. Return the slot of its answer, or the answer if it is refused at once."""
        key = f"{asked.key}#{at}" if asked.key else ""
        try:
            command = submission(request, document, key, cache, f"jobs[{at}]", origin, past)
            return _offered(request.services, served, command)
        except (Refused, Unserved) as refusal:
            return wire.BatchItem(problem=problem_of(refusal))

    items: list[wire.BatchItem] = []
    pending: deque[Slot | wire.BatchItem] = deque()

    async def settle(number: int) -> None:
        """Wait for the answers to the first jobs that wait."""
        entries = [pending.popleft() for _ in range(number)]
        answers = [entry if isinstance(entry, wire.BatchItem) else await _item(entry) for entry in entries]
        warnings = await why_never(served, [item.job for item in answers if item.job])
        items.extend(
            msgspec.structs.replace(item, warning=item.warning or warnings.get(item.job, "")) for item in answers
        )

    for at, document in enumerate(documents):
        pending.append(offer(document, at))
        if at % READ_AT_ONCE == READ_AT_ONCE - 1:
            await asyncio.sleep(0)
        if len(pending) == AT_ONCE:
            await settle(AT_ONCE // 2)  # the writer has the other half meanwhile
    await settle(len(pending))
    return wire.Batch(items=items)


def _documents(batch: object) -> list[object]:
    """Return the documents of a batch of jobs."""
    read = Reader(batch, "", "a batch")
    documents = read.get("jobs")
    read.close()
    if not isinstance(documents, list) or not documents:
        raise Refused("jobs", "a batch needs at least one job; write a list of jobs")
    if len(documents) > MAX_BATCH:
        raise Refused("jobs", f"{len(documents)} jobs are too many; send at most {MAX_BATCH} at once")
    for at, document in enumerate(documents):
        if not isinstance(document, dict):
            Reader(document, f"jobs[{at}]", "a job")  # refuses it
    return documents


def _offered(services: Services, served: PartitionService, command: Submit) -> Slot:
    """Check a submission, put it into the inbox, and return the slot for its answer."""
    size = checked(services, served, command)
    slot = served.offer(command)
    if size is not None:
        services.quotas.offered(served.name, command.spec.user, size, slot)
    return slot


def checked(services: Services, served: PartitionService, command: Submit) -> int | None:
    """Refuse a job that uses secrets or jobs of other users, or exceeds a quota. Return its size if it has a quota."""
    services.secrets.check(command.spec, command.user)
    if command.operator:
        return None
    check_visible(served, command, command.spec.after)
    return services.quotas.check(served.name, served.partition.settings, command.spec)


def check_visible(served: PartitionService, command: Command, after: tuple[str, ...], own: Container[str] = ()) -> None:
    """Refuse dependencies on jobs of other users as if there were no such jobs. `own` are names of other jobs."""
    jobs = served.partition.jobs
    for at, (name, _) in enumerate(after_of(after)):
        # The owner of a job never changes, so it can be read without waiting for the writer.
        earlier = jobs.get(name)
        if name not in own and earlier is not None and not is_owner(command, earlier):
            raise no_such_job(f"after[{at}]", name)


async def why_never(served: PartitionService, job_ids: list[str]) -> dict[str, str]:
    """Return, by job id, why jobs can never run as the cluster is now, or that there is no node yet."""
    state = served.partition
    # Mostly the writer is not needed, because counts of nodes are cached with the shapes of tasks.
    jobs: list[Job] = []
    running: set[bytes] = set()
    """Specifications of jobs that can run."""
    for job in map(state.jobs.get, job_ids):
        if job is None or job.packed in running:
            continue
        if may_never_run(state, job):
            jobs.append(job)
        else:
            running.add(job.packed)

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
        accepted = await accepted_in(slot)
        return wire.BatchItem(job=accepted.job, warning=accepted.note)
    except (Refused, Unserved) as refusal:
        return wire.BatchItem(problem=problem_of(refusal))


# -- reading -----------------------------------------------------------------------------------------------------


def find(partition: Partition, request: Request, job_id: str) -> Job:
    """Return a job. Refuse it as missing if the caller may not see it."""
    job = partition.jobs.get(job_id)
    if job is None or not request.sees(job):
        raise missing(job_id, _near_job(partition, request, job_id))
    return job


def missing(job_id: str, near: str = "") -> Refused:
    problem = f"there is no job {shown(job_id)}{near}; `fairlead ps` lists those that are known"
    return Refused("job", problem, "missing")


def _near_job(partition: Partition, request: Request, wrong: str) -> str:
    """Return ` (did you mean …?)` with the newest visible job whose name is similar; empty if there is none."""
    named: dict[str, str] = {}
    for job in islice(reversed(partition.jobs.values()), MAX_COMPARED):
        if request.sees(job):
            named.setdefault(job.spec.name, job.id)
    near = nearest_name(wrong, named)
    return f" (did you mean job {named[near]}, {near}?)" if near else ""


@serves(op.Job)
async def job(request: Request, asked: op.Job) -> wire.Job:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(asked.wait, request.services.bounds.poll_seconds)
    while True:
        served: PartitionService | FollowedPartition = await request.reader(asked)
        if loop.time() < deadline and isinstance(served, FollowedPartition):
            served = request.leader(asked)  # refuses: only the leader is notified of changed jobs
        moved: asyncio.Future[None] | None = None

        def look(state: Partition, served: PartitionService | FollowedPartition = served) -> wire.Job:
            nonlocal moved
            job = find(state, request, asked.job)
            if (not job.over or job.allocations) and isinstance(served, PartitionService) and loop.time() < deadline:
                moved = served.when_moved(job)
            return job_answer(state, job, served.reasons, request.sees, asked.tasks)

        try:
            answer = await served.read(look)
        except Refused as refusal:
            return await _forgotten(request, served.name, asked.job, refusal)
        if moved is None:
            return answer
        with token_end(request, request.services.polls) as over:
            ended = asyncio.ensure_future(over.wait())
            try:
                rest = max(0.0, deadline - loop.time())
                await asyncio.wait((moved, ended), timeout=rest, return_when=asyncio.FIRST_COMPLETED)
            finally:
                ended.cancel()
            if over.is_set():
                raise Unserved("unauthenticated", f"{TOKEN_ENDED}; send another one")
        if not moved.done():
            return answer


async def _forgotten(request: Request, partition: str, job_id: str, refusal: Refused) -> wire.Job:
    """Return a job from the history. If it is not there, raise `refusal`, which says that there is no such job."""
    row = await past_job(request, partition, job_id)
    if row is None:
        raise refusal
    known = with_seconds(row, priority=0, after=[], waiting_since=None, stages=[], forgotten=True)
    return msgspec.convert(known, wire.Job)


async def past_job(request: Request, partition: str, job_id: str) -> JobRow | None:
    """Return a job of the history; None if there is none that the caller may see."""
    row = await request.services.threads.run(request.services.records.job, partition, job_id)
    return row if row is not None and (request.caller.operator or row.user == request.caller.user) else None


def with_seconds(row: JobRow | AttemptRow, **more: object) -> dict[str, Any]:
    """Return the fields of a row of the history, and more fields, with times in seconds."""
    fields = msgspec.structs.asdict(row) | more
    times = {name: fields[name] for name in ("submitted", "started", "ended") if fields.get(name) is not None}
    return fields | {name: time / SECOND for name, time in times.items()}


@serves(op.Jobs)
async def jobs(request: Request, asked: op.Jobs) -> wire.JobPage:
    served = await request.reader(asked)
    before = number_of(asked.cursor)
    wanted = _filter(request, asked)
    matches: list[wire.Job] = []
    size = 0

    def full() -> bool:
        return len(matches) > asked.limit or size > PAGE_BYTES

    def look(state: Partition, part: Iterator[Job]) -> bool:
        """Add matching jobs to the page for at most `READ_SECONDS` seconds. Return True if there may be more."""
        nonlocal size
        until = monotonic() + READ_SECONDS
        for job in part:
            if state.jobs.get(job.id) is job and wanted(job):
                matches.append(job_answer(state, job, served.reasons, request.sees, asked.tasks))
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
    owner = "" if request.caller.operator or administered else request.caller.user
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
    """Yield the jobs with numbers below `before`, in slices, newest first. `jobs` is sorted by number."""
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


def check_state(state: str, states: tuple[str, ...]) -> None:
    """Refuse the state of a filter if it is not one of these."""
    if state not in states:
        raise Refused("state", f"{shown(state)} is not one of {', '.join(states)}; write one of them")


def read_label(text: str) -> tuple[str, str] | None:
    """Return the label of a filter with its value; None for an empty text."""
    key, equals, value = text.partition("=")
    if text and not equals:
        raise Refused("label", f"{shown(text)} is not a label with its value; write key=value")
    return (key, value) if text else None


def _filter(request: Request, asked: op.Jobs) -> Callable[[Job], bool]:
    for state in asked.state:
        check_state(state, STATES)
    label = read_label(asked.label)

    def is_in_queue(job: Job) -> bool:
        return not asked.queue or f"{job.queue.path}.".startswith(f"{asked.queue}.")

    def is_of_user(job: Job) -> bool:
        return asked.user in ("", job.user) and (asked.search in job.user or asked.search in job.spec.name)

    def has_name_and_label(job: Job) -> bool:
        if not asked.name and label is None:
            return True
        spec = job.spec
        return asked.name in ("", spec.name) and (label is None or label in spec.labels)

    ids = frozenset(asked.id)

    def wanted(job: Job) -> bool:
        if ids and job.id not in ids:
            return False
        has_state = not asked.state or shown_state(job) in asked.state
        return has_state and is_in_queue(job) and is_of_user(job) and has_name_and_label(job) and request.sees(job)

    return wanted


@serves(op.Tasks)
async def tasks(request: Request, asked: op.Tasks) -> wire.TaskPage:
    after = number_of(asked.cursor) or 0

    def look(state: Partition) -> wire.TaskPage:
        job = find(state, request, asked.job)
        stages = [candidate for candidate in job.stages if asked.stage in ("", candidate.name)]
        if asked.stage and not stages:
            names = ", ".join(candidate.name for candidate in job.stages[:20])
            raise Refused("stage", f"job {job.id} has no stage {shown(asked.stage)}; it has {names}", "missing")
        return task_answers(state, stages, after, asked.limit, PAGE_BYTES)

    return await (await request.reader(asked)).read(look)


@serves(op.Explain)
async def explain(request: Request, asked: op.Explain) -> wire.Explanation:
    served, sees = request.leader(asked), request.sees
    answer = await served.read(
        lambda state: explanation(state, find(state, request, asked.job), served.writer.reasons, served.now, sees)
    )
    if not asked.remedies or not answer.waiting:
        return answer

    def search(state: Partition) -> bytes:
        expired = deadline(SEARCHING)
        job, seen, now = find(state, request, asked.job), by_id(state, sees), served.now
        view = explained(state, job, served.writer.reasons, now, seen)
        return msgspec.json.encode(explained_answer(with_remedies(view, remedies_of(state, job, now, expired), seen)))

    found = await served.on_copy(search, SEARCHING)
    return msgspec.json.decode(found, type=wire.Explanation) if found else answer


@serves(op.Sentences)
async def sentences(request: Request, asked: op.Sentences) -> wire.Sentences:
    names = iter(read_jobs(asked.document, MAX_EXPLAINED))
    served = request.leader(asked)
    found: dict[str, str] = {}

    def look(state: Partition) -> bool:
        """Explain jobs for at most `READ_SECONDS` seconds. Return True if there may be more."""
        until = monotonic() + READ_SECONDS
        for name in names:
            job = state.jobs.get(name)
            if job is not None and request.sees(job):
                found[name] = explanation(state, job, served.writer.reasons, served.now, request.sees).sentence
            if monotonic() > until:
                return True
        return False

    while await served.read(look):
        await asyncio.sleep(0)
    return wire.Sentences(sentences=found)


def read_jobs(document: object, most: int) -> list[str]:
    """Return the ids of the jobs that a question names, each once."""
    read = Reader(document, "", "a question")
    names = read.texts("jobs", most=most)
    read.close()
    if not names:
        raise Refused("jobs", "missing; name at least one job")
    return list(dict.fromkeys(names))


def deadline(seconds: float) -> Callable[[], bool]:
    """Return a function that tells whether `seconds` have passed since this call."""
    end = monotonic() + seconds
    return lambda: monotonic() > end


# -- changing ----------------------------------------------------------------------------------------------------


async def change_job(request: Request, asked: InPartition, command: Any) -> wire.Done:
    """Execute a command about a job. Answer 404 if the job does not exist or the caller may not change it."""
    try:
        return await change(request, asked, command, "job")
    except Refused as refusal:
        refused = as_missing(command.job, refusal)
        if refused.code == "missing":
            await request.leader(asked).read(lambda state: find(state, request, command.job))  # names a near one
        raise refused from None


def as_missing(job_id: str, refusal: Refused) -> Refused:
    """Return the refusal of a command about a job: as missing if the caller may not change the job."""
    hidden = refusal.code == "forbidden" and refusal.field == "user"
    absent = refusal.code in ("unknown", "missing") and refusal.field == "job"
    return missing(job_id) if hidden or absent else refusal


for _operation, _command in ((op.Kill, Kill), (op.Hold, HoldJob), (op.Release, ReleaseJob), (op.Requeue, Requeue)):
    serves_command(_operation, _command, change_job)


@serves(op.StopTasks)
async def stop_tasks(request: Request, asked: op.StopTasks) -> wire.Done:
    read = Reader(asked.document, "", "the tasks")
    given = read.get("indices")
    if not isinstance(given, list) or not given or len(given) > wire.MAX_STOPPED:
        raise Refused(
            "indices", f"they are not a list of 1 to {wire.MAX_STOPPED} indices of tasks; write a list such as [1, 3]"
        )
    indices = [parse_count(index, f"indices[{at}]", 0, MAX_TASKS - 1) for at, index in enumerate(given)]
    stage = read.name("stage", "")
    read.close()
    command = StopTasks(
        job=asked.job,
        stage=stage or await _only_stage(request, asked),
        indices=Ranges.from_indices(indices).flat(),
        action=asked.action,
    )
    return await change_job(request, asked, command)


@serves(op.Scale)
async def scale(request: Request, asked: op.Scale) -> wire.Done:
    read = Reader(asked.document, "", "a scaling")
    count, stage = read.count("count"), read.name("stage", "")
    read.close()
    stage = stage or await _only_stage(request, asked)
    return await change_job(request, asked, Scale(job=asked.job, stage=stage, count=count))


async def _only_stage(request: Request, asked: op.StopTasks | op.Scale) -> str:
    names = await request.leader(asked).read(
        lambda state: [stage.name for stage in find(state, request, asked.job).stages]
    )
    if len(names) != 1:
        raise Refused("stage", f"job {asked.job} has {len(names)} stages; name one of {', '.join(names[:20])}")
    return names[0]


@serves(op.SetPriority)
async def set_priority(request: Request, asked: op.SetPriority) -> wire.Done:
    return await change_job(request, asked, SetPriority(job=asked.job, priority=read_priority(asked.document)))


def read_priority(document: object) -> int:
    """Return the priority in a document."""
    read = Reader(document, "", "a priority")
    priority = read.count("priority", low=MIN_PRIORITY, high=MAX_PRIORITY)
    read.close()
    return priority
