"""Changes of jobs and of their demand: arriving, asking, scaling, ending, being forgotten."""

from __future__ import annotations

from typing import Any

from fairlead.core.changes.base import Change
from fairlead.core.lifecycle import JOB
from fairlead.core.model import (
    NEW,
    Ask,
    Asks,
    Job,
    JobSpec,
    JobState,
    Stage,
    StageSpec,
    all_pending,
    pack_spec,
    terms_of,
)
from fairlead.core.ranges import Ranges, count, difference
from fairlead.core.state import Partition


class JobAdded(Change, frozen=True, tag="job added"):
    """A job arrives with all its tasks pending. It asks for them by `Asked`, at once or when `after` is met."""

    id: str
    number: int
    spec: JobSpec

    def apply(self, partition: Partition) -> int:
        before = partition.counters.job
        spec = self.spec
        queue = partition.queues[spec.queue]
        accounts = partition.accounts_for(queue, spec.user, spec.groups)
        job = Job(self.id, self.number, pack_spec(spec), partition.now, queue, accounts, priority=spec.priority)
        job.manager, job.after, job.whole, job.preemptible = spec.manager, spec.after, spec.whole, spec.preemptible
        job.stages = tuple(
            [new_stage(partition, job, position, stage, spec.shape_user) for position, stage in enumerate(spec.stages)]
        )
        partition.jobs[self.id] = job
        partition.count_priority(job.priority, 1)
        partition.list_or_unlist(job)
        follow(partition, job)
        partition.counters.job = max(before, self.number + 1)
        partition.touched.jobs[self.id] = None
        return before

    def undo(self, partition: Partition, kept: int) -> None:
        job = partition.jobs.pop(self.id)
        partition.count_priority(job.priority, -1)
        job.queue.jobs -= 1
        unfollow(partition, job)
        for stage in job.stages:
            partition.leave_shape(stage.shape)
        partition.counters.job = kept
        partition.touched.jobs.pop(self.id, None)


class StageAdded(Change, frozen=True, tag="stage added"):
    """A resource manager's ask becomes a stage of its job."""

    job: str
    spec: StageSpec

    def apply(self, partition: Partition) -> None:
        job = partition.jobs[self.job]
        job.stages = (*job.stages, new_stage(partition, job, len(job.stages), self.spec, "", own=True))
        partition.touched.jobs[self.job] = None

    def undo(self, partition: Partition, kept: None) -> None:
        job = partition.jobs[self.job]
        partition.leave_shape(job.stages[-1].shape)
        job.stages = job.stages[:-1]


Before = tuple[Ask | None, int, int, list[tuple[tuple[int, int] | None, int]]]
"""What an `Asked` replaces: an ask, the next numbers, and the last ask of its stages if they are new."""


class Asked(Change, frozen=True, tag="asked"):
    """The pending tasks of one kind of a stage, or of a whole job, take a place in their lane, or another place."""

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
    """Above 0, the number that had the place which the tasks come back to."""

    def apply(self, partition: Partition) -> Before:
        stage = partition.jobs[self.job].stages[self.stage]
        before = stage.asks[self.kind]
        fresh = Ask(
            stage, self.kind, self.asked, self.waiting_since, self.seq, self.round, self.front, self.whole, tie=self.tie
        )
        asks = [(each.last_ask, each.last_place) for each in fresh.stages] if self.kind == NEW else []
        kept = (before, partition.counters.ask, partition.counters.front, asks)
        if before is not None:
            partition.drop_ask(before)
        partition.add_ask(fresh)
        for each in fresh.stages if self.kind == NEW else ():
            each.note_ask(self.asked, self.waiting_since, fresh.place)
        partition.counters.ask = max(partition.counters.ask, self.seq + 1)
        partition.counters.front = max(partition.counters.front, self.front + 1)
        partition.touched.jobs[self.job] = None
        return kept

    def undo(self, partition: Partition, kept: Before) -> None:
        stage = partition.jobs[self.job].stages[self.stage]
        ask = stage.asks[self.kind]
        assert ask is not None
        partition.drop_ask(ask)
        before, partition.counters.ask, partition.counters.front, asks = kept
        for each, (last_ask, last_place) in zip(ask.stages, asks, strict=False):
            each.last_ask, each.last_place = last_ask, last_place
        if before is not None:
            partition.add_ask(before)


class StageScaled(Change, frozen=True, tag="stage scaled"):
    """A stage gets another number of tasks.

    Added tasks are pending under `kind`. Of the removed ones those that are live have been told to stop and leave
    when they end; the others are forgotten here.
    """

    job: str
    stage: int
    count: int
    kind: int = NEW

    def apply(self, partition: Partition) -> tuple[Any, ...]:
        stage = partition.jobs[self.job].stages[self.stage]
        kept = (
            stage.count,
            stage.floor,
            stage.short_since,
            tuple(None if ranges is None else ranges.copy() for ranges in stage.pending),
            stage.asks,
            None if stage.ended is None else {name: ranges.copy() for name, ranges in stage.ended.items()},
            None if stage.history is None else dict(stage.history),
        )
        if self.count > stage.count:
            # An index that a scale-down is still stopping is asked for when its old attempt has ended.
            still = Ranges.from_indices(index for index in stage.live or () if index >= stage.count)
            added = difference((stage.count, self.count), still.flat())
            if added:
                grow(stage, self.kind, added)
        else:
            _shrink(partition, stage, self.count)
        stage.count = self.count
        partition.update_short(stage)
        partition.wake_lanes(stage)
        partition.touched.jobs[self.job] = None
        return dropped(kept[4], stage.asks), *kept

    def undo(self, partition: Partition, kept: tuple[Any, ...]) -> None:
        stage = partition.jobs[self.job].stages[self.stage]
        _, stage.count, stage.floor, short_since, stage.pending, asks, stage.ended, stage.history = kept
        for ask in asks:
            if ask is not None and stage.asks[ask.kind] is None:
                partition.add_ask(ask)
        partition.mark_short(stage, short_since)
        partition.wake_lanes(stage)


