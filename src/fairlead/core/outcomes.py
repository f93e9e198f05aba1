"""Consequences of tasks that end, fail, stop or are lost: for their stage, gang and job, and for the jobs after it.

Intake, expiry and later phases share these functions, so that equal events have equal effects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fairlead.core.changes import (
    Asked,
    Ended,
    JobMoved,
    NodeAvoided,
    PendingEnded,
    Recalled,
    Regrouped,
    Revived,
    Stopped,
    Unblocked,
)
from fairlead.core.last_runs import expected_run
from fairlead.core.model import (
    NEW,
    NOTHING_PENDING,
    REPLACE,
    SCALE,
    Allocation,
    Ask,
    Condition,
    Job,
    JobState,
    Micros,
    Outcome,
    Stage,
    StopCause,
)
from fairlead.core.plan import Plan
from fairlead.core.ranges import Ranges, count, difference, indices
from fairlead.core.resources import MINUTE, SECOND, format_duration
from fairlead.core.state import Partition

WAITS_AGAIN = ("preempt", "requeue")
"""The stop causes after which tasks wait again at their earlier place, with a new waiting time."""

BY_USERS: dict[StopCause, str] = {"requeue": "requeued", "replace": "replaced", "kill": "killed"}
"""Stop cause for which `stopped_for` names a user → the word for messages."""

FIRST_PAUSE = SECOND
LONGEST_PAUSE = 5 * MINUTE

# -- asking ------------------------------------------------------------------------------------------------------


def add_ask(
    plan: Plan, stage: Stage, kind: int, new_place: bool = False, since: int | None = None, back: bool = False
) -> None:
    """Add an ask for the pending tasks of a kind, unless they have one.

    With `new_place`, an existing ask is replaced by one that is made now. With `back`, the ask gets the place of the
    stage's last ask of kind new. `since` is the begin of its waiting time; None for now.
    """
    before = stage.asks[kind]
    whole = stage.whole(kind)
    if (before is not None and not new_place) or not _wants(stage, kind, whole):
        return
    since = before.waiting_since if before is not None else plan.now if since is None else since
    asked, tie = (stage.asked, stage.last_place) if back else (plan.now, 0)
    _ask(plan, stage, kind, whole, asked, since, tie=tie)


def ask_for_rest(plan: Plan, whole: Ask) -> None:
    """Add an ask for each stage with pending tasks of a job that has started whole, with the times of the whole ask."""
    for stage in whole.stages:
        if stage.pending[NEW] is not None:
            _ask(plan, stage, NEW, False, whole.asked, whole.waiting_since, tie=whole.place)


def _ask(
    plan: Plan,
    stage: Stage,
    kind: int,
    whole: bool,
    asked: int,
    since: int,
    round: int | None = None,
    front: int = 0,
    tie: int = 0,
) -> None:
    """Add an ask. Without a `round` it gets that of the lane's head."""
    partition = plan.partition
    if round is None:
        lane = partition.lane_of(stage, whole)
        head = lane.head() if lane is not None else None
        round = head.round if head is not None else 0
    position = 0 if whole else stage.position
    plan.do(Asked(stage.job.id, position, kind, asked, since, partition.counters.ask, round, front, whole, tie))


def ask_at(plan: Plan, before: Ask, front: int) -> None:
    """Add an ask in the place of one that left its lane."""
    _ask(plan, before.stage, before.kind, before.whole, before.asked, before.waiting_since, None, front, before.place)


def _wants(stage: Stage, kind: int, whole: bool) -> bool:
    if whole:
        return any(member.pending[kind] is not None for member in stage.job.stages)
    return stage.pending[kind] is not None


def to_tail(plan: Plan, stage: Stage, kind: int, waiting_since: int | None = None) -> None:
    """Move a stage's ask behind all others in its lane. Unless `waiting_since` is given, it keeps its waiting time."""
    before = stage.asks[kind]
    whole = stage.whole(kind)
    if not _wants(stage, kind, whole):
        return
    lane = plan.partition.lane_of(stage, whole)
    last = max((ask.round for ask in lane), default=0) if lane is not None else 0
    since = before.waiting_since if before is not None else plan.now
    plan.note("sent to the tail")
    _ask(plan, stage, kind, whole, plan.now, since if waiting_since is None else waiting_since, last + 1)


