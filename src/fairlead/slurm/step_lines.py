"""Steps as the log of a job's first task tells them, in the lines that `launch` writes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from subprocess import CompletedProcess
from typing import TYPE_CHECKING

import msgspec

from fairlead.slurm.launch import MARK, begin_line, begin_step, end_line, end_step
from fairlead.slurm.rows import Row

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.slurm.steps import Allocation, Place

MOST_LOGS = 2_000
"""Jobs of one list whose steps are read."""
AT_ONCE = 8
"""Logs that are read at the same time."""
LARGEST = 1 << 22
"""Bytes at the end of a log that are read: 20,000 steps or more."""
APPEND = (
    'f=${FAIRLEAD_STOP_FILE%.stop}.err; for i in 1 2 3 4 5 6 7 8 9; do [ -e "$f" ] || sleep 0.05; done; '
    'exec 9>>"$f" && flock 9 && '
)
"""Waits for the log of a task that has just started, which has its own file after a tenth of a second."""
NUMBERED = (
    APPEND + "n=$(grep -o '^srun: step [0-9]*' \"$f\" | tail -n 1); n=${n##* }; n=$((${n:--1} + 1)); "
    'printf "$0" "$n" >&9; echo "$n"'
)
"""Writes the line of a new step to the log of the task, and prints its number."""


class StepLine(msgspec.Struct):
    """A step: when it began and ended, on which nodes, and what it used."""

    number: int
    began: float
    tasks: int
    cpus: int
    nodes: list[str]
    name: str
    ended: float | None = None
    code: int = 0
    cpu: float = 0.0
    memory: int = 0


def read_lines(text: str) -> list[StepLine]:
    """Return the steps that a log tells of. Lines of others, and lines that are cut off, are skipped."""
    steps: dict[int, StepLine] = {}
    for line in text.split("\n"):
        if not line.startswith(MARK):
            continue
        words = line.removeprefix(MARK).split(" ", 6)
        try:
            number, what, at = int(words[0]), words[1], float(words[2])
            if what == "began":
                tasks, cpus, nodes, name = int(words[3]), int(words[4]), words[5].split(","), words[6]
                steps[number] = StepLine(number, at, tasks, cpus, nodes, name)
            elif what == "ended" and number in steps:
                step = steps[number]
                step.ended, step.code, step.cpu, step.memory = at, int(words[3]), float(words[4]), int(words[5])
        except (IndexError, ValueError):
            continue
    return list(steps.values())


def steps_of(client: Client, rows: Sequence[Row]) -> Iterator[tuple[Row, list[StepLine]]]:
    """Yield rows with their steps. Only jobs of Slurm's commands that have started can have some."""
    from concurrent.futures import ThreadPoolExecutor

    wanted = [row for row in rows if row.started is not None and "slurm/ntasks" in row.labels]
    if len(wanted) > MOST_LOGS:
        print(f"steps of the first {MOST_LOGS} of {len(wanted)} jobs are shown; name jobs with -j", file=sys.stderr)
        wanted = wanted[:MOST_LOGS]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = dict(zip([id(row) for row in wanted], threads.map(lambda row: _read(client, row), wanted), strict=True))
    for row in rows:
        yield row, found.get(id(row), [])


def _read(client: Client, row: Row) -> list[StepLine]:
    from fairlead.client.calls import Problem

    index = row.indices[0] if row.index else 0
    try:
        log = b"".join(client.log(row.number, row.stage, index, "err", offset=-LARGEST, attempt=row.attempt))
    except Problem:
        return []  # the node is away, or the log was removed
    return read_lines(log.decode("utf-8", "replace"))


def fields_of(row: Row, step: StepLine) -> dict[str, object]:
    """Return the fields of a row that are those of a step."""
    over, code = step.ended is not None or row.over, step.code
    state = "RUNNING" if not over else "CANCELLED" if step.ended is None else "FAILED" if code else "COMPLETED"
    return {
        "name": step.name,
        "labels": {**row.labels, "slurm/ntasks": str(step.tasks), "slurm/name": step.name},
        "state": state,
        "told": "",
        "reason": "None",
        "nodes": step.nodes,
        "size": len(step.nodes),
        "resources": {"cpu": step.cpus / len(step.nodes)},
        "started": step.began,
        "ended": row.ended if step.ended is None else step.ended,
        "exit_code": None if step.ended is None else code,
        "cpu_seconds": step.cpu,
        "memory": step.memory or None,
    }


class NearSteps:
    """Notes steps in the log of a task on this node."""

    def __init__(self, path: str) -> None:
        self.path = path

    def begin(self, tasks: int, cpus: int, nodes: Sequence[str], name: str) -> int:
        """Write the line of a new step, and return its number."""
        return begin_step(self.path, tasks, cpus, nodes, name)

    def end(self, number: int, code: int, cpu: float, memory: int) -> None:
        end_step(self.path, number, code, cpu, memory)


class OnlyStep:
    """Notes the only step of an allocation, whose holder is given the text at the end."""

    def __init__(self) -> None:
        self.text = b""

    def begin(self, tasks: int, cpus: int, nodes: Sequence[str], name: str) -> int:
        self.text = begin_line(0, tasks, cpus, nodes, name)
        return 0

    def end(self, number: int, code: int, cpu: float, memory: int) -> None:
        self.text += end_line(number, code, cpu, memory)


class FarSteps:
    """Notes a step of an `srun` that is not on the first node of the allocation: through a tunnel to that node."""

    def __init__(self, client: Client, allocation: Allocation) -> None:
        self._client = client
        self._place = allocation.places[0]
        self._job = allocation.job

    def begin(self, tasks: int, cpus: int, nodes: Sequence[str], name: str) -> int:
        """Write the line of a new step, and return its number."""
        line = begin_line(0, tasks, cpus, nodes, name).decode().removeprefix(f"{MARK}0 ")
        return int(self._do(NUMBERED, f"{MARK}%s {line}".replace("%", "%%").replace("%%s", "%s", 1)) or 0)

    def end(self, number: int, code: int, cpu: float, memory: int) -> None:
        self._do(APPEND + 'printf %s "$0" >&9', end_line(number, code, cpu, memory).decode())

    def _do(self, program: str, line: str) -> bytes:
        from fairlead.client.calls import Problem

        try:
            done = run_beside(self._client, self._job, self._place, program, line)
        except Problem:
            return b""  # the job is ending
        if done.returncode:
            print(f"srun: warning: the step is not noted: {done.stderr.decode(errors='replace')}", file=sys.stderr)
        return done.stdout


def run_beside(client: Client, job: str, place: Place, program: str, *words: str) -> CompletedProcess[bytes]:
    """Run a program of the shell beside a task."""
    from uuid import uuid4

    from fairlead.client.tunnel import capture
    from fairlead.wire import operations as op

    command = ["/bin/sh", "-c", program, *words]
    stage, index = place.stage, place.index
    return capture(
        client,
        op.OpenTunnel(job=job, stage=stage, index=index, tunnel=uuid4().hex, kind="command", command=command),
        b"",
    )


Notes = NearSteps | OnlyStep | FarSteps
