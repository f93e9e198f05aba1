"""Changes of jobs and of their demand: arriving, asking, scaling, ending, being forgotten."""

from __future__ import annotations

from typing import Any

from fairlead.core.changes.base import Change
from fairlead.core.lifecycle import JOB
from fairlead.core.model import (
    NEW,
    Job,
    JobSpec,
    JobState,
    Reservation,
    Reservations,
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

    def apply(self, p: Partition) -> int:
        before = p.counters.job
        spec = self.spec
        queue = p.queues[spec.queue]
        accounts = p.accounts_for(queue, spec.user, spec.groups)
        job = Job(self.id, self.number, pack_spec(spec), p.now, queue, accounts, priority=spec.priority)
        job.manager, job.after, job.whole, job.preemptible = spec.manager, spec.after, spec.whole, spec.preemptible
        job.stages = tuple(
            [new_stage(p, job, position, stage, spec.shape_user) for position, stage in enumerate(spec.stages)]
        )
        p.jobs[self.id] = job
        p.count_priority(job.priority, 1)
        p.settle(job)
        follow(p, job)
        p.counters.job = max(before, self.number + 1)
        p.touched.jobs[self.id] = None
        return before

    def undo(self, p: Partition, kept: int) -> None:
        job = p.jobs.pop(self.id)
        p.count_priority(job.priority, -1)
        job.queue.jobs -= 1
        unfollow(p, job)
        for stage in job.stages:
            p.leave_shape(stage.shape)
        p.counters.job = kept
        p.touched.jobs.pop(self.id, None)


class StageAdded(Change, frozen=True, tag="stage added"):
    """A resource manager's ask becomes a stage of its job."""

    job: str
    spec: StageSpec

    def apply(self, p: Partition) -> None:
        job = p.jobs[self.job]
        job.stages = (*job.stages, new_stage(p, job, len(job.stages), self.spec, "", own=True))
        p.touched.jobs[self.job] = None

    def undo(self, p: Partition, kept: None) -> None:
        job = p.jobs[self.job]
        p.leave_shape(job.stages[-1].shape)
        job.stages = job.stages[:-1]


Before = tuple[Reservation | None, int, int, list[tuple[tuple[int, int] | None, int]]]
"""What an `Asked` replaces: a reservation, the next numbers, and the last ask of its stages if they are new."""


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

    def apply(self, p: Partition) -> Before:
        stage = p.jobs[self.job].stages[self.stage]
        before = stage.reservations[self.kind]
        fresh = Reservation(
            stage, self.kind, self.asked, self.waiting_since, self.seq, self.round, self.front, self.whole, tie=self.tie
        )
        asks = [(each.last_ask, each.last_place) for each in fresh.stages] if self.kind == NEW else []
        kept = (before, p.counters.reservation, p.counters.front, asks)
        if before is not None:
            p.drop_reservation(before)
        p.add_reservation(fresh)
        for each in fresh.stages if self.kind == NEW else ():
            each.note_ask(self.asked, self.waiting_since, fresh.place)
        p.counters.reservation = max(p.counters.reservation, self.seq + 1)
        p.counters.front = max(p.counters.front, self.front + 1)
        p.touched.jobs[self.job] = None
        return kept

    def undo(self, p: Partition, kept: Before) -> None:
        stage = p.jobs[self.job].stages[self.stage]
        reservation = stage.reservations[self.kind]
        assert reservation is not None
        p.drop_reservation(reservation)
        before, p.counters.reservation, p.counters.front, asks = kept
        for each, (last_ask, last_place) in zip(reservation.stages, asks, strict=False):
            each.last_ask, each.last_place = last_ask, last_place
        if before is not None:
            p.add_reservation(before)


class StageScaled(Change, frozen=True, tag="stage scaled"):
    """A stage gets another number of tasks.

    Added tasks are pending under `kind`. Of the removed ones those that are live have been told to stop and leave
    when they end; the others are forgotten here.
    """

    job: str
    stage: int
    count: int
    kind: int = NEW

    def apply(self, p: Partition) -> tuple[Any, ...]:
        stage = p.jobs[self.job].stages[self.stage]
        kept = (
            stage.count,
            stage.floor,
            stage.short_since,
            tuple(None if ranges is None else ranges.copy() for ranges in stage.pending),
            stage.reservations,
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
            _shrink(p, stage, self.count)
        stage.count = self.count
        p.look_short(stage)
        p.wake_lanes(stage)
        p.touched.jobs[self.job] = None
        return dropped(kept[4], stage.reservations), *kept

    def undo(self, p: Partition, kept: tuple[Any, ...]) -> None:
        stage = p.jobs[self.job].stages[self.stage]
        _, stage.count, stage.floor, short_since, stage.pending, reservations, stage.ended, stage.history = kept
        for reservation in reservations:
            if reservation is not None and stage.reservations[reservation.kind] is None:
                p.add_reservation(reservation)
        p.mark_short(stage, short_since)
        p.wake_lanes(stage)


class JobMoved(Change, frozen=True, tag="job moved"):
    job: str
    state: JobState
    reason: str = ""

    def apply(self, p: Partition) -> tuple[JobState, str, int | None, list[int | None]]:
        job = p.jobs[self.job]
        before = (job.state, job.reason, job.ended_at, [stage.short_since for stage in job.stages])
        JOB.check(job.state, self.state)
        job.state = self.state
        job.reason = self.reason
        if JOB.terminal(self.state):
            job.ended_at = p.now
            if job.after:
                unfollow(p, job)
            for stage in job.stages:
                p.look_short(stage)
        p.settle(job)
        p.touched.jobs[self.job] = None
        return before

    def undo(self, p: Partition, kept: tuple[JobState, str, int | None, list[int | None]]) -> None:
        job = p.jobs[self.job]
        if job.over:
            job.ended_at = None
            follow(p, job)
        job.state, job.reason, job.ended_at, short = kept
        for stage, since in zip(job.stages, short, strict=True):
            p.mark_short(stage, since)
        p.settle(job)


class JobPrioritised(Change, frozen=True, tag="job prioritised"):
    job: str
    priority: int

    def apply(self, p: Partition) -> int:
        before = p.jobs[self.job].priority
        self._set(p, self.priority)
        return before

    def undo(self, p: Partition, kept: int) -> None:
        self._set(p, kept)

    def _set(self, p: Partition, priority: int) -> None:
        job = p.jobs[self.job]
        if job.allocations:
            job.queue.end_work(job)
        p.count_priority(job.priority, -1)
        p.count_priority(priority, 1)
        job.priority = priority
        if job.allocations:
            job.queue.begin_work(job)
        lanes = [p.lane_of(stage) for stage in job.stages]
        if job.whole:
            lanes.append(p.lane_of(job.stages[0], whole=True))
        for lane in lanes:
            if lane is not None:
                lane.resort()
        p.wake()  # who may be stopped for whom is another question now
        p.touched.jobs[self.job] = None


class JobForgotten(Change, frozen=True, tag="job forgotten"):
    """A job that ended some time ago leaves the state; reports know it from the history."""

    job: str

    def apply(self, p: Partition) -> tuple[Job, tuple[Stage, ...]]:
        job, stages = p.jobs[self.job], p.jobs[self.job].stages
        if not job.over or job.allocations:
            raise ValueError(f"job {self.job} has not ended")
        del p.jobs[self.job]
        p.count_priority(job.priority, -1)
        for stage in stages:
            p.leave_shape(stage.shape)
        p.touched.jobs.pop(self.job, None)
        job.stages = ()  # the two know each other: like this nobody has to look for what refers only to itself
        return job, stages

    def undo(self, p: Partition, kept: tuple[Job, tuple[Stage, ...]]) -> None:
        job, stages = kept
        job.stages = stages
        p.jobs[self.job] = job
        p.count_priority(job.priority, 1)
        p.may_forget(job)
        for stage in job.stages:
            stage.shape = p.take_shape(stage.shape.key)


def new_stage(p: Partition, job: Job, position: int, spec: StageSpec, user: str, own: bool = False) -> Stage:
    shape = p.take_shape(spec.shape_key(job.manager, user))
    return Stage(job, position, spec if own else None, terms_of(spec), shape, spec.count, all_pending(spec.count))


def grow(stage: Stage, kind: int, block: tuple[int, ...]) -> None:
    """Make tasks pending under a kind."""
    wanted = stage.alter_pending(kind)
    if wanted is None:
        stage.set_pending(kind, Ranges(block))
    else:
        wanted.add(block)


def take(p: Partition, stage: Stage, kind: int, block: tuple[int, ...]) -> Reservation | None:
    """Tasks are pending under a kind no longer; the reservation that this completes is dropped and returned."""
    wanted = stage.pending[kind]
    if wanted is None:
        raise ValueError(f"no {kind} tasks are pending")
    if len(wanted) != count(block) or wanted.flat() != block:
        (stage.alter_pending(kind) or wanted).remove(block)
        return None
    stage.set_pending(kind, None)
    reservation = stage.reservations[kind]
    if reservation is None or (reservation.whole and _still_asks(reservation)):
        return None
    p.drop_reservation(reservation)
    return reservation


def _still_asks(whole: Reservation) -> bool:
    """Whether some stage of a job still wants something of the reservation that all of them share."""
    return any(stage.pending[whole.kind] is not None for stage in whole.stages)


def give_back(p: Partition, stage: Stage, kind: int, block: tuple[int, ...], reservation: Reservation | None) -> None:
    """The reverse of `take`."""
    grow(stage, kind, block)
    if reservation is not None:
        p.add_reservation(reservation)


def dropped(before: Reservations, now: Reservations) -> int:
    """How many reservations of a stage there are no longer."""
    return sum(1 for was, each in zip(before, now, strict=True) if was is not None and each is None)


def follow(p: Partition, job: Job) -> None:
    for name in job.after:
        p.followers.setdefault(name, []).append(job.id)


def unfollow(p: Partition, job: Job) -> None:
    for name in job.after:
        followers = p.followers.get(name)
        if followers is not None and job.id in followers:
            followers.remove(job.id)
            if not followers:
                del p.followers[name]
                if name in p.jobs:
                    p.may_forget(p.jobs[name])


def _shrink(p: Partition, stage: Stage, count: int) -> None:
    for kind in range(len(stage.pending)):
        wanted = stage.alter_pending(kind)
        if wanted is None:
            continue
        wanted.discard_from(count)
        if not wanted:
            stage.set_pending(kind, None)
            reservation = stage.reservations[kind]
            if reservation is not None and not (reservation.whole and _still_asks(reservation)):
                p.drop_reservation(reservation)
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
