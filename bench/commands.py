"""Slurm's commands against a server with three agents: `python -m bench.commands [--jobs 100000] [--real]`.

It prints the time of one `sbatch`, of one step by `srun` in a job, and of lists of the waiting jobs. With `--real`,
the same on a real Slurm of this machine, if it is installed. The start of Python is the floor of each command.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

from tests.slurm.cluster import Cluster
from tests.slurm.real import RealSlurm, is_here

TIMES = 30
STEPS = """#!/bin/bash
for i in $(seq {times}); do
  begun=${{EPOCHREALTIME/./}}; srun -n1 true; ended=${{EPOCHREALTIME/./}}; echo $((ended - begun))
done > steps.txt
"""


def row(name: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    low, high = ordered[0] * 1000, ordered[-max(1, len(ordered) // 20)] * 1000
    print(f"| {name} | {low:.1f} | {median(seconds) * 1000:.1f} | {high:.1f} |", flush=True)


def timed(run: Callable[[], object], times: int = TIMES) -> list[float]:
    found = []
    for _ in range(times):
        begun = perf_counter()
        run()
        found.append(perf_counter() - begun)
    return found


def measure(name: str, run: Callable[..., object], work: Path, user: str) -> None:
    row(f"{name}: sbatch", timed(lambda: run("sbatch", "-H", "--wrap", "true")))
    (work / "steps.sh").write_text(STEPS.format(times=TIMES))
    run("sbatch", "-W", str(work / "steps.sh"))
    row(f"{name}: srun of a step", [int(line) / 1e6 for line in (work / "steps.txt").read_text().split()])
    row(f"{name}: squeue", timed(lambda: run("squeue", "-h", "-u", user)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.commands", description=__doc__)
    parser.add_argument("--jobs", type=int, default=0, help="list this number of waiting jobs too")
    parser.add_argument("--real", action="store_true", help="measure a real Slurm too")
    options = parser.parse_args()
    print("| command | least ms | p50 | p95 |\n|---|---|---|---|")
    row("python -IS", timed(lambda: subprocess.run([sys.executable, "-IS", "-c", "pass"], check=True)))
    with tempfile.TemporaryDirectory() as folder:
        if options.real and is_here():
            Path(folder, "real").mkdir()
            real = RealSlurm(Path(folder, "real"), port=28_117)
            try:
                measure("Slurm", lambda *words: real.run(*words, directory=Path(folder)), Path(folder), "root")
            finally:
                real.close()
        ours = Cluster(Path(folder))
        try:
            measure("Fairlead", ours.run, ours.work, "ann")
            if options.jobs:
                for _ in range(0, options.jobs, 5000):
                    _submit(ours, min(5000, options.jobs))
                row(f"Fairlead: squeue of {options.jobs:,} jobs", timed(lambda: ours.run("squeue", "-h"), 3))
        finally:
            ours.close()
    return 0


def _submit(cluster: Cluster, jobs: int) -> None:
    from fairlead.client import Client

    token = (cluster.up.folder / "token").read_text().strip()
    labels = {f"slurm/{name}": text for name, text in (("ntasks", "1"), ("nodes", "1"), ("batch", "1"), ("chdir", "/"))}
    document = {"name": "wrap", "hold": True, "labels": labels, "stages": [{"command": ["/bin/true"]}]}
    with Client(cluster.up.url, token) as client:
        client.submit_many([document] * jobs)


if __name__ == "__main__":
    sys.exit(main())
