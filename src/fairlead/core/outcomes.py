"""What follows when tasks end, stop or are asked for: for the task, its stage, its job and the jobs after it.

Intake, expiry and the later phases all come here, so that a lost worker means the same whoever noticed it.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.core.changes import Asked, CalledBack, Ended, JobMoved, NodeAvoided, PendingEnded, Regrouped, Stopped
from fairlead.core.model import (
    NEW,
    NOTHING_PENDING,
    REPLACE,
    SCALE,
    Allocation,
    Ask,
    Job,
    JobState,
    Outcome,
    Stage,
    StopCause,
)
from fairlead.core.plan import Plan
from fairlead.core.ranges import Ranges, difference, indices
from fairlead.core.resources import MINUTE, SECOND

FIRST_PAUSE = SECOND
LONGEST_PAUSE = 5 * MINUTE

# -- asking ------------------------------------------------------------------------------------------------------


def add_ask(
    plan: Plan, stage: Stage, kind: int, anew: bool = False, since: int | None = None, back: bool = False
) -> None:
    """See that the pending tasks of a kind have a place in their lane. One they have is kept, unless `anew`.

    With `back`, they come back to the place that those of kind new had.
    """
    before = stage.asks[kind]
    whole = stage.whole(kind)
    if (before is not None and not anew) or not _wants(stage, kind, whole):
        return
    since = before.waiting_since if before is not None else plan.now if since is None else since
    asked, tie = (stage.asked, stage.last_place) if back else (plan.now, 0)
    _ask(plan, stage, kind, whole, asked, since, tie=tie)


def ask_for_rest(plan: Plan, whole: Ask) -> None:
    """What a whole job wants beyond what it started with is asked for stage by stage, with the age it had together."""
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
    """Take a place: behind those who came before, in the head's round if no other is given."""
    partition = plan.partition
    if round is None:
        lane = partition.lane_of(stage, whole)
        head = lane.head() if lane is not None else None
        round = head.round if head is not None else 0
    position = 0 if whole else stage.position
    plan.do(Asked(stage.job.id, position, kind, asked, since, partition.counters.ask, round, front, whole, tie))


def _wants(stage: Stage, kind: int, whole: bool) -> bool:
    """Whether tasks of a kind wait: of the stage, or of its whole job."""
    if whole:
        return any(each.pending[kind] is not None for each in stage.job.stages)
    return stage.pending[kind] is not None


def to_tail(plan: Plan, stage: Stage, kind: int, waiting_since: int | None = None) -> None:
    """Put a stage's ask behind everything that waits in its lane now; how long it has waited stays."""
    before = stage.asks[kind]
    whole = stage.whole(kind)
    if not _wants(stage, kind, whole):
        return
    lane = plan.partition.lane_of(stage, whole)
    last = max((each.round for each in lane), default=0) if lane is not None else 0
    since = before.waiting_since if before is not None else plan.now
    plan.note("sent to the tail")
    _ask(plan, stage, kind, whole, plan.now, since if waiting_since is None else waiting_since, last + 1)


def ask_for_job(plan: Plan, job: Job) -> None:
    """The demand of a job that may start: one ask a stage, or one for all of them.

    Stages are asked for in their order; if the queue's order says so, those that take longest come first.
    """
    stages: Iterable[Stage] = job.stages
    if job.queue.order.longest_first:
        stages = sorted(stages, key=lambda stage: -(stage.terms.estimate or 0))
    for stage in stages:
        add_ask(plan, stage, NEW)


# -- stopping ----------------------------------------------------------------------------------------------------


def stop(plan: Plan, allocation: Allocation, block: tuple[int, ...], cause: StopCause) -> None:
    """Tell tasks to stop; they keep their room until that is confirmed."""
    if allocation.state == "stopping":
        return
    whole = block == allocation.indices
    into = 0 if whole else plan.partition.counters.allocation
    plan.do(Stopped(allocation.id, block, cause, into))
    if cause == "preempt" and allocation.chain:
        # The room is wanted by somebody else.
        call_back(plan, plan.partition.waiting_in(allocation.chain))


def call_back(plan: Plan, allocations: Iterable[Allocation]) -> None:
    """Ask tasks that wait in chains back. They are pending again when their agent says that it did not start them."""
    for each in allocations:
        if each.rooms and each.state == "assigned" and not each.cause:
            plan.do(CalledBack(each.id))


