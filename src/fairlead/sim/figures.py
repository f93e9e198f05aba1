"""Figures of a simulation: waits, slowdowns, utilisation, and a digest of the schedule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from hashlib import sha256
from typing import Any

import msgspec

from fairlead.core.model import Micros
from fairlead.core.resources import MILLI, SECOND
from fairlead.sim.record import Record

BOUND = 10 * SECOND
"""Shorter run times count as this long in a bounded slowdown."""
DIGITS = 6


class Job(msgspec.Struct, frozen=True, gc=False):
    """A started job. `work` is the amount of the main resource that it uses, times its run time."""

    id: str
    submit: Micros
    start: Micros
    end: Micros | None
    run: Micros
    work: int
    user: str
    queue: str
    wait: Micros
    slowdown: float

    def work_by(self, now: Micros) -> int:
        """Return the work that the job has done by a time. A running job has done a part in proportion to its time."""
        return self.work if self.end is not None else self.work * min(now - self.start, self.run) // max(self.run, 1)


def started_jobs(record: Record) -> list[Job]:
    jobs: list[Job] = []
    resource = record.trace.resource
    for at, arrival in enumerate(record.trace.arrivals):
        outcome = record.job(at)
        if outcome.started is not None:
            run, wait, work = arrival.run, outcome.started - arrival.at, arrival.work(resource)
            slowdown = max(1.0, (wait + run) / max(run, BOUND))
            times = (arrival.at, outcome.started, outcome.ended)
            jobs.append(Job(arrival.id, *times, run, work, arrival.spec.user, outcome.queue, wait, slowdown))
    return jobs


def figures(record: Record, policy: str, wall: float) -> dict[str, Any]:
    """Return all figures as a document. Durations are in seconds."""
    trace = record.trace
    jobs = started_jobs(record)
    submits = [arrival.at for arrival in trace.arrivals]
    ends = [record.now if job.end is None else job.end for job in jobs]
    makespan = max(ends) - min(submits) if ends else 0
    amount = trace.amount(trace.resource)
    work = sum(job.work_by(record.now) for job in jobs)
    return {
        "trace": trace.name,
        "policy": policy,
        **summary(jobs),
        "submitted": record.arrived,
        "not_started": record.arrived - record.started - len(record.refused),
        "not_ended": record.arrived - record.over,
        "refused": refusals(record),
        "left_out": trace.left_out.rows(),
        "resource": trace.resource,
        "capacity": amount / MILLI,
        "utilisation": round(work / (amount * makespan), DIGITS) if makespan and amount else 0.0,
        "work_s": _rounded(Decimal(work) / MILLI / SECOND),
        "makespan_s": plain(makespan),
        "starts_sha256": sha256(starts(jobs).encode()).hexdigest(),
        "queues": _by((job.queue, job) for job in jobs),
        "users": _by((job.user, job) for job in jobs),
        "wall_s": round(wall, 3),
        "cycles": record.cycles,
        "decisions": record.placements,
        "decisions_per_s": round(record.placements / wall, 1) if wall else 0.0,
        "tasks": record.tasks,
    }


def summary(jobs: Sequence[Job]) -> dict[str, Any]:
    waits = sorted([job.wait for job in jobs])
    total = sum(waits)
    return {
        "jobs": len(jobs),
        "jobs_waiting": len(waits) - waits.count(0),
        "sum_wait_s": plain(total),
        "mean_wait_s": round(total / SECOND / len(jobs), DIGITS) if jobs else 0.0,
        "median_wait_s": plain(percentile(waits, 50)),
        "p95_wait_s": plain(percentile(waits, 95)),
        "max_wait_s": plain(waits[-1] if waits else 0),
        "max_bounded_slowdown_10s": round(max([job.slowdown for job in jobs], default=0.0), DIGITS),
        "mean_bounded_slowdown_10s": round(sum([job.slowdown for job in jobs]) / len(jobs), DIGITS) if jobs else 0.0,
    }


def percentile(ordered: Sequence[int], percent: int) -> int:
    """Return a percentile by nearest rank."""
    return ordered[max(1, -(-len(ordered) * percent // 100)) - 1] if ordered else 0


def starts(jobs: Iterable[Job]) -> str:
    """Return a line for each job: its id and its start in seconds."""
    return "".join([f"{job.id} {plain(job.start)}\n" for job in jobs])


def plain(micros: Micros) -> int | float:
    """Return seconds, as an int if they are whole."""
    whole, rest = divmod(micros, SECOND)
    return micros / SECOND if rest else whole


def refusals(record: Record) -> list[dict[str, Any]]:
    """Return why jobs were refused: each reason with the number of jobs and the first ids."""
    jobs: dict[str, list[str]] = {}
    for at in sorted(record.refused):
        jobs.setdefault(record.refused[at], []).append(record.trace.arrivals[at].id)
    return [{"why": why, "count": len(ids), "jobs": ids[:10]} for why, ids in jobs.items()]


def _by(jobs: Iterable[tuple[str, Job]]) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[Job]] = {}
    for name, job in jobs:
        groups.setdefault(name, []).append(job)
    return {
        name: {
            **summary(groups[name]),
            "work_s": _rounded(Decimal(sum(job.work for job in groups[name])) / MILLI / SECOND),
        }
        for name in sorted(groups)
    }


def _rounded(value: Decimal) -> int | float:
    return int(value) if value == int(value) else round(float(value), DIGITS)