class JobMoved(Change, frozen=True, tag="job moved"):
    job: str
    state: JobState
    reason: str = ""

    def apply(self, partition: Partition) -> tuple[JobState, str, int | None, list[int | None]]:
        job = partition.jobs[self.job]
        before = (job.state, job.reason, job.ended_at, [stage.short_since for stage in job.stages])
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

    def undo(self, partition: Partition, kept: tuple[JobState, str, int | None, list[int | None]]) -> None:
        job = partition.jobs[self.job]
        if job.over:
            job.ended_at = None
            follow(partition, job)
        job.state, job.reason, job.ended_at, short = kept
        for stage, since in zip(job.stages, short, strict=True):
            partition.mark_short(stage, since)
        partition.list_or_unlist(job)


class JobPrioritised(Change, frozen=True, tag="job prioritised"):
    job: str
    priority: int

    def apply(self, partition: Partition) -> int:
        before = partition.jobs[self.job].priority
        self._set(partition, self.priority)
        return before

    def undo(self, partition: Partition, kept: int) -> None:
        self._set(partition, kept)

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
        partition.wake()  # who may be stopped for whom is another question now
        partition.touched.jobs[self.job] = None


class JobForgotten(Change, frozen=True, tag="job forgotten"):
    """A job that ended some time ago leaves the state; reports know it from the history."""

    job: str

    def apply(self, partition: Partition) -> tuple[Job, tuple[Stage, ...]]:
        job, stages = partition.jobs[self.job], partition.jobs[self.job].stages
        if not job.over or job.allocations:
            raise ValueError(f"job {self.job} has not ended")
        del partition.jobs[self.job]
        partition.count_priority(job.priority, -1)
        for stage in stages:
            partition.leave_shape(stage.shape)
        partition.touched.jobs.pop(self.job, None)
        job.stages = ()  # the two know each other: like this nobody has to look for what refers only to itself
        return job, stages

    def undo(self, partition: Partition, kept: tuple[Job, tuple[Stage, ...]]) -> None:
        job, stages = kept
        job.stages = stages
        partition.jobs[self.job] = job
        partition.count_priority(job.priority, 1)
        partition.may_forget(job)
        for stage in job.stages:
            stage.shape = partition.take_shape(stage.shape.key)


def new_stage(partition: Partition, job: Job, position: int, spec: StageSpec, user: str, own: bool = False) -> Stage:
    shape = partition.take_shape(spec.shape_key(job.manager, user))
    return Stage(job, position, spec if own else None, terms_of(spec), shape, spec.count, all_pending(spec.count))


def grow(stage: Stage, kind: int, block: tuple[int, ...]) -> None:
    """Make tasks pending under a kind."""
    wanted = stage.alter_pending(kind)
    if wanted is None:
        stage.set_pending(kind, Ranges(block))
    else:
        wanted.add(block)


def take(partition: Partition, stage: Stage, kind: int, block: tuple[int, ...]) -> Ask | None:
    """Tasks are pending under a kind no longer; the ask that this completes is dropped and returned."""
    wanted = stage.pending[kind]
    if wanted is None:
        raise ValueError(f"no {kind} tasks are pending")
    if len(wanted) != count(block) or wanted.flat() != block:
        (stage.alter_pending(kind) or wanted).remove(block)
        return None
    stage.set_pending(kind, None)
    ask = stage.asks[kind]
    if ask is None or (ask.whole and _still_asks(ask)):
        return None
    partition.drop_ask(ask)
    return ask


def _still_asks(whole: Ask) -> bool:
    """Whether some stage of a job still wants something of the ask that all of them share."""
    return any(stage.pending[whole.kind] is not None for stage in whole.stages)


def give_back(partition: Partition, stage: Stage, kind: int, block: tuple[int, ...], ask: Ask | None) -> None:
    """The reverse of `take`."""
    grow(stage, kind, block)
    if ask is not None:
        partition.add_ask(ask)


def dropped(before: Asks, now: Asks) -> int:
    """How many asks of a stage there are no longer."""
    return sum(1 for was, each in zip(before, now, strict=True) if was is not None and each is None)


def follow(partition: Partition, job: Job) -> None:
    for name in job.after:
        partition.followers.setdefault(name, []).append(job.id)


def unfollow(partition: Partition, job: Job) -> None:
    for name in job.after:
        followers = partition.followers.get(name)
        if followers is not None and job.id in followers:
            followers.remove(job.id)
            if not followers:
                del partition.followers[name]
                if name in partition.jobs:
                    partition.may_forget(partition.jobs[name])


def _shrink(partition: Partition, stage: Stage, count: int) -> None:
    for kind in range(len(stage.pending)):
        wanted = stage.alter_pending(kind)
        if wanted is None:
            continue
        wanted.discard_from(count)
        if not wanted:
            stage.set_pending(kind, None)
            ask = stage.asks[kind]
            if ask is not None and not (ask.whole and _still_asks(ask)):
                partition.drop_ask(ask)
    if stage.ended is not None:
        for ranges in stage.ended.values():
            ranges.discard_from(count)
        stage.ended = {name: ranges for name, ranges in stage.ended.items() if ranges} or None
    if stage.history is not None:
        stage.history = {index: past for index, past in stage.history.items() if index < count} or None
    stage.floor = stage.top


CHANGES: tuple[type[Any], ...] = (
    JobAdded,
    StageAdded,
    Asked,
    StageScaled,
    JobMoved,
    JobPrioritised,
    JobForgotten,
)
