"""Changes of small records: keys of submissions, managers, run times, the mix, past use, plans, unknown tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec

from fairlead.core.changes.change import Change, Line, Names
from fairlead.core.model import KeptKey, Manager, Micros, Mix, Runs, RunsKey, Stage, Strange
from fairlead.core.policy.decay import after_shift
from fairlead.core.ranges import Ranges, count
from fairlead.core.resources import Vector
from fairlead.core.state import Partition


class KeyKept(Change[KeptKey | None], frozen=True, tag="key kept"):
    user: str
    key: str
    entry: KeptKey

    def apply(self, partition: Partition) -> KeptKey | None:
        before = partition.keys.get((self.user, self.key))
        partition.keep_key(self.user, self.key, self.entry)
        return before

    def undo(self, partition: Partition, before: KeptKey | None) -> None:
        partition.drop_key(self.user, self.key)
        if before is not None:
            partition.keep_key(self.user, self.key, before)


class KeysForgotten(Change[list[KeptKey]], frozen=True, tag="keys forgotten"):
    keys: tuple[tuple[str, str], ...]

    def apply(self, partition: Partition) -> list[KeptKey]:
        return [partition.drop_key(user, key) for user, key in self.keys]

    def undo(self, partition: Partition, before: list[KeptKey]) -> None:
        for (user, key), entry in zip(self.keys, before, strict=True):
            partition.keep_key(user, key, entry)


class ManagerRegistered(Change[Manager | None], frozen=True, tag="manager registered"):
    """Registers a resource manager, for the first time or again."""

    name: str

    def apply(self, partition: Partition) -> Manager | None:
        before = partition.managers.get(self.name)
        partition.managers[self.name] = Manager(self.name, partition.now)
        return before

    def undo(self, partition: Partition, before: Manager | None) -> None:
        if before is None:
            del partition.managers[self.name]
        else:
            partition.managers[self.name] = before

    def lines(self, names: Names, before: Manager | None) -> Iterator[Line]:
        yield Line("info", "manager registered", {"manager": self.name, "again": before is not None})


class ManagerRemoved(Change[Manager], frozen=True, tag="manager removed"):
    """Removes a resource manager. Its jobs ended and its nodes left before."""

    name: str

    def apply(self, partition: Partition) -> Manager:
        return partition.managers.pop(self.name)

    def undo(self, partition: Partition, before: Manager) -> None:
        partition.managers[self.name] = before

    def lines(self, names: Names, before: Manager) -> Iterator[Line]:
        yield Line("info", "manager removed", {"manager": self.name})


class RunsNoted(Change[dict[RunsKey, Runs | None]], frozen=True, tag="runs noted"):
    """Records the last run times of some users and job names, and drops old ones."""

    runs: tuple[tuple[RunsKey, Runs], ...]
    dropped: tuple[RunsKey, ...] = ()

    def apply(self, partition: Partition) -> dict[RunsKey, Runs | None]:
        before: dict[RunsKey, Runs | None] = {}
        for key in self.dropped:
            before[key] = partition.runs.pop(key)
        for key, runs in self.runs:
            before[key] = partition.runs.get(key)
            partition.note_runs(key, runs)
        return before

    def undo(self, partition: Partition, before: dict[RunsKey, Runs | None]) -> None:
        for key, runs in before.items():
            if runs is None:
                del partition.runs[key]
            else:
                partition.note_runs(key, runs)


class StartPlanned(Change[None], frozen=True, tag="start planned"):
    """Records the latest planned start of the first ask without capacity. Asks behind it must not delay it further."""

    job: str
    stage: int
    kind: int
    latest: Micros

    def apply(self, partition: Partition) -> None:
        self._set(partition, self.latest)

    def undo(self, partition: Partition, before: None) -> None:
        self._set(partition, 0)

    def _set(self, partition: Partition, latest: Micros) -> None:
        ask = partition.waits(self.job, self.stage, self.kind)
        if ask is None:
            raise ValueError(f"job {self.job} asks for nothing of kind {self.kind}")
        ask.latest = latest
        partition.touched.jobs[self.job] = None


class StrangeFoundUndo(msgspec.Struct, frozen=True, gc=False):
    found: Strange | None
    next_job: int
    floor: int
    top: int


class StrangeFound(Change[StrangeFoundUndo], frozen=True, tag="strange found"):
    """Records tasks on a node that this journal never started. Their job and attempt numbers are not used again."""

    node: str
    job: str
    number: int
    stage: str
    attempt: int
    indices: tuple[int, ...]

    warns: ClassVar[bool] = True

    def apply(self, partition: Partition) -> StrangeFoundUndo:
        key, stage = (self.number, self.stage), self._stage(partition)
        found = partition.strange.get(key)
        before = StrangeFoundUndo(found, partition.counters.job, stage.floor if stage else 0, stage.top if stage else 0)
        tasks = dict(found.tasks) if found is not None else {}
        ranges = Ranges(tasks.get(self.attempt, ()))
        ranges.add(self.indices)
        tasks[self.attempt] = ranges.flat()
        partition.strange[key] = Strange(before.floor if found is None else found.floor, tasks)
        partition.counters.job = max(before.next_job, self.number + 1)
        if stage is not None:
            stage.floor, stage.top = max(stage.floor, self.attempt), max(stage.top, self.attempt)
            partition.touched.jobs[self.job] = None
        return before

    def undo(self, partition: Partition, before: StrangeFoundUndo) -> None:
        key, stage = (self.number, self.stage), self._stage(partition)
        if before.found is None:
            del partition.strange[key]
        else:
            partition.strange[key] = before.found
        partition.counters.job = before.next_job
        if stage is not None:
            stage.floor, stage.top = before.floor, before.top

    def _stage(self, partition: Partition) -> Stage | None:
        job = partition.jobs.get(self.job)
        return job.stage(self.stage) if job is not None and job.number == self.number else None

    def lines(self, names: Names, before: StrangeFoundUndo) -> Iterator[Line]:
        fields = {"node": self.node, "job": self.job, "stage": self.stage, "attempt": self.attempt}
        yield Line("warning", "unknown tasks found", {**fields, "tasks": count(self.indices)})


class SpreadSeen(Change[Micros | None], frozen=True, tag="spread seen"):
    """Records since when the use of a queue's children has been too far from their shares; None if it no longer is."""

    queue: str
    since: Micros | None

    def apply(self, partition: Partition) -> Micros | None:
        before = partition.queues[self.queue].uneven_since
        partition.mark_uneven(partition.queues[self.queue], self.since)
        return before

    def undo(self, partition: Partition, before: Micros | None) -> None:
        partition.mark_uneven(partition.queues[self.queue], before)


