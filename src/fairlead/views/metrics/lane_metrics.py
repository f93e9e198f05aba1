"""Asks and pending tasks by lane, updated from sealed plans. The cost depends only on the changes."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest
from threading import Lock
from typing import NamedTuple

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from fairlead.core.changes import JobUpdatedUndo
from fairlead.core.cycle import Cycle
from fairlead.core.lanes import LaneKey, text_of, whole_key
from fairlead.core.state import Partition
from fairlead.views.metrics.families import gauge

LANES = 50
"""Maximum number of lanes of a partition with their own series."""
OTHER = "other"
"""Queue and shape of the sum of all other lanes. No queue has this path: all paths begin with root."""


class Figures(NamedTuple):
    asks: int
    tasks: int


class LaneFigures:
    """The figures of one partition. The writer's thread updates them; any thread may read them.

    Pending tasks include those of jobs that wait for jobs in `after` and have no ask yet. The tasks of a whole job are
    counted under their own shapes, its one ask under the set of these shapes.
    """

    def __init__(self, partition: Partition) -> None:
        self._lock = Lock()
        tasks: dict[LaneKey, int] = {}
        for job in partition.jobs.values():
            for stage in job.stages:
                if stage.unstarted():
                    lane = (job.queue.path, stage.shape)
                    tasks[lane] = tasks.get(lane, 0) + stage.unstarted()
        self._lanes = {lane: Figures(_asks(partition, lane), tasks.get(lane, 0)) for lane in tasks | partition.lanes}

    def follow(self, decided: Cycle) -> None:
        """Add the changes of a cycle."""
        partition = decided.plan.partition
        grown: dict[LaneKey, int] = {}
        updates: list[JobUpdatedUndo] = []
        for change, before in decided.plan.done:
            if isinstance(before, JobUpdatedUndo):
                updates.append(before)
            for stage, more in change.demand(before):
                lane: LaneKey = (stage.job.queue.path, stage.shape)
                grown[lane] = grown.get(lane, 0) + more
                if stage.job.whole:
                    grown.setdefault(whole_key(stage.job), 0)
        for update in updates:
            _leave_lanes(update, decided, grown)
        with self._lock:
            for lane, more in grown.items():
                earlier = self._lanes.pop(lane, None)
                tasks = more + (earlier.tasks if earlier is not None else 0)
                figures = Figures(_asks(partition, lane), tasks)
                if any(figures):
                    self._lanes[lane] = figures

    def most(self, lanes: int) -> dict[tuple[str, str], Figures]:
        """Return the lanes with the most pending tasks, by queue and shape, and the sum of all others."""
        with self._lock:
            items = list(self._lanes.items())
        by_name: dict[tuple[str, str], Figures] = {}
        for (queue, shapes), figures in items:
            name = (queue, text_of(shapes))  # lanes of different users may have the same name
            asks, tasks = by_name.get(name, (0, 0))
            by_name[name] = Figures(asks + figures.asks, tasks + figures.tasks)
        first = dict(nlargest(lanes, by_name.items(), key=lambda item: (item[1].tasks, item[0])))
        rest = [figures for lane, figures in by_name.items() if lane not in first]
        if not rest:
            return first
        return first | {(OTHER, OTHER): Figures(*map(sum, zip(*rest, strict=True)))}


def _leave_lanes(update: JobUpdatedUndo, decided: Cycle, grown: dict[LaneKey, int]) -> None:
    """Move the pending tasks of an updated job from its earlier lanes to its present ones.

    `grown` counts all changes of this cycle in the present lanes, so only the tasks from before the cycle move. Of
    several updates of a job, only the first one has the lanes in which its tasks were counted.
    """
    job = update.job
    for stage, (_, shape, _, _) in zip(job.stages, update.stages, strict=True):
        earlier: LaneKey = (update.queue.path, shape)
        present: LaneKey = (job.queue.path, stage.shape)
        done = decided.plan.done
        came = sum(more for change, before in done for other, more in change.demand(before) if other is stage)
        counted = 0 if _is_later(update, decided) else stage.unstarted() - came
        grown[earlier] = grown.get(earlier, 0) - counted
        grown[present] = grown.get(present, 0) + counted
    shapes = tuple(sorted({shape for _, shape, _, _ in update.stages}, key=lambda shape: shape.key))
    grown.setdefault((update.queue.path, shapes[0] if len(shapes) == 1 else shapes), 0)


def _is_later(update: JobUpdatedUndo, decided: Cycle) -> bool:
    """True if an earlier change of the cycle added or updated the job."""
    for _change, before in decided.plan.done:
        if before is update:
            return False
        if isinstance(before, JobUpdatedUndo) and before.job is update.job:
            return True
    return False


def _asks(partition: Partition, key: LaneKey) -> int:
    lane = partition.lanes.get(key)
    return lane.size if lane is not None else 0


class Lanes(Collector):
    """The series of all partitions."""

    def __init__(self) -> None:
        self.figures: dict[str, LaneFigures] = {}

    def collect(self) -> Iterator[Metric]:
        lanes = [
            ((partition, *lane), figures)
            for partition, figures_of_all in list(self.figures.items())
            for lane, figures in sorted(figures_of_all.most(LANES).items())
        ]
        labels = ("queue", "shape")
        yield gauge("lane_asks", "Asks in a lane.", labels, [(lane, figures.asks) for lane, figures in lanes])
        yield gauge(
            "lane_pending_tasks",
            "Pending tasks of a lane, also of jobs that come after others and have no ask yet. "
            f"The {LANES} lanes of a partition with the most pending tasks have series of their own; the series other "
            "is the sum of all other lanes.",
            labels,
            [(lane, figures.tasks) for lane, figures in lanes],
        )
