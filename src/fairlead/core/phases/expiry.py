"""Expiry: what time alone brings about. Ended jobs are forgotten, keys expire, drained queues go."""

from __future__ import annotations

from heapq import heappop, heappush

import msgspec

from fairlead.core.changes import JobForgotten, KeyKept, KeysForgotten
from fairlead.core.model import Job, Micros
from fairlead.core.phases.intake.config import remove_drained
from fairlead.core.plan import Plan
from fairlead.core.state import Partition

MOST = 1_000
"""How many records one cycle forgets at most; the next one goes on."""


def expiry(plan: Plan) -> None:
    _forget_jobs(plan)
    _forget_keys(plan)
    if plan.partition.draining:
        remove_drained(plan)


def due(p: Partition) -> Micros | None:
    """When the next of these falls due, if any does."""
    times: list[Micros] = []
    if p.forgetting:
        times.append(p.forgetting[0][0] + p.settings.keep_ended)
    if p.expiring:
        times.append(p.expiring[0][0])
    return min(times, default=None)


def _forget_jobs(plan: Plan) -> None:
    p = plan.partition
    for _ in range(MOST):
        if not p.forgetting or p.forgetting[0][0] + p.settings.keep_ended > plan.now:
            return
        _, number, job_id = heappop(p.forgetting)
        job = p.jobs.get(job_id)
        if job is None or job.ended_at is None or job.number != number:
            continue
        if job.allocations or job_id in p.followers:
            # It still stops somewhere, or somebody still comes after it: look again later.
            heappush(p.forgetting, (plan.now + 1, number, job_id))
        else:
            _forget(plan, job, job.ended_at)


def _forget(plan: Plan, job: Job, ended_at: Micros) -> None:
    p = plan.partition
    key = p.key_of.get(job.id)
    if key is not None:
        entry = p.keys[key]
        plan.do(KeyKept(*key, msgspec.structs.replace(entry, job="", expires=ended_at + p.settings.keep_keys)))
    plan.do(JobForgotten(job.id))


def _forget_keys(plan: Plan) -> None:
    p = plan.partition
    gone: dict[tuple[str, str], None] = {}
    while p.expiring and p.expiring[0][0] <= plan.now and len(gone) < MOST:
        expires, user, key = heappop(p.expiring)
        entry = p.keys.get((user, key))
        if entry is not None and entry.expires == expires:
            gone[user, key] = None
    if gone:
        plan.do(KeysForgotten(tuple(gone)))
