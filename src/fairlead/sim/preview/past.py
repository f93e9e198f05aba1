"""The recorded past of a partition: which jobs were submitted when, and how long their tasks ran.

It is what futures draw their arrivals from, and what `fairlead export-trace` writes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from random import Random

import msgspec

from fairlead.core.model import JobSpec, Micros
from fairlead.core.resources import DAY, HOUR

DAYS = 14
"""Arrivals are drawn from this number of days before now."""
LEAST = 10
SHORTEST: Micros = HOUR
"""With fewer recorded jobs, or of a shorter time, no arrivals are drawn."""


class PastJob(msgspec.Struct, gc=False):
    at: Micros
    """When it was submitted."""
    id: str
    spec: JobSpec
    durations: list[Micros | None]
    """The run time of a task, by stage; None if no task of the stage has ended yet."""


class Past:
    """Jobs in the order of their submission."""

    def __init__(self) -> None:
        self.jobs: list[PastJob] = []
        self._times: list[Micros] = []

    def add(self, job: PastJob) -> None:
        """Add a job that was submitted after all others."""
        self.jobs.append(job)
        self._times.append(job.at)

    def arrivals(self, now: Micros, rng: Random) -> Iterator[PastJob]:
        """Yield made-up arrivals after `now`: those of an earlier time, at the same time of day if possible."""
        if len(self.jobs) < LEAST or now - self._times[0] < SHORTEST:
            return
        until, number = now, 0
        while True:
            # The times of the past before now are repeated from `until` on.
            back = self._back(now - self._times[0], rng)
            at = bisect_left(self._times, now - back)
            shift = until - (now - back)
            while at < len(self.jobs) and self._times[at] < now:
                job = self.jobs[at]
                number += 1
                yield PastJob(job.at + shift, f"preview.{number}", job.spec, job.durations)
                at += 1
            until += back

    def _back(self, recorded: Micros, rng: Random) -> Micros:
        """Return how far to go back: whole days, if so much is recorded."""
        days = min(DAYS, recorded // DAY)
        if days:
            return rng.randint(1, days) * DAY
        return rng.randint(recorded // 2, recorded)
