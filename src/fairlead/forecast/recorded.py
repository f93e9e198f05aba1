"""The recorded past of a partition: which jobs were submitted when, and how long their tasks ran.

A forecast draws the jobs of each future from this past; `fairlead export-trace` writes it to a file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from random import Random

import msgspec
from msgspec.structs import replace

from fairlead.core.model import JobSpec, Micros
from fairlead.core.resources import DAY, HOUR

DAYS = 14
"""Arrivals are drawn from this number of days before now."""
LEAST = 10
SHORTEST: Micros = HOUR
"""If less time, or too few jobs, are recorded, no arrivals are drawn."""


class PastJob(msgspec.Struct, gc=False):
    at: Micros
    """When it was submitted."""
    id: str
    spec: JobSpec
    durations: list[Micros | None]
    """The run time of a task, by stage; None if no task of the stage has ended by itself."""
    took: list[Micros | None] | None = None
    """If the job has ended, the run time of a task by stage, however it ended; None if no task of the stage ran."""

    def run_times(self) -> tuple[Micros, ...]:
        """Return how long a task would run again, by stage; 0 for stages of which no task ran."""
        return tuple(ran or 0 for ran in self.took or ())


class Replayed(msgspec.Struct, frozen=True):
    """Jobs that can be run again, and the numbers of those that cannot."""

    jobs: list[PastJob]
    not_ended: int
    never_ran: int
    after_left_out: int
    """Jobs that waited for a job which cannot be run again. They run without waiting for it."""


class Past:
    """Jobs in the order of their submission."""

    def __init__(self) -> None:
        self.jobs: list[PastJob] = []
        self._times: list[Micros] = []

    def add(self, job: PastJob) -> None:
        """Add a job that was submitted after all others."""
        self.jobs.append(job)
        self._times.append(job.at)

    def replayed(self, since: Micros) -> Replayed:
        """Return the jobs that were submitted since a time and can run again."""
        jobs: list[PastJob] = []
        not_ended = never_ran = 0
        for job in self.jobs[bisect_left(self._times, since) :]:
            if job.took is None:
                not_ended += 1
            elif all(ran is None for ran in job.took):
                never_ran += 1
            else:
                jobs.append(job)
        ids = {job.id for job in jobs}
        after_left_out = 0
        for at, job in enumerate(jobs):
            after = tuple(name for name in job.spec.after if name in ids)
            if after != job.spec.after:
                after_left_out += 1
                jobs[at] = replace(job, spec=replace(job.spec, after=after))
        return Replayed(jobs, not_ended, never_ran, after_left_out)

    def arrivals(self, now: Micros, rng: Random) -> Iterator[PastJob]:
        """Yield arrivals after `now`, copied from an earlier time, at the same time of day if possible."""
        if len(self.jobs) < LEAST or now - self._times[0] < SHORTEST:
            return
        until, number = now, 0
        while True:
            # Repeat the arrivals of the past before now, from `until` on.
            back = self._back(now - self._times[0], rng)
            at = bisect_left(self._times, now - back)
            shift = until - (now - back)
            while at < len(self.jobs) and self._times[at] < now:
                job = self.jobs[at]
                number += 1
                yield PastJob(job.at + shift, f"preview.{number}", _alone(job.spec), job.durations)
                at += 1
            until += back

    def _back(self, recorded: Micros, rng: Random) -> Micros:
        """Return how far back arrivals are copied from: whole days, if enough is recorded."""
        days = min(DAYS, recorded // DAY)
        if days:
            return rng.randint(1, days) * DAY
        return rng.randint(recorded // 2, recorded)


def _alone(spec: JobSpec) -> JobSpec:
    """Return the specification without `after`."""
    return replace(spec, after=()) if spec.after else spec