def stop_stage(plan: Plan, stage: Stage, cause: StopCause, start: int = 0) -> None:
    """Stop every live task of a stage from an index on."""
    for allocation in live_of(stage):
        block = tuple(allocation.indices)
        if start:
            block = Ranges.from_indices(index for index in indices(block) if index >= start).flat()
        if block:
            stop(plan, allocation, block, cause)


def live_of(stage: Stage) -> list[Allocation]:
    """The live allocations of a stage, oldest first."""
    return sorted({each.id: each for each in (stage.live or {}).values()}.values(), key=lambda each: each.id)


# -- ending ------------------------------------------------------------------------------------------------------


def succeed(plan: Plan, allocation: Allocation, block: tuple[int, ...], exit_code: int | None = 0) -> None:
    job = allocation.stage.job
    plan.do(Ended(allocation.id, block, "succeeded", exit_code=exit_code))
    finish_if_done(plan, job)


def fail(plan: Plan, allocation: Allocation, block: tuple[int, ...], reason: str, exit_code: int | None = None) -> None:
    """Tasks failed: those with tries left are asked for again, the others have failed for good."""
    stage = allocation.stage
    again: list[int] = []
    for index in indices(block):
        if not stage.job.over and stage.past(index).tries_used + 1 < stage.terms.tries:
            again.append(index)
    retry = Ranges.from_indices(again).flat()
    final = difference(block, retry)
    number = allocation.id
    if retry:
        # One of a gang that was taken back meanwhile has to start together with the others.
        kind = REPLACE if stage.started else NEW
        plan.do(Ended(number, retry, "failed", kind, tried=True, reason=reason, exit_code=exit_code))
        add_ask(plan, stage, kind, since=_waited(stage, kind))
    if final:
        fail_for_good(plan, allocation, final, reason, exit_code)
    finish_if_done(plan, stage.job)


def fail_for_good(
    plan: Plan, allocation: Allocation, block: tuple[int, ...], reason: str, exit_code: int | None = None
) -> None:
    stage = allocation.stage
    plan.do(Ended(allocation.id, block, "failed", tried=True, reason=reason, exit_code=exit_code))
    if not stage.job.over and stage.min == stage.count and not stage.job.manager:
        # A gang cannot go on without a member that will not come back; an array can.
        finish(plan, stage.job, "failed", f"task {stage.name}[{_first(block)}] failed: {reason}")


def lose(plan: Plan, allocation: Allocation, block: tuple[int, ...], reason: str) -> None:
    """Tasks are gone without a word: their node, or their process. Those told to stop have stopped, then."""
    stage = allocation.stage
    job = stage.job
    if allocation.state == "stopping":
        confirm_stop(plan, allocation, block, reason)
        return
    if allocation.rooms and allocation.state == "assigned":
        hand_back(plan, allocation, block, reason)
        return
    if job.over or job.manager:
        plan.do(Ended(allocation.id, block, "lost", reason=reason))
    elif stage.terms.on_loss == "fail":
        plan.do(Ended(allocation.id, block, "lost", reason=reason))
        finish(plan, job, "failed", f"task {stage.name}[{_first(block)}] was lost: {reason}")
    elif _unsettled(allocation):
        plan.do(Ended(allocation.id, block, "lost", allocation.kind, reason=reason))
        _disband(plan, allocation)
        to_tail(plan, stage, allocation.kind, _waited(stage, allocation.kind))
    elif stage.terms.on_loss == "restart":
        plan.do(Ended(allocation.id, block, "lost", NEW, reason=reason))
        restart(plan, stage)
    else:
        plan.do(Ended(allocation.id, block, "lost", REPLACE, reason=reason))
        add_ask(plan, stage, REPLACE)
    finish_if_done(plan, job)


def confirm_stop(plan: Plan, allocation: Allocation, block: tuple[int, ...], reason: str = "") -> None:
    """The agent says that tasks it was told to stop have stopped."""
    stage = allocation.stage
    cause = allocation.cause
    why = reason or _claimed_by(plan, allocation) or cause
    if stage.job.over or cause == "kill":
        plan.do(Ended(allocation.id, block, "killed", reason=why))
    elif cause == "scale":
        _confirm_scaled(plan, allocation, block, why)
    elif cause == "time limit":
        fail(plan, allocation, block, "time limit")
        return
    else:
        # What was added to a stage comes back the way it came. Who was stopped for others has lost no worker, and does
        # not go before those who are more important.
        kind = SCALE if stage.started and cause == "gang" else NEW
        plan.do(Ended(allocation.id, block, "preempted", kind, reason=why))
        if cause == "preempt":
            add_ask(plan, stage, kind, back=True)
        else:
            add_ask(plan, stage, kind, since=_waited(stage, kind))
    finish_if_done(plan, stage.job)


