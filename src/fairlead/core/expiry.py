"""Expiry: changes that time causes. Ended jobs are forgotten, keys expire, pauses end, deadlines are enforced.

It also removes queues that are drained.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace

import msgspec

from fairlead.core.changes import (
    ClosureSet,
    JobForgotten,
    JobReleased,
    KeyKept,
    KeysForgotten,
    Measured,
    NodeAvoided,
    NodeMoved,
    NodesConnected,
    QueuesRemoved,
    StopOverdue,
)
from fairlead.core.closures import open_again
from fairlead.core.commands import Accepted, encode_answer
from fairlead.core.effects import Stop
from fairlead.core.holds.recall import recall_due
from fairlead.core.holds.release import kept_due
from fairlead.core.holds.starvation import starving_due
from fairlead.core.match.match import plan_due
from fairlead.core.model import FAR, Allocation, Job, Micros
from fairlead.core.outcomes import recall, restart, return_unstarted, stop, withdraw_launch
from fairlead.core.plan import Plan
from fairlead.core.pools.demand import demand_due, give_up_late
from fairlead.core.preempt.loans import shares_due
from fairlead.core.preempt.preempt import claims_due
from fairlead.core.ranges import count
from fairlead.core.resources import format_duration
from fairlead.core.state import Partition

MAX_EXPIRED = 1_000
"""Maximum number of records that one cycle forgets. The next cycle continues."""


def expiry(plan: Plan) -> None:
    partition = plan.partition
    _become_ready(plan)
    if partition.readiness.absent and partition.readiness.ready:
        _disconnect_absent(plan)
    if partition.derived.forgetting:
        _forget_jobs(plan)
    if partition.derived.expiring:
        _forget_keys(plan)
    if partition.nodes.avoided:
        _end_pauses(plan)
    if partition.closures or partition.nodes.closed_until or partition.nodes.closing:
        _end_closures(plan)
    if partition.derived.timers:
        _meet_deadlines(plan)
    if partition.derived.begins:
        _begin_jobs(plan)
    if partition.derived.short:
        _give_up_short_stages(plan)
    if partition.orders and partition.readiness.ready:
        give_up_late(plan)
    if partition.derived.draining_queues:
        _remove_drained(plan)


def due(partition: Partition, forgetting: bool = True) -> Micros | None:
    """Return the time of the next change that time causes; None if there is none.

    Without `forgetting`, the removal of old records does not count, because it can wait for the next cycle.
    """
    derived, nodes, readiness = partition.derived, partition.nodes, partition.readiness
    times: list[Micros] = [FAR]
    if forgetting and derived.forgetting:
        times.append(derived.forgetting[0][0] + partition.settings.keep_ended)
    if forgetting and derived.expiring:
        times.append(derived.expiring[0][0])
    if derived.begins:
        times += [until for name, until in derived.begins.items() if not partition.jobs[name].over]
    if nodes.avoided:
        times += nodes.avoided.values()
    if partition.closures or nodes.closed_until or nodes.closing:
        times += [closure.until for closure in partition.closures.values()]
        times += [nodes.closed_until[node_id] for node_id in _closed(partition)]
        times += [nodes.closing[node_id] for node_id in _closing(partition)]
    if readiness.ready:
        times += _due_if_ready(partition)
    else:
        began = partition.now if readiness.began is None else readiness.began
        times.append(began + partition.settings.ready_after)
    first = min(times)
    return first if first < FAR else None


def _due_if_ready(partition: Partition) -> list[Micros]:
    _drop_old_timers(partition)
    times = [starving_due(partition), recall_due(partition), claims_due(partition), plan_due(partition)]
    if partition.derived.timers:
        times.append(partition.derived.timers[0][0])
    if partition.derived.short:
        times += [_short_until(partition, since) for since in partition.derived.short.values()]
    if partition.nodes.held:
        times += kept_due(partition)
    if partition.uneven:
        times += shares_due(partition)
    if partition.pools or partition.orders:
        times += demand_due(partition)
    return times


def _drop_old_timers(partition: Partition) -> None:
    """Drop timers whose deadline has passed without effect or moved, so that they cause no cycle."""
    while partition.derived.timers:
        when, number = partition.derived.timers[0]
        allocation = partition.allocations.get(number)
        now_due = partition.deadline(allocation) if allocation is not None else None
        if now_due is None:
            heappop(partition.derived.timers)
        elif now_due > when:
            heapreplace(partition.derived.timers, (now_due, number))
        else:
            return


def _become_ready(plan: Plan) -> None:
    partition, readiness = plan.partition, plan.partition.readiness
    if readiness.began is None:
        readiness.began, readiness.left_at = plan.now, plan.before
    late = plan.now >= readiness.began + partition.settings.ready_after
    if not readiness.ready and (readiness.all_reported(partition.nodes, partition.managers) or late):
        partition.become_ready()


def _closed(partition: Partition) -> list[int]:
    nodes = partition.nodes
    states = ("disabled", "draining")
    return [node_id for node_id in sorted(nodes.closed_until) if nodes.state[nodes.rows[node_id]] in states]


def _closing(partition: Partition) -> list[int]:
    nodes = partition.nodes
    return [node_id for node_id in sorted(nodes.closing) if nodes.state[nodes.rows[node_id]] == "draining"]


def _end_closures(plan: Plan) -> None:
    partition = plan.partition
    for node_id in _closing(partition):
        if partition.nodes.closing[node_id] <= plan.now:
            reason, until = partition.nodes.reasons.get(node_id, ""), partition.nodes.closed_until.get(node_id, 0)
            plan.do(NodeMoved(node_id, "draining", reason, until))
    for labels in sorted(labels for labels, closure in partition.closures.items() if closure.until <= plan.now):
        plan.do(ClosureSet(labels, 0))
    for node_id in _closed(partition):
        if partition.nodes.closed_until[node_id] <= plan.now:
            open_again(plan, node_id)


def _disconnect_absent(plan: Plan) -> None:
    nodes = plan.partition.nodes
    absent = [node_id for node_id in plan.partition.readiness.absent if node_id in nodes]
    parted = tuple(sorted(node_id for node_id in absent if node_id not in nodes.disconnected))
    if parted:
        plan.do(NodesConnected(parted, False))


def _end_pauses(plan: Plan) -> None:
    nodes = plan.partition.nodes
    for node_id in sorted(nodes.avoided):
        if nodes.avoided[node_id] <= plan.now:
            row = nodes.rows[node_id]
            plan.do(NodeAvoided(node_id, nodes.failures[row], nodes.pauses[row], 0))


def _begin_jobs(plan: Plan) -> None:
    """Release the jobs whose time to begin has come."""
    jobs = plan.partition.jobs
    due = [name for name, until in plan.partition.derived.begins.items() if until <= plan.now and not jobs[name].over]
    for name in due:
        plan.do(JobReleased(name, ""))


def _meet_deadlines(plan: Plan) -> None:
    """Take back launches that were not acknowledged in time, and stop tasks over their time limit.

    If a stop was not confirmed in time, it becomes overdue.
    """
    partition = plan.partition
    while partition.readiness.ready and partition.derived.timers and partition.derived.timers[0][0] <= plan.now:
        _, number = heappop(partition.derived.timers)
        allocation = partition.allocations.get(number)
        when = partition.deadline(allocation) if allocation is not None else None
        if allocation is None or when is None:
            continue
        if when > plan.now:
            heappush(partition.derived.timers, (when, number))
        elif allocation.state == "assigned":
            _give_up_waiting(plan, allocation)
        elif allocation.state == "stopping":
            plan.do(StopOverdue(number))
        else:
            stop(plan, allocation, allocation.indices, "time limit")


def _give_up_waiting(plan: Plan, allocation: Allocation) -> None:
    """Take back assigned tasks after their deadline.

    Chained tasks that wait for slow tasks are recalled. Otherwise the agent is silent: its launch is withdrawn, and so
    are the tasks that wait behind it in the chain.
    """
    partition = plan.partition
    stage = allocation.stage
    if allocation.slots and not allocation.cause:
        if stage.ran is not None:
            plan.do(Measured(stage.job.id, stage.position, None))
        recall(plan, [allocation])
        return
    reason = f"the launch was not acknowledged within {format_duration(partition.settings.launch_timeout)}"
    for waiting in [allocation] if allocation.cause else partition.waiting_in(allocation.chain):
        if waiting.state == "assigned":
            _give_up_chained(plan, waiting, reason)
    if not allocation.cause:
        plan.note("launch not acknowledged", count(allocation.indices))
        withdraw_launch(plan, allocation, allocation.indices, reason)


def _give_up_chained(plan: Plan, waiting: Allocation, reason: str) -> None:
    """Take chained tasks back without waiting for the agent's confirmation, and send a stop for them."""
    stage = waiting.stage
    nodes = plan.partition.nodes
    stop = Stop(stage.job.id, stage.job.number, stage.name, waiting.indices, waiting.attempt, "stale")
    plan.strays.append((nodes.name[nodes.rows[waiting.node]], stop))
    return_unstarted(plan, waiting, waiting.indices, reason)


