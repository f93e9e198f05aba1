"""Quotas: limits on the number and the size of the unfinished jobs of each user in a partition.

`Quotas` observes the writers and counts durable jobs. Submissions that are not answered yet count too, so that parallel
requests cannot exceed a limit together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from threading import Lock

import msgspec

from fairlead.core.changes import JobForgotten, JobNews
from fairlead.core.cycle import Cycle
from fairlead.core.errors import Refused
from fairlead.core.lifecycle import JOB
from fairlead.core.model import Job, JobSpec, pack_spec
from fairlead.core.resources import format_duration, format_quantity
from fairlead.core.settings import PartitionSettings
from fairlead.core.state import Partition
from fairlead.writer.inbox import Slot

UNBOUNDED = 2**62
"""More bytes than any disk has."""
REMEMBERED = 4
"""The jobs of a user that are remembered may have this many times `max_queued_bytes`."""


class Queued(msgspec.Struct):
    """Number and size of a user's unfinished jobs in a partition."""

    jobs: int = 0
    bytes: int = 0


class Quotas:
    """Counts unfinished jobs by user. The threads of writers update it, the thread of the API reads it."""

    def __init__(self, room: int = UNBOUNDED) -> None:
        """`room` is the most bytes of one user's jobs that the disk has space for."""
        self._room = room
        self._lock = Lock()
        self._known: dict[str, dict[str, tuple[str, int]]] = {}
        """Partition → the user and the size of each job that the scheduler remembers."""
        self._remembered: Counter[tuple[str, str]] = Counter()
        """(Partition, user) → bytes of the jobs of the user that the scheduler remembers there."""
        self._queued: dict[tuple[str, str], Queued] = {}
        """(Partition, user) → the unfinished jobs of the user there."""

    def began(self, partition: Partition) -> None:
        with self._lock:
            self._forget(partition.name)
            for job in partition.jobs.values():
                self._remember(partition.name, job)
                if not job.over:
                    self._count(partition.name, job.user, 1, len(job.packed))

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        partition = decided.plan.partition
        jobs = [news for news in decided.plan.news() if isinstance(news, JobNews)]
        with self._lock:
            if partition.removed:
                self._forget(partition.name)
                return
            for news in jobs:
                if news.what == "submitted":
                    self._remember(partition.name, news.job)
                    self._count(partition.name, news.job.user, 1, len(news.job.packed))
            for news in jobs:
                if JOB.terminal(news.state):
                    _, size = self._known[partition.name][news.job.id]  # an update may have changed the present size
                    self._count(partition.name, news.job.user, -1, -size)
            for change in decided.changes:
                if isinstance(change, JobForgotten):
                    self._forget_job(partition.name, change.job)

    def stopped(self, partition: Partition, why: str) -> None:
        pass

    def check(self, partition: str, settings: PartitionSettings, *specs: JobSpec) -> int:
        """Return the size of jobs of one user that are submitted together. Raise `Refused` if they would exceed a quota
        of their user."""
        size = sum(len(pack_spec(spec)) for spec in specs)
        [spec, *others] = specs
        with self._lock:
            queued = self._queued.get((partition, spec.user), Queued())
            remembered = self._remembered[partition, spec.user]
        if queued.jobs + len(others) >= settings.max_queued_jobs:
            raise Refused(
                "user",
                f"{spec.user} has {queued.jobs} jobs that are not over, and {settings.max_queued_jobs} are allowed; "
                "wait until some are, or have an administrator raise max_queued_jobs",
                "conflict",
            )
        if queued.bytes + size > settings.max_queued_bytes:
            raise Refused(
                "user",
                f"the jobs of {spec.user} that are not over would have {queued.bytes + size} bytes, and "
                f"{format_quantity('memory', settings.max_queued_bytes)} are allowed; "
                "wait until some are over, or have an administrator raise max_queued_bytes",
                "conflict",
            )
        room = min(REMEMBERED * settings.max_queued_bytes, self._room)
        if remembered + size > room:
            raise Refused(
                "user",
                f"the jobs of {spec.user} of the last time (keep_ended: {format_duration(settings.keep_ended)}) would "
                f"have {remembered + size:,} bytes, and {room:,} are allowed; wait until some are forgotten, have an "
                "administrator shorten keep_ended, or give the server a larger disk",
                "conflict",
            )
        return size

    def offered(self, partition: str, user: str, size: int, slot: Slot, jobs: int = 1) -> None:
        """Count submitted jobs until they are answered. By then they were refused, or are counted as durable."""
        self._change(partition, user, jobs, size)
        slot.add_done_callback(lambda _: self._change(partition, user, -jobs, -size))

    def _remember(self, partition: str, job: Job) -> None:
        self._forget_job(partition, job.id)
        size = len(job.packed)
        self._known.setdefault(partition, {})[job.id] = (job.user, size)
        self._remembered[partition, job.user] += size

    def _forget_job(self, partition: str, job_id: str) -> None:
        user, size = self._known.get(partition, {}).pop(job_id, ("", 0))
        if user:
            self._remembered[partition, user] -= size

    def _change(self, partition: str, user: str, jobs: int, size: int) -> None:
        with self._lock:
            self._count(partition, user, jobs, size)

    def _count(self, partition: str, user: str, jobs: int, size: int) -> None:
        queued = self._queued.setdefault((partition, user), Queued())
        queued.jobs += jobs
        queued.bytes += size
        if not queued.jobs:
            del self._queued[partition, user]

    def _forget(self, partition: str) -> None:
        self._known.pop(partition, None)
        for key in [key for key in self._remembered if key[0] == partition]:
            del self._remembered[key]
        for key in [key for key in self._queued if key[0] == partition]:
            del self._queued[key]
