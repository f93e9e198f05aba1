"""Expiry: what time alone brings about. Ended jobs are forgotten, keys expire, pauses end, drained queues go."""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace

import msgspec

from fairlead.core.changes import (
    JobForgotten,
    KeyKept,
    KeysForgotten,
    Measured,
    NodeAvoided,
    QueuesRemoved,
    StopOverdue,
)
from fairlead.core.commands import Accepted, encode_answer
from fairlead.core.effects import Stop
from fairlead.core.model import Allocation, Job, Micros, Queue
from fairlead.core.outcomes import call_back, hand_back, restart, stop, take_back
from fairlead.core.phases.demand import demand_due, give_up_late
from fairlead.core.phases.holds import starving_due
from fairlead.core.phases.kept import kept_due
from fairlead.core.phases.match import plan_due
from fairlead.core.phases.preempt import claims_due
from fairlead.core.phases.shares import shares_due
from fairlead.core.plan import Plan
from fairlead.core.ranges import count
from fairlead.core.resources import format_duration
from fairlead.core.state import FAR, Partition

MOST = 1_000
"""How many records one cycle forgets at most; the next one goes on."""


def expiry(plan: Plan) -> None:
    p = plan.partition
    _become_ready(plan)
    if p.forgetting:
        _forget_jobs(plan)
    if p.expiring:
        _forget_keys(plan)
    if p.nodes.avoided:
        _end_pauses(plan)
    if p.timers:
        _meet_deadlines(plan)
    if p.short:
        _give_up_short_stages(plan)
    if p.orders and p.reign.ready:
        give_up_late(plan)
    if p.draining:
        _remove_drained(plan)


def due(p: Partition, forgetting: bool = True) -> Micros | None:
    """When the next of these falls due, if any does. What is only forgotten has time, for who can wait with it."""
    times: list[Micros] = []
    if p.forgetting and forgetting:
        times.append(p.forgetting[0][0] + p.settings.keep_ended)
    if p.expiring and forgetting:
        times.append(p.expiring[0][0])
    if p.nodes.avoided:
        times += p.nodes.avoided.values()
    if not p.reign.ready:
        times.append((p.now if p.reign.began is None else p.reign.began) + p.settings.ready_after)
    else:
        _drop_old_timers(p)
        if p.timers:
            times.append(p.timers[0][0])
        if p.short:
            times += [_short_until(p, since) for since in p.short.values()]
        if p.nodes.held:
            times += kept_due(p)
        times += (starving_due(p), claims_due(p), plan_due(p))
        if p.uneven:
            times += shares_due(p)
        times += demand_due(p)
    first = min(times, default=FAR)
    return first if first < FAR else None


def _drop_old_timers(p: Partition) -> None:
    """What was acknowledged or has ended since needs no look: nobody should be woken for it."""
    while p.timers:
        when, number = p.timers[0]
        allocation = p.allocations.get(number)
        now_due = p.deadline(allocation) if allocation is not None else None
        if now_due is None:
            heappop(p.timers)
        elif now_due > when:
            heapreplace(p.timers, (now_due, number))
        else:
            return


def _become_ready(plan: Plan) -> None:
    """When everybody who is known has reported; whoever has not by `ready_after` is not waited for any longer."""
    p = plan.partition
    if p.reign.began is None:
        p.reign.began, p.reign.left_at = plan.now, plan.before
    if p.reign.ready:
        return
    if p.reign.heard_all(p.nodes, p.managers) or plan.now >= p.reign.began + p.settings.ready_after:
        p.become_ready()


def _end_pauses(plan: Plan) -> None:
    nodes = plan.partition.nodes
    for join in sorted(nodes.avoided):
        if nodes.avoided[join] <= plan.now:
            row = nodes.rows[join]
            plan.do(NodeAvoided(join, nodes.failures[row], nodes.pauses[row], 0))


