"""A week of two teams with opposite days: loans, and how long who comes back waits for its own.

Each team has half of 20 nodes. One works by day, the other by night, and what it began late goes on. In the first week
loans come back only as their tasks end; in the second, rebalance stops the newest of them, and these begin again later.
With the name of a file as its argument, the second week is drawn there.

Prints:
    without rebalance: who comes back waits 120 minutes in the mean, 0 tasks begin again
    with rebalance: who comes back waits 15 minutes in the mean, 140 tasks begin again
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from fairlead.core.changes import Stopped
from fairlead.core.cycle import Cycle
from fairlead.core.state import Partition
from fairlead.sim.charts import Line, linear, picture
from fairlead.testing import World

HOUR, DAY = 3_600, 86_400
NODES, DAYS, STEP = 20, 7, 900
BEGINS = {"day": 8, "night": 20}


class Watch:
    """An observer: when jobs started first, and how many tasks were stopped."""

    def __init__(self) -> None:
        self.started: dict[str, float] = {}
        self.stops = 0

    def began(self, partition: Partition) -> None: ...

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        partition = decided.plan.partition
        for name in partition.touched.jobs:
            if name in partition.jobs and partition.jobs[name].allocations:
                self.started.setdefault(name, partition.now / 1_000_000)
        self.stops += sum(isinstance(change, Stopped) for change in decided.changes)

    def stopped(self, partition: Partition, why: str) -> None: ...


class Week:
    def __init__(self, **settings: object) -> None:
        self.watch = Watch()
        self.w = World({"unit": "slots", **settings}, observers=[self.watch])
        for team in BEGINS:
            self.w.queue(f"root.{team}", share=50)
        self.w.nodes(NODES, cpu=1)
        self.used: dict[str, list[tuple[float, float]]] = {team: [] for team in BEGINS}
        self.came_back: dict[str, int] = {}
        """The jobs that a team began its day with, and when."""
        for at in range(0, DAYS * DAY, STEP):
            for team, hour in BEGINS.items():
                self._work(team, at, (at - hour * HOUR) % DAY)
            self.w.advance(STEP)
            for team in BEGINS:
                self.used[team].append((at / DAY, self.w.usage(f"root.{team}").get("cpu", 0)))

    def _work(self, team: str, at: int, since: int) -> None:
        """Ten tasks of five hours to begin with, and after six hours twenty that go on into the others' day."""
        tasks, hours = {0: (10, 5), 6 * HOUR: (20, 8)}.get(since, (0, 0))
        for _ in range(tasks):
            job = self.w.submit(queue=f"root.{team}", stages=[{"resources": {"cpu": 1}, "duration": hours * HOUR}])
            if not since:
                self.came_back[job] = at

    def tell(self, how: str) -> None:
        waits = [self.watch.started[job] - at for job, at in self.came_back.items() if job in self.watch.started]
        mean = sum(waits) / len(waits) / 60
        print(f"{how}: who comes back waits {mean:.0f} minutes in the mean, {self.watch.stops} tasks begin again")


Week().tell("without rebalance")
week = Week(rebalance_threshold=10, rebalance_after="15min", preempt_grace="1min")
week.tell("with rebalance")
if len(sys.argv) > 1:
    own = NODES / 2
    lines = [Line(f"used by {team}", points) for team, points in week.used.items()]
    lines.append(Line("entitlement of each; above it is a loan", [(0, own), (DAYS, own)]))
    x, y = linear(DAYS, lambda day: f"day {day:.0f}"), linear(NODES, lambda nodes: f"{nodes:.0f}")
    Path(sys.argv[1]).write_text(picture(lines, x, y), encoding="utf-8")
