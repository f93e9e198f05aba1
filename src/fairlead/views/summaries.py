"""Views of jobs, tasks, lanes and queues, and why tasks wait. Times are in microseconds, amounts in base units."""

from __future__ import annotations

import msgspec

from fairlead.core.admission import held_back
from fairlead.core.ahead.easy import why_passed
from fairlead.core.lanes import Lane, lane_key
from fairlead.core.model import KINDS, NEW, Allocation, Ask, Job, Micros, Queue, Stage
from fairlead.core.outcomes import BY_USERS, claimant_of
from fairlead.core.past_use import past_part
from fairlead.core.ranges import count, indices
from fairlead.core.resources import Vector
from fairlead.core.state import Partition
from fairlead.core.why.explain import why_later, why_now
from fairlead.core.why.never import never_before, never_runs
from fairlead.core.why.reasons import (
    AfterTasks,
    AfterUnmet,
    HeldBack,
    InChain,
    NeverFits,
    NoNodeYet,
    NotReady,
    OverLimit,
    Reason,
    Sees,
    after_tasks,
    after_unmet,
    of_stage,
)
from fairlead.core.why.remedy_steps import Remedy
from fairlead.views.outlook import Coming, number_of_tasks, what_comes, why_no_hold

Reasons = dict[tuple[str, str, int], Reason]
"""Job, stage and kind of an ask → why it was not placed in the last cycle that tried it."""
KINDS_TOLD = {"new": ("", ""), "scale": ("added ", ""), "replace": ("", " to run again")}
"""Kind of waiting tasks → words before and after "tasks wait"."""
WALKED = 2_000
"""The greatest number of asks ahead of another one that are counted."""


class StageView(msgspec.Struct, frozen=True):
    name: str
    count: int
    min: int
    waiting: int
    running: int
    ended: dict[str, int]


class JobView(msgspec.Struct, frozen=True):
    id: str
    name: str
    user: str
    queue: str
    matched: str | None
    """The requestor pattern that chose the queue; None if the job named the queue, or got the default queue."""
    state: str
    priority: int
    submitted: float
    waiting_since: float | None
    ended_at: float | None
    reason: str
    stages: tuple[StageView, ...]


class TaskView(msgspec.Struct, frozen=True):
    state: str
    attempt: int
    tries_used: int
    node: str | None
    devices: tuple[int, ...]
    reason: str
    exit_code: int | None
    note: str = ""
    started: Micros | None = None
    """When the live attempt was acknowledged."""


class AskView(msgspec.Struct, frozen=True):
    """An ask. `stage` is empty for the shared ask of a whole job."""

    job: str
    stage: str
    kind: str
    count: int
    asked: float
    waiting_since: float


class Waiting(msgspec.Struct, frozen=True):
    """Why the pending tasks of one kind of a stage wait. Their ask is the head of its lane if `position` is 0."""

    stage: str
    kind: str
    count: int
    position: int | None
    reason: Reason | None
    jobs_ahead: int = 0
    tasks_ahead: int = 0
    """The number of tasks of other jobs ahead of it in its lane."""
    then: Reason | None = None
    """The reason that will hold when `reason` no longer does, as far as it is known now."""
    never: bool = False
    """True if `then`, or `reason` without one, holds as long as nodes, pools and settings stay as they are."""
    turns: str = ""
    """The use of the ask's user and of the user ahead, if users take turns and the next turn is another user's."""
    at_least: bool = False
    """True if not all asks ahead were counted: `position`, `jobs_ahead` and `tasks_ahead` are lower bounds."""
    remedies: tuple[Remedy, ...] = ()
    """Remedies, each of which would be enough to start it in the next cycle; only on request."""
    queue: str = ""
    first: bool = True
    """True if no task of another lane of the queue goes before it, now or when running tasks end."""
    comes: tuple[Coming, ...] = ()
    """Events that will help without any remedy, such as the end of tasks with a time limit."""
    no_hold: str = ""
    """Why no nodes will be held for it, however long it waits; empty if they will be, or if that is not known."""

    def __str__(self) -> str:
        what, then = KINDS_TOLD[self.kind]
        place = f", first in queue {self.queue}" if self.first else f"; other jobs of queue {self.queue} may go first"
        text = f"{of_stage(self.stage)}{self.count} {what}{'task waits' if self.count == 1 else 'tasks wait'}{then}"
        text += f" {self.behind} in queue {self.queue}" if self.jobs_ahead else ""
        if isinstance(self.reason, AfterUnmet | AfterTasks):
            text += str(self.reason).removeprefix("waits")
        elif isinstance(self.reason, HeldBack):
            text += f", {self.reason}"
        else:
            text += place if self.position == 0 else ""
            text += f"; {self.turns}" if self.turns else ""
            text += f"; {self.reason}" if self.reason else ""
        return text + self.afterwards

    @property
    def afterwards(self) -> str:
        """Return why it will still wait after the first reason, as the end of a sentence, if that is known."""
        if isinstance(self.then, NeverFits) and not isinstance(self.then, NoNodeYet):
            return f"; even {'when released' if isinstance(self.reason, HeldBack) else 'then'} it {self.then}"
        return f"; after that: {self.then}" if self.then else ""

    @property
    def behind(self) -> str:
        """Return the jobs ahead of it, in words; empty if there are none."""
        if not self.jobs_ahead:
            return ""
        jobs = "1 job" if self.jobs_ahead == 1 else f"{self.jobs_ahead} jobs"
        return f"behind {'at least ' if self.at_least else ''}{jobs} ({number_of_tasks(self.tasks_ahead)})"

    def shown_to(self, sees: Sees) -> Waiting:
        """Return this view without the ids of jobs that a reader may not see."""
        reason = None if self.reason is None else self.reason.shown_to(sees)
        then = None if self.then is None else self.then.shown_to(sees)
        comes = tuple(coming.shown_to(sees) for coming in self.comes)
        return msgspec.structs.replace(self, reason=reason, then=then, comes=comes)


