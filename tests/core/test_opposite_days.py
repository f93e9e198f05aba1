"""A day of teams with opposite demand: a stopped job makes progress before it is stopped again."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from fairlead.core.changes import Stopped
from fairlead.core.cycle import Cycle
from fairlead.core.ranges import indices
from fairlead.core.resources import MINUTE
from fairlead.testing import World
from fairlead.writer.writer import Observer

HOUR = 3_600
AFTER = 10
"""Minutes that a spread lasts before rebalance."""


class Stops(Observer):
    """An observer: for how long tasks had run when they were stopped for others."""

    def __init__(self) -> None:
        self.ran: dict[tuple[str, str, int], list[int]] = {}

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        for change, undo in decided.plan.done:
            if isinstance(change, Stopped) and change.cause == "preempt":
                before = undo.allocation
                stage = before.stage
                for index in indices(change.indices):
                    ran = decided.plan.now - before.since
                    self.ran.setdefault((stage.job.id, stage.name, index), []).append(ran)


@pytest.mark.parametrize("seed", range(6))
def test_no_job_is_stopped_again_and_again(seed: int) -> None:
    """Three teams with gangs and single tasks; two of them have work in turns. Every job ends."""
    draw = Random(seed)
    stops = Stops()
    settings = {"unit": "slots", "rebalance_threshold": 10, "rebalance_after": f"{AFTER}min", "keep_ended": "10d"}
    w = World(settings, observers=[stops])
    for team, share in (("a", 45), ("b", 35), ("c", 20)):
        w.queue(f"root.{team}", share=share)
    w.nodes(20, cpu=1)
    jobs: list[str] = []
    for quarter in range(4 * 18):
        busy = "ac" if quarter // 8 % 2 else "bc"
        for team in busy:
            for _ in range(draw.choice([0, 1, 1, 2])):
                count = draw.choice([1, 1, 2, 3, 4, 6])
                stage = {
                    "name": "s",
                    "count": count,
                    "min": draw.choice([1, count]),
                    "resources": {"cpu": 1},
                    "duration": draw.choice([10, 40, 90]) * 60,
                }
                jobs.append(w.submit(queue=f"root.{team}", stages=[stage]))
        w.advance(15 * 60)
    for _ in range(8):
        w.advance(6 * HOUR)
    assert [w.job(job).state for job in jobs] == ["succeeded"] * len(jobs)
    assert sum(map(len, stops.ran.values())) > 0  # else the test would check nothing
    for ran in stops.ran.values():
        assert all(each >= AFTER * MINUTE for each in ran[1:])
