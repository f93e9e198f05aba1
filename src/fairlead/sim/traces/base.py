"""What every reader of traces gives: who arrives when and runs for how long, on which nodes, and what was left out."""

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
"""What becomes of a job that ran longer than was estimated: its estimate is raised, or its run is cut."""

NAMED = 10
"""So many lines are named for each reason to leave some out; the others are counted."""


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A job of a trace."""

    at: Micros
    id: str
    """As the trace has it."""
    spec: JobSpec
    durations: tuple[Micros, ...]
    """How long each task runs, by stage."""

    @property
    def job(self) -> str:
        return job_id(self.id)

    @property
    def run(self) -> Micros:
        """How long it runs if all its stages start together."""
        return max(self.durations, default=0)

    def work(self, resource: str) -> int:
        """Amount times microseconds, of all its tasks."""
        return sum(
            dict(stage.resources).get(resource, 0) * stage.count * duration
            for stage, duration in zip(self.spec.stages, self.durations, strict=True)
        )


def job_id(name: str) -> str:
    """What a job of a trace is called in the simulation: the scheduler keeps plain numbers for itself."""
    return f"j{name}"


class LeftOut:
    """Lines that are not simulated, by the reason: all are counted, the first are named."""

    def __init__(self) -> None:
        self._lines: dict[str, list[int]] = {}
        self._counts: dict[str, int] = {}

    def add(self, why: str, line: int) -> None:
        self._counts[why] = self._counts.get(why, 0) + 1
        lines = self._lines.setdefault(why, [])
        if len(lines) < NAMED:
            lines.append(line)

    def join(self, other: LeftOut, name: str) -> None:
        """Take over what another one has, said to be of a file."""
        for why, count in other._counts.items():
            known = f"{name}: {why}" if name else why
            self._counts[known] = self._counts.get(known, 0) + count
            self._lines[known] = [*self._lines.get(known, ()), *other._lines[why]][:NAMED]

    def __len__(self) -> int:
        return sum(self._counts.values())

    def rows(self) -> list[dict[str, object]]:
        return [{"why": why, "count": self._counts[why], "lines": list(self._lines[why])} for why in self._counts]

    def texts(self) -> list[str]:
        """A line for each reason, for people."""
        texts = []
        for why, count in self._counts.items():
            lines = ", ".join(map(str, self._lines[why])) + (", …" if count > NAMED else "")
            texts.append(f"{count} left out, {why}: line{'s' if count > 1 else ''} {lines}")
        return texts


class Trace(msgspec.Struct):
    """Arrivals are in the order in which they queue up: by time, then as they stand in the trace."""

    name: str
    arrivals: list[Arrival]
    nodes: list[tuple[str, NodeSpec]]
    left_out: LeftOut

    def amount(self, resource: str) -> int:
        """What all nodes have together."""
        return sum(dict(spec.capacity).get(resource, 0) for _, spec in self.nodes)

    @property
    def resource(self) -> str:
        """What utilisation is about: GPUs where there are any, else CPUs."""
        return GPU if self.amount(GPU) else CPU


def cpu_node(cpus: int) -> NodeSpec:
    return NodeSpec(capacity=((CPU, cpus * MILLI),))


def queue_up(arrivals: list[Arrival], jobs: int | None) -> list[Arrival]:
    """In the order of the queue, and only so many of them."""
    arrivals = sorted(arrivals, key=lambda each: each.at)  # those of one instant stay in the order of their lines
    return arrivals if jobs is None else arrivals[:jobs]


def settle_overrun(stage: StageSpec, duration: Micros, overrun: Overrun) -> tuple[StageSpec, Micros]:
    """Bring the estimate and the run time of a stage together; without an estimate it is the run time."""
    if stage.estimate is None or (overrun == "extend" and stage.estimate < duration):
        return msgspec.structs.replace(stage, estimate=duration), duration
    return stage, min(duration, stage.estimate) if overrun == "kill" else duration


def seconds(text: str) -> Micros:
    """A number of seconds, exactly; -1 in a trace stands for unknown and stays negative."""
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
    """The lines of a file, which may be gzipped, with their numbers. What is not UTF-8 is shown as such."""
    with path.open("rb") as probe:
        zipped = probe.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rb") if zipped else path.open("rb") as file:
        yield from enumerate(io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace"), 1)
