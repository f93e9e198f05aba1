"""Jobs and tasks that come after other jobs: they start, or are given up, when those jobs start or end.

`outcomes.finish` handles the jobs that wait for a success. This phase handles the other conditions, which may also be
met by the start of a task or by the end of the last task of a killed job. It looks only at jobs that the cycle touched.
"""

from __future__ import annotations

from fairlead.core.changes import Unblocked
from fairlead.core.lifecycle import JOB
from fairlead.core.model import NEW, Condition, Job, JobState, Stage
from fairlead.core.outcomes import add_ask, ask_for_job, finish, finish_if_done, followers_of
from fairlead.core.plan import Plan
from fairlead.core.ranges import Flat, Ranges, difference


def follow(plan: Plan) -> bool:
    """Let jobs start, or end them, because of what happened to the jobs before them in this cycle.

    True if that changed something. It is called before tasks are placed, and again for the jobs that were placed.
    """
    followers = plan.partition.derived.followers
    if not followers:
        return False
    mark = plan.mark()
    touched = [name for name in plan.partition.touched.jobs if name in followers]
    for name in touched:  # grows while jobs are ended that other jobs come after
        before = plan.partition.jobs.get(name)
        if before is None:
            continue
        ends: tuple[Condition, ...] = ("any", "failed") if before.over else ()
        for job in followers_of(plan, before, "started", "each", *ends):
            settle(plan, job)
            if job.over and job.id in followers:
                touched.append(job.id)
    return plan.mark() > mark


def settle(plan: Plan, job: Job) -> None:
    """Let a job ask for its tasks, or end it, by the present states of the jobs before it."""
    partition = plan.partition
    for name, when in job.after:
        before = partition.jobs.get(name)
        if before is None:
            continue  # it was forgotten after this dependency was met
        problem = why_never_met(name, before.state, when, any([stage.top for stage in before.stages]))
        if problem:
            give_up(plan, job, when, problem)
            return
        if when == "each":
            _unblock(plan, job.stages[0], before)
    if not partition.unmet(job):
        ask_for_job(plan, job)
    finish_if_done(plan, job)


def give_up(plan: Plan, job: Job, when: Condition, problem: str) -> None:
    """End a job that can never start. A job that should follow a failure was not needed, so it does not fail."""
    finish(plan, job, "killed" if when == "failed" else "failed", problem)


def why_never_met(name: str, state: JobState, when: Condition, started: bool) -> str:
    """Return why a dependency on a job can never be met; empty if it can be met, or is."""
    if not JOB.terminal(state) or when in ("any", "each"):
        return ""
    if when == "started":
        return "" if started else f"job {name}, which it comes after, {state} before it started"
    if when == "failed":
        return f"not needed: job {name} succeeded" if state == "succeeded" else ""
    return "" if state == "succeeded" else f"job {name}, which it comes after, {state}"


def _unblock(plan: Plan, stage: Stage, before: Job) -> None:
    """Make tasks pending of which the counterparts have succeeded, and end those of which they can never succeed."""
    blocked = Ranges(stage.blocked)
    first = before.stages[0]
    ready = blocked.overlap(first.ended_as("succeeded").flat())
    # A job may come after each task of several jobs.
    others = [name for name, when in stage.job.after if when == "each" and name != before.id]
    for name in others:
        other = plan.partition.jobs.get(name)
        if other is not None:
            ready = Ranges(ready).overlap(other.stages[0].ended_as("succeeded").flat()) if ready else ()
    if ready:
        plan.do(Unblocked(stage.job.id, stage.position, ready))
        if not plan.partition.unmet(stage.job):
            add_ask(plan, stage, NEW)
    for outcome in sorted(first.ended or ()):
        if outcome != "succeeded":
            reason = f"the same task of job {before.id} {'was lost' if outcome == 'lost' else outcome}"
            _give_up(plan, stage, Ranges(stage.blocked).overlap(first.ended_as(outcome).flat()), reason)
    _give_up(plan, stage, difference(stage.blocked, first.tasks), f"job {before.id} has no such task any more")


def _give_up(plan: Plan, stage: Stage, tasks: Flat, reason: str) -> None:
    if tasks:
        plan.do(Unblocked(stage.job.id, stage.position, tasks, "failed", reason))