def _claimed_by(plan: Plan, allocation: Allocation) -> str:
    """For whom tasks were stopped, if it was for somebody."""
    for promise in plan.partition.promises.values():
        if allocation.id in promise.victims:
            return f"preempted for job {promise.job}"
    return ""


def take_back(plan: Plan, allocation: Allocation, block: tuple[int, ...], reason: str, refused: bool = False) -> None:
    """A launch was refused or never acknowledged: the room is free, the tasks wait again, at the tail.

    A refusal is about the node. A task that no node acknowledges again and again fails with the last reason.
    """
    stage = allocation.stage
    node_id = allocation.node
    out = () if refused else _out_of_launches(plan, stage, block)
    if out:
        fail_for_good(plan, allocation, out, reason)
        block = difference(block, out)
    if block and not stage.job.over:
        allocation = plan.partition.allocations[allocation.id]
        plan.do(Ended(allocation.id, block, "pending", allocation.kind, launch_failed=not refused, reason=reason))
    if not stage.job.over:
        if allocation.group:
            _disband(plan, allocation)
        elif allocation.kind == NEW and not (stage.live or stage.ended or stage.job.whole):
            # Nothing of it has run: if it is scaled, the others start together with this one.
            plan.do(Regrouped(stage.job.id, stage.position))
        to_tail(plan, stage, allocation.kind, _waited(stage, allocation.kind))
    avoid(plan, node_id)
    finish_if_done(plan, stage.job)


def hand_back(plan: Plan, allocation: Allocation, block: tuple[int, ...], reason: str) -> None:
    """Tasks of a chain were not started: they wait as they did before, and nobody is to blame."""
    stage, kind = allocation.stage, allocation.kind
    plan.do(Ended(allocation.id, block, "pending", kind, reason=reason))
    # If all of its tasks had been sent ahead, its place is gone; they came with their job, and stand by that again.
    add_ask(plan, stage, kind, since=_waited(stage, kind), back=kind == NEW)
    finish_if_done(plan, stage.job)


def restart(plan: Plan, stage: Stage, cause: StopCause = "gang") -> None:
    """Take a stage, or its whole job, back: what runs is told to stop, and all is asked for together, as at first.

    A gang that is stopped for other work keeps its place, and begins a new wait.
    """
    _regroup(plan, stage, cause)
    if cause == "preempt":
        _wait_anew(plan, stage)
    else:
        add_ask(plan, stage, NEW, since=_waited(stage, NEW))


def _wait_anew(plan: Plan, stage: Stage) -> None:
    """Ask for the pending tasks of a gang as of now, at the place that it had."""
    before, whole = stage.asks[NEW], stage.whole(NEW)
    if _wants(stage, NEW, whole):
        round, front = (before.round, before.front) if before is not None else (None, 0)
        _ask(plan, stage, NEW, whole, stage.asked, plan.now, round, front, stage.last_place)


def _regroup(plan: Plan, stage: Stage, cause: StopCause) -> None:
    plan.do(Regrouped(stage.job.id, stage.position))
    for each in stage.gang():
        stop_stage(plan, each, cause)


def _unsettled(allocation: Allocation) -> bool:
    """Whether an allocation belongs to a gang of which not every member has been acknowledged yet."""
    group = allocation.group
    if not group:
        return False
    # What was added to a stage is a gang of its own, also in a whole job.
    stages = allocation.stage.gang() if allocation.kind == NEW else (allocation.stage,)
    return any(each.group == group and each.state == "assigned" for stage in stages for each in live_of(stage))


def _disband(plan: Plan, member: Allocation) -> None:
    """A member failed before all were acknowledged: the others are stopped, and all wait together again.

    With a new gang those go too that came one by one when it had its minimum; with one that was added, only it.
    """
    if member.kind == NEW:
        _regroup(plan, member.stage, "gang")
        return
    for each in live_of(member.stage):
        if each.group == member.group:
            stop(plan, each, each.indices, "gang")


def _out_of_launches(plan: Plan, stage: Stage, block: tuple[int, ...]) -> tuple[int, ...]:
    most = plan.partition.settings.max_launch_tries
    return Ranges.from_indices(
        index for index in indices(block) if stage.past(index).launches_failed + 1 >= most
    ).flat()