def ask_for_job(plan: Plan, job: Job) -> None:
    """Add the asks of a job: one per stage, or one for a whole job.

    If the queue's order is `longest_first`, the stages with the longest expected run times come first.
    """
    stages: Iterable[Stage] = job.stages
    if job.queue.order.longest_first:
        stages = sorted(stages, key=lambda stage: -(expected_run(plan.partition, stage) or 0))
    for stage in stages:
        add_ask(plan, stage, NEW)


# -- stopping ----------------------------------------------------------------------------------------------------


def stop(plan: Plan, allocation: Allocation, block: tuple[int, ...], cause: StopCause, stopped_for: str = "") -> None:
    """Tell tasks to stop. They keep their capacity until the stop is confirmed.

    `stopped_for` names what the tasks stop for, see `Allocation.stopped_for`.
    """
    if allocation.state == "stopping":
        return
    whole = block == allocation.indices
    into = 0 if whole else plan.partition.counters.allocation
    plan.do(Stopped(allocation.id, block, cause, into, stopped_for))
    if cause in WAITS_AGAIN and allocation.chain:
        # Another ask gets the slots, or all tasks of the chain stop.
        recall(plan, plan.partition.waiting_in(allocation.chain))


def recall(plan: Plan, allocations: Iterable[Allocation]) -> None:
    """Recall tasks that wait in chains. They are pending again once their agent reports that they have not started."""
    for allocation in allocations:
        if allocation.slots and allocation.state == "assigned" and not allocation.cause:
            plan.do(Recalled(allocation.id))


def stop_stage(plan: Plan, stage: Stage, cause: StopCause, start: int = 0, stopped_for: str = "") -> None:
    """Stop the live tasks of a stage with index `start` or higher."""
    for allocation in live_of(stage):
        block = tuple(allocation.indices)
        if start:
            block = _those(block, lambda index: index >= start)
        if block:
            stop(plan, allocation, block, cause, stopped_for)


def live_of(stage: Stage) -> list[Allocation]:
    by_id = {allocation.id: allocation for allocation in (stage.live or {}).values()}
    return [by_id[number] for number in sorted(by_id)]


def requeue(plan: Plan, job: Job, by: str) -> int:
    """Stop the running tasks of a job, which then wait again at their earlier place; return their number."""
    stages = [stage for stage in job.stages if any(_runs(allocation) for allocation in live_of(stage))]
    tasks = sum(count(allocation.indices) for stage in stages for allocation in live_of(stage) if _runs(allocation))
    for stage in stages[:1] if job.whole else stages:
        restart(plan, stage, "requeue", by)
    return tasks


def stop_some(plan: Plan, stage: Stage, block: Ranges, cause: StopCause, by: str) -> int:
    """Stop the tasks of a block that are assigned or running; return their number.

    Tasks that wait in a chain are only stopped by a kill.
    """
    stopped = 0
    for allocation in live_of(stage):
        chosen = block.overlap(allocation.indices)
        if chosen and (_runs(allocation) or (cause == "kill" and allocation.state != "stopping")):
            stop(plan, allocation, chosen, cause, by)
            stopped += count(chosen)
    return stopped


def _runs(allocation: Allocation) -> bool:
    return allocation.state != "stopping" and not allocation.slots


# -- ending ------------------------------------------------------------------------------------------------------


def succeed(
    plan: Plan, allocation: Allocation, block: tuple[int, ...], exit_code: int | None = 0, ran: Micros = 0
) -> None:
    stage = allocation.stage
    if stage.starts_whole and not stage.started and not stage.job.over:
        # Its generation has ended. A program that was told to stop may report success; it runs again with its gang.
        confirm_stop(plan, allocation, block, ran=ran)
        return
    plan.do(Ended(allocation.id, block, "succeeded", exit_code=exit_code, ran=ran))
    finish_if_done(plan, stage.job)


