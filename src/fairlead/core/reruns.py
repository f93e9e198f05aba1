"""Makes the specification with which a job that is over runs again, whole or without the tasks that succeeded."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.core.errors import Refused
from fairlead.core.model import Job, JobSpec, Pairs, Stage, StageSpec
from fairlead.core.ranges import count as tasks_in
from fairlead.core.ranges import difference


def again(job: Job, failed: bool, environment: Pairs) -> JobSpec:
    """Return the specification of the new job. Refuse a job that still runs, and one without failed tasks."""
    if not job.over:
        raise Refused("job", f"job {job.id} is {job.state}; requeue it, or kill it first", "conflict")
    if job.manager:
        raise Refused("job", f"job {job.id} belongs to {job.manager}; run it again there", "conflict")
    stages = tuple(filter(None, (_stage(stage, failed and not job.whole, environment) for stage in job.stages)))
    if not stages:
        raise Refused("failed", f"all tasks of job {job.id} have succeeded; leave it out to run all again", "conflict")
    spec = job.spec
    # Of the tasks that are left, all must succeed.
    done_when = spec.done_when if len(stages) == len(job.stages) and not failed else ""
    spec = replace(spec, stages=stages, after=(), priority=job.priority, done_when=done_when)
    return replace(spec, hold=False, begin=None, matched=None, shape_user="")


def _stage(stage: Stage, failed: bool, environment: Pairs) -> StageSpec | None:
    """Return what of a stage runs again; None if nothing does."""
    spec = replace(stage.spec, throttle=stage.throttle)
    if environment:
        spec = replace(spec, environment=tuple(sorted((dict(spec.environment) | dict(environment)).items())))
    if stage.count != spec.count and not spec.indices:
        spec = replace(spec, count=stage.count, min=min(spec.min, stage.count))
    if not stage.count:
        return None
    left = difference(stage.tasks, stage.ended_as("succeeded").flat()) if failed else stage.tasks
    if not left:
        return None
    if stage.strict or left == stage.tasks or spec.min != 1:
        return spec
    return replace(spec, count=left[-1], indices=() if tasks_in(left) == left[-1] else left)
