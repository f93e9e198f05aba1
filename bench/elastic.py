"""A week of work on a pool that grows and shrinks, against fleets of fixed size.

    python -m bench.elastic docs/pools.svg

The benchmark prints node-hours, waits and orders, and draws the number of nodes and the number that the running tasks
would fill. It simulates, so the figures do not depend on the machine it runs on.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bench.holds import NAMESPACE, STYLE
from fairlead.core.changes import Ordered
from fairlead.core.config import parse_partition
from fairlead.core.cycle import Cycle
from fairlead.core.resources import DAY, HOUR, MINUTE
from fairlead.sim.charts import Line, line_chart, linear
from fairlead.sim.policy_files import Policy
from fairlead.sim.simulation import Simulation
from fairlead.sim.traces import Trace
from fairlead.sim.traces.generate import Workload, generate
from fairlead.sim.traces.trace import LeftOut, cpu_node
from fairlead.writer.writer import Observer

CPUS = 16
PEAK = 60
"""The number of nodes of the largest fleet."""
WORK = Workload(jobs=21_500, seed=8, load=34, largest=64, longest=4 * HOUR, users=12)


class Week(NamedTuple):
    name: str
    node_hours: float
    used: float
    """The used part of the node-hours, in percent."""
    mean: float
    """The mean wait of all jobs, in minutes."""
    p95: float
    orders: int
    ordered: int
    most: int
    nodes: list[tuple[int, int]]
    """Times, and the number of nodes from then on."""
    busy: list[tuple[int, int]]
    """Times, and the thousandths of CPUs in use from then on."""


class Watch(Observer):
    """An observer of the writer that records the number of nodes, and counts orders."""

    def __init__(self) -> None:
        self.nodes: list[tuple[int, int]] = []
        self.orders = self.ordered = 0

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        nodes_up = len(decided.plan.partition.nodes)
        if not self.nodes or self.nodes[-1][1] != nodes_up:
            self.nodes.append((decided.plan.now, nodes_up))
        for change in decided.changes:
            if isinstance(change, Ordered):
                self.orders += 1
                self.ordered += sum(nodes for nodes, _ in change.nodes)


def week(trace: Trace, nodes: int, name: str, **pool: Any) -> Week:
    """Run the trace on a fixed number of nodes, or on a pool."""
    fixed = [(f"n{at}", cpu_node(CPUS)) for at in range(nodes)]
    document: dict[str, Any] = {"chain": 0, "max_placed": 100_000}
    if pool:
        document["pools"] = {"p": {"node": {"cpu": CPUS}, "provider": {"memory": {}}, **pool}}
    policy = Policy(name, parse_partition(document, name))
    watch = Watch()
    simulation = Simulation(Trace(trace.name, trace.arrivals, fixed, trace.left_out), policy, observers=[watch])
    simulation.run(until=trace.arrivals[-1].at + 2 * DAY)
    record = simulation.record
    ends = [ended for at in range(len(trace.arrivals)) if (ended := record.job(at).ended) is not None]
    assert len(ends) == len(trace.arrivals), f"{name}: {len(trace.arrivals) - len(ends)} jobs did not end"
    end = max(ends)
    waits = sorted((record.job(at).started or 0) - arrival.at for at, arrival in enumerate(trace.arrivals))
    steps = [*watch.nodes, (end, 0)]
    hours = sum(nodes_up * (until - since) for (since, nodes_up), (until, _) in pairwise(steps)) / HOUR
    busy = list(zip(record.times, record.used, strict=True))
    used = sum(cpus * (until - since) for (since, cpus), (until, _) in pairwise([*busy, (end, 0)])) / HOUR
    return Week(
        name,
        hours,
        100 * used / 1000 / CPUS / hours,
        sum(waits) / len(waits) / MINUTE,
        waits[len(waits) * 95 // 100] / MINUTE,
        watch.orders,
        watch.ordered,
        max(nodes_up for _, nodes_up in watch.nodes),
        watch.nodes,
        busy,
    )


def work() -> Trace:
    fleet = [(f"n{at}", cpu_node(CPUS)) for at in range(PEAK)]
    return Trace("week", generate(WORK, fleet, "extend"), fleet, LeftOut())


def draw(elastic: Week) -> str:
    """Draw the number of nodes, and the number that the running tasks would fill, by the hour."""
    hours = max(at for at, _ in elastic.nodes) // HOUR + 1
    lines = [
        Line("nodes", _by_hour(elastic.nodes, hours, 1)),
        Line("filled by work", _by_hour(elastic.busy, hours, 1000 * CPUS)),
    ]
    chart = line_chart(
        lines, linear(hours, lambda value: f"{value:g} h"), linear(elastic.most, lambda value: f"{value:g} nodes")
    )
    head, _, body = chart.partition(">")
    return f"{head.replace('<svg', f'<svg {NAMESPACE}', 1)}>{STYLE}{body}"


def _by_hour(steps: Sequence[tuple[int, int]], hours: int, unit: int) -> list[tuple[float, float]]:
    """Return the mean of each hour."""
    sums = [0.0] * hours
    for (since, value), (until, _) in pairwise([*steps, (hours * HOUR, 0)]):
        for hour in range(since // HOUR, min(hours, until // HOUR + 1)):
            within = min(until, (hour + 1) * HOUR) - max(since, hour * HOUR)
            sums[hour] += value * max(0, within) / HOUR
    return [(hour + 0.5, total / unit) for hour, total in enumerate(sums)]


def main(arguments: list[str]) -> None:
    trace = work()
    span = trace.arrivals[-1].at / DAY
    print(f"{len(trace.arrivals)} jobs in {span:.1f} days; nodes of {CPUS} CPUs, which take 2 min to come")
    head = f"{'':>28} {'node-hours':>11} {'used':>7} {'mean wait':>10} {'95 %':>10}"
    print(f"{head} {'orders':>7} {'nodes':>7} {'most':>5}")
    elastic = week(trace, 0, "pool, idle_for 10 min", max=PEAK)
    rows = [elastic, week(trace, 0, "pool, 4 nodes in store", max=PEAK, min_idle=4, max_idle=4)]
    rows += [week(trace, nodes, f"{nodes} nodes that stay") for nodes in (PEAK, PEAK // 2)]
    for row in rows:
        print(
            f"{row.name:>28} {row.node_hours:>11.0f} {row.used:>5.1f} % {row.mean:>6.1f} min {row.p95:>6.1f} min "
            f"{row.orders:>7} {row.ordered:>7} {row.most:>5}"
        )
    if arguments:
        Path(arguments[0]).write_text(draw(elastic), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
