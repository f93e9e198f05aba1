"""The cost of holds: large gangs in an endless stream of small tasks, for several values of `held_nodes_percent`.

    python -m bench.holds docs/holds.svg
    python -m bench.holds heads

The benchmark prints a table, and draws the wait of the gangs against the use of the nodes. It simulates, so the figures
do not depend on the machine it runs on. With `heads` it measures cycles in which many heads of lanes starve in a large
partition.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from time import process_time
from typing import Any, NamedTuple

from fairlead.core import cycle
from fairlead.core.commands import Report
from fairlead.core.config import parse_partition
from fairlead.core.documents import parse_job
from fairlead.core.resources import CPU, SECOND
from fairlead.core.state import Partition
from fairlead.sim.charts import Line, line_chart, linear
from fairlead.sim.policy_files import Policy
from fairlead.sim.simulation import Simulation
from fairlead.sim.traces import Arrival, Trace
from fairlead.sim.traces.trace import LeftOut, cpu_node
from fairlead.testing import World

NODES, CPUS = 20, 4
HOURS = 6
GANGS, GANG_RUNS, GANG_EVERY = (2, 12, 6, 16, 8), 600, 1800
"""Nodes of successive gangs; run time of a gang and time between two gangs, in seconds."""
SHORT, LONG = 60, 540
"""The shortest and the longest run time of small tasks, in seconds."""
STARVING = 600
NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'
STYLE = (
    "<style>text{font:12px sans-serif;fill:#444}.grid{stroke:#ddd}.axis,.tick{stroke:#444}</style>"
    '<rect width="100%" height="100%" fill="#fff"/>'
)
SETTINGS = {"chain": 0, "max_placed": 10_000, "starving_after": STARVING, "hold_for": "2h"}


class Cost(NamedTuple):
    percent: int
    waited: float
    """The mean wait of all gangs, in minutes. A gang that did not start has waited until the end."""
    longest: float
    started: int
    gangs: int
    used: float
    """The used part of all nodes, in percent, from the first gang on."""


def work(seed: int) -> Trace:
    """Return a trace of gangs, and of small tasks that need a little more than the rest of the nodes."""
    random = Random(seed)
    arrivals: list[Arrival] = []
    now = 0.0
    while now < HOURS * 3600:
        cpu = random.choice([1, 1, 2])
        runs = random.randint(SHORT, LONG)
        arrivals.append(_arrival(now, f"s{len(arrivals)}", 1, cpu, runs))
        now += random.expovariate(NODES * CPUS / (4 / 3 * (SHORT + LONG) / 2))
    for number, at in enumerate(range(GANG_EVERY, HOURS * 3600 - GANG_EVERY, GANG_EVERY)):
        arrivals.append(_arrival(at, f"g{number}", GANGS[number % len(GANGS)], CPUS, GANG_RUNS))
    arrivals.sort(key=lambda arrival: arrival.at)
    return Trace("stream", arrivals, [(f"n{at}", cpu_node(CPUS)) for at in range(NODES)], LeftOut())


def _arrival(at: float, name: str, count: int, cpu: int, runs: int) -> Arrival:
    stage = {"name": "w", "count": count, "resources": {"cpu": cpu}, "estimate": runs, "time_limit": LONG + GANG_RUNS}
    spec = parse_job({"name": name, "user": "user", "stages": [stage]})
    return Arrival(round(at) * SECOND, name, spec, (runs * SECOND,))


def cost(trace: Trace, percent: int, **settings: Any) -> Cost:
    document = {**SETTINGS, "held_nodes_percent": percent, **settings}
    simulation = Simulation(trace, Policy("holds", parse_partition(document, "holds")))
    end = HOURS * 3600 * SECOND
    simulation.run(end)
    record = simulation.record
    waits: list[float] = []
    started = 0
    for at, arrival in enumerate(trace.arrivals):
        if arrival.id.startswith("g"):
            begun = record.job(at).started
            started += begun is not None
            waits.append(((end if begun is None else begun) - arrival.at) / SECOND / 60)
    return Cost(percent, sum(waits) / len(waits), max(waits), started, len(waits), _used(simulation, end))


def _used(simulation: Simulation, end: int) -> float:
    record = simulation.record
    first = GANG_EVERY * SECOND
    total = 0
    times = [*record.times, end]
    for at, used in enumerate(record.used):
        total += used * max(0, min(times[at + 1], end) - max(times[at], first))
    return 100 * total / (simulation.trace.amount(CPU) * (end - first))


def draw(costs: Sequence[Cost]) -> str:
    longest = max(point.waited for point in costs)
    low = min(point.used for point in costs)
    points = [(point.used, point.waited) for point in costs]
    chart = line_chart(
        [Line("waits", points)],
        linear(100, lambda value: f"{value:g} % used", low=low - 1),
        linear(longest, lambda value: f"{value:g} min"),
        pointed=False,
    )
    head, _, body = chart.partition(">")
    return f"{head.replace('<svg', f'<svg {NAMESPACE}', 1)}>{STYLE}{body}"


def heads(nodes: int, lanes: int) -> None:
    """Print the CPU time of cycles: as heads of many shapes begin to starve, without changes, and when a task ends."""
    w = World({**SETTINGS, "hold_large": False, "queues": {"root": {"full": {}, "waiting": {}}}})
    w.nodes(nodes, cpu=8, memory="64Gi")
    task = {"name": "s", "count": 2 * nodes, "min": 1, "resources": {"cpu": 4}}
    w.submit(name="full", queue="root.full", stages=[task])
    w.advance(0)
    for number in range(lanes):
        task = {"name": "s", "count": 40, "resources": {"cpu": 5, "memory": f"{number + 1}Mi"}}
        w.submit(name=f"gang{number}", queue="root.waiting", stages=[task])
    w.advance(0)
    partition, now, more, costs = w.partition(), w.now + (STARVING + 1) * SECOND, True, []
    while more:
        spent, more = _cycle(partition, now)
        costs.append(spent)
    print(f"{nodes} nodes, {lanes} heads: they get nodes in {len(costs)} cycles of at most {max(costs):.0f} ms CPU,")
    print(f"  {_cycle(partition, now + 1)[0]:.0f} ms when nothing happens,", end=" ")
    node = w.placements("full")["s", 0]
    ended = Report(node, "full", "s", (0, 1), 1, "succeeded", number=partition.jobs["full"].number)
    print(f"{_cycle(partition, now + 2, ended)[0]:.0f} ms when a task ends")


def _cycle(partition: Partition, now: int, *commands: Report) -> tuple[float, bool]:
    began = process_time()
    more = cycle.run(partition, commands, now).more
    return 1000 * (process_time() - began), more


def main(arguments: list[str]) -> None:
    if arguments == ["heads"]:
        heads(10_000, 200)
        return
    trace = work(1)
    costs = [cost(trace, percent, hold_large=False) for percent in range(0, 101, 10)]
    costs_large = cost(trace, 0, hold_large=True)
    off = cost(trace, 0, hold_for=0)
    print(f"{'held_nodes_percent':>24} {'mean wait':>10} {'longest':>10} {'started':>9} {'used':>7}")
    rows = [("no holds", off), *((str(row.percent), row) for row in costs), ("0, hold_large", costs_large)]
    for name, row in rows:
        started = f"{row.started}/{row.gangs}"
        print(f"{name:>24} {row.waited:>6.1f} min {row.longest:>6.1f} min {started:>9} {row.used:>5.1f} %")
    if arguments:
        Path(arguments[0]).write_text(draw(costs), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