def _meet_deadlines(plan: Plan) -> None:
    """Launches that were not acknowledged are taken back; tasks over their time limit are told to stop.

    A stop that was not confirmed in time is noted: its room is not counted on any more.
    """
    p = plan.partition
    while p.reign.ready and p.timers and p.timers[0][0] <= plan.now:
        _, number = heappop(p.timers)
        allocation = p.allocations.get(number)
        when = p.deadline(allocation) if allocation is not None else None
        if allocation is None or when is None:
            continue
        if when > plan.now:
            heappush(p.timers, (when, number))
        elif allocation.state == "assigned":
            _give_up_waiting(plan, allocation)
        elif allocation.state == "stopping":
            plan.do(StopOverdue(number))
        else:
            stop(plan, allocation, allocation.indices, "time limit")


def _give_up_waiting(plan: Plan, allocation: Allocation) -> None:
    """Tasks were not started in time: somebody before them is slow, or their agent says nothing."""
    p = plan.partition
    stage = allocation.stage
    if allocation.rooms and not allocation.cause:
        if stage.ran is not None:
            plan.do(Measured(stage.job.id, stage.position, None))
        call_back(plan, [allocation])
        return
    reason = f"the launch was not acknowledged within {format_duration(p.settings.launch_timeout)}"
    for each in [allocation] if allocation.cause else p.waiting_in(allocation.chain):
        if each.state == "assigned":
            _leave(plan, each, reason)
    if not allocation.cause:
        plan.note("launch not acknowledged", count(allocation.indices))
        take_back(plan, allocation, allocation.indices, reason)


def _leave(plan: Plan, waiting: Allocation, reason: str) -> None:
    """Tasks of a chain are given up without their agent's word; it is told to forget them."""
    stage = waiting.stage
    nodes = plan.partition.nodes
    stop = Stop(stage.job.id, stage.job.number, stage.name, waiting.indices, waiting.attempt, "stale")
    plan.strays.append((nodes.name[nodes.rows[waiting.node]], stop))
    hand_back(plan, waiting, waiting.indices, reason)


def _short_until(p: Partition, since: Micros) -> Micros:
    return p.reign.counts_from(since) + p.settings.replace_within


def _give_up_short_stages(plan: Plan) -> None:
    """A stage that had too few workers for too long is taken back with its gang, and asks again with its old age."""
    p = plan.partition
    if not p.reign.ready:
        return
    late = [key for key, since in p.short.items() if _short_until(p, since) <= plan.now]
    for job_id, position in sorted(late, key=lambda key: (p.jobs[key[0]].number, key[1])):
        if (job_id, position) in p.short:  # else it was taken back with another stage of its job
            restart(plan, p.jobs[job_id].stages[position])


def _forget_jobs(plan: Plan) -> None:
    p = plan.partition
    for _ in range(MOST):
        if not p.forgetting or p.forgetting[0][0] + p.settings.keep_ended > plan.now:
            return
        _, number, job_id = heappop(p.forgetting)
        job = p.jobs.get(job_id)
        # One that still stops somewhere, or that somebody still comes after, is entered again when that is over.
        if job is not None and job.ended_at is not None and job.number == number and _is_free(p, job):
            _forget(plan, job, job.ended_at)


def _is_free(p: Partition, job: Job) -> bool:
    return not job.allocations and job.id not in p.followers


def _forget(plan: Plan, job: Job, ended_at: Micros) -> None:
    p = plan.partition
    key = p.key_of.get(job.id)
    if key is not None:
        entry = p.keys[key]
        said = entry.answer or encode_answer(Accepted(job=job.id))
        expires = ended_at + p.settings.keep_keys
        plan.do(KeyKept(*key, msgspec.structs.replace(entry, answer=said, job="", expires=expires)))
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


def _remove_drained(plan: Plan) -> None:
    """Queues that left the configuration go when they are empty, children first."""
    p = plan.partition
    going: list[str] = []
    for path in sorted(p.draining, reverse=True):
        queue = p.queues[path]
        if _empty(queue, going):
            going.append(path)
    if going:
        plan.do(QueuesRemoved(tuple(going)))


def _empty(queue: Queue, going: list[str]) -> bool:
    return not queue.jobs and all(child.path in going for child in queue.children.values())