def shown_state(job: Job) -> str:
    """Return the state of a job as users see it: an ended job is `stopping` until its last process is gone."""
    return "stopping" if job.over and job.allocations else job.state


def waiting_since(job: Job) -> Micros | None:
    """Return since when the longest waiting task of a job has waited; None if none waits."""
    return min([ask.waiting_since for stage in job.stages for ask in stage.asks if ask is not None], default=None)


def job_view(job: Job) -> JobView:
    return JobView(
        job.id,
        job.spec.name,
        job.spec.user,
        job.queue.path,
        job.spec.matched,
        job.state,
        job.priority,
        job.submitted,
        waiting_since(job),
        job.ended_at,
        job.reason,
        tuple(_stage_view(stage) for stage in job.stages),
    )


def task_view(partition: Partition, stage: Stage, index: int) -> TaskView:
    past = stage.past(index)
    allocation = (stage.live or {}).get(index)
    if allocation is not None:
        row = partition.nodes.rows[allocation.node]
        position = list(indices(allocation.indices)).index(index)
        per_task = stage.shape.devices
        return TaskView(
            allocation.state,
            allocation.attempt,
            stage.tries_used(index),
            partition.nodes.name[row],
            allocation.devices[position * per_task : (position + 1) * per_task],
            past.reason,
            past.exit_code,
            _note(partition, allocation),
            allocation.started,
        )
    state = "pending"
    for outcome, ended in (stage.ended or {}).items():
        if index in ended:
            state = outcome
    # A task that succeeded without a history succeeded at its first attempt.
    attempt = past.attempt or int(state == "succeeded")
    return TaskView(state, attempt, stage.tries_used(index), None, (), past.reason, past.exit_code)


def _note(partition: Partition, allocation: Allocation) -> str:
    if allocation.cause in BY_USERS and allocation.stopped_for:
        return f"{BY_USERS[allocation.cause]} by {allocation.stopped_for}"
    if allocation.cause == "gang" and allocation.stopped_for:
        return f"its gang starts again: {allocation.stopped_for}"
    if allocation.cause == "done":
        return f"its job is done: {allocation.stopped_for}"
    if allocation.stopped_for:
        return f"stops for {claimant_of(partition, allocation)}"
    if allocation.cause == "return":
        return "recalled, if it has not started"
    if allocation.slots and allocation.state == "assigned":
        return "starts when a task of its chain ends"
    return ""


def ask_view(ask: Ask) -> AskView:
    stage = ask.stage
    return AskView(
        stage.job.id, "" if ask.whole else stage.name, KINDS[ask.kind], ask.count, ask.asked, ask.waiting_since
    )


def lanes_view(partition: Partition) -> dict[tuple[str, str], list[AskView]]:
    """Return the waiting asks in order, by queue and shape or set of shapes. Lanes of all users are shown as one."""
    lanes: dict[tuple[str, str], list[Lane]] = {}
    for lane in sorted(partition.lanes.values(), key=lambda lane: (lane.queue.path, lane.text)):
        lanes.setdefault((lane.queue.path, lane.text), []).append(lane)
    return {
        name: [ask_view(ask) for ask in sorted((ask for lane in alike for ask in lane), key=alike[0].key)]
        for name, alike in lanes.items()
    }


