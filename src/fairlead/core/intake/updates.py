"""Intake of `UpdateJob`: a job that waits gets another queue, request, priority, dependencies, throttle or labels."""

from __future__ import annotations

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from fairlead.core.changes import JobPrioritised, JobUpdated, Unblocked
from fairlead.core.commands import Accepted, UpdateJob
from fairlead.core.documents import MAX_LABELS
from fairlead.core.errors import Refused
from fairlead.core.followers import give_up, settle
from fairlead.core.intake.command_table import handles
from fairlead.core.intake.jobs import check_after, check_resources, find_leaf, need_own
from fairlead.core.intake.lookup import (
    find_job,
    find_stage,
    need_grace,
    need_live,
    need_owner,
    need_priority,
    need_submit,
)
from fairlead.core.model import Amounts, Ask, Condition, Job, JobSpec, Stage, StageSpec, after_of
from fairlead.core.outcomes import ask_at
from fairlead.core.plan import Plan
from fairlead.core.resources import format_duration, format_quantity
from fairlead.core.state import Partition


@handles(UpdateJob)
def update(plan: Plan, command: UpdateJob) -> Accepted:
    partition = plan.partition
    job = find_job(partition, command.job)
    need_owner(command, job, "update")
    need_live(job, " and cannot be changed; submit it again")
    need_own(job, "change it")
    spec = job.spec
    changed: list[str] = []
    spec = _with_queue(partition, job, spec, command, changed)
    spec, never = _with_after(partition, job, spec, command, changed)
    wants = bool(changed)
    stage = _stage(command, job)
    if stage is not None:
        stages = list(spec.stages)
        stages[stage.position] = _with_request(partition, stages[stage.position], command, changed)
        wants = wants or _moves(spec.stages[stage.position], stages[stage.position])
        spec = replace(spec, stages=tuple(stages))
    if wants:
        _need_waiting(job, changed)
    spec = _with_labels(spec, command, changed)
    if changed:
        asks = {ask.seq: ask for each in job.stages for ask in each.asks if ask is not None}
        moved = spec.queue != job.queue.path
        plan.do(JobUpdated(job.id, spec, tuple(changed)))
        _ask_again(plan, job, asks, moved)
        if command.after is not None:
            _follow_others(plan, job, never)
    _prioritise(plan, job, command.priority, command, changed)
    note = f"it can never start: {job.reason}" if job.over else ", ".join(changed) or "no change"
    return Accepted(job=job.id, note=note)


def _prioritise(plan: Plan, job: Job, priority: int | None, command: UpdateJob, changed: list[str]) -> None:
    if priority is None or priority == job.priority or job.over:
        return
    if priority > job.priority:
        need_priority(command, job.queue, priority)
    plan.do(JobPrioritised(job.id, priority))
    changed.append(f"priority {priority}")


def _with_queue(partition: Partition, job: Job, spec: JobSpec, command: UpdateJob, changed: list[str]) -> JobSpec:
    if command.queue is None or command.queue == job.queue.path:
        return spec
    queue = find_leaf(partition, command.queue)
    need_submit(command, queue)
    need_priority(command, queue, job.priority if command.priority is None else command.priority)
    need_grace(command, partition, queue, spec.stages)
    changed.append(f"queue {queue.path}")
    return replace(spec, queue=queue.path, matched=None)


def _stage(command: UpdateJob, job: Job) -> Stage | None:
    """Return the stage that a command changes; None if it changes no stage."""
    values = (command.time_limit, command.estimate)
    if not command.resources and command.throttle is None and all(isinstance(value, UnsetType) for value in values):
        return None
    if command.stage:
        return find_stage(job, command.stage)
    if len(job.stages) > 1:
        names = ", ".join(stage.name for stage in job.stages[:20])
        raise Refused("stage", f"job {job.id} has {len(job.stages)} stages; name one of {names}")
    return job.stages[0]


