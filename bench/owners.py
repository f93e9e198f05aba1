"""What owners get back, and what it costs: waits for work within the share of its queue, stops, and idle capacity.

    python -m bench.owners table
    python -m bench.owners virtual-clusters philly.csv.gz
    python -m bench.owners starving KTH-SP2.swf.gz LANL-CM5.swf.gz
    python -m bench.owners backfill KTH-SP2.swf.gz lublin_256.swf.gz --jobs 3000

All of it is simulated, so the figures do not depend on the machine. `table` needs no file: loans of three lengths, and
asks of four kinds, with default settings. `virtual-clusters` reads a table with the columns timestamp, duration,
num_gpus and cluster, as the Philly trace has been published: each cluster is a queue whose share is its part of all
GPU hours. `starving` varies `starving_after` on logs in the Standard Workload Format, and on such a table. `backfill`
compares the modes of backfill with otherwise default settings, if all, half or none of the jobs have a time limit.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from random import Random
from time import process_time
from typing import Any, NamedTuple

from msgspec.structs import replace

from fairlead.core.changes import Stopped
from fairlead.core.config import parse_partition
from fairlead.core.cycle import Cycle
from fairlead.core.documents import parse_job, parse_node
from fairlead.core.ranges import count
from fairlead.core.resources import CPU, GPU, HOUR, MILLI, SECOND
from fairlead.sim.policy_files import Policy
from fairlead.sim.simulation import Simulation
from fairlead.sim.traces import Arrival, Trace
from fairlead.sim.traces.swf import read_swf
from fairlead.sim.traces.trace import LeftOut, open_lines
from fairlead.testing import World
from fairlead.writer.writer import Observer


class Stops(Observer):
    """Counts tasks stopped for others, and the time of their resource that is lost."""

    def __init__(self, resource: str = CPU) -> None:
        self.resource = resource
        self.tasks = 0
        self.lost = 0

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        for change, before in decided.plan.done:
            if isinstance(change, Stopped) and change.cause in ("preempt", "gang"):
                was = before.allocation
                tasks = count(change.indices)
                began = was.since if was.started is None else was.started
                self.tasks += tasks
                amount = was.stage.shape.resources.get(self.resource, 0)
                self.lost += tasks * amount * max(0, decided.plan.now - began)


# -- loans and asks ----------------------------------------------------------------------------------------------

LOANS = (3, 30, 3600)
ASKS: dict[str, dict[str, Any]] = {
    "a task of 4 CPUs": {"resources": {"cpu": 4}},
    "a gang of 3 x 2 CPUs": {"count": 3, "resources": {"cpu": 2}},
    "a whole rack": {"count": 2, "near": "rack", "resources": {"cpu": 4}},
    "1.5 GPUs of halves": {"count": 3, "resources": {"cpu": 1, "gpu": 0.5}},
    "2 whole GPUs": {"resources": {"cpu": 1, "gpu": 2}},
}


def table() -> None:
    """Print how long owners wait with default settings, the tasks stopped for them, and the CPU left idle meanwhile."""
    print(f"{'loans':>7}  {'ask':<22} {'wait':>6} {'stops':>6} {'CPU idle':>9}")
    for seconds in LOANS:
        for name, stage in ASKS.items():
            waited, stops, idle = _returned(seconds, stage)
            print(f"{seconds:>5} s  {name:<22} {waited:>4} s {stops:>6} {idle:>7.1f} %")


def _returned(seconds: int, stage: dict[str, Any]) -> tuple[int, int, float]:
    random, stops = Random(7), Stops()
    queues = {"research": {"share": 60}, "prod": {"share": 30}, "batch": {"share": 10}}
    w = World({"queues": {"root": queues}}, observers=[stops])
    for at in range(6):
        w.node(f"n{at}", cpu=4, gpu=2, labels={"rack": f"r{at % 3}"})
    loan = {"cpu": 1, "gpu": 0.5}
    for _ in range(2_000 if seconds < 100 else 120):
        runs = round(seconds * random.uniform(0.6, 1.4), 3)
        w.submit(queue="root.batch", stages=[{"resources": loan, "duration": runs}])
    w.cycle()
    w.advance(2 * seconds if seconds < 100 else 30)
    owner = w.submit(queue="root.research", stages=[{"duration": 600, **stage}])
    w.cycle()
    waited, idle = 0, 0
    nodes = w.partition().nodes
    while not w.placements(owner) and waited < 600:
        w.advance(1)
        waited += 1
        idle += nodes.total[CPU] - w.partition().root.account.used.get(CPU, 0)
    return waited, stops.tasks, 100 * idle / max(1, waited) / nodes.total[CPU]


# -- virtual clusters --------------------------------------------------------------------------------------------

GPUS = 8
"""GPUs of a node."""
MODES: dict[str, dict[str, Any]] = {
    "off": {"recall_after": "0s", "rebalance_after": "0s"},
    "recall": {"rebalance_after": "0s"},
    "recall and stops": {},
}


class Row(NamedTuple):
    at: float
    runs: float
    gpus: int
    queue: str


def read_clusters(path: Path) -> list[Row]:
    """Return the jobs of a table in the order of their submission."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        rows = [
            Row(
                datetime.fromisoformat(row["timestamp"]).timestamp(),
                float(row["duration"]),
                int(float(row["num_gpus"])),
                f"vc-{row['cluster']}",
            )
            for row in csv.DictReader(file)
        ]
    return sorted(row for row in rows if row.runs > 0 and row.gpus > 0)


