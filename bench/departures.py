"""Placements on a GPU fleet from which tasks leave again: GPU time used, and waits of gangs and of other jobs.

    python -m bench.departures NODES.csv.gz PODS.csv.gz [PHILLY.csv.gz] [--every 24] [--loads 80,95,110] [--places …]

NODES and PODS are lists of the openb trace, of which every 24th node is used, and the pods in random orders. Their run
times are those of the list or, with PHILLY (a table with the columns duration and num_gpus), drawn from its jobs with
as many GPUs; times above two hours count as two hours. The gaps between arrivals are equal, so that the jobs ask for a
given percentage of the fleet's GPU time. Every 200th job (`--gangs`; 0 for none) is a gang of 2 to 4 tasks with 8 GPUs
each. The figures are means of `--orders` random orders, without the first quarter of the arrivals; in brackets is how
much more than with the first placement it is, with the standard error over the orders. The settings are the defaults.
All of it is simulated, so the figures do not depend on the machine.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections.abc import Sequence
from multiprocessing import Pool
from pathlib import Path
from random import Random
from statistics import mean, stdev

from msgspec.structs import replace

from bench.harness import CORES
from fairlead.core.config import parse_partition
from fairlead.core.model import JobSpec, StageSpec
from fairlead.core.resources import CPU, GPU, HOUR, MEMORY, MILLI, SECOND
from fairlead.sim.policy_files import ONE_QUEUE, Policy
from fairlead.sim.record import Record
from fairlead.sim.simulation import Simulation
from fairlead.sim.traces import Arrival, LeftOut, Trace, read_traces

PLACES = "priced,fgd,pack,bestfit"
LONGEST = 2 * HOUR


def durations_of(path: Path) -> dict[int, list[int]]:
    """Return the run times of a table, by number of GPUs."""
    durations: dict[int, list[int]] = {}
    with gzip.open(path, "rt") as lines:
        for row in csv.DictReader(lines):
            durations.setdefault(int(row["num_gpus"]), []).append(int(float(row["duration"])) * SECOND)
    return durations


def trace_of(
    recorded: Trace, every: int, load: int, philly: dict[int, list[int]] | None, gangs: int, seed: int
) -> Trace:
    rng = Random(seed)
    nodes = recorded.nodes[::every]
    arrivals: list[Arrival] = []
    for at, arrival in enumerate(rng.sample(recorded.arrivals, len(recorded.arrivals))):
        spec, (run,) = arrival.spec, arrival.durations
        gpus = -(-dict(spec.stages[0].resources).get(GPU, 0) // MILLI)
        if gangs and at % gangs == gangs - 1:
            spec, gpus = gang(spec, rng.randint(2, 4)), 8
        if philly is not None:
            run = rng.choice(philly[max(1, gpus)])
        arrivals.append(Arrival(0, str(at), spec, (min(max(run, SECOND), LONGEST),)))
    fleet = Trace(recorded.name, arrivals, nodes, LeftOut())
    work = sum(arrival.work(GPU) for arrival in arrivals)
    span = work * 100 // (load * fleet.amount(GPU))
    arrivals = [replace(arrival, at=span * at // len(arrivals)) for at, arrival in enumerate(arrivals)]
    return Trace(recorded.name, arrivals, nodes, LeftOut())


def gang(spec: JobSpec, tasks: int) -> JobSpec:
    resources = ((CPU, 64 * MILLI), (GPU, 8 * MILLI), (MEMORY, 128 * 2**30))
    return replace(spec, stages=(StageSpec("main", tasks, 0, resources),))


def run(trace: Trace, place: str) -> list[float]:
    config = parse_partition({"queues": ONE_QUEUE["queues"], "requestors": ONE_QUEUE["requestors"], "place": place}, "")
    simulation = Simulation(trace, Policy(place, config))
    simulation.run(until=trace.arrivals[-1].at)
    return figures(trace, simulation.record)


def figures(trace: Trace, record: Record) -> list[float]:
    begin, end = trace.arrivals[len(trace.arrivals) // 4].at, trace.arrivals[-1].at
    used = sum(
        amount * max(0, min(until, end) - max(since, begin))
        for since, until, amount in zip(record.times, [*record.times[1:], end], record.used, strict=True)
    )
    waits: dict[str, list[int]] = {"gang": [], "large": [], "small": [], "cpu": []}
    for at, arrival in enumerate(trace.arrivals):
        (stage,) = arrival.spec.stages
        gpu = dict(stage.resources).get(GPU, 0)
        kind = "gang" if stage.count > 1 else "large" if gpu > MILLI else "small" if gpu else "cpu"
        if arrival.at >= begin:
            started = record.job(at).started
            waits[kind].append((end if started is None else started) - arrival.at)
    total = trace.amount(GPU) * (end - begin)
    late = sum(wait > 60 * SECOND for wait in waits["cpu"]) / max(1, len(waits["cpu"]))
    return [100 * used / total, *[sum(each) / max(1, len(each)) / HOUR for each in waits.values()], 100 * late]


def cell(found: Sequence[float], first: Sequence[float]) -> str:
    more = [here - there for here, there in zip(found, first, strict=True)]
    if len(more) < 2 or not any(more):
        return f"{mean(found):.2f}"
    return f"{mean(found):.2f} ({mean(more):+.2f} ± {stdev(more) / len(more) ** 0.5:.2f})"


HEAD = """\
| run times | load, % | placement | GPU time used, % | mean wait of gangs, h | 2 GPUs and more, h | up to one GPU, h | \
no GPU, h | of these over 1 min, % |
|---|---|---|---|---|---|---|---|---|"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.departures", description=__doc__)
    parser.add_argument("nodes", type=Path)
    parser.add_argument("pods", type=Path)
    parser.add_argument("philly", type=Path, nargs="?")
    parser.add_argument("--every", type=int, default=24)
    parser.add_argument("--gangs", type=int, default=200)
    parser.add_argument("--orders", type=int, default=1)
    parser.add_argument("--first", type=int, default=1, help="the number of the first order")
    parser.add_argument("--processes", type=int, default=CORES)
    parser.add_argument("--loads", default="80,95,110")
    parser.add_argument("--places", default=PLACES)
    options = parser.parse_args(arguments)
    recorded = read_traces([options.nodes, options.pods], lambda path: None, "extend", None, None, None)
    sources: list[tuple[str, dict[int, list[int]] | None]] = [("of the list", None)]
    if options.philly:
        sources.append(("of Philly", durations_of(options.philly)))
    print(HEAD, flush=True)
    for name, philly in sources:
        for load in map(int, options.loads.split(",")):
            seeds = range(options.first, options.first + options.orders)
            traces = [trace_of(recorded, options.every, load, philly, options.gangs, seed) for seed in seeds]
            first: list[tuple[float, ...]] = []
            for place in options.places.split(","):
                with Pool(options.processes) as pool:
                    found = list(zip(*pool.starmap(run, [(trace, place) for trace in traces]), strict=True))
                first = first or found
                cells = map(cell, found, first)
                print("|", " | ".join([name, str(load), f"`{place}`", *cells]), "|", flush=True)


if __name__ == "__main__":
    main()
