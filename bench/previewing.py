"""Looks into the future: start times of waiting jobs, from the question to the answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from time import perf_counter

from msgspec.structs import replace

from bench.harness import Row, loop_seconds
from fairlead.sim.policies import NAMED
from fairlead.sim.preview.answers import SECONDS
from fairlead.sim.preview.eta import draw_futures, sum_up
from fairlead.sim.preview.past import Past, PastJob
from fairlead.sim.preview.runtimes import Runtimes
from fairlead.sim.simulation import Simulation
from fairlead.sim.traces import LeftOut, Trace
from fairlead.sim.traces.base import cpu_node
from fairlead.sim.traces.generate import Workload, generate

WAITING = 1_000
PROCESSORS = 256
GOAL = 5.0


def previewing(scale: float) -> Iterator[Row]:
    """Yield the time of an answer for all jobs that wait on an overloaded machine."""
    wanted = max(10, int(WAITING * scale))
    nodes = [("machine", cpu_node(PROCESSORS))]
    arrivals = generate(Workload(jobs=wanted + wanted // 30, load=95, largest=PROCESSORS // 4), nodes, "extend")
    begin = arrivals[-1].at + 1
    past, runtimes = Past(), Runtimes()
    for arrival in arrivals:
        spec, run = arrival.spec, arrival.run
        past.add(PastJob(arrival.at, arrival.job, spec, [run]))
        runtimes.note(spec.user, spec.name, spec.stages[0].name, run, spec.stages[0].estimate)
    queue = [replace(arrival, at=begin, id=f"again-{arrival.id}") for arrival in arrivals]
    trace = Trace("made up", queue, nodes, LeftOut())
    simulation = Simulation(trace, NAMED["easy"](trace))
    partition = simulation.writer.partition
    simulation.run(begin)
    waiting = [job.id for job in partition.jobs.values() if not job.over and not job.live][:wanted]
    began = perf_counter()
    workers = os.cpu_count() or 1
    samples = draw_futures(partition, simulation.now, runtimes, past, waiting, SECONDS, workers=workers)
    known = sum(sum_up(job, samples).median is not None for job in waiting)
    seconds = perf_counter() - began
    yield Row(
        f"start times of {len(waiting):,} waiting jobs",
        seconds,
        "s",
        GOAL,
        ratio=seconds / loop_seconds(),
        against="a million steps of a loop",
        note=f"{len(samples)} futures, {known:,} with a median, {len(past.jobs):,} recorded jobs",
    )
