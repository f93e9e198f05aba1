"""Asks and pending tasks by lane, kept up from sealed plans: a cycle costs what it changed, not what waits."""

from __future__ import annotations

from heapq import nlargest
from threading import Lock
from typing import NamedTuple

from fairlead.core.changes import (
    Asked,
    Began,
    Chained,
    Ended,
    JobAdded,
    JobForgotten,
    KeyKept,
    PendingEnded,
    Placed,
    Regrouped,
    Revived,
    SinglesEnded,
    SinglesPlaced,
    StageAdded,
    StageScaled,
)
from fairlead.core.cycle import Cycle
from fairlead.core.lanes import LaneKey, text_of, whole_key
from fairlead.core.model import Stage
from fairlead.core.ranges import count, indices
from fairlead.core.state import Partition

OTHER = "other"
"""The queue and the shape of what is not shown for itself. No queue has this path: all begin with root."""


QUIET = frozenset((KeyKept, SinglesEnded))
"""The commonest changes that change no demand."""


class Figures(NamedTuple):
    asks: int
    tasks: int


class LaneFigures:
    """The figures of one partition. The writer's thread keeps them up; any thread may ask for them.

    Pending tasks are those of all jobs, also of jobs that come after others and have no ask yet. Those of a job
    that starts whole are counted under their own shapes, and its one ask under the set of them.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._lanes: dict[LaneKey, Figures] = {}

    def begin(self, partition: Partition) -> None:
        """Look at the whole state, once."""
        tasks: dict[LaneKey, int] = {}
        for job in partition.jobs.values():
            for stage in job.stages:
                if stage.waiting():
                    lane = (job.queue.path, stage.shape)
                    tasks[lane] = tasks.get(lane, 0) + stage.waiting()
        with self._lock:
            self._lanes = {
                lane: Figures(_asks(partition, lane), tasks.get(lane, 0)) for lane in tasks | partition.lanes
            }

    def follow(self, decided: Cycle) -> None:
        """Add what a cycle changed."""
        partition = decided.plan.partition
        grown: dict[LaneKey, int] = {}
        for stage, more in _growth(decided).items():
            lane: LaneKey = (stage.job.queue.path, stage.shape)
            grown[lane] = grown.get(lane, 0) + more
            if stage.job.whole:
                grown.setdefault(whole_key(stage.job), 0)
        with self._lock:
            for lane, more in grown.items():
                known = self._lanes.pop(lane, None)
                tasks = more + (known.tasks if known is not None else 0)
                figures = Figures(_asks(partition, lane), tasks)
                if any(figures):
                    self._lanes[lane] = figures

    def most(self, lanes: int) -> dict[tuple[str, str], Figures]:
        """The lanes where most tasks wait, by queue and shape, and all others together as one."""
        with self._lock:
            known = list(self._lanes.items())
        found = {(queue, text_of(shapes)): figures for (queue, shapes), figures in known}
        first = dict(nlargest(lanes, found.items(), key=lambda item: (item[1].tasks, item[0])))
        rest = [figures for lane, figures in found.items() if lane not in first]
        if not rest:
            return first
        return first | {(OTHER, OTHER): Figures(*map(sum, zip(*rest, strict=True)))}


def _asks(partition: Partition, lane: LaneKey) -> int:
    known = partition.lanes.get(lane)
    return known.size if known is not None else 0


def placed_tasks(change: Placed) -> int:
    parts = change.parts
    return count(parts[0].indices) if len(parts) == 1 else sum(count(part.indices) for part in parts)


def _growth(decided: Cycle) -> dict[Stage, int]:
    """The stages whose demand a cycle changed, each with how many more of its tasks are pending than before.

    Only the state after the cycle is there: from it the way leads back through the changes, the last one first.
    """
    jobs = decided.plan.partition.jobs
    forgotten: dict[str, tuple[Stage, ...]] = {}
    growth: dict[Stage, int] = {}
    counts: dict[Stage, int] = {}

    def stages_of(job: str) -> tuple[Stage, ...]:
        return forgotten[job] if job in forgotten else jobs[job].stages

    def stage_of(job: str, position: int) -> Stage:
        return stages_of(job)[position]

    def add(stage: Stage, tasks: int) -> None:
        growth[stage] = growth.get(stage, 0) + tasks

    def had(stage: Stage, tasks: int) -> None:
        """So many were pending before a change: what was found behind it counts no more."""
        growth[stage] = stage.waiting() - tasks

    for change, kept in reversed(decided.plan.done):
        if type(change) in QUIET:
            continue
        if isinstance(change, Asked):
            add(stage_of(change.job, change.stage), 0)
        elif isinstance(change, JobAdded):
            for stage in stages_of(change.id):
                had(stage, 0)
        elif isinstance(change, Placed):
            add(stage_of(change.job, change.stage), -placed_tasks(change))
        elif isinstance(change, SinglesPlaced):
            for ask, _ in kept[0]:
                add(ask.stage, -1)
        elif isinstance(change, Chained):
            add(kept[1].stage, -count(change.indices))
        elif isinstance(change, Ended):
            if change.again >= 0:
                stage = kept[0].stage
                add(stage, _below(change.indices, counts.get(stage, stage.count)))
        elif isinstance(change, PendingEnded):
            add(stage_of(change.job, change.stage), -count(change.indices))
        elif isinstance(change, Began | Regrouped):
            for stage in stages_of(change.job):
                add(stage, 0)
        elif isinstance(change, Revived):
            add(stage_of(change.job, change.stage), count(change.indices))
        elif isinstance(change, StageScaled):
            stage = stage_of(change.job, change.stage)
            counts[stage] = kept[1]
            had(stage, sum(len(wanted) for wanted in kept[4] if wanted is not None))
        elif isinstance(change, StageAdded):
            for stage in stages_of(change.job):
                if stage.name == change.spec.name:
                    had(stage, 0)
        elif isinstance(change, JobForgotten):
            forgotten[change.job] = kept[1]
    return growth


def _below(block: tuple[int, ...], limit: int) -> int:
    """How many of a block there still are: those that a scale-down removed are not asked for again."""
    return count(block) if block[-1] <= limit else sum(1 for index in indices(block) if index < limit)
