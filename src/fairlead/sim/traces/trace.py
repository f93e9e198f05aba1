"""The result of every trace reader: arrivals with run times, nodes, and the lines that were left out."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Literal

import msgspec

from fairlead.core.changes import NodeSpec
from fairlead.core.model import JobSpec, Micros, StageSpec
from fairlead.core.resources import CPU, GPU, MAX_DURATION, MILLI, SECOND

Overrun = Literal["extend", "kill"]
"""The treatment of a job that ran longer than its estimate: raise the estimate, or cut the run time."""

NAMED = 10
"""For each reason, this number of lines is listed. Further lines are only counted."""


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A job of a trace."""

    at: Micros
    id: str
    """The id in the trace. In the simulation the job has another id, `job`."""
    spec: JobSpec
    durations: tuple[Micros, ...]
    """The run time of a task, by stage."""
    started: Micros | None = None
    """When it really started, if the trace tells."""

    @property
    def job(self) -> str:
        return job_id(self.id)

    @property
    def run(self) -> Micros:
        """The run time of the job if all stages start together."""
        return max(self.durations, default=0)

    def work(self, resource: str) -> int:
        """Return the sum over all tasks of the amount of a resource times the run time."""
        return sum(
            dict(stage.resources).get(resource, 0) * stage.size * duration
            for stage, duration in zip(self.spec.stages, self.durations, strict=True)
        )


def job_id(name: str) -> str:
    """Return the id of a job of a trace in the simulation. Plain numbers are reserved for ids of the scheduler."""
    return f"j{name}"


class LeftOut:
    """The number of lines that are not simulated, by reason, and the first of these lines."""

    def __init__(self) -> None:
        self._lines: dict[str, list[int]] = {}
        self._counts: dict[str, int] = {}

    def add(self, why: str, line: int) -> None:
        self._counts[why] = self._counts.get(why, 0) + 1
        lines = self._lines.setdefault(why, [])
        if len(lines) < NAMED:
            lines.append(line)

    def join(self, other: LeftOut, name: str) -> None:
        """Add the lines that another reader left out, with its file name before each reason."""
        for why, count in other._counts.items():
            reason = f"{name}: {why}" if name else why
            self._counts[reason] = self._counts.get(reason, 0) + count
            self._lines[reason] = [*self._lines.get(reason, ()), *other._lines[why]][:NAMED]

    def __len__(self) -> int:
        return sum(self._counts.values())

    def rows(self) -> list[dict[str, object]]:
        return [{"why": why, "count": self._counts[why], "lines": list(self._lines[why])} for why in self._counts]

    def texts(self) -> list[str]:
        """Return a sentence for each reason."""
        texts = []
        for why, count in self._counts.items():
            lines = ", ".join(map(str, self._lines[why])) + (", …" if count > NAMED else "")
            texts.append(f"{count} left out, {why}: line{'s' if count > 1 else ''} {lines}")
        return texts


class Trace(msgspec.Struct):
    """A trace. Arrivals are sorted by time, and arrivals of one instant are in the order of the file."""

    name: str
    arrivals: list[Arrival]
    nodes: list[tuple[str, NodeSpec]]
    left_out: LeftOut

    def amount(self, resource: str) -> int:
        """Return the total amount of a resource on all nodes."""
        return sum(dict(spec.capacity).get(resource, 0) for _, spec in self.nodes)

    @property
    def resource(self) -> str:
        """Return the main resource, for utilisation: GPUs if there are any, else CPUs."""
        return GPU if self.amount(GPU) else CPU


def cpu_node(cpus: int) -> NodeSpec:
    return NodeSpec(capacity=((CPU, cpus * MILLI),))


def settle_overrun(stage: StageSpec, duration: Micros, overrun: Overrun) -> tuple[StageSpec, Micros]:
    """Return a stage and its run time after the overrun rule. A stage without an estimate gets its run time as one."""
    if stage.estimate is None or (overrun == "extend" and stage.estimate < duration):
        return msgspec.structs.replace(stage, estimate=duration), duration
    return stage, min(duration, stage.estimate) if overrun == "kill" else duration


def seconds(text: str) -> Micros:
    """Parse seconds exactly. The result is negative for -1, which stands for an unknown time in traces."""
    try:
        return int(text) * SECOND
    except ValueError:
        pass
    try:
        value = Decimal(text) * SECOND
    except InvalidOperation:
        raise ValueError(f"{text[:40]!r} is not a number") from None
    if not value.is_finite() or abs(value) > MAX_DURATION:
        raise ValueError(f"{text[:40]!r} is not a number of seconds")
    return int(value)


def open_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a file, which may be gzipped. Bytes that are not UTF-8 are replaced."""
    with path.open("rb") as probe:
        zipped = probe.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rb") if zipped else path.open("rb") as file:
        yield from enumerate(io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace"), 1)
