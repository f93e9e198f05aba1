"""Makes history rows of ended jobs and attempts from the plans of cycles, and passes them to a store.

Ended jobs leave the state after some time; the history keeps them. It is written after the journal, with the number of
the record up to which it is complete. A new leader replays the records after that one, and adds their rows; if some of
these records were deleted, it adds what the state still has. A row that is added again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Protocol

import msgspec
from msgspec.structs import replace

from fairlead.core.changes import JobNews, News, TaskNews
from fairlead.core.cycle import Cycle
from fairlead.core.model import Amounts, Job, JobSpec, Micros, Stage, unpack_spec
from fairlead.core.ranges import Ranges, difference
from fairlead.core.state import Partition


class JobRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A finished job. `tasks` counts its tasks by outcome."""

    partition: str
    number: int
    id: str
    name: str
    user: str
    queue: str
    state: str
    reason: str
    submitted: Micros
    ended: Micros
    tasks: dict[str, int]
    labels: dict[str, str] = {}
    spec: str = ""
    """The job's specification as JSON, without commands, environments and files. Empty in rows of earlier versions."""
    notify: tuple[str, ...] = ()
    """Where its end is to be told."""


class ResultRow(msgspec.Struct, frozen=True):
    """The result files of one attempt of a task."""

    stage: str
    index: int
    attempt: int
    files: tuple[tuple[str, int], ...]
    """Names and sizes."""
    warning: str
    """Which files were not collected, and why; empty if all files were."""


class AttemptRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some tasks of a stage whose attempt ended in the same way at the same time."""

    partition: str
    number: int
    stage: str
    indices: tuple[int, ...]
    attempt: int
    outcome: str
    node: str
    exit_code: int | None
    reason: str
    started: Micros | None
    ended: Micros
    job: str = ""
    """The id of the job."""
    user: str = ""
    queue: str = ""
    amounts: Amounts = ()
    """The resources of each task."""
    submitted: Micros = 0
    """When the job was submitted."""
    ran: Micros = 0
    """Average run time of its tasks, as their node measured it; 0 if that is not known."""


NOT_ASKED_FOR = {
    **dict.fromkeys(("command", "environment", "secrets", "results", "parameters"), ()),
    **dict.fromkeys(("directory", "output", "error"), ""),
}
"""Fields of a stage that are not stored: no decision depends on them, and other users may not read them."""
encode_spec, decode_spec = msgspec.json.Encoder().encode, msgspec.json.Decoder(JobSpec).decode


class Store(Protocol):
    """Stores rows. The row of a job replaces an earlier row of the same job, and an attempt is stored once."""

    def put(self, jobs: list[JobRow], attempts: list[AttemptRow], reached: tuple[str, int] | None = None) -> None:
        """Queue rows, which are written soon. It is quick and never raises.

        `reached` is a partition and the number of a record: all rows of this record and earlier ones are queued now.
        """

    def flush(self) -> None:
        """Write all queued rows now."""

    def reached(self, partition: str, last: int) -> int | None:
        """Return the record up to which all rows of a partition are stored; at most `last`. None if it is not known."""

    def counted(self, partition: str) -> dict[int, dict[str, int]]:
        """Return the task counts by outcome of every stored job, by job number."""

    def attempts(self, partition: str, number: int) -> list[AttemptRow]:
        """Return the stored attempts of a job."""


class HistoryRecorder:
    """An observer of the writer that stores the ended jobs and attempts of each cycle."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recovering: dict[str, _Recovery] = {}

    def reached(self, partition: str, last: int) -> int:
        reached = self._store.reached(partition, last)
        self._recovering[partition] = _Recovery(reached, last)
        return last if reached is None else reached

    def replayed(self, partition: Partition, seq: int, news: Iterable[News]) -> None:
        recovery = self._recovering[partition.name]
        if recovery.reached is not None and seq > recovery.reached:
            recovery.first = recovery.first or seq
            self._store.put(*_rows(partition, news), reached=(partition.name, seq))

    def began(self, partition: Partition) -> None:
        recovery = self._recovering.pop(partition.name, None)
        if recovery is not None and not recovery.is_whole:
            self._fill(partition, recovery.last)

    def _fill(self, partition: Partition, last: int) -> None:
        """Add rows that are missing in the store, from the state: records of these rows are no longer stored."""
        attempts: list[AttemptRow] = []
        jobs: list[JobRow] = []
        self._store.flush()
        written = self._store.counted(partition.name)
        for job in partition.jobs.values():
            tasks = _tasks(job)
            if not tasks or written.get(job.number) == tasks:
                continue
            attempts += _missing(partition, job, self._store.attempts(partition.name, job.number))
            if job.over and not job.allocations:
                jobs.append(_job_row(partition, job, job.ended_at))
        self._store.put(jobs, attempts, (partition.name, last))

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        if decided.changes:
            partition = decided.plan.partition
            self._store.put(*_rows(partition, decided.plan.news()), reached=(partition.name, decided.seq))

    def stopped(self, partition: Partition, why: str) -> None:
        pass