def fail(
    plan: Plan,
    allocation: Allocation,
    block: tuple[int, ...],
    reason: str,
    exit_code: int | None = None,
    ran: Micros = 0,
) -> None:
    """End failed tasks, and follow `on_failure` of their stage. Tasks without tries left fail for good."""
    stage = allocation.stage
    number = allocation.id
    retry: tuple[int, ...] = ()
    if not stage.job.over and stage.on_failure != "fail":
        retry = _those(block, lambda index: stage.tries_used(index) + 1 < stage.terms.tries)
    final = difference(block, retry)
    if stage.on_failure == "restart" and not stage.started and not stage.job.over:
        # The generation has ended already, so this failure costs no try.
        plan.do(Ended(number, block, "failed", NEW, reason=reason, exit_code=exit_code, ran=ran))
        add_ask(plan, stage, NEW, since=_waited(stage, NEW))
        return
    if retry and stage.on_failure == "restart":
        plan.do(Ended(number, retry, "failed", NEW, tried=True, reason=reason, exit_code=exit_code, ran=ran))
        restart(plan, stage, stopped_for=f"{stage.name}[{block[0]}] failed")
    elif retry:
        # If its gang was stopped meanwhile, this task must start together with it.
        kind = REPLACE if stage.started else NEW
        plan.do(Ended(number, retry, "failed", kind, tried=True, reason=reason, exit_code=exit_code, ran=ran))
        add_ask(plan, stage, kind, since=_waited(stage, kind))
    if final:
        fail_for_good(plan, allocation, final, reason, exit_code, ran)
    finish_if_done(plan, stage.job)


def fail_for_good(
    plan: Plan,
    allocation: Allocation,
    block: tuple[int, ...],
    reason: str,
    exit_code: int | None = None,
    ran: Micros = 0,
) -> None:
    stage = allocation.stage
    plan.do(Ended(allocation.id, block, "failed", tried=True, reason=reason, exit_code=exit_code, ran=ran))
    strict = stage.min == stage.count and not stage.job.manager
    if not stage.job.over and (strict or stage.on_failure == "fail"):
        # A gang cannot run without this member; an array can.
        finish(plan, stage.job, "failed", f"task {stage.name}[{block[0]}] failed: {reason}")


def lose(plan: Plan, allocation: Allocation, block: tuple[int, ...], reason: str, reported: bool = False) -> None:
    """End tasks that are gone without a report of their end, and follow `on_loss` of their stage.

    Stopping tasks count as stopped. If a resource manager removes a node, it asks again for the tasks there itself, so
    they only follow an `on_loss` that it gave. Tasks that it `reported` as lost follow `on_loss` in any case.
    """
    stage = allocation.stage
    job = stage.job
    if allocation.state == "stopping":
        confirm_stop(plan, allocation, block, reason)
        return
    if allocation.slots and allocation.state == "assigned":
        return_unstarted(plan, allocation, block, reason)
        return
    if job.over or (job.manager and not reported and not stage.terms.on_loss):
        plan.do(Ended(allocation.id, block, "lost", reason=reason))
    elif stage.on_loss == "fail":
        plan.do(Ended(allocation.id, block, "lost", reason=reason))
        finish(plan, job, "failed", f"task {stage.name}[{block[0]}] was lost: {reason}")
    elif _unsettled(allocation):
        plan.do(Ended(allocation.id, block, "lost", allocation.kind, reason=reason))
        _disband(plan, allocation)
        to_tail(plan, stage, allocation.kind, _waited(stage, allocation.kind))
    elif stage.on_loss == "restart":
        plan.do(Ended(allocation.id, block, "lost", NEW, reason=reason))
        restart(plan, stage, stopped_for=f"{stage.name}[{block[0]}] was lost")
    else:
        plan.do(Ended(allocation.id, block, "lost", REPLACE, reason=reason))
        add_ask(plan, stage, REPLACE)
    finish_if_done(plan, job)


