"""The simulator: jobs of a synthetic log through the real writer, in one process on one core."""

from __future__ import annotations

from collections.abc import Iterator
from time import process_time

from bench.harness import Row, loop_seconds
from fairlead.sim.policy_files import NAMED
from fairlead.sim.simulation import Simulation
from fairlead.sim.traces import LeftOut, Trace
from fairlead.sim.traces.generate import Workload, generate
from fairlead.sim.traces.trace import cpu_node
from fairlead.writer.gc_settings import spared

JOBS = 10_000
PROCESSORS = 256
GOALS = {"fcfs": 2_034, "easy": 2_848}
"""Jobs per second: a log of 122,060 within a minute, one of 28,476 within ten seconds."""


def simulating(scale: float) -> Iterator[Row]:
    jobs = max(20, int(JOBS * scale))
    nodes = [("machine", cpu_node(PROCESSORS))]
    arrivals = generate(Workload(jobs=jobs, load=95, largest=PROCESSORS), nodes, "extend")
    trace = Trace("made up", arrivals, nodes, LeftOut())
    baseline = loop_seconds()
    for policy, goal in GOALS.items():
        simulation = Simulation(trace, NAMED[policy](trace))
        with spared():
            began = process_time()
            assert simulation.run()
            seconds = process_time() - began
        tasks = f"{simulation.record.tasks:,} tasks, {simulation.record.cycles:,} cycles"
        yield Row(
            f"simulate {jobs:,} jobs, {policy}",
            jobs / seconds,
            "jobs/s of CPU time",
            goal,
            more=True,
            ratio=seconds / baseline / jobs * 1e3,
            against="a million steps of a loop, for 1,000 jobs",
            note=tasks,
        )
