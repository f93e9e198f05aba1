"""Explanations and dry runs as documents of the API."""

from __future__ import annotations

from typing import Any

from fairlead.core.model import Allocation, Job, Micros
from fairlead.core.ranges import count
from fairlead.core.state import Partition
from fairlead.core.why.remedy_steps import (
    AddNodes,
    AskLess,
    DropSelector,
    EndTasks,
    JobsSucceed,
    RaiseLimit,
    RaiseMaxJobs,
    RaiseShare,
    ReleaseHold,
    ReleaseJob,
    Remedy,
    StageRequest,
    Step,
)
from fairlead.views.answers import SeesJob, amounts, by_id, code_of
from fairlead.views.causes import Cause, OnNodes, Stopping
from fairlead.views.dryrun import Tried
from fairlead.views.explanation import Explained, explained
from fairlead.views.summaries import Reasons, Waiting
from fairlead.wire import api as wire


def explanation(partition: Partition, job: Job, reasons: Reasons, now: Micros, sees: SeesJob) -> wire.Explanation:
    """Explain a job, without remedies."""
    return explained_answer(explained(partition, job, reasons, now, by_id(partition, sees)))


def _cause_answer(cause: Cause) -> wire.Cause:
    return wire.Cause(
        code=code_of(cause),
        text=str(cause),
        stage=cause.stage,
        tasks=cause.tasks,
        nodes=list(cause.nodes) if isinstance(cause, OnNodes) else [],
        stops_for=cause.stops_for if isinstance(cause, Stopping) else "",
    )


def _waiting_answer(view: Waiting) -> wire.Waiting:
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
        remedies=[_remedy_answer(remedy) for remedy in view.remedies],
        comes=list(map(str, view.comes)),
        no_hold=view.no_hold,
    )


def explained_answer(view: Explained) -> wire.Explanation:
    return wire.Explanation(
        job=view.job,
        state=view.state,
        waiting=[_waiting_answer(waiting) for waiting in view.waiting],
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
        waiting=[_waiting_answer(waiting) for waiting in view.waiting],
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


def _remedy_answer(remedy: Remedy) -> wire.Remedy:
    steps = [_step_answer(step) for step in remedy.steps]
    return wire.Remedy(text=str(remedy), operator=remedy.operator, steps=steps)


SAME = ("node", "nodes", "tasks", "pool", "taint", "queue", "group")
"""The fields of steps that the documents have under the same names."""


def _step_answer(step: Step) -> wire.Step:
    return wire.Step(
        code=str(type(step).__struct_config__.tag),
        text=str(step),
        operator=step.operator,
        **{name: getattr(step, name) for name in SAME if hasattr(step, name)},
        **_details(step),
    )


def _details(step: Step) -> dict[str, Any]:
    match step:
        case EndTasks(blocks=blocks):
            jobs = sorted({block.job for block in blocks if block.job})
            return {"tasks": sum(count(block.indices) for block in blocks), "jobs": jobs}
        case AddNodes():
            return {"resources": amounts(step.resources), "labels": dict(step.labels)}
        case ReleaseHold(job=job) | ReleaseJob(job=job):
            return {"jobs": [job] if job else []}
        case JobsSucceed(jobs=jobs):
            return {"jobs": list(jobs)}
        case RaiseLimit():
            return {"user": step.user, "resources": amounts([(step.resource, step.limit)])}
        case RaiseMaxJobs():
            return {"user": step.user, "value": step.max_jobs}
        case RaiseShare():
            return {"value": step.share}
        case AskLess():
            return {"stage": step.stage, "resources": amounts([(step.resource, step.amount_asked)])}
        case DropSelector():
            return {"stage": step.stage, "labels": {step.label: ",".join(step.values)}}
        case StageRequest():
            return {"stage": step.stage}
    return {}
