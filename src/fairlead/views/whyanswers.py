"""Turns explanations and dry runs into documents of the API."""

from __future__ import annotations

from fairlead.core.model import Allocation, Job, Micros
from fairlead.core.ranges import count
from fairlead.core.state import Partition
from fairlead.core.why.reasons import Reason
from fairlead.core.why.remedy_steps import (
    AddNodes,
    AskLess,
    DropPool,
    DropSelector,
    EndTasks,
    FewerTasks,
    JobsSucceed,
    LimitStep,
    QueueStep,
    RaiseLimit,
    RaiseMaxJobs,
    RaiseShare,
    ReleaseHold,
    ReleaseJob,
    Remedy,
    StageRequest,
    StartQueue,
    Step,
    Tolerate,
)
from fairlead.views.answers import SeesJob, amounts, by_id, code_of
from fairlead.views.causes import Cause, Launching, RunsOn, Stopping
from fairlead.views.dryrun import Tried
from fairlead.views.explanation import Explained, explained
from fairlead.views.summaries import Waiting
from fairlead.wire import api as wire


def explanation(
    partition: Partition, job: Job, reasons: dict[tuple[str, str, int], Reason], now: Micros, sees: SeesJob
) -> wire.Explanation:
    """Explain a job, without remedies."""
    return explained_answer(explained(partition, job, reasons, now, by_id(partition, sees)))


def _cause_answer(cause: Cause) -> wire.Cause:
    return wire.Cause(
        code=code_of(cause),
        text=str(cause),
        stage=cause.stage,
        tasks=cause.tasks,
        nodes=list(cause.nodes) if isinstance(cause, RunsOn | Launching | Stopping) else [],
        stops_for=cause.stops_for if isinstance(cause, Stopping) else "",
    )


def waiting_answer(view: Waiting) -> wire.Waiting:
    return wire.Waiting(
        stage=view.stage,
        kind=view.kind,
        count=view.count,
        position=view.position,
        code=code_of(view.reason),
        reason="" if view.reason is None else str(view.reason),
        jobs_ahead=view.jobs_ahead,
        tasks_ahead=view.tasks_ahead,
        then_code=code_of(view.then),
        then="" if view.then is None else str(view.then),
        text=str(view),
        at_least=view.at_least,
        remedies=[remedy_answer(remedy) for remedy in view.remedies],
        comes=list(map(str, view.comes)),
        no_hold="" if view.no_hold is None else str(view.no_hold),
    )


def explained_answer(view: Explained) -> wire.Explanation:
    return wire.Explanation(
        job=view.job,
        state=view.state,
        waiting=[waiting_answer(waiting) for waiting in view.waiting],
        sentence=view.sentence,
        causes=[_cause_answer(cause) for cause in view.causes],
    )


def dry_run_answer(tried: Tried, view: Explained) -> wire.DryRun:
    never = tried.never
    return wire.DryRun(
        partition=tried.partition.name,
        queue=tried.job.queue.path,
        starts=tried.starts,
        never="" if never is None else str(never),
        sentence=view.sentence,
        placements=[wire.Placement(stage=stage, node=node, tasks=tasks) for stage, node, tasks in tried.placed],
        waiting=[waiting_answer(waiting) for waiting in view.waiting],
    )


def priority_answer(partition: Partition, stopped: list[Allocation], sees: SeesJob) -> wire.PriorityStops:
    nodes = partition.nodes
    return wire.PriorityStops(
        tasks=sum(count(allocation.indices) for allocation in stopped),
        stops=[
            wire.StoppedTasks(
                job=allocation.stage.job.id,
                name=allocation.stage.job.spec.name,
                user=allocation.stage.job.user,
                stage=allocation.stage.name,
                node=nodes.name[nodes.rows[allocation.node]],
                tasks=count(allocation.indices),
            )
            for allocation in stopped
            if sees(allocation.stage.job)
        ],
    )


# -- remedies ----------------------------------------------------------------------------------------------------


def remedy_answer(remedy: Remedy) -> wire.Remedy:
    steps = [_step_answer(step) for step in remedy.steps]
    return wire.Remedy(text=str(remedy), operator=remedy.operator, steps=steps)


def _step_answer(step: Step) -> wire.Step:
    return wire.Step(
        code=str(type(step).__struct_config__.tag),
        text=str(step),
        operator=step.operator,
        node=getattr(step, "node", ""),
        nodes=step.nodes if isinstance(step, AddNodes) else 0,
        tasks=_tasks(step),
        jobs=_jobs(step),
        stage=step.stage if isinstance(step, StageRequest) else "",
        resources=_resources(step),
        labels=_labels(step),
        pool=step.pool if isinstance(step, AddNodes | DropPool) else "",
        taint=step.taint if isinstance(step, Tolerate) else "",
        queue=step.queue if isinstance(step, QueueStep | StartQueue) else "",
        user=step.user if isinstance(step, LimitStep) else "",
        group=step.group if isinstance(step, LimitStep) else "",
        value=step.max_jobs if isinstance(step, RaiseMaxJobs) else step.share if isinstance(step, RaiseShare) else None,
    )


def _tasks(step: Step) -> int:
    if isinstance(step, EndTasks):
        return sum(count(block.indices) for block in step.blocks)
    return step.tasks if isinstance(step, AddNodes | FewerTasks) else 0


def _jobs(step: Step) -> list[str]:
    match step:
        case EndTasks(blocks=blocks):
            return sorted({block.job for block in blocks if block.job})
        case JobsSucceed(jobs=jobs):
            return list(jobs)
        case ReleaseHold(job=job) | ReleaseJob(job=job):
            return [job] if job else []
    return []


def _resources(step: Step) -> dict[str, int | float]:
    match step:
        case AddNodes():
            return amounts(step.resources)
        case RaiseLimit():
            return amounts([(step.resource, step.limit)])
        case AskLess():
            return amounts([(step.resource, step.amount_asked)])
    return {}


def _labels(step: Step) -> dict[str, str]:
    match step:
        case AddNodes():
            return dict(step.labels)
        case DropSelector():
            return {step.label: ",".join(step.values)}
    return {}
