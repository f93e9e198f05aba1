"""Asks and pending tasks by lane, updated from sealed plans. The cost depends only on the changes."""

from __future__ import annotations

from heapq import nlargest
from threading import Lock
from typing import NamedTuple

from fairlead.core.cycle import Cycle
from fairlead.core.lanes import LaneKey, text_of, whole_key
from fairlead.core.model import Stage
from fairlead.core.state import Partition

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

    def __init__(self) -> None:
        self._lock = Lock()
        self._lanes: dict[LaneKey, Figures] = {}

    def begin(self, partition: Partition) -> None:
        """Compute the figures from the whole state, once."""
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
        """Add the changes of a cycle."""
        partition = decided.plan.partition
        grown: dict[LaneKey, int] = {}
        for stage, more in _growth(decided).items():
            lane: LaneKey = (stage.job.queue.path, stage.shape)
            grown[lane] = grown.get(lane, 0) + more
            if stage.job.whole:
                grown.setdefault(whole_key(stage.job), 0)
        with self._lock:
            for lane, more in grown.items():
                before = self._lanes.pop(lane, None)
                tasks = more + (before.tasks if before is not None else 0)
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


def _asks(partition: Partition, key: LaneKey) -> int:
    lane = partition.lanes.get(key)
    return lane.size if lane is not None else 0


def _growth(decided: Cycle) -> dict[Stage, int]:
    """Return the stages with changed demand in a cycle, each with the increase of its pending tasks."""
    growth: dict[Stage, int] = {}
    for change, before in decided.plan.done:
        for stage, more in change.demand(before):
            growth[stage] = growth.get(stage, 0) + more
    return growth
