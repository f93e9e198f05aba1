"""Intake of commands for jobs: submit, scale, kill, hold, release, requeue, prioritise, and move or cancel asks."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from fairlead.core.arrays import MAX_TASKS, format_array
from fairlead.core.changes import (
    Asked,
    JobAdded,
    JobHeld,
    JobPrioritised,
    JobReleased,
    PendingEnded,
    Released,
    StageScaled,
    Unblocked,
)
from fairlead.core.commands import (
    Accepted,
    BringToFront,
    CancelAsk,
    Command,
    HoldJob,
    Kill,
    Past,
    ReleaseHold,
    ReleaseJob,
    Requeue,
    ResetLane,
    Scale,
    SetPriority,
    StopTasks,
    Submit,
)
from fairlead.core.config import leaves_text
from fairlead.core.documents import MAX_PRIORITY, MIN_PRIORITY
from fairlead.core.errors import Refused
from fairlead.core.followers import give_up, settle, why_never_met
from fairlead.core.holds.release import pause_after
from fairlead.core.intake.command_table import handles
from fairlead.core.intake.lookup import (
    find_job,
    find_queue,
    find_stage,
    need_grace,
    need_live,
    need_operator,
    need_owner,
    need_priority,
    need_submit,
    right_over,
    some,
    unknown,
)
from fairlead.core.lanes import lane_key
from fairlead.core.model import (
    NEW,
    OPERATOR,
    REPLACE,
    SCALE,
    Ask,
    Condition,
    Job,
    JobSpec,
    Queue,
    Stage,
    StageSpec,
    after_of,
)
from fairlead.core.outcomes import (
    add_ask,
    ask_for_job,
    end_pending,
    finish,
    finish_if_done,
    live_of,
    recall,
    requeue,
    restart,
    stop_some,
    stop_stage,
    to_tail,
)
from fairlead.core.plan import Plan
from fairlead.core.ranges import Ranges, check_flat, count, difference, indices
from fairlead.core.reader import check_name, suggestion
from fairlead.core.resources import BUILT_IN, parse_count, shown
from fairlead.core.state import Partition

NUMBER = re.compile(r"[0-9]+")


@handles(Submit)
def submit(plan: Plan, command: Submit) -> Accepted:
    spec = command.spec
    if not command.operator and command.user and spec.user != command.user:
        raise Refused("user", f"{command.user} cannot submit as {spec.user}; leave the field out", "forbidden")
    # Groups decide limits and access, so they come from the authenticated caller, not from the document.
    if not command.operator:
        spec = msgspec.structs.replace(spec, groups=command.groups)
    return add_job(plan, command, spec, command.id, past=command.past)


def add_job(
    plan: Plan, command: Command, spec: JobSpec, wanted_id: str, field: str = "id", past: Past = ()
) -> Accepted:
    partition = plan.partition
    number = partition.counters.job
    job_id = _check_id(partition, wanted_id, field) if wanted_id else str(number)
    spec = route(partition, spec)
    queue = find_leaf(partition, spec.queue)
    need_submit(command, queue)
    need_priority(command, queue, spec.priority)
    need_grace(command, partition, queue, spec.stages)
    for at, stage in enumerate(spec.stages):
        check_resources(partition, stage, f"stages[{at}]")
    if spec.singleton:
        spec = _after_namesakes(partition, spec)
    spec, never = check_after(partition, job_id, spec, past)
    # Users share lanes unless some nodes are for named users only. Nodes that have not joined yet may be such nodes.
    if not spec.manager and (partition.nodes.restricted or not partition.nodes.rows or partition.pools):
        spec = msgspec.structs.replace(spec, shape_user=spec.user)
    plan.do(JobAdded(job_id, number, spec))
    job = partition.jobs[job_id]
    begin = spec.begin or 0
    if spec.hold or begin > plan.now:
        plan.do(JobHeld(job_id, _caller(command), right_over(command, job), 0 if spec.hold else begin))
    if never is not None:
        give_up(plan, job, *never)
    elif job.after:
        settle(plan, job)
    else:
        ask_for_job(plan, job)
    return Accepted(job=job_id, note=f"it can never start: {job.reason}" if job.over else "")


def find_leaf(partition: Partition, path: str) -> Queue:
    """Return the leaf queue of a path, or refuse if it does not accept jobs."""
    queue = partition.queues.get(path)
    if queue is None:
        leaves = [leaf.path for leaf in partition.leaves()]
        raise unknown("queue", "queue", path, leaves, f"name one of {leaves_text(partition.queues)}")
    if queue.children:
        below = leaves_text([name for name in partition.queues if name.startswith(f"{path}.")])
        raise Refused("queue", f"{path} has queues below it and takes no jobs; name one of {below}")
    for level in queue.line() if partition.derived.stopped_queues or partition.derived.draining_queues else ():
        if level.state != "active":
            raise Refused("queue", f"{level.path} is {level.state} and takes no new jobs; name another one", "conflict")
    return queue


def route(partition: Partition, spec: JobSpec) -> JobSpec:
    """Return the job with its queue: the queue that it names, that of the first matching requestor, or the default."""
    if not partition.queues:
        raise Refused("queue", "the partition is not configured yet and has none; ask again later", "unknown")
    if spec.queue:
        return spec
    requestor = partition.derived.requestors.find(spec.user)
    if requestor is not None:
        return msgspec.structs.replace(spec, queue=requestor.queue, matched=requestor.match)
    default = partition.queues.get("root.default")
    if default is not None and not default.children:
        return msgspec.structs.replace(spec, queue=default.path)
    leaves = [leaf.path for leaf in partition.leaves()]
    if len(leaves) > 1:
        raise Refused(
            "queue",
            f"missing, and no requestor pattern matches user {spec.user}; name one of {leaves_text(partition.queues)}",
        )
    return msgspec.structs.replace(spec, queue=leaves[0])


def _check_id(partition: Partition, job_id: str, field: str) -> str:
    check_name(job_id, field)
    if NUMBER.fullmatch(job_id):
        raise Refused(field, f"{shown(job_id)} is a number, and numbers are given by the scheduler; add a letter")
    if job_id in partition.jobs:
        raise Refused(field, f"there is already a job {job_id}; choose another id", "conflict")
    return job_id


def check_resources(partition: Partition, stage: StageSpec, field: str) -> None:
    for name, _ in stage.resources:
        if name not in BUILT_IN and name not in (offered := partition.known_resources()):
            raise Refused(
                f"{field}.resources.{name}",
                f"no node or pool offers it{suggestion(name, offered)}; known are {some(offered)}",
                "unknown",
            )


def no_such_job(field: str, name: str) -> Refused:
    """Return the error for a job in `after` that does not exist. A job that the caller may not see gets the same."""
    return Refused(field, f"there is no job {shown(name)} in this partition; name one that is known", "unknown")


MAX_NAMESAKES = 1_000


def _after_namesakes(partition: Partition, spec: JobSpec) -> JobSpec:
    """Return the job with all unfinished jobs of its user and name in `after`."""
    # A packed specification begins with the name and the user, so that few of a million jobs are unpacked.
    start = msgspec.msgpack.encode((spec.name, spec.user))[1:]
    named = {name for name, when in after_of(spec.after) if when in ("ok", "any")}
    earlier = [
        f"{job.id}:any"
        for job in partition.jobs.values()
        if not (job.over and not job.allocations)
        and job.packed.find(start, 0, len(start) + 8) > 0
        and job.owner == (spec.user, spec.name)
        and job.id not in named
    ]
    if len(earlier) > MAX_NAMESAKES:
        raise Refused(
            "singleton",
            f"{len(earlier)} jobs of {spec.user} with the name {spec.name} have not ended, and it can wait for "
            f"{MAX_NAMESAKES}; submit it when some have ended, or with another name",
            "conflict",
        )
    return msgspec.structs.replace(spec, after=(*spec.after, *earlier))


def check_after(
    partition: Partition, job_id: str, spec: JobSpec, past: Past
) -> tuple[JobSpec, tuple[Condition, str] | None]:
    """Return the job without dependencies on forgotten jobs, and one of these that can never be met, with the reason.

    A dependency on a job that is over means the same as on one that ends later.
    """
    forgotten = dict(past)
    kept: list[str] = []
    never: tuple[Condition, str] | None = None
    for at, (name, when) in enumerate(after_of(spec.after)):
        field = f"after[{at}]"
        if name == job_id:
            raise Refused(field, "a job cannot come after itself; leave it out")
        before = partition.jobs.get(name)
        if before is not None:
            kept.append(spec.after[at])
            if when == "each":
                _check_each(spec, before, field)
            continue
        state = forgotten.get(name)
        if state is None:
            raise no_such_job(field, name)
        if when == "each":
            raise Refused(field, f"job {name} ended too long ago to follow its tasks; leave :each out", "conflict")
        problem = why_never_met(name, state, when, started=True)
        if problem and never is None:
            never = when, problem
    return msgspec.structs.replace(spec, after=tuple(kept)), never


def _check_each(spec: JobSpec, before: Job, field: str) -> None:
    """Refuse a job whose tasks cannot follow the tasks of another job one by one."""

    def refuse(problem: str) -> Refused:
        return Refused(field, f"{problem}; leave :each out to wait for the whole job", "conflict")

    if len(spec.stages) != 1 or spec.stages[0].min != 1:
        raise refuse("only the tasks of an array can follow those of another job")
    if len(before.stages) != 1 or before.stages[0].terms.min != 1 or before.manager:
        raise refuse(f"job {before.id} is no array, so its tasks cannot be followed one by one")
    stage, followed = spec.stages[0], before.stages[0].tasks
    missing = difference(stage.indices or (0, stage.count), followed)
    if missing:
        raise refuse(f"job {before.id} has no task {missing[0]}")


# -- running jobs ------------------------------------------------------------------------------------------------


@handles(Scale)
def scale(plan: Plan, command: Scale) -> Accepted:
    job = find_job(plan.partition, command.job)
    need_owner(command, job, "scale")
    stage = find_stage(job, command.stage)
    count = parse_count(command.count, "count", 0, MAX_TASKS)
    need_live(job, " and cannot be scaled; submit it again")
    need_own(job, "scale it")
    if count == stage.count:
        plan.note("asked for again")
        return Accepted(note="no change")
    if stage.spec.indices or stage.spec.parameters:
        what = "parameters of its own" if stage.spec.parameters else "indices of its own"
        raise Refused("count", f"the array has {what} and cannot be scaled; submit another job", "conflict")
    if any(when == "each" for _, when in job.after):
        raise Refused("count", "its tasks follow those of another job; submit another job", "conflict")
    rescale(plan, stage, count)
    return Accepted()


def rescale(plan: Plan, stage: Stage, count: int) -> None:
    """Set the number of tasks of a stage. Added tasks are of kind scale if the stage has started, otherwise new."""
    kind = SCALE if stage.started else NEW
    grows = count > stage.count
    if not grows:
        stop_stage(plan, stage, "scale", count)
    plan.do(StageScaled(stage.job.id, stage.position, count, kind))
    # Added tasks get a new place in the lane; after a scale-down the ask keeps its place.
    if grows and not plan.partition.unmet(stage.job):
        add_ask(plan, stage, kind, new_place=True)
    finish_if_done(plan, stage.job)


@handles(Kill)
def kill(plan: Plan, command: Kill) -> Accepted:
    job = find_job(plan.partition, command.job)
    need_owner(command, job, "kill")
    if job.over:
        return Accepted(job=job.id, note=f"it had already {job.state}" if job.state != "killed" else "no change")
    finish(plan, job, "killed", f"killed by {_caller(command)}")
    return Accepted(job=job.id)


@handles(HoldJob)
def hold(plan: Plan, command: HoldJob) -> Accepted:
    """Hold a job back, and recall its chained tasks. A later phase, `release_obsolete`, releases its held nodes."""
    job = find_job(plan.partition, command.job)
    need_owner(command, job, "hold")
    need_live(job, ", so there is nothing to hold back; leave it")
    level = right_over(command, job)
    if job.held_by is not None and job.held_by.level >= level and not job.held_by.until:
        return Accepted(job=job.id, note=f"it is already held by {job.held_by.user}")
    plan.do(JobHeld(job.id, _caller(command), level))
    for stage in job.stages:
        recall(plan, live_of(stage))
    return Accepted(job=job.id)


@handles(ReleaseJob)
def release(plan: Plan, command: ReleaseJob) -> Accepted:
    """Release a held job. Its asks keep their positions; the time on hold does not count as waiting."""
    job = find_job(plan.partition, command.job)
    need_owner(command, job, "release")
    held = job.held_by
    if held is None or job.over:
        return Accepted(job=job.id, note="it is not held")
    if right_over(command, job) < held.level:
        by = "an operator" if held.level == OPERATOR else f"an administrator of {job.queue.path}"
        raise Refused("job", f"held by {held.user}, {by}, and only {by} can release it; ask one", "forbidden")
    plan.do(JobReleased(job.id, _caller(command)))
    for ask in {ask.seq: ask for stage in job.stages for ask in _asks(stage)}.values():
        _replace(plan, ask, waiting_since=plan.now - max(0, held.since - ask.waiting_since))
    return Accepted(job=job.id)


@handles(Requeue)
def requeue_job(plan: Plan, command: Requeue) -> Accepted:
    job = find_job(plan.partition, command.job)
    need_owner(command, job, "requeue")
    need_live(job, " and cannot be requeued; submit it again")
    if not requeue(plan, job, _caller(command)):
        return Accepted(job=job.id, note="none of its tasks run")
    plan.note("jobs requeued")
    return Accepted(job=job.id)


@handles(StopTasks)
def stop_tasks(plan: Plan, command: StopTasks) -> Accepted:
    """Stop some tasks of a job. A gang that needs them starts again whole. A kill of a part of a gang is refused."""
    job = find_job(plan.partition, command.job)
    need_owner(command, job, f"{command.action} tasks of")
    stage = find_stage(job, command.stage)
    block = _check_tasks(stage, command.indices)
    need_live(job, ", and its tasks have ended; submit it again")
    need_own(job, "stop its tasks")
    if command.action == "kill":
        return _kill_tasks(plan, command, stage, block)
    live = [entry for entry in live_of(stage) if entry.state != "stopping" and not entry.slots]
    if not any(index in block for entry in live for index in indices(entry.indices)):
        return Accepted(job=job.id, note="none of these tasks run")
    if stage.strict and (command.action == "requeue" or stage.on_loss == "restart"):
        tasks = sum(member.running() for member in stage.gang())
        restart(plan, stage, "requeue", _caller(command))
        return Accepted(job=job.id, note=f"a gang runs whole: all {tasks} of its tasks stop and start again together")
    stopped = stop_some(plan, stage, block, command.action, _caller(command))
    return Accepted(job=job.id, note=_left_out(stopped, block, "did not run"))


def _kill_tasks(plan: Plan, command: StopTasks, stage: Stage, block: Ranges) -> Accepted:
    job = stage.job
    if stage.strict or stage.whole(NEW):
        raise Refused(
            "indices",
            f"{stage.name} of job {job.id} is a gang, which cannot run without one of its tasks; "
            "kill the job, or replace the task",
            "conflict",
        )
    stopped = stop_some(plan, stage, block, "kill", _caller(command))
    for kind, waiting in enumerate(stage.pending):
        chosen = Ranges.from_indices(index for index in block if waiting is not None and index in waiting).flat()
        if chosen:
            plan.do(PendingEnded(job.id, stage.position, kind, chosen, "killed"))
            stopped += count(chosen)
    blocked = block.overlap(stage.blocked)
    if blocked:
        plan.do(Unblocked(job.id, stage.position, blocked, "killed"))
        stopped += count(blocked)
    finish_if_done(plan, job)
    return Accepted(job=job.id, note=_left_out(stopped, block, "had ended or are stopping"))


def _left_out(stopped: int, block: Ranges, why: str) -> str:
    return "" if stopped == len(block) else f"{len(block) - stopped} of {len(block)} tasks {why}"


def _check_tasks(stage: Stage, given: tuple[int, ...]) -> Ranges:
    """Return the tasks that a command names, or refuse tasks that the stage does not have."""
    if not given:
        raise Refused("indices", "no task is named; write the index of one, such as 3")
    check_flat(given, "indices")
    last = given[-1] - 1
    if last >= stage.count:
        raise Refused(
            "indices", f"job {stage.job.id} has no task {stage.name}[{last}]; the last is {stage.count - 1}", "unknown"
        )
    missing = [index for index in indices(given) if index not in Ranges(stage.tasks)] if stage.terms.absent else []
    if missing:
        raise Refused(
            "indices",
            f"job {stage.job.id} has no task {stage.name}[{missing[0]}]; its indices are "
            f"{format_array(stage.count, stage.spec.indices)}",
            "unknown",
        )
    return Ranges(given)


def need_own(job: Job, action: str) -> None:
    if job.manager:
        raise Refused("job", f"job {job.id} belongs to {job.manager}; {action} there", "conflict")


def _caller(command: Command) -> str:
    return command.user or "the operator"


@handles(SetPriority)
def set_priority(plan: Plan, command: SetPriority) -> Accepted:
    job = find_job(plan.partition, command.job)
    need_owner(command, job, "change the priority of")
    priority = parse_count(command.priority, "priority", MIN_PRIORITY, MAX_PRIORITY)
    need_live(job, ", and its priority has no effect")
    if priority == job.priority:
        return Accepted(note="no change")
    if priority > job.priority:
        need_priority(command, job.queue, priority)
    plan.do(JobPrioritised(job.id, priority))
    order, name = job.queue.order, job.queue.settings.order
    if not order.by_priority:
        first = f"it does not decide which job of queue {job.queue.path} starts first"
        return Accepted(note=f"priority {priority}; {first}, because the order there is {name}")
    if order.by_user:
        turns = f"because users take turns in queue {job.queue.path}"
        return Accepted(note=f"priority {priority}; it passes only jobs of the same user, {turns}")
    return Accepted()


# -- asks ------------------------------------------------------------------------------------------------


@handles(BringToFront)
def bring_to_front(plan: Plan, command: BringToFront) -> Accepted:
    need_operator(command, "bring an ask to the front")
    partition = plan.partition
    stage = find_stage(find_job(partition, command.job), command.stage)
    asks = _asks(stage)
    for ask in asks:
        lane = partition.lane_of(stage, ask.whole)
        head = lane.head() if lane is not None else None
        if head is not None:
            _replace(plan, ask, round=head.round, front=partition.counters.front)
    return Accepted(note="" if asks else "no change")


def _replace(plan: Plan, ask: Ask, **fields: int) -> None:
    """Replace an ask by one with other values of some fields."""
    same = {name: getattr(ask, name) for name in ("asked", "waiting_since", "seq", "round", "front", "whole", "tie")}
    plan.do(Asked(ask.stage.job.id, ask.stage.position, ask.kind, **(same | fields)))


@handles(ReleaseHold)
def release_hold(plan: Plan, command: ReleaseHold) -> Accepted:
    """End the holds of a job. Its asks get no new hold for a while, as after a hold that expired."""
    need_operator(command, "release a hold")
    partition = plan.partition
    job = find_job(partition, command.job)
    stage = find_stage(job, command.stage) if command.stage else None
    reason = f"released by {command.user or 'an operator'}"
    holds = [
        hold
        for _, hold in sorted(partition.holds.items())
        if hold.job == job.id and (stage is None or any(position == stage.position for _, position, _ in hold.places))
    ]
    for hold in holds:
        plan.do(Released(hold.seq, reason, plan.now + pause_after(partition, hold)))
    return Accepted(note="" if holds else "no nodes are held for it")


@handles(CancelAsk)
def cancel(plan: Plan, command: CancelAsk) -> Accepted:
    job = find_job(plan.partition, command.job)
    need_owner(command, job, "cancel an ask of")
    stage = find_stage(job, command.stage)
    if not any(asking.unstarted() for asking in (job.stages if stage.whole(NEW) else (stage,))):
        return Accepted(note="no change")
    _withdraw(plan, stage)
    finish_if_done(plan, job)
    return Accepted()


def _withdraw(plan: Plan, stage: Stage, kinds: Iterable[int] = (REPLACE, SCALE, NEW)) -> None:
    """Cancel pending tasks. A whole job that has not started cannot start without them, so it is killed."""
    if stage.whole(NEW):
        finish(plan, stage.job, "killed", "all its tasks were withdrawn")
        return
    added = stage.wanted(SCALE).flat() if SCALE in kinds else ()
    if added and added[-1] == stage.count:
        # The stage gets the size that it had before it grew, so that the same growth can be asked for again.
        plan.do(StageScaled(stage.job.id, stage.position, added[-2], SCALE))
    end_pending(plan, stage, "killed", kinds)


@handles(ResetLane)
def reset_lane(plan: Plan, command: ResetLane) -> Accepted:
    need_operator(command, "reset a lane")
    partition = plan.partition
    queue = find_queue(partition, command.queue)
    job = find_job(partition, command.job)
    heads = [
        ask
        for stage in job.stages
        for ask in _asks(stage)
        if ask.stage is stage and job.queue is queue and partition.lanes[lane_key(ask)].head() is ask
    ]
    for ask in heads:
        if command.cancel:
            _withdraw(plan, ask.stage, (ask.kind,))
        else:
            to_tail(plan, ask.stage, ask.kind)
    finish_if_done(plan, job)
    return Accepted(note="" if heads else "no change")


def _asks(stage: Stage) -> list[Ask]:
    return [ask for ask in stage.asks if ask is not None]