def _waited(stage: Stage, kind: int) -> int | None:
    """Since when tasks that come back without having run have waited: new ones since they were last asked for."""
    return stage.waiting_since if kind == NEW else None


def avoid(plan: Plan, node_id: int) -> None:
    """A launch went wrong on a node: leave it alone for a while, twice as long each time.

    Launches that were sent before such a pause, and go wrong in it, do not make it longer.
    """
    nodes = plan.partition.nodes
    row = nodes.rows[node_id]
    pauses, until = nodes.pauses[row], nodes.avoided.get(node_id, 0)
    if until <= plan.now:
        until = plan.now + min(FIRST_PAUSE << min(pauses, 20), LONGEST_PAUSE)
        pauses += 1
    plan.do(NodeAvoided(node_id, nodes.failures[row] + 1, pauses, until))


def trust(plan: Plan, node_id: int) -> None:
    """A launch went well on a node: what went wrong before is forgotten."""
    nodes = plan.partition.nodes
    if nodes.failures[nodes.rows[node_id]]:
        plan.do(NodeAvoided(node_id, 0, 0, 0))


def end_pending(plan: Plan, stage: Stage, outcome: Outcome, kinds: Iterable[int] = (REPLACE, SCALE, NEW)) -> None:
    """Give up the tasks of a stage that wait."""
    for kind in kinds:
        wanted = stage.pending[kind]
        if wanted is not None:
            plan.do(PendingEnded(stage.job.id, stage.position, kind, wanted.flat(), outcome))


# -- jobs --------------------------------------------------------------------------------------------------------


def finish(plan: Plan, job: Job, state: JobState, reason: str = "") -> None:
    """End a job now: what waits is given up, what runs is told to stop, and the jobs after it hear of it."""
    pending = [(job, state, reason)]
    while pending:
        each, how, why = pending.pop()
        if each.over:
            continue
        plan.do(JobMoved(each.id, how, why))
        for stage in each.stages:
            end_pending(plan, stage, "killed")
            stop_stage(plan, stage, "kill")
        pending += [
            (follower, "failed", f"job {each.id}, which it comes after, {how}")
            for follower in reversed(_followers(plan, each))
        ]


def finish_if_done(plan: Plan, job: Job) -> None:
    """If nothing of a job is left to do, it ends by what became of its tasks. A manager's job ends when told."""
    if job.allocations or job.over or job.manager:
        return
    for stage in job.stages:
        if stage.pending != NOTHING_PENDING or stage.done() < stage.count:
            return
    outcomes = {name for stage in job.stages for name in stage.ended or ()}
    if outcomes & {"failed", "lost"}:
        finish(plan, job, "failed", _failure_of(job))
    elif outcomes == {"killed"}:
        finish(plan, job, "killed", "all its tasks were withdrawn")
    else:
        plan.do(JobMoved(job.id, "succeeded"))
        for follower in _followers(plan, job):
            if not plan.partition.unmet(follower):
                ask_for_job(plan, follower)


def _followers(plan: Plan, job: Job) -> list[Job]:
    partition = plan.partition
    if job.id not in partition.followers:
        return []
    known = (partition.jobs[name] for name in partition.followers.get(job.id, ()) if name in partition.jobs)
    return sorted((each for each in known if not each.over), key=lambda each: each.number)


def _failure_of(job: Job) -> str:
    for stage in job.stages:
        for outcome in ("failed", "lost"):
            ended = stage.ended_as(outcome)
            if ended:
                first = ended.first_index()
                more = f" and {len(ended) - 1} more" if len(ended) > 1 else ""
                return f"task {stage.name}[{first}]{more} {outcome}: {stage.past(first).reason}"
    return ""


def _confirm_scaled(plan: Plan, allocation: Allocation, block: tuple[int, ...], why: str) -> None:
    """Tasks that a scale-down stopped. Those that a later scale-up wants back are asked for now."""
    stage = allocation.stage
    back = Ranges.from_indices(index for index in indices(block) if index < stage.count).flat()
    gone = difference(block, back)
    if gone:
        plan.do(Ended(allocation.id, gone, "killed", reason=why))
    if back:
        kind = SCALE if stage.started else NEW
        plan.do(Ended(allocation.id, back, "preempted", kind, reason=why))
        add_ask(plan, stage, kind)


def _first(block: Iterable[int]) -> int:
    return next(iter(block))