def claimant_of(partition: Partition, allocation: Allocation) -> str:
    """Return the job or queue for which an allocation was preempted; empty if it was not.

    A job of another user is named by its queue, because users do not see each other's jobs.
    """
    if allocation.cause != "preempt":
        return ""
    what, _, name = allocation.stopped_for.partition(" ")
    if what != "job":
        return allocation.stopped_for
    claimant = partition.jobs.get(name)
    if claimant is None:
        return "another job"
    return f"job {name}" if claimant.user == allocation.stage.job.user else f"a job of {claimant.queue.path}"


def confirm_stop(plan: Plan, allocation: Allocation, block: tuple[int, ...], reason: str = "", ran: Micros = 0) -> None:
    """End tasks that have stopped after they were told to."""
    stage = allocation.stage
    cause = allocation.cause
    claimant = claimant_of(plan.partition, allocation)
    by = allocation.stopped_for if cause in BY_USERS else ""
    ended = f"{cause}: {allocation.stopped_for}" if cause in ("gang", "done") and allocation.stopped_for else cause
    why = reason or (f"{BY_USERS[cause]} by {by}" if by else f"preempted for {claimant}" if claimant else ended)
    if stage.job.over or cause == "kill":
        plan.do(Ended(allocation.id, block, "killed", reason=why, ran=ran))
    elif cause == "scale":
        _confirm_scaled(plan, allocation, block, why, ran)
    elif cause == "time limit":
        limit = stage.terms.time_limit
        fail(plan, allocation, block, cause if limit is None else f"time limit of {format_duration(limit)}", ran=ran)
        return
    else:
        # If their stage is still started, replaced tasks return as replacements, and added tasks that started together
        # as kind scale. Other tasks return as kind new, so that they do not overtake asks of higher priority.
        kinds: dict[StopCause, int] = {"gang": SCALE, "replace": REPLACE} if stage.started else {}
        kind = kinds.get(cause, NEW)
        plan.do(Ended(allocation.id, block, "preempted", kind, reason=why, ran=ran))
        if cause in WAITS_AGAIN:
            add_ask(plan, stage, kind, back=True)
        else:
            add_ask(plan, stage, kind, since=_waited(stage, kind))
    finish_if_done(plan, stage.job)


def withdraw_launch(
    plan: Plan, allocation: Allocation, block: tuple[int, ...], reason: str, refused: bool = False
) -> None:
    """Take back a launch that was refused or not acknowledged: its tasks wait again, at the tail of the lane.

    A task fails after `max_launch_tries` launches without acknowledgement. A refusal counts only against the node.
    """
    stage = allocation.stage
    node_id = allocation.node
    out = () if refused else _out_of_launches(plan, stage, block)
    if out:
        fail_for_good(plan, allocation, out, reason)
        block = difference(block, out)
    if block and not stage.job.over:
        plan.do(Ended(allocation.id, block, "pending", allocation.kind, launch_failed=not refused, reason=reason))
    if not stage.job.over:
        if allocation.group:
            _disband(plan, allocation)
        elif allocation.kind == NEW and not (stage.live or stage.ended or stage.job.whole):
            # No task of the stage has run, so it starts as a gang again.
            plan.do(Regrouped(stage.job.id, stage.position))
        to_tail(plan, stage, allocation.kind, _waited(stage, allocation.kind))
    avoid(plan, node_id)
    finish_if_done(plan, stage.job)


def return_unstarted(plan: Plan, allocation: Allocation, block: tuple[int, ...], reason: str) -> None:
    """Make chained tasks that were not started pending again. No failure is counted."""
    stage, kind = allocation.stage, allocation.kind
    plan.do(Ended(allocation.id, block, "pending", kind, reason=reason))
    # If all tasks of the stage had been sent ahead, there is no ask, and they get its last place.
    add_ask(plan, stage, kind, since=_waited(stage, kind), back=kind == NEW)
    finish_if_done(plan, stage.job)