class _Recovery(msgspec.Struct):
    """The recovery of a partition."""

    reached: int | None
    """The record up to which the store had all rows; None if it is not known."""
    last: int
    first: int = 0
    """The first record after `reached` that was replayed; 0 if there was none."""

    @property
    def is_whole(self) -> bool:
        """True if the store had, or now gets, the rows of all records."""
        return self.reached is not None and (self.reached == self.last or self.first == self.reached + 1)


def _rows(partition: Partition, news: Iterable[News]) -> tuple[list[JobRow], list[AttemptRow]]:
    """Return the rows of a record. They depend only on the record and the state after it."""
    attempts: list[AttemptRow] = []
    over: dict[str, Job] = {}
    for item in news:
        if isinstance(item, TaskNews) and item.what == "ended":
            job = item.stage.job
            if job.over:
                over[job.id] = job
            if item.outcome != "pending":
                attempts.append(_attempt_row(partition, item))
        elif isinstance(item, JobNews) and item.job.over and item.job.id in partition.jobs:
            over[item.job.id] = item.job
    # A killed job gets its row when its last task has stopped.
    return [_job_row(partition, job, partition.now) for job in over.values() if not job.allocations], attempts


def _job_row(partition: Partition, job: Job, ended: Micros | None) -> JobRow:
    spec = job.spec
    return JobRow(
        partition.name,
        job.number,
        job.id,
        spec.name,
        spec.user,
        job.queue.path,
        job.state,
        job.reason,
        job.submitted,
        partition.now if ended is None else ended,
        _tasks(job),
        dict(spec.labels),
        _asked_for(job.packed, job.queue.path),
        spec.notify if spec.notify_on == "end" or job.state != "succeeded" else (),
    )


@lru_cache(maxsize=1_000)
def _asked_for(packed: bytes, queue: str) -> str:
    """Return a job's specification as JSON, without the fields that are not stored."""
    spec = unpack_spec(packed)
    stages = tuple([replace(stage, **NOT_ASKED_FOR) for stage in spec.stages])
    return encode_spec(replace(spec, stages=stages, queue=queue, labels=(), notify=())).decode()


def asked_for(row: JobRow) -> JobSpec | None:
    """Return the stored specification of a job; None for rows of earlier versions."""
    return decode_spec(row.spec) if row.spec else None


def _tasks(job: Job) -> dict[str, int]:
    tasks: dict[str, int] = {}
    for stage in job.stages:
        for outcome, ranges in (stage.ended or {}).items():
            tasks[outcome] = tasks.get(outcome, 0) + len(ranges)
    return tasks


def _attempt_row(partition: Partition, news: TaskNews) -> AttemptRow:
    row = partition.nodes.rows.get(news.node)
    return AttemptRow(
        partition.name,
        news.stage.job.number,
        news.stage.name,
        news.indices,
        news.attempt,
        news.outcome,
        "" if row is None else partition.nodes.name[row],
        news.exit_code,
        news.reason,
        news.started,
        partition.now,
        *_owner(news.stage),
        news.ran,
    )


def _owner(stage: Stage) -> tuple[str, str, str, Amounts, Micros]:
    """Return fields of an attempt row: the job with its user and queue, the resources, the submit time."""
    job = stage.job
    return job.id, job.spec.user, job.queue.path, stage.shape.amounts, job.submitted


def _missing(partition: Partition, job: Job, stored_rows: Iterable[AttemptRow]) -> Iterator[AttemptRow]:
    """Yield rows for ended tasks of the state that the store lacks. The nodes of these tasks are no longer known."""
    stored: dict[tuple[str, str], Ranges] = {}
    for row in stored_rows:
        stored.setdefault((row.stage, row.outcome), Ranges()).add(
            difference(row.indices, stored.get((row.stage, row.outcome), Ranges()).overlap(row.indices))
        )
    for stage in job.stages:
        for outcome, ended in (stage.ended or {}).items():
            flat = ended.flat()
            missing = difference(flat, stored.get((stage.name, outcome), Ranges()).overlap(flat))
            for index in Ranges(missing):
                past = stage.past(index)
                attempt = past.attempt or int(outcome == "succeeded")
                if not attempt:
                    continue  # the task had no attempt: it was withdrawn while it waited
                code = past.exit_code if past.attempt else 0
                yield AttemptRow(
                    partition.name,
                    job.number,
                    stage.name,
                    (index, index + 1),
                    attempt,
                    outcome,
                    "",
                    code,
                    past.reason,
                    None,
                    job.ended_at if job.ended_at is not None else partition.now,
                    *_owner(stage),
                )
