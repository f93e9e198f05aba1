"""Fairlead and comparable systems, measured in the same minutes: `python -m bench.peers DIRECTORY --python PYTHON`.

The directory has a script for each of the other systems, which prints a line of JSON; the interpreter has them
installed. The scripts need root, since each runs in its own network namespace. Everything runs in turn, several times,
and the table has the medians. Use a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from bench.e2e import e2e
from bench.harness import CORES, number

SECONDS = 300.0
"""The time limit of a script."""

RATE, HALF, MOST = "tasks/s", "ms p50", "ms p99"
SCRIPTS = (
    ("floor: Popen, a process a core", "floor_spawn.py --method popen --procs {cores} --n {tasks}", {"per_s": RATE}),
    (
        "floor: posix_spawn, a process a core",
        "floor_spawn.py --method posix_spawn --procs {cores} --n {tasks}",
        {"per_s": RATE},
    ),
    ("HyperQueue", "hq_bench.py --n {tasks}", {"tasks_per_s": RATE}),
    ("HyperQueue", "hq_bench.py --mode latency --n {lone}", {"p50_ms": HALF, "p99_ms": MOST}),
    ("Dask", "dask_bench.py --workers {cores} --kind proc --saturation inf --n {tasks}", {"tasks_per_s": RATE}),
    ("Dask", "dask_bench.py --mode latency --n {lone}", {"proc.p50_ms": HALF, "proc.p99_ms": MOST}),
    ("Ray", "ray_bench.py --kind proc --n {tasks}", {"tasks_per_s": RATE}),
    ("Ray", "ray_bench.py --mode latency --n {lone}", {"proc.p50_ms": HALF, "proc.p99_ms": MOST}),
    ("Slurm", "slurm_bench.py --n {few} --cpus 64 --tuned", {"tasks_per_s": RATE}),
    ("Slurm", "slurm_bench.py --mode latency --n 20 --via srun", {"p50_ms": HALF, "p99_ms": MOST}),
)
"""The name of a system, the command of its script, and key of the script's output → unit."""
OURS = {
    "processes from submit to all ended, one array": ("Fairlead, one array", RATE),
    "processes from submit to all ended, as many jobs": ("Fairlead, as many jobs", RATE),
    "submit to start of one process, median": ("Fairlead, as many jobs", HALF),
    "submit to start of one process, 99 of 100": ("Fairlead, as many jobs", MOST),
}

Figure = tuple[str, str, float]
"""The name of a system, the unit, and the figure."""


def theirs(directory: Path, python: str, scale: float) -> Iterator[Figure]:
    sizes = {"cores": CORES, "tasks": max(20, round(10_000 * scale)), "few": max(20, round(1_000 * scale)), "lone": 100}
    for name, words, wanted in SCRIPTS:
        script, *options = words.format(**sizes).split()
        answer = _ask([python, str(directory / script), *options])
        for key, unit in wanted.items():
            value: Any = answer
            for part in key.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                yield name, unit, float(value)


def ours(scale: float) -> Iterator[Figure]:
    rows, left = e2e(scale), dict(OURS)
    while left:  # the remaining rows are about memory, and take long
        row = next(rows)
        if row.what in left:
            name, unit = left.pop(row.what)
            yield name, unit, row.figure
    rows.close()


def _ask(command: list[str]) -> Any:
    """Return the output of a script; empty if it cannot run here, for example without the program it measures."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
        return json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError) as problem:
        print(f"{' '.join(command[1:])}: {problem}", file=sys.stderr, flush=True)
        return {}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description="Fairlead and comparable systems.")
    parser.add_argument("directory", type=Path, help="the directory with the scripts")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has the other systems installed")
    parser.add_argument("--passes", type=int, default=3, help="run everything this many times")
    parser.add_argument("--scale", type=float, default=1.0, help="multiply numbers of tasks by this")
    options = parser.parse_args()
    results: dict[str, dict[str, list[float]]] = {}
    for _ in range(options.passes):
        for figures in (theirs(options.directory, options.python, options.scale), ours(options.scale)):
            for name, unit, figure in figures:
                results.setdefault(name, {}).setdefault(unit, []).append(figure)
                print(f"{name}: {number(figure)} {unit}", file=sys.stderr, flush=True)
    print(table(results))
    return 0


def table(results: dict[str, dict[str, list[float]]]) -> str:
    """Return a table of medians, with each rate relative to the first floor and to the best other system."""
    rates = {name: median(figures[RATE]) for name, figures in results.items() if RATE in figures}
    floor = next((rate for name, rate in rates.items() if name.startswith("floor")), None)
    best = max((rate for name, rate in rates.items() if not name.startswith(("floor", "Fairlead"))), default=None)
    lines = [f"| | {RATE} | of the floor | of the best other | {HALF} / {MOST} |", "|---|---|---|---|---|"]
    for name, figures in results.items():
        rate = rates.get(name)
        parts = [number(rate / base) if rate and base else "" for base in (floor, best)]
        waits = " / ".join(number(median(figures[unit])) for unit in (HALF, MOST) if unit in figures)
        lines.append(f"| {name} | {number(rate) if rate else ''} | {parts[0]} | {parts[1]} | {waits} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