def restart(plan: Plan, stage: Stage, cause: StopCause = "gang", stopped_for: str = "", late: bool = False) -> None:
    """End a generation of a gang: stop its tasks and ask for all of them together.

    The gang keeps its place, and its waiting time starts anew. If it is `late`, it goes behind older asks instead, and
    keeps its waiting time.
    """
    _regroup(plan, stage, cause, stopped_for)
    if late:
        add_ask(plan, stage, NEW, since=_waited(stage, NEW))
    else:
        _begin_new_wait(plan, stage)


def _begin_new_wait(plan: Plan, stage: Stage) -> None:
    before, whole = stage.asks[NEW], stage.whole(NEW)
    if _wants(stage, NEW, whole):
        round, front = (before.round, before.front) if before is not None else (None, 0)
        _ask(plan, stage, NEW, whole, stage.asked, plan.now, round, front, stage.last_place)


def _regroup(plan: Plan, stage: Stage, cause: StopCause, stopped_for: str = "") -> None:
    for member in stage.gang():
        succeeded = member.ended_as("succeeded").flat()
        if succeeded and member.starts_whole:
            plan.do(Revived(member.job.id, member.position, NEW, succeeded, above=True))
    plan.do(Regrouped(stage.job.id, stage.position))
    for member in stage.gang():
        stop_stage(plan, member, cause, stopped_for=stopped_for)


def _unsettled(allocation: Allocation) -> bool:
    """True if the launches of some members of an allocation's gang are not acknowledged yet."""
    group = allocation.group
    if not group:
        return False
    # Tasks that were added to a stage are a gang of their own, also in a whole job.
    stages = allocation.stage.gang() if allocation.kind == NEW else (allocation.stage,)
    return any(member.group == group and member.state == "assigned" for stage in stages for member in live_of(stage))


def _disband(plan: Plan, member: Allocation) -> None:
    """Stop the other members of a gang after one failed before all launches were acknowledged. All wait again.

    For a new gang, this includes tasks that were placed singly after it. For tasks that were added to a started stage,
    it includes only those that were added together.
    """
    if member.kind == NEW:
        _regroup(plan, member.stage, "gang")
        return
    for allocation in live_of(member.stage):
        if allocation.group == member.group:
            stop(plan, allocation, allocation.indices, "gang")


def _out_of_launches(plan: Plan, stage: Stage, block: tuple[int, ...]) -> tuple[int, ...]:
    most = plan.partition.settings.max_launch_tries
    return _those(block, lambda index: stage.past(index).launches_failed + 1 >= most)


def _those(block: tuple[int, ...], which: Callable[[int], bool]) -> tuple[int, ...]:
    return Ranges.from_indices(filter(which, indices(block))).flat()


def _waited(stage: Stage, kind: int) -> int | None:
    """Return the begin of the waiting time of tasks that return without a run; None for now."""
    return stage.waiting_since if kind == NEW else None


def avoid(plan: Plan, node_id: int) -> None:
    """Give a node no work for some time after a launch failed there. The time doubles with each such pause.

    A launch that fails during a pause was sent before it, and does not extend it.
    """
    nodes = plan.partition.nodes
    row = nodes.rows[node_id]
    pauses, until = nodes.pauses[row], nodes.avoided.get(node_id, 0)
    if until <= plan.now:
        until = plan.now + min(FIRST_PAUSE << min(pauses, 20), LONGEST_PAUSE)
        pauses += 1
    plan.do(NodeAvoided(node_id, nodes.failures[row] + 1, pauses, until))


def trust(plan: Plan, node_id: int) -> None:
    """Reset the failed launches of a node after a launch succeeded there."""
    nodes = plan.partition.nodes
    if nodes.failures[nodes.rows[node_id]]:
        plan.do(NodeAvoided(node_id, 0, 0, 0))


def end_pending(plan: Plan, stage: Stage, outcome: Outcome, kinds: Iterable[int] = (REPLACE, SCALE, NEW)) -> None:
    for kind in kinds:
        wanted = stage.pending[kind]
        if wanted is not None:
            plan.do(PendingEnded(stage.job.id, stage.position, kind, wanted.flat(), outcome))
    if stage.blocked and NEW in kinds:
        plan.do(Unblocked(stage.job.id, stage.position, stage.blocked, outcome))


