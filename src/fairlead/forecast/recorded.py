"""The recorded past of a partition: which jobs were submitted when, and how long their tasks ran.

A forecast draws the jobs of each future from this past; `fairlead export-trace` writes it to a file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from random import Random

import msgspec
from msgspec.structs import replace

from fairlead.core.model import JobSpec, Micros, after_of
from fairlead.core.resources import DAY, HOUR

DAYS = 14
"""Arrivals are copied from the jobs of this number of days."""
LEAST = 10
SHORTEST: Micros = HOUR
"""No arrivals are drawn if the record has fewer than `LEAST` jobs or is shorter than this."""


class PastJob(msgspec.Struct, gc=False):
    at: Micros
    """The time of its submission."""
    id: str
    spec: JobSpec
    durations: list[Micros | None]
    """The run time of a task, by stage; None if no task of the stage has ended by itself."""
    took: list[Micros | None] | None = None
    """The run time of a task by stage, also of tasks that failed or were killed; None for a stage of which no task ran.

    None instead of the list if the job has not ended.
    """

    def run_times(self) -> tuple[Micros, ...]:
        """Return the run time of a task by stage, for another run of the job; 0 for stages of which no task ran."""
        return tuple(ran or 0 for ran in self.took or ())


class Replayed(msgspec.Struct, frozen=True):
    """Jobs that can be run again, and the numbers of jobs that cannot."""

    jobs: list[PastJob]
    not_ended: int
    never_ran: int
    after_left_out: int
    """The number of jobs with `after` that wait for fewer jobs now, because some of those cannot be run again."""


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
            after = tuple(str(after) for after in after_of(job.spec.after) if after.job in ids)
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
                spec = replace(job.spec, after=()) if job.spec.after else job.spec
                yield PastJob(job.at + shift, f"preview.{number}", spec, job.durations)
                at += 1
            until += back

    def _back(self, recorded: Micros, rng: Random) -> Micros:
        """Draw the distance between copied arrivals and their originals: whole days, if a day is recorded."""
        days = min(DAYS, recorded // DAY)
        if days:
            return rng.randint(1, days) * DAY
        return rng.randint(recorded // 2, recorded)