def holds_view(partition: Partition) -> dict[str, list[tuple[str, str, int]]]:
    """Return the held nodes by name, with the job, the stage and the number of tasks that each is held for."""
    nodes = partition.nodes
    return {
        nodes.name[nodes.rows[node_id]]: [
            (partition.holds[seq].job, partition.jobs[partition.holds[seq].job].stages[position].name, tasks)
            for seq, places in sorted(nodes.held[node_id].items())
            if seq in partition.holds
            for _, position, tasks in places
        ]
        for node_id in sorted({node_id for hold in partition.holds.values() for node_id in hold.nodes})
    }


def promises_view(partition: Partition) -> dict[tuple[str, str, str], list[tuple[str, int]]]:
    """Return (job, stage, kind) → the nodes promised to or ordered for the ask, with numbers of tasks."""
    nodes = partition.nodes
    promised: dict[tuple[str, str, str], list[tuple[str, int]]] = {
        (promise.job, partition.jobs[promise.job].stages[promise.stage].name, KINDS[promise.kind]): [
            (nodes.name[nodes.rows[node_id]], tasks) for node_id, _, tasks in promise.places
        ]
        for _, promise in sorted(partition.promises.items())
    }
    for _, order in sorted(partition.orders.items()):
        for name, meant in order.coming.items():
            for job, position, kind, tasks in meant:
                if partition.waits(job, position, kind) is not None:
                    ask = (job, partition.jobs[job].stages[position].name, KINDS[kind])
                    promised.setdefault(ask, []).append((name, tasks))
    return promised


def placements_view(partition: Partition, job: Job) -> dict[tuple[str, int], str]:
    """Return the live tasks of a job with their nodes."""
    return {
        (stage.name, index): partition.nodes.name[partition.nodes.rows[allocation.node]]
        for stage in job.stages
        for index, allocation in sorted((stage.live or {}).items())
    }


def usage_view(partition: Partition, queue: str) -> Vector:
    return dict(sorted(partition.queues[queue].account.used.items()))


def explain_view(partition: Partition, job: Job, reasons: Reasons, now: Micros) -> list[Waiting]:
    """Return why the tasks of a job wait at a time: for jobs in `after`, or by the place and reason of each ask."""
    unmet = partition.unmet(job)
    after = after_unmet(unmet, never_before(partition, job)) if unmet else None
    waiting: list[Waiting] = []
    for stage in job.stages:
        for kind, wanted in enumerate(stage.pending):
            if wanted is not None:
                reason = held_back(job) or after or reasons.get((job.id, stage.name, kind))
                waiting.append(_waiting(partition, stage, kind, len(wanted), reason, now))
        if stage.blocked:
            reason = held_back(job) or after_tasks(job)
            waiting.append(
                Waiting(stage.name, KINDS[NEW], count(stage.blocked), None, reason, queue=job.queue.path, then=after)
            )
        if partition.derived.chains:
            waiting += _in_chains(stage)
    return waiting


def _waiting(partition: Partition, stage: Stage, kind: int, tasks: int, reason: Reason | None, now: Micros) -> Waiting:
    """Return why the pending tasks of one kind of a stage wait. `reason` comes from the last cycle."""
    ask = stage.asks[kind]
    if reason is None and ask is not None:
        reason = why_passed(partition, ask)
    reason = why_now(partition, stage, kind, reason, now)
    if reason is None and not partition.readiness.ready:
        reason = NotReady()
    queue = stage.job.queue.path
    if ask is None:
        then, never = _prospect(partition, stage, reason, None)
        return Waiting(stage.name, KINDS[kind], tasks, None, reason, then=then, never=never, queue=queue)
    position, jobs_ahead, tasks_ahead, at_least = _ahead(partition, ask)
    then, never = _prospect(partition, stage, reason, ask if position else None)
    return Waiting(
        stage.name,
        KINDS[kind],
        tasks,
        position,
        reason,
        jobs_ahead,
        tasks_ahead,
        then,
        never,
        _user_ahead(partition, ask, now) if position else "",
        at_least,
        queue=queue,
        first=not _others_may_go_first(partition, ask),
        comes=() if position else what_comes(partition, ask, reason, now),
        no_hold="" if position else why_no_hold(partition, ask, reason),
    )


def _prospect(
    partition: Partition, stage: Stage, reason: Reason | None, behind: Ask | None
) -> tuple[Reason | None, bool]:
    """Return the reason that will hold after the present one, and True if the tasks can never start.

    `behind` is their ask, if other asks of its lane are ahead.
    """
    never = reason if isinstance(reason, NeverFits) else never_runs(partition, stage.job, stage)
    then = None if never is None or _is_said(never, reason) else never
    if never is None and reason is None and behind is not None:
        then = why_later(partition, behind)
    lasting = never or (then if isinstance(then, NeverFits) else None)
    return then, lasting is not None and not isinstance(lasting, NoNodeYet)