def part_of(rows: Sequence[Row], first_day: float, days: float, squeeze: float) -> list[Row]:
    """Return the jobs of some days, submitted `squeeze` times as fast."""
    begin = rows[0].at + first_day * 86_400
    part = [row for row in rows if begin <= row.at < begin + days * 86_400]
    return [row._replace(at=(row.at - begin) / squeeze) for row in part]


def trace_of(rows: Sequence[Row], gpus: int) -> Trace:
    arrivals: list[Arrival] = []
    for number, row in enumerate(rows):
        each = min(row.gpus, GPUS)
        stage = {"count": -(-row.gpus // each), "resources": {"gpu": each}}
        spec = parse_job({"name": f"r{number}", "queue": f"root.{row.queue}", "user": row.queue, "stages": [stage]})
        arrivals.append(Arrival(round(row.at * SECOND), str(number), spec, (round(row.runs * SECOND),)))
    sizes = [GPUS] * (gpus // GPUS) + ([gpus % GPUS] if gpus % GPUS else [])
    nodes = [(f"n{at}", parse_node({"name": f"n{at}", "resources": {"gpu": size}})[1]) for at, size in enumerate(sizes)]
    return Trace("virtual-clusters", arrivals, nodes, LeftOut())


def shares_of(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Return queues with the part of each in all GPU hours, in thousandths, as their shares."""
    work: dict[str, float] = {}
    for row in rows:
        work[row.queue] = work.get(row.queue, 0) + row.runs * row.gpus
    return {
        queue: {"share": max(1, round(1_000 * hours / sum(work.values())))} for queue, hours in sorted(work.items())
    }


class Waits(NamedTuple):
    jobs: int
    mean: float
    p95: float
    longest: float


def waits_of(seconds: Sequence[float]) -> Waits:
    ordered = sorted(seconds)
    if not ordered:
        return Waits(0, 0, 0, 0)
    return Waits(len(ordered), sum(ordered) / len(ordered), ordered[len(ordered) * 95 // 100], ordered[-1])


def within_share(simulation: Simulation, rows: Sequence[Row], queues: dict[str, dict[str, Any]], end: int) -> list[int]:
    """Return the jobs with which their queue stays within its share, counting all its jobs that are not over."""
    total = simulation.trace.amount(GPU) // MILLI
    whole = sum(queue["share"] for queue in queues.values())
    open_jobs: dict[str, list[tuple[int, int]]] = {queue: [] for queue in queues}
    found: list[int] = []
    for at, (row, arrival) in enumerate(zip(rows, simulation.trace.arrivals, strict=True)):
        live = open_jobs[row.queue] = [entry for entry in open_jobs[row.queue] if entry[0] > arrival.at]
        if sum(gpus for _, gpus in live) + row.gpus <= total * queues[row.queue]["share"] / whole:
            found.append(at)
        ended = simulation.record.job(at).ended
        live.append((end if ended is None else ended, row.gpus))
    return found


def virtual_clusters(path: Path, first_day: float, days: float, squeeze: float, gpus: int) -> None:
    every = read_clusters(path)
    rows = part_of(every, first_day, days, squeeze)
    queues = shares_of(rows)
    end = round(rows[-1].at) * SECOND
    print(f"{len(rows):,} jobs in {len(queues)} queues, {gpus:,} GPUs, {end / HOUR:.0f} hours of submissions")
    print(
        f"{'':<18}{'within share':>13}{'mean':>9}{'p95':>10}{'longest':>10}{'all: p95':>10}{'stops':>8}"
        f"{'lost GPU h':>12}{'used':>8}{'CPU s':>7}"
    )
    for name, settings in MODES.items():
        began, stops = process_time(), Stops(GPU)
        policy = Policy(name, parse_partition({"chain": 0, "queues": {"root": queues}, **settings}, name))
        simulation = Simulation(trace_of(rows, gpus), policy, observers=[stops])
        simulation.run(end)
        every_wait = [_waited(simulation, at, end) for at in range(len(rows))]
        own = waits_of([every_wait[at] for at in within_share(simulation, rows, queues, end)])
        lost = stops.lost / MILLI / HOUR
        print(
            f"{name:<18}{own.jobs:>13,}{own.mean:>7.0f} s{own.p95:>8.0f} s{own.longest:>8.0f} s"
            f"{waits_of(every_wait).p95:>8.0f} s{stops.tasks:>8,}{lost:>12,.0f}{_used(simulation, end):>6.1f} %"
            f"{process_time() - began:>7.0f}",
            flush=True,
        )


def _waited(simulation: Simulation, at: int, end: int) -> float:
    started = simulation.record.job(at).started
    return ((end if started is None else started) - simulation.trace.arrivals[at].at) / SECOND


def _used(simulation: Simulation, end: int) -> float:
    record = simulation.record
    times = [*record.times, end]
    total = sum(used * max(0, min(times[at + 1], end) - times[at]) for at, used in enumerate(record.used))
    return 100 * total / (simulation.trace.amount(simulation.trace.resource) * end)


# -- starving_after ----------------------------------------------------------------------------------------------

STARVING = ("1min", "5min", "10min", "30min", "1h", "4h", "2d")


def starving(paths: Sequence[Path], jobs: int, backfill: str) -> None:
    """Print the waits of large and of small jobs, and the use, for several values of `starving_after`."""
    for path in paths:
        print(path.name)
        print(
            f"  {'starving_after':<16}{'large: mean':>12}{'p95':>9}{'longest':>9}"
            f"{'small: mean':>13}{'p95':>9}{'used':>8}"
        )
        for after in STARVING:
            trace = read_swf(open_lines(path), path.name, "kill") if ".swf" in path.name else None
            if trace is None:
                trace = trace_of(part_of(read_clusters(path), 28, 10, 16), 2_490)
            trace = Trace(trace.name, trace.arrivals[:jobs], trace.nodes, trace.left_out)
            large, small, used = _starved(trace, after, backfill)
            print(
                f"  {after:<16}{large.mean / 60:>8.0f} min{large.p95 / 60:>5.0f} min{large.longest / 60:>5.0f} min"
                f"{small.mean / 60:>9.0f} min{small.p95 / 60:>5.0f} min{used:>6.1f} %",
                flush=True,
            )


def _starved(trace: Trace, after: str, backfill: str) -> tuple[Waits, Waits, float]:
    """Simulate one queue. Large jobs are the tenth that asks for most."""
    document = {
        "chain": 0,
        "starving_after": after,
        "backfill": backfill,
        "queues": {"root": {"all": {"order": "fair"}}},
    }
    policy = Policy(after, parse_partition({**document, "requestors": [{"match": "", "queue": "root.all"}]}, after))
    arrivals = [_in_one_queue(arrival) for arrival in trace.arrivals]
    trace = Trace(trace.name, arrivals, trace.nodes, trace.left_out)
    simulation = Simulation(trace, policy)
    end = arrivals[-1].at
    simulation.run(end)
    sizes = [_size(arrival, trace.resource) for arrival in arrivals]
    limit = sorted(sizes)[len(sizes) * 9 // 10]
    waits = [_waited(simulation, at, end) for at in range(len(arrivals))]
    large = waits_of([wait for wait, size in zip(waits, sizes, strict=True) if size >= limit])
    small = waits_of([wait for wait, size in zip(waits, sizes, strict=True) if size < limit])
    return large, small, _used(simulation, end)


def _in_one_queue(arrival: Arrival) -> Arrival:
    return replace(arrival, spec=replace(arrival.spec, queue="root.all"))


def _size(arrival: Arrival, resource: str) -> int:
    return sum(dict(stage.resources).get(resource, 0) * stage.count for stage in arrival.spec.stages)


# -- backfill ----------------------------------------------------------------------------------------------------

LIMITED = (100, 50, 0)
"""Percent of the jobs that have a time limit."""


def backfill(paths: Sequence[Path], jobs: int, modes: Sequence[str]) -> None:
    """Print the waits of large and of small jobs, and the use, with and without backfill."""
    for path in paths:
        print(f"{path.name}, {jobs:,} jobs")
        print(f"  {'limits':>6}  {'backfill':<13}{'large: mean':>15}{'small: mean':>15}{'used':>9}")
        for percent in LIMITED:
            for mode in modes:
                random, read = Random(1), read_swf(open_lines(path), path.name, "kill")
                arrivals = [_limited(arrival, random.randrange(100) < percent) for arrival in read.arrivals[:jobs]]
                trace = Trace(read.name, arrivals, read.nodes, read.left_out)
                large, small, used = _starved(trace, "10min", mode)
                waits = f"{large.mean / 60:>11.0f} min{small.mean / 60:>11.0f} min"
                print(f"  {percent:>4} %  {mode:<13}{waits}{used:>7.1f} %", flush=True)


def _limited(arrival: Arrival, limited: bool) -> Arrival:
    if limited:
        return arrival
    stages = tuple([replace(stage, estimate=None, time_limit=None) for stage in arrival.spec.stages])
    return replace(arrival, spec=replace(arrival.spec, stages=stages))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.owners", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("table")
    clusters = commands.add_parser("virtual-clusters")
    clusters.add_argument("file", type=Path)
    clusters.add_argument("--first-day", type=float, default=28)
    clusters.add_argument("--days", type=float, default=10)
    clusters.add_argument("--squeeze", type=float, default=16, help="submit this many times as fast")
    clusters.add_argument("--gpus", type=int, default=2_490)
    logs = commands.add_parser("starving")
    logs.add_argument("files", type=Path, nargs="+")
    logs.add_argument("--jobs", type=int, default=1_500)
    logs.add_argument("--backfill", default="off")
    modes = commands.add_parser("backfill")
    modes.add_argument("files", type=Path, nargs="+")
    modes.add_argument("--jobs", type=int, default=3_000)
    modes.add_argument("--modes", nargs="+", default=("off", "easy"))
    options = parser.parse_args(arguments)
    if options.command == "table":
        table()
    elif options.command == "virtual-clusters":
        virtual_clusters(options.file, options.first_day, options.days, options.squeeze, options.gpus)
    elif options.command == "starving":
        starving(options.files, options.jobs, options.backfill)
    else:
        backfill(options.files, options.jobs, options.modes)


if __name__ == "__main__":
    main(sys.argv[1:])
