"""A week of two teams with opposite days: loans, and how long a team waits for its own nodes when its day begins.

Each team has half of 20 nodes. One works by day, the other by night, and late tasks run on into the other team's time.
In the first week loans come back only as their tasks end. In the second week rebalance stops the newest tasks on loan,
and these run again later. With a file name as its argument, the script draws the second week into that file.

Prints:
    without rebalance: first tasks of a day wait 120 minutes on average, 0 tasks run again
    with rebalance: first tasks of a day wait 19 minutes on average, 130 tasks run again
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
    """An observer that records the first start of each job and counts stopped tasks."""

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
        self.first_jobs: dict[str, int] = {}
        """The first jobs of each day of a team, with their times of submission."""
        for now in range(0, DAYS * DAY, STEP):
            for team, hour in BEGINS.items():
                self._submit(team, now, (now - hour * HOUR) % DAY)
            self.w.advance(STEP)
            for team in BEGINS:
                self.used[team].append((now / DAY, self.w.usage(f"root.{team}").get("cpu", 0)))

    def _submit(self, team: str, now: int, since: int) -> None:
        """Submit ten tasks of five hours at the start of the day, and after six hours twenty tasks of eight hours."""
        tasks, hours = {0: (10, 5), 6 * HOUR: (20, 8)}.get(since, (0, 0))
        for _ in range(tasks):
            job = self.w.submit(queue=f"root.{team}", stages=[{"resources": {"cpu": 1}, "duration": hours * HOUR}])
            if not since:
                self.first_jobs[job] = now

    def report(self, title: str) -> None:
        started = self.watch.started
        waits = [started[job] - submitted for job, submitted in self.first_jobs.items() if job in started]
        mean = sum(waits) / len(waits) / 60
        print(f"{title}: first tasks of a day wait {mean:.0f} minutes on average, {self.watch.stops} tasks run again")


Week(rebalance_after=0).report("without rebalance")
week = Week(rebalance_after="15min", preempt_grace="1min", starving_after="1h")
week.report("with rebalance")
if len(sys.argv) > 1:
    own = NODES / 2
    lines = [Line(f"used by {team}", points) for team, points in week.used.items()]
    lines.append(Line("entitlement of each; above it is a loan", [(0, own), (DAYS, own)]))
    x, y = linear(DAYS, lambda day: f"day {day:.0f}"), linear(NODES, lambda nodes: f"{nodes:.0f}")
    Path(sys.argv[1]).write_text(picture(lines, x, y), encoding="utf-8")