def _is_said(never: Reason, reason: Reason | None) -> bool:
    """True if the present reason already says why the tasks can never start."""
    return never == (msgspec.structs.replace(reason, used=0) if isinstance(reason, OverLimit) else reason)


def _ahead(partition: Partition, ask: Ask) -> tuple[int, int, int, bool]:
    """Return the position of an ask in its lane, and how many other jobs, and tasks of them, are ahead.

    The last value is True if these are lower bounds: in a long lane not all asks are counted.
    """
    position = tasks = 0
    jobs: dict[str, None] = {}
    for other in partition.lanes[lane_key(ask)]:
        if other is ask or position == WALKED:
            break
        position += 1
        if other.stage.job is not ask.stage.job:
            jobs[other.stage.job.id] = None
            tasks += other.count
    return position, len(jobs), tasks, position == WALKED


def _others_may_go_first(partition: Partition, ask: Ask) -> bool:
    """True if another lane of the queue has a head that goes before the ask, or will when tasks of its job end."""
    own = partition.lanes[lane_key(ask)]
    others = [lane for lane in partition.lanes.values() if lane.queue is own.queue and lane is not own]
    heads = [(lane, head) for lane in others if (head := lane.head()) is not None]
    return any(lane.key(head, -head.stage.job.live) < own.key(ask) for lane, head in heads)


def users_view(partition: Partition, queue: Queue, now: Micros) -> list[tuple[str, float, float]]:
    """Return the users that take turns in a leaf queue, in the order of turns.

    Each has its present use and the average of its past use, as fractions of the partition.
    """
    rights = partition.entitlements()
    users: list[tuple[str, float, float]] = []
    for user, account in queue.users.items() if queue.order.by_user else ():
        use = rights.measure(account.used, account.tasks) / rights.whole if rights.whole else 0.0
        users.append((user, use, past_part(partition, account, now)))
    return sorted([entry for entry in users if entry[1] or entry[2]], key=lambda entry: (entry[1] + entry[2], entry[0]))


def _user_ahead(partition: Partition, ask: Ask, now: Micros) -> str:
    """Return the use of an ask's user and of the first user in its lane, in words; empty if it is the same user."""
    job, head = ask.stage.job, partition.lanes[lane_key(ask)].head()
    if head is None or not job.queue.order.by_user or head.stage.job.user == job.user:
        return ""
    uses = {user: (use, past) for user, use, past in users_view(partition, job.queue, now)}
    texts = []
    for user, name in ((job.user, job.user), (head.stage.job.user, "the user ahead")):
        use, past = uses.get(user, (0.0, 0.0))
        before = f" and {100 * past:.0f}% on average before" if partition.settings.share_memory else ""
        texts.append(f"{name} uses {100 * use:.0f}%{before}")
    return f"users take turns: {texts[0]}, {texts[1]}"


def short_reason(partition: Partition, job: Job, reasons: Reasons, sees: Sees) -> str:
    """Return in a few words why the first waiting tasks of a job wait. Reads no nodes and no long lane."""
    kinds = [(stage, kind) for stage in job.stages for kind, wanted in enumerate(stage.pending) if wanted is not None]
    if not kinds:
        return after_tasks(job).short if any([stage.blocked for stage in job.stages]) else ""
    stage, kind = kinds[0]
    unmet = partition.unmet(job)
    reason = held_back(job) or (after_unmet(unmet) if unmet else reasons.get((job.id, stage.name, kind)))
    if reason is not None:
        return reason.shown_to(sees).short
    if not partition.readiness.ready:
        return NotReady().short
    ask = stage.asks[kind]
    behind = ask is not None and partition.lanes[lane_key(ask)].head() is not ask
    return "behind other jobs" if behind else ""


def _in_chains(stage: Stage) -> list[Waiting]:
    kinds: dict[int, list[Allocation]] = {}
    for allocation in {allocation.id: allocation for allocation in (stage.live or {}).values()}.values():
        if allocation.slots and allocation.state == "assigned":
            kinds.setdefault(allocation.kind, []).append(allocation)
    return [
        Waiting(
            stage.name,
            KINDS[kind],
            sum(count(allocation.indices) for allocation in waiting),
            None,
            InChain(len({allocation.node for allocation in waiting})),
        )
        for kind, waiting in sorted(kinds.items())
    ]


def _stage_view(stage: Stage) -> StageView:
    ended = {name: len(ranges) for name, ranges in sorted((stage.ended or {}).items())}
    return StageView(stage.name, stage.size, stage.min, stage.unstarted(), stage.running(), ended)
