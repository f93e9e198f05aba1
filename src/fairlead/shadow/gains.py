"""How users, queues and sizes of jobs fare under each policy, beside what really happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from fairlead.core.model import Micros
from fairlead.core.resources import MINUTE, SECOND
from fairlead.sim.batch import Run
from fairlead.sim.figures import Job, plain, started_jobs
from fairlead.sim.traces import Arrival, Trace

NOTICED = MINUTE
"""A smaller difference of the mean wait is none."""


class Gain(msgspec.Struct, frozen=True):
    """The jobs of one user, queue or size."""

    name: str
    jobs: int
    work_s: float
    """What its jobs used of the main resource, times seconds."""
    waits: tuple[Micros | None, ...]
    """The mean wait in each run; None if no job of it started there."""
    slowdowns: tuple[float | None, ...]

    def change(self, run: int) -> int:
        """Return -1 if its jobs wait less in a run than they really did, 1 if they wait longer, else 0."""
        before, now = self.waits[0], self.waits[run]
        if before is None or now is None or abs(now - before) < NOTICED:
            return 0
        return 1 if now > before else -1

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "jobs": self.jobs,
            "work_s": round(self.work_s),
            "mean_wait_s": [None if wait is None else plain(wait) for wait in self.waits],
            "mean_slowdown": self.slowdowns,
        }


def compare(trace: Trace, runs: Sequence[Run]) -> dict[str, list[Gain]]:
    """Return the gains by user, queue and size; those that used most come first, sizes by size."""
    jobs = [{job.id: job for job in started_jobs(run.record)} for run in runs]
    kinds: dict[str, Callable[[Arrival], str]] = {
        "user": lambda arrival: arrival.spec.user,
        "queue": lambda arrival: arrival.spec.queue or "-",
        "size": _size_of(trace),
    }
    return {kind: _by(trace, jobs, name_of, kind == "size") for kind, name_of in kinds.items()}


def _size_of(trace: Trace) -> Callable[[Arrival], str]:
    """Return what names the size of a job: the amount of the main resource that it asks for, as a range."""

    def name(arrival: Arrival) -> str:
        asked = sum(dict(stage.resources).get(trace.resource, 0) * stage.size for stage in arrival.spec.stages)
        bits = (-(-asked // 1000)).bit_length()
        if not bits:
            return f"no {trace.resource.upper()}"
        low, high = 1 << (bits - 1), (1 << bits) - 1
        return f"{low} {trace.resource.upper()}" if low == high else f"{low} to {high} {trace.resource.upper()}s"

    return name


def _by(trace: Trace, jobs: Sequence[dict[str, Job]], name_of: Callable[[Arrival], str], by_size: bool) -> list[Gain]:
    groups: dict[str, list[Arrival]] = {}
    for arrival in trace.arrivals:
        groups.setdefault(name_of(arrival), []).append(arrival)
    gains = [_gain(name, group, jobs, trace.resource) for name, group in groups.items()]
    if by_size:
        return sorted(gains, key=lambda gain: 0 if gain.name.startswith("no ") else int(gain.name.split()[0]))
    return sorted(gains, key=lambda gain: (-gain.work_s, gain.name))


def _gain(name: str, group: Sequence[Arrival], jobs: Sequence[dict[str, Job]], resource: str) -> Gain:
    waits: list[Micros | None] = []
    slowdowns: list[float | None] = []
    for found in jobs:
        started = [found[arrival.id] for arrival in group if arrival.id in found]
        waits.append(sum(job.wait for job in started) // len(started) if started else None)
        slowdowns.append(round(sum(job.slowdown for job in started) / len(started), 2) if started else None)
    work = sum(arrival.work(resource) for arrival in group) / SECOND / 1000
    return Gain(name, len(group), work, tuple(waits), tuple(slowdowns))
