"""Common parts of the benchmarks: rows and their table, clocks, memory, fresh processes, and baselines.

Machines are noisy, so a figure is shown with its ratio to a baseline of the same run. Ratios can be compared between
machines.
"""

from __future__ import annotations

import gc
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import msgspec

ROOT = Path(__file__).parent.parent
CHILD_SECONDS = 240
MEGABYTE = 1_000_000
MICRO = 1_000_000
CORES = os.cpu_count() or 1
PLAIN = """
import os, sys
for _ in range(int(sys.argv[1])):
    os.waitpid(os.posix_spawn("/bin/true", ("/bin/true",), os.environ), 0)
"""


class Row(msgspec.Struct, frozen=True):
    """One figure. It should be above the goal if `more` is set, otherwise below."""

    what: str
    figure: float
    unit: str
    goal: float | None = None
    more: bool = False
    ratio: float | None = None
    against: str = ""
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        return "met" if (self.figure > self.goal) == self.more else "MISSED"


HEAD = "| what | figure | goal | | ratio | against | note |\n|---|---|---|---|---|---|---|"


def line(row: Row) -> str:
    """Return a row of a Markdown table under `HEAD`, so that a run can be pasted into RESULTS.md."""
    goal = "" if row.goal is None else f"{'>' if row.more else '<'} {number(row.goal)} {row.unit}"
    ratio = "" if row.ratio is None else number(row.ratio)
    figure = f"{number(row.figure)} {row.unit}"
    return f"| {row.what} | {figure} | {goal} | {row.verdict} | {ratio} | {row.against} | {row.note} |"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


# -- clocks and memory -------------------------------------------------------------------------------------------


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the wall time and the CPU time of the work, in seconds. Collects garbage first."""
    gc.collect()
    began, busy = perf_counter(), process_time()
    work()
    return perf_counter() - began, process_time() - busy


def seconds(work: Callable[[], object]) -> float:
    return timed(work)[0]


def best(work: Callable[[], object], times: int = 3) -> float:
    return min(seconds(work) for _ in range(times))


def resident() -> int:
    """Return the resident memory of this process in bytes, after a collection."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak() -> int:
    """Return the peak resident memory of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


# -- baselines ---------------------------------------------------------------------------------------------------


def loop_seconds() -> float:
    """Return the time of a fixed loop of plain Python: a million small steps at the present speed of the machine."""

    def loop() -> None:
        table: dict[int, int] = {}
        for step in range(1_000_000):
            table[step & 1023] = step

    return best(loop)


def raw_commit_seconds(path: Path, payloads: Sequence[bytes]) -> float:
    """Return the time of plain sqlite3: one row and durable commit per payload, with the journal's settings."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE IF NOT EXISTS records (seq INTEGER PRIMARY KEY, payload BLOB NOT NULL)")

    def write() -> None:
        for payload in payloads:
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO records (payload) VALUES (?)", (payload,))
            db.execute("COMMIT")

    try:
        return seconds(write)
    finally:
        db.close()


# -- fresh processes ---------------------------------------------------------------------------------------------


def in_child(function: Callable[..., dict[str, float]], *arguments: Any) -> dict[str, float]:
    """Run a function of a bench module in a fresh process. Arguments and result travel as JSON."""
    name = f"{function.__module__}:{function.__name__}"
    done = subprocess.run(
        [sys.executable, "-m", "bench.child", name, json.dumps(arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def floor(tasks: int) -> float:
    """Return the rate at which plain processes, one for each core, start `/bin/true` and wait for it."""
    began = perf_counter()
    command = [sys.executable, "-S", "-E", "-c", PLAIN, str(tasks // CORES)]
    children = [subprocess.Popen(command) for _ in range(CORES)]
    for child in children:
        child.wait()
    return tasks // CORES * CORES / (perf_counter() - began)