def _with_request(partition: Partition, spec: StageSpec, command: UpdateJob, changed: list[str]) -> StageSpec:
    wanted = dict(spec.resources) | dict(command.resources)
    resources: Amounts = tuple(sorted((name, amount) for name, amount in wanted.items() if amount))
    if resources != spec.resources:
        told = [f"{name} {format_quantity(name, amount)}" for name, amount in command.resources]
        changed.append(", ".join(told))
        spec = replace(spec, resources=resources)
        check_resources(partition, spec, "stage")
    for name, value in (("time_limit", command.time_limit), ("estimate", command.estimate)):
        if value is not UNSET and value != getattr(spec, name):
            assert not isinstance(value, UnsetType)
            changed.append(f"{name} {'none' if value is None else format_duration(value)}")
            spec = replace(spec, **{name: value})
    throttle = command.throttle
    if throttle is not None and throttle != spec.throttle:
        together = spec.min or spec.count
        if 0 < throttle < together:
            raise Refused("throttle", f"{throttle} of {together} tasks that start together cannot run alone")
        changed.append(f"throttle {throttle or 'none'}")
        spec = replace(spec, throttle=throttle)
    return spec


def _moves(before: StageSpec, after: StageSpec) -> bool:
    """True if the tasks of a stage would start under other conditions."""
    return replace(before, throttle=0) != replace(after, throttle=0)


def _need_waiting(job: Job, changed: list[str]) -> None:
    if job.allocations:
        raise Refused(
            "job",
            f"job {job.id} has running tasks, and {changed[0]} needs a job that waits; hold it until they have ended",
            "conflict",
        )


def _with_labels(spec: JobSpec, command: UpdateJob, changed: list[str]) -> JobSpec:
    labels = dict(spec.labels) | dict(command.labels)
    for name in command.unlabel:
        labels.pop(name, None)
    after = tuple(sorted(labels.items()))
    if len(after) > MAX_LABELS:
        raise Refused("labels", f"the job would have {len(after)} labels; at most {MAX_LABELS} are allowed")
    if after == spec.labels:
        return spec
    changed += [f"label {name}={value}" for name, value in command.labels]
    changed += [f"no label {name}" for name in command.unlabel]
    return replace(spec, labels=after)


def _with_after(
    partition: Partition, job: Job, spec: JobSpec, command: UpdateJob, changed: list[str]
) -> tuple[JobSpec, tuple[Condition, str] | None]:
    """Return the job with other dependencies, and why they can never be met."""
    if command.after is None or command.after == spec.after:
        return spec, None
    spec = replace(spec, after=command.after)
    if spec.singleton:
        spec = _with_namesakes(partition, job, spec)
    spec, never = check_after(partition, job.id, spec, command.past)
    for at, (name, when) in enumerate(after_of(spec.after)):
        if when == "each" and not any(before == (name, when) for before in job.after):
            raise Refused(
                f"after[{at}]", "tasks can follow those of another job only from the submission on; submit it again"
            )
        if _comes_after(partition, partition.jobs[name], job):
            raise Refused(f"after[{at}]", f"job {name} itself comes after job {job.id}; leave it out", "conflict")
    changed.append(f"after {', '.join(spec.after) or 'no job'}")
    return spec, never


def _with_namesakes(partition: Partition, job: Job, spec: JobSpec) -> JobSpec:
    """Return the new specification of a singleton with the earlier jobs of its name that it waits for."""
    named = {name for name, when in after_of(spec.after) if when in ("ok", "any")}
    waits_for = (name for name, when in job.after if when == "any" and name not in named and name in partition.jobs)
    earlier = [f"{name}:any" for name in waits_for if partition.jobs[name].owner == job.owner]
    return replace(spec, after=(*spec.after, *earlier))


def _comes_after(partition: Partition, later: Job, earlier: Job) -> bool:
    """True if a job waits for another one, directly or through other jobs."""
    seen = {later.id: later}
    waiting = [later]
    while waiting:
        for name, _ in waiting.pop().after:
            if name == earlier.id:
                return True
            before = partition.jobs.get(name)
            if before is not None and not before.over and name not in seen:
                seen[name] = before
                waiting.append(before)
    return False


def _ask_again(plan: Plan, job: Job, asks: dict[int, Ask], moved: bool) -> None:
    """Replace the asks that left their lanes, at the same place unless the queue is another one."""
    if plan.partition.unmet(job):
        return
    for ask in asks.values():
        if ask.stage.asks[ask.kind] is None:
            ask_at(plan, ask, front=0 if moved else ask.front)


def _follow_others(plan: Plan, job: Job, never: tuple[Condition, str] | None) -> None:
    if never is not None:
        give_up(plan, job, *never)
        return
    stage = job.stages[0]
    if stage.blocked and not any(when == "each" for _, when in job.after):
        plan.do(Unblocked(job.id, stage.position, stage.blocked))
    settle(plan, job)