class LandmarkMovedUndo(msgspec.Struct, frozen=True, gc=False):
    landmark: Micros
    booked: dict[tuple[str, str], Vector]
    """Queue path and user → `Account.booked`."""


class LandmarkMoved(Change[LandmarkMovedUndo], frozen=True, tag="landmark moved"):
    """Moves the landmark, the time from which the weights of past use count, by whole half-lives.

    Past use grows in weight with the time since the landmark. Moving it keeps the numbers small.
    """

    landmark: Micros

    def apply(self, partition: Partition) -> LandmarkMovedUndo:
        doublings, rest = divmod(self.landmark - partition.landmark, partition.settings.share_memory)
        if rest or doublings < 0 or self.landmark > partition.now:
            raise ValueError(f"the landmark cannot move from {partition.landmark} to {self.landmark}")
        before = LandmarkMovedUndo(partition.landmark, {})
        for path, user, account in partition.remembered():
            before.booked[path, user] = account.booked or {}
            account.booked = after_shift(account.booked or {}, doublings)
        partition.landmark = self.landmark
        return before

    def undo(self, partition: Partition, before: LandmarkMovedUndo) -> None:
        partition.landmark = before.landmark
        for (path, user), booked in before.booked.items():
            queue = partition.queues[path]
            account = partition.account_of(queue, user) if user else queue.account
            account.booked = booked


class MixLearnt(Change[Mix], frozen=True, tag="mix learnt"):
    """Records what jobs usually ask for."""

    mix: Mix

    def apply(self, partition: Partition) -> Mix:
        before = partition.mix
        partition.set_mix(self.mix)
        return before

    def undo(self, partition: Partition, before: Mix) -> None:
        partition.set_mix(before)