def _short_until(partition: Partition, since: Micros) -> Micros:
    return partition.readiness.counts_from(since) + partition.settings.replace_within


def _give_up_short_stages(plan: Plan) -> None:
    partition = plan.partition
    if not partition.readiness.ready:
        return
    late = [key for key, since in partition.derived.short.items() if _short_until(partition, since) <= plan.now]
    for job_id, position in sorted(late, key=lambda key: (partition.jobs[key[0]].number, key[1])):
        if (job_id, position) in partition.derived.short:  # not restarted with another stage of the job
            restart(plan, partition.jobs[job_id].stages[position], late=True)


def _forget_jobs(plan: Plan) -> None:
    partition = plan.partition
    ended = partition.derived.forgetting
    for _ in range(MAX_EXPIRED):
        if not ended or ended[0][0] + partition.settings.keep_ended > plan.now:
            return
        ended_at, number, job_id = heappop(ended)
        job = partition.jobs.get(job_id)
        if job is None or (job.ended_at, job.number) != (ended_at, number):
            continue  # the end was undone
        # A job with stopping tasks or followers is entered again later.
        if not job.allocations and job.id not in partition.derived.followers:
            _forget(plan, job, ended_at)


def _forget(plan: Plan, job: Job, ended_at: Micros) -> None:
    partition = plan.partition
    key = partition.derived.key_of.get(job.id)
    if key is not None:
        entry = partition.keys[key]
        answer = entry.answer or encode_answer(Accepted(job=job.id))
        expires = ended_at + partition.settings.keep_keys
        plan.do(KeyKept(*key, msgspec.structs.replace(entry, answer=answer, job="", expires=expires)))
    plan.do(JobForgotten(job.id))


def _forget_keys(plan: Plan) -> None:
    partition = plan.partition
    gone: dict[tuple[str, str], None] = {}
    while partition.derived.expiring and partition.derived.expiring[0][0] <= plan.now and len(gone) < MAX_EXPIRED:
        expires, user, key = heappop(partition.derived.expiring)
        entry = partition.keys.get((user, key))
        if entry is not None and entry.expires == expires:
            gone[user, key] = None
    if gone:
        plan.do(KeysForgotten(tuple(gone)))


def _remove_drained(plan: Plan) -> None:
    partition = plan.partition
    going: list[str] = []
    for path in sorted(partition.derived.draining_queues, reverse=True):
        queue = partition.queues[path]
        if not queue.jobs and all(child.path in going for child in queue.children.values()):
            going.append(path)
    if going:
        plan.do(QueuesRemoved(tuple(going)))