# -- jobs --------------------------------------------------------------------------------------------------------


def finish(plan: Plan, job: Job, state: JobState, reason: str = "") -> None:
    """End a job: end its pending tasks and stop its live ones. If it succeeded, jobs after it start; else they fail.

    Jobs after its end start later, when its last task has stopped: see `followers.follow`.
    """
    endings = [(job, state, reason)]
    while endings:
        ending, how, why = endings.pop()
        if ending.over:
            continue
        plan.do(JobMoved(ending.id, how, why))
        done = how == "succeeded"
        for stage in ending.stages:
            end_pending(plan, stage, "killed")
            stop_stage(plan, stage, "done" if done else "kill", stopped_for=why if done else "")
        followers = followers_of(plan, ending, "ok")
        if not done:
            failure = f"job {ending.id}, which it comes after, {how}"
            endings += [(follower, "failed", failure) for follower in reversed(followers)]
        for follower in followers if done else ():
            if not plan.partition.unmet(follower):
                ask_for_job(plan, follower)


def finish_if_done(plan: Plan, job: Job) -> None:
    """End a job if all tasks of its stages, or those that `done_when` names, have ended.

    The job of a resource manager ends only on request.
    """
    if job.over or job.manager or (job.allocations and not job.done_when):
        return
    name, _, index = job.done_when.rstrip("]").partition("[")
    stages = [stage for stage in job.stages if name in ("", stage.name)]
    outcomes = _outcomes_of(stages, index)
    if outcomes is None:
        return
    if outcomes & {"failed", "lost"}:
        finish(plan, job, "failed", _failure_of(stages))
    elif outcomes == {"killed"}:
        finish(plan, job, "killed", "all its tasks were withdrawn")
    else:
        finish(plan, job, "succeeded", f"{'task' if index else 'stage'} {job.done_when} has succeeded" if name else "")


def _outcomes_of(stages: Sequence[Stage], index: str) -> set[str] | None:
    """Return how the tasks of stages, or the task with an index, have ended; None if one has not."""
    if index:
        return {outcome for outcome, ended in (stages[0].ended or {}).items() if int(index) in ended} or None
    return {outcome for stage in stages for outcome in stage.ended or ()} if all(map(_has_ended, stages)) else None


def _has_ended(stage: Stage) -> bool:
    waits = stage.live or stage.pending != NOTHING_PENDING or stage.blocked
    return not waits and stage.done() >= stage.size


def followers_of(plan: Plan, job: Job, *conditions: Condition) -> list[Job]:
    """Return the jobs that come after a job under one of these conditions and are not over, by their numbers."""
    partition = plan.partition
    names = dict.fromkeys(partition.derived.followers.get(job.id, ()))
    followers = [partition.jobs[name] for name in names if name in partition.jobs]
    wanted = [
        follower
        for follower in followers
        if not follower.over and any(name == job.id and when in conditions for name, when in follower.after)
    ]
    return sorted(wanted, key=lambda follower: follower.number)


def _failure_of(stages: Iterable[Stage]) -> str:
    for stage in stages:
        for outcome in ("failed", "lost"):
            ended = stage.ended_as(outcome)
            if ended:
                first = ended.first_index()
                more = f" and {len(ended) - 1} more" if len(ended) > 1 else ""
                return f"task {stage.name}[{first}]{more} {outcome}: {stage.past(first).reason}"
    return ""


def _confirm_scaled(plan: Plan, allocation: Allocation, block: tuple[int, ...], why: str, ran: Micros) -> None:
    stage = allocation.stage
    back = _those(block, lambda index: index < stage.count)
    gone = difference(block, back)
    if gone:
        plan.do(Ended(allocation.id, gone, "killed", reason=why, ran=ran))
    if back:
        kind = SCALE if stage.started else NEW
        plan.do(Ended(allocation.id, back, "preempted", kind, reason=why, ran=ran))
        add_ask(plan, stage, kind)
