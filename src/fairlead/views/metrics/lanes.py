"""Asks and pending tasks by lane, kept up from sealed plans: a cycle costs what it changed, not what waits."""

from __future__ import annotations

from heapq import nlargest
from threading import Lock
from typing import NamedTuple

from fairlead.core.cycle import Cycle
from fairlead.core.lanes import LaneKey, text_of, whole_key
from fairlead.core.model import Stage
from fairlead.core.state import Partition

OTHER = "other"
"""The queue and the shape of what is not shown for itself. No queue has this path: all begin with root."""


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


def _growth(decided: Cycle) -> dict[Stage, int]:
    """The stages whose demand a cycle changed, each with how many more of its tasks are pending than before."""
    growth: dict[Stage, int] = {}
    for change, before in decided.plan.done:
        for stage, more in change.demand(before):
            growth[stage] = growth.get(stage, 0) + more
    return growth
