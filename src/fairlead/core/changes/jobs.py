"""Changes of jobs: they are added, ask for their tasks, get another state or priority, and are forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from fairlead.core.changes.change import Change, JobNews, Line, Names
from fairlead.core.lifecycle import JOB
from fairlead.core.model import (
    NEW,
    NOTHING_PENDING,
    Account,
    After,
    Ask,
    Asks,
    HeldBy,
    Job,
    JobSpec,
    JobState,
    Micros,
    Queue,
    Stage,
    StageSpec,
    Terms,
    after_of,
    all_pending,
    pack_spec,
    terms_of,
)
from fairlead.core.ranges import Flat
from fairlead.core.resources import SECOND, format_moment
from fairlead.core.shape import Shape, ShapeKey
from fairlead.core.state import Partition


class JobAddedUndo(msgspec.Struct, frozen=True, gc=False):
    job: Job
    stages: tuple[Stage, ...]
    next_job: int


class JobAdded(Change[JobAddedUndo], frozen=True, tag="job added"):
    """Adds a job with all its tasks pending. `Asked` follows at once, or when all jobs in `after` have succeeded."""

    id: str
    number: int
    spec: JobSpec

    def apply(self, partition: Partition) -> JobAddedUndo:
        before = partition.counters.job
        spec = self.spec
        queue = partition.queues[spec.queue]
        accounts = partition.accounts_for(queue, spec.user, spec.groups)
        job = Job(self.id, self.number, pack_spec(spec), partition.now, queue, accounts, priority=spec.priority)
        job.manager, job.whole, job.preemptible = spec.manager, spec.whole, spec.preemptible
        job.after = after_of(spec.after) if spec.after else ()
        job.preempts, job.done_when = spec.preempts, spec.done_when
        job.stages = tuple(
            [new_stage(partition, job, position, stage, spec.shape_user) for position, stage in enumerate(spec.stages)]
        )
        job.throttled = any([stage.throttle for stage in job.stages])
        partition.jobs[self.id] = job
        partition.count_priority(job.priority, 1)
        partition.list_or_unlist(job)
        follow(partition, job)
        partition.counters.job = max(before, self.number + 1)
        partition.touched.jobs[self.id] = None
        return JobAddedUndo(job, job.stages, before)

    def undo(self, partition: Partition, before: JobAddedUndo) -> None:
        job = partition.jobs.pop(self.id)
        partition.count_priority(job.priority, -1)
        job.queue.jobs -= 1
        unfollow(partition, job)
        for stage in job.stages:
            partition.leave_shape(stage.shape)
        partition.counters.job = before.next_job
        partition.touched.jobs.pop(self.id, None)

    def news(self, partition: Partition, before: JobAddedUndo) -> Iterable[JobNews]:
        return (JobNews("submitted", before.job, "pending"),)

    def demand(self, before: JobAddedUndo) -> Iterable[tuple[Stage, int]]:
        return [(stage, spec.size) for stage, spec in zip(before.stages, self.spec.stages, strict=True)]

    def lines(self, names: Names, before: JobAddedUndo) -> Iterator[Line]:
        spec = self.spec
        fields = {
            "job": self.id,
            "user": spec.user,
            "queue": spec.queue,
            "priority": spec.priority,
            "tasks": sum(stage.size for stage in spec.stages),
            "after": list(spec.after),
        }
        yield Line("info", "job submitted", fields)


class AskedUndo(msgspec.Struct, frozen=True, gc=False):
    stage: Stage
    replaced: Ask | None
    next_ask: int
    next_front: int
    last_asks: list[tuple[tuple[int, int] | None, int]]
    """For kind new, `last_ask` and `last_place` of each stage of the ask."""


class Asked(Change[AskedUndo], frozen=True, tag="asked"):
    """Adds or moves the ask for the pending tasks of one kind: those of one stage or, in a whole job, of all stages."""

    job: str
    stage: int
    kind: int
    asked: int
    waiting_since: int
    seq: int
    round: int = 0
    front: int = 0
    whole: bool = False
    tie: int = 0
    """If above 0, the number of an earlier ask. The new ask takes its place."""

    def apply(self, partition: Partition) -> AskedUndo:
        stage = partition.jobs[self.job].stages[self.stage]
        replaced = stage.asks[self.kind]
        fresh = Ask(
            stage, self.kind, self.asked, self.waiting_since, self.seq, self.round, self.front, self.whole, tie=self.tie
        )
        asks = [(asking.last_ask, asking.last_place) for asking in fresh.stages] if self.kind == NEW else []
        before = AskedUndo(stage, replaced, partition.counters.ask, partition.counters.front, asks)
        if replaced is not None:
            partition.drop_ask(replaced)
        partition.add_ask(fresh)
        for asking in fresh.stages if self.kind == NEW else ():
            asking.note_ask(self.asked, self.waiting_since, fresh.place)
        partition.counters.ask = max(partition.counters.ask, self.seq + 1)
        partition.counters.front = max(partition.counters.front, self.front + 1)
        partition.touched.jobs[self.job] = None
        return before

    def undo(self, partition: Partition, before: AskedUndo) -> None:
        ask = before.stage.asks[self.kind]
        assert ask is not None
        partition.drop_ask(ask)
        partition.counters.ask, partition.counters.front = before.next_ask, before.next_front
        for stage, (last_ask, last_place) in zip(ask.stages, before.last_asks, strict=False):
            stage.last_ask, stage.last_place = last_ask, last_place
        if before.replaced is not None:
            partition.add_ask(before.replaced)

    def demand(self, before: AskedUndo) -> Iterable[tuple[Stage, int]]:
        return ((before.stage, 0),)

    def counts(self, partition: Partition, before: AskedUndo) -> Iterable[tuple[str, int]]:
        if before.replaced is None:
            return (("inserted", 1),)
        # A higher round means that the ask went to the tail, which is counted as a note of the plan.
        return (("replaced", 1),) if self.round <= before.replaced.round else ()


class JobMovedUndo(msgspec.Struct, frozen=True, gc=False):
    job: Job
    state: JobState
    reason: str
    ended_at: Micros | None
    short_since_by_stage: list[Micros | None]


class JobMoved(Change[JobMovedUndo], frozen=True, tag="job moved"):
    job: str
    state: JobState
    reason: str = ""

    warns = True

    def apply(self, partition: Partition) -> JobMovedUndo:
        job = partition.jobs[self.job]
        before = JobMovedUndo(job, job.state, job.reason, job.ended_at, [stage.short_since for stage in job.stages])
        JOB.check(job.state, self.state)
        job.state = self.state
        job.reason = self.reason
        if JOB.terminal(self.state):
            job.ended_at = partition.now
            if job.after:
                unfollow(partition, job)
            for stage in job.stages:
                partition.update_short(stage)
        partition.list_or_unlist(job)
        partition.touched.jobs[self.job] = None
        return before

    def undo(self, partition: Partition, before: JobMovedUndo) -> None:
        job = before.job
        if job.over:
            job.ended_at = None
            follow(partition, job)
        job.state, job.reason, job.ended_at = before.state, before.reason, before.ended_at
        for stage, since in zip(job.stages, before.short_since_by_stage, strict=True):
            partition.mark_short(stage, since)
        partition.list_or_unlist(job)

    def news(self, partition: Partition, before: JobMovedUndo) -> Iterable[JobNews]:
        return (JobNews("state", before.job, self.state, self.reason),)

    def manager_to_notify(self, partition: Partition, before: JobMovedUndo) -> str:
        return before.job.manager if self.state in ("killed", "failed") else ""

    def lines(self, names: Names, before: JobMovedUndo) -> Iterator[Line]:
        yield job_over(names, before.job, self.state, self.reason)


class JobPrioritised(Change[int], frozen=True, tag="job prioritised"):
    job: str
    priority: int

    def apply(self, partition: Partition) -> int:
        before = partition.jobs[self.job].priority
        self._set(partition, self.priority)
        return before

    def undo(self, partition: Partition, before: int) -> None:
        self._set(partition, before)

    def _set(self, partition: Partition, priority: int) -> None:
        job = partition.jobs[self.job]
        if job.allocations:
            job.queue.end_work(job)
        partition.count_priority(job.priority, -1)
        partition.count_priority(priority, 1)
        job.priority = priority
        if job.allocations:
            job.queue.begin_work(job)
        lanes = [partition.lane_of(stage) for stage in job.stages]
        if job.whole:
            lanes.append(partition.lane_of(job.stages[0], whole=True))
        for lane in lanes:
            if lane is not None:
                lane.resort()
        partition.wake()  # the new priority may let it claim, or make it a victim
        partition.touched.jobs[self.job] = None

    def lines(self, names: Names, before: int) -> Iterator[Line]:
        yield Line("info", "priority changed", {"job": self.job, "before": before, "priority": self.priority})


class JobUpdatedUndo(msgspec.Struct, frozen=True, gc=False):
    job: Job
    packed: bytes
    queue: Queue
    accounts: tuple[Account, ...]
    after: tuple[After, ...]
    stages: list[tuple[Terms, Shape, int, Asks]]
    cancelled_asks: int


class JobUpdated(Change[JobUpdatedUndo], frozen=True, tag="job updated"):
    """Gives a job another specification. If its asks belong into other lanes now, or have to wait for other jobs, they
    are dropped. Its tasks, their number and its priority stay."""

    job: str
    spec: JobSpec
    changed: tuple[str, ...]
    """What changed, for people."""

    def apply(self, partition: Partition) -> JobUpdatedUndo:
        job, spec = partition.jobs[self.job], self.spec
        stages = [(stage.terms, stage.shape, stage.throttle, stage.asks) for stage in job.stages]
        keys = [stage.shape_key(job.manager, spec.shape_user) for stage in spec.stages]
        moves = spec.queue != job.queue.path or keys != [stage.shape.key for stage in job.stages]
        after = after_of(spec.after)
        dropped: list[Ask] = []
        if moves or after != job.after:
            asks = {ask.seq: ask for stage in job.stages for ask in stage.asks if ask is not None}
            dropped = list(asks.values())
            for ask in dropped:
                partition.drop_ask(ask)
        before = JobUpdatedUndo(job, job.packed, job.queue, job.accounts, job.after, stages, len(dropped))
        queue = partition.queues[spec.queue]
        _put(partition, job, pack_spec(spec), queue, partition.accounts_for(queue, spec.user, spec.groups), after)
        for stage, given, key in zip(job.stages, spec.stages, keys, strict=True):
            _reshape(partition, stage, terms_of(given), key, given.throttle)
        partition.wake()
        return before

    def undo(self, partition: Partition, before: JobUpdatedUndo) -> None:
        job = before.job
        _put(partition, job, before.packed, before.queue, before.accounts, before.after)
        for stage, (terms, shape, throttle, _) in zip(job.stages, before.stages, strict=True):
            _reshape(partition, stage, terms, shape.key, throttle)
        restored = {ask.seq: ask for *_, asks in before.stages for ask in asks if ask is not None}
        for ask in restored.values():
            if ask.stage.asks[ask.kind] is None:
                partition.add_ask(ask)

    def news(self, partition: Partition, before: JobUpdatedUndo) -> Iterable[JobNews]:
        return (JobNews("updated", before.job, before.job.state, ", ".join(self.changed)),)

    def demand(self, before: JobUpdatedUndo) -> Iterable[tuple[Stage, int]]:
        return [(stage, 0) for stage in before.job.stages]

    def counts(self, partition: Partition, before: JobUpdatedUndo) -> Iterable[tuple[str, int]]:
        return (("cancelled", before.cancelled_asks),)

    def lines(self, names: Names, before: JobUpdatedUndo) -> Iterator[Line]:
        yield Line("info", "job updated", {"job": self.job, "changed": list(self.changed)})


def _put(
    partition: Partition, job: Job, packed: bytes, queue: Queue, accounts: tuple[Account, ...], after: tuple[After, ...]
) -> None:
    if queue is not job.queue and job.listed:
        job.queue.jobs -= 1
        queue.jobs += 1
    unfollow(partition, job)
    job.packed, job.queue, job.accounts, job.after = packed, queue, accounts, after
    follow(partition, job)
    partition.touched.jobs[job.id] = None


def _reshape(partition: Partition, stage: Stage, terms: Terms, key: ShapeKey, throttle: int) -> None:
    if key != stage.shape.key:
        left = stage.shape
        stage.shape = partition.take_shape(key)
        partition.leave_shape(left)
    stage.terms, stage.throttle = terms, throttle
    stage.job.throttled = any([each.throttle for each in stage.job.stages])
    partition.wake_lanes(stage)


class JobHeldUndo(msgspec.Struct, frozen=True, gc=False):
    job: Job
    state: JobState
    held_by: HeldBy | None
    short_since_by_stage: list[Micros | None]


class JobHeld(Change[JobHeldUndo], frozen=True, tag="job held"):
    """Holds a job back: none of its tasks start. A user with a higher right can take over the hold."""

    job: str
    by: str
    level: int
    until: Micros = 0
    """When the job is released by itself; 0 for never."""

    def apply(self, partition: Partition) -> JobHeldUndo:
        before = partition.jobs[self.job].held_by
        since = partition.now if before is None else before.since
        return _hold(partition, self.job, HeldBy(self.by, self.level, since, self.until))

    def undo(self, partition: Partition, before: JobHeldUndo) -> None:
        _hold_again(partition, before)

    def news(self, partition: Partition, before: JobHeldUndo) -> Iterable[JobNews]:
        why = f"begins at {format_moment(self.until)}" if self.until else f"held by {self.by}"
        return (JobNews("held", before.job, before.state, why),)

    def counts(self, partition: Partition, before: JobHeldUndo) -> Iterable[tuple[str, int]]:
        return (("jobs held", 1),) if before.held_by is None else ()

    def lines(self, names: Names, before: JobHeldUndo) -> Iterator[Line]:
        until = {"until": self.until / SECOND} if self.until else {}
        yield Line("info", "job held", {"job": self.job, "by": self.by, **until})


class JobReleased(Change[JobHeldUndo], frozen=True, tag="job released"):
    """Lets a held job start tasks again."""

    job: str
    by: str

    def apply(self, partition: Partition) -> JobHeldUndo:
        return _hold(partition, self.job, None)

    def undo(self, partition: Partition, before: JobHeldUndo) -> None:
        _hold_again(partition, before)

    def news(self, partition: Partition, before: JobHeldUndo) -> Iterable[JobNews]:
        why = f"released by {self.by}" if self.by else "its time to begin has come"
        return (JobNews("released", before.job, before.state, why),)

    def counts(self, partition: Partition, before: JobHeldUndo) -> Iterable[tuple[str, int]]:
        return (("jobs released", 1),)

    def lines(self, names: Names, before: JobHeldUndo) -> Iterator[Line]:
        since = None if before.held_by is None else names.seconds_since(before.held_by.since)
        yield Line("info", "job released", {"job": self.job, "by": self.by, "held_seconds": since})


def _hold(partition: Partition, name: str, held_by: HeldBy | None) -> JobHeldUndo:
    job = partition.jobs[name]
    before = JobHeldUndo(job, job.state, job.held_by, [stage.short_since for stage in job.stages])
    job.held_by = held_by
    partition.derived.note_begin(job)
    for stage in job.stages:
        partition.update_short(stage)
        partition.wake_lanes(stage)
    partition.touched.jobs[name] = None
    return before


def _hold_again(partition: Partition, before: JobHeldUndo) -> None:
    before.job.held_by = before.held_by
    partition.derived.note_begin(before.job)
    for stage, since in zip(before.job.stages, before.short_since_by_stage, strict=True):
        partition.mark_short(stage, since)


class JobForgottenUndo(msgspec.Struct, frozen=True, gc=False):
    job: Job
    stages: tuple[Stage, ...]


class JobForgotten(Change[JobForgottenUndo], frozen=True, tag="job forgotten"):
    """Removes a job that ended some time ago from the state. The history still has it."""

    job: str

    def apply(self, partition: Partition) -> JobForgottenUndo:
        job, stages = partition.jobs[self.job], partition.jobs[self.job].stages
        if not job.over or job.allocations:
            raise ValueError(f"job {self.job} has not ended")
        del partition.jobs[self.job]
        partition.derived.begins.pop(self.job, None)
        partition.count_priority(job.priority, -1)
        for stage in stages:
            partition.leave_shape(stage.shape)
        partition.touched.jobs.pop(self.job, None)
        job.stages = ()  # break the reference cycle, so that the garbage collector need not find it
        return JobForgottenUndo(job, stages)

    def undo(self, partition: Partition, before: JobForgottenUndo) -> None:
        job = before.job
        job.stages = before.stages
        partition.jobs[self.job] = job
        partition.derived.note_begin(job)
        partition.count_priority(job.priority, 1)
        partition.may_forget(job)
        for stage in job.stages:
            stage.shape = partition.take_shape(stage.shape.key)


def new_stage(partition: Partition, job: Job, position: int, spec: StageSpec, user: str, own: bool = False) -> Stage:
    shape = partition.take_shape(spec.shape_key(job.manager, user))
    pending = all_pending(spec.count, spec.indices)
    blocked: Flat = ()
    if any([when == "each" for _, when in job.after]):
        pending, blocked = NOTHING_PENDING, spec.indices or (0, spec.count)
    own_spec = spec if own else None
    stage = Stage(
        job, position, own_spec, terms_of(spec), shape, spec.count, pending, throttle=spec.throttle, blocked=blocked
    )
    if own and partition.era:
        # Records of such a stage may have been lost, so its attempts begin above those of the job's other stages.
        stage.floor = max((other.floor for other in job.stages), default=0)
    return stage


def job_over(names: Names, job: Job, state: JobState, reason: str) -> Line:
    """Return the log line of a job that ended."""
    fields = {
        "job": job.id,
        "state": state,
        "queue": job.queue.path,
        "lasted_seconds": names.seconds_since(job.submitted),
        "reason": reason,
    }
    return Line("warning" if state == "failed" else "info", "job over", fields)


def follow(partition: Partition, job: Job) -> None:
    for name, _ in job.after:
        partition.derived.followers.setdefault(name, []).append(job.id)


def unfollow(partition: Partition, job: Job) -> None:
    for name, _ in job.after:
        followers = partition.derived.followers.get(name)
        if followers is not None and job.id in followers:
            followers.remove(job.id)
            if not followers:
                del partition.derived.followers[name]
                if name in partition.jobs:
                    partition.may_forget(partition.jobs[name])
