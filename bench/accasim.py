"""`python -m bench.accasim PYTHON LOG.swf.gz [--jobs N]`: compares our simulator with AccaSim on the same log.

PYTHON is the interpreter of an environment that has `accasim`, which Fairlead does not install. Both simulators read
the log and simulate it under FCFS and then under EASY. The CPU times of this are compared.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

from bench.harness import HEAD, Row, line
from fairlead.core.resources import CPU
from fairlead.sim.figures import figures
from fairlead.sim.policy_files import NAMED
from fairlead.sim.simulation import Simulation
from fairlead.sim.traces import read_traces
from fairlead.writer.gc_settings import spared

GOAL = 5
"""The goal: this many times as fast as AccaSim."""
TIMES = 5
"""Runs of our simulator; the median counts. They are short, and the speed of the machine varies."""
MILLI = 1000

POLICIES = {"fcfs": "FirstInFirstOut", "easy": "EASYBackfilling"}
"""Our name of a policy → the name in AccaSim."""

THEIRS = """
import collections, collections.abc, json, os, sys
from time import perf_counter, process_time
collections.Mapping = collections.abc.Mapping  # where AccaSim 1.1 looks for it
from accasim.base import scheduler_class
from accasim.base.allocator_class import FirstFit
from accasim.base.simulator_class import Simulator
log, machine, policy, results = sys.argv[1:]
shown, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
os.dup2(nowhere, 1)
began, busy = perf_counter(), process_time()
simulator = Simulator(log, machine, getattr(scheduler_class, policy)(FirstFit()), scheduling_output=False,
                      statistics_output=False, show_statistics=False, RESULTS_FOLDER_PATH=results)
simulator.start_simulation()
found = {"cpu": process_time() - busy, "wall": perf_counter() - began, "jobs": simulator.dispatched_jobs,
         "wait": sum(simulator.mapper.wtimes) / max(1, len(simulator.mapper.wtimes))}
os.dup2(shown, 1)
print(json.dumps(found), flush=True)
os._exit(0)
"""


def compare(python: str, log: Path, jobs: int | None) -> Iterator[Row]:
    with TemporaryDirectory() as folder:
        plain = _plain(log, jobs, Path(folder) / "log.swf")
        processors = read_traces([plain], None).amount(CPU) // MILLI
        machine = Path(folder) / "machine.json"
        parts = {"groups": {"all": {"core": 1}}, "resources": {"all": processors}}
        machine.write_text(json.dumps({"start_time": 0, "equivalence": {"processor": {"core": 1}}, **parts}))
        for policy, their_name in POLICIES.items():
            own = sorted((ours(plain, policy) for _ in range(TIMES)), key=lambda run: run["cpu"])[TIMES // 2]
            arguments = [str(plain), str(machine), their_name, str(Path(folder) / "results")]
            done = subprocess.run([python, "-c", THEIRS, *arguments], capture_output=True, text=True, check=False)
            if done.returncode or not done.stdout:
                raise RuntimeError(f"{python}: AccaSim did not run; install it there\n{done.stderr}")
            theirs: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            note = "; ".join(
                f"{name} {run['jobs']:,.0f} jobs, {run['cpu']:.1f} s of CPU time, mean wait {run['wait']:,.0f} s"
                for name, run in (("ours", own), ("AccaSim", theirs))
            )
            times = theirs["cpu"] / theirs["jobs"] / (own["cpu"] / own["jobs"])
            yield Row(f"{log.name}, {policy}", times, "times as fast as AccaSim", GOAL, more=True, note=note)


def ours(log: Path, policy: str) -> dict[str, float]:
    began, busy = perf_counter(), process_time()
    trace = read_traces([log], None)
    simulation = Simulation(trace, NAMED[policy](trace))
    with spared():
        simulation.run()
    cpu, wall = process_time() - busy, perf_counter() - began
    result = figures(simulation.record, policy, wall)
    return {"cpu": cpu, "wall": wall, "jobs": result["jobs"], "wait": result["mean_wait_s"]}


def _plain(log: Path, jobs: int | None, to: Path) -> Path:
    """Write a copy of a log that both simulators read alike: only jobs that ran, with their requests filled in."""
    text = gzip.decompress(log.read_bytes()).decode() if log.suffix == ".gz" else log.read_text()
    head = [row for row in text.splitlines() if row.startswith(";")]
    rows: list[str] = []
    for row in text.splitlines():
        fields = row.split()
        if row.startswith(";") or len(fields) != 18 or int(fields[3]) <= 0 or int(fields[4]) <= 0:
            continue
        fields[7] = fields[4] if int(fields[7]) <= 0 else fields[7]
        fields[8] = fields[3] if int(fields[8]) <= 0 else fields[8]
        rows.append(" ".join(fields))
    to.write_text("\n".join([*head, *rows[:jobs]]) + "\n")
    return to


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.accasim", description="Our simulator and AccaSim.")
    parser.add_argument("python", metavar="PYTHON", help="the interpreter of an environment with accasim")
    parser.add_argument("log", metavar="LOG", type=Path, help="a log in the Standard Workload Format")
    parser.add_argument("--jobs", type=int, default=None, help="simulate only the first N jobs")
    options = parser.parse_args()
    print(HEAD, flush=True)
    for row in compare(options.python, options.log, options.jobs):
        print(line(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
