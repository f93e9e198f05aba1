"""Records when the jobs of a simulation start and end, after each cycle, and the use of the nodes over time."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import NamedTuple

from fairlead.core.changes import JobForgotten, JobForgottenUndo, Placed, SinglesPlaced
from fairlead.core.cycle import Cycle
from fairlead.core.model import Micros
from fairlead.core.state import Partition
from fairlead.sim.traces import Trace

NEVER = -1


class Outcome(NamedTuple):
    """The outcome of one job."""

    submitted: Micros
    started: Micros | None
    ended: Micros | None
    state: str
    queue: str


class Record:
    """An observer of the writer. Jobs are identified by their position in the trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._resource = trace.resource
        self._at = {arrival.job: at for at, arrival in enumerate(trace.arrivals)}
        jobs = len(trace.arrivals)
        self._started = array("q", [NEVER]) * jobs
        self._ended = array("q", [NEVER]) * jobs
        self._states: dict[int, str] = {}
        """End states other than succeeded."""
        self._queues: dict[int, str] = {}
        self.refused: dict[int, str] = {}
        self.arrived = 0
        self.started = 0
        self.over = 0
        self.cycles = 0
        self.now: Micros = 0
        """Time of the last cycle."""
        self.placements = 0
        self.tasks = 0
        self.times = array("q")
        """The times at which `used` or `waiting` changed."""
        self.used = array("q")
        """The allocated amount of the trace's main resource, from each of these times on."""
        self.waiting = array("q")
        """The number of submitted jobs that had not started, from each of these times on."""
        self._partition: Partition | None = None

    @classmethod
    def of_past(cls, trace: Trace) -> Record:
        """Return the record of what really happened, for a trace that tells when its jobs started."""
        record = cls(trace)
        steps: list[tuple[Micros, int, int]] = []
        for at, arrival in enumerate(trace.arrivals):
            assert arrival.started is not None
            ended = arrival.started + arrival.run
            record._started[at], record._ended[at] = arrival.started, ended
            record._queues[at] = arrival.spec.queue
            used = sum(dict(stage.resources).get(record._resource, 0) * stage.size for stage in arrival.spec.stages)
            steps += [(arrival.at, 0, 1), (arrival.started, used, -1), (ended, -used, 0)]
        record.arrived = record.started = record.over = len(trace.arrivals)
        used = waiting = 0
        for record.now, more_used, more_waiting in sorted(steps):
            used, waiting = used + more_used, waiting + more_waiting
            record._add_sample(record.now, used, waiting)
        return record

    def job(self, at: int) -> Outcome:
        started, ended = self._started[at], self._ended[at]
        return Outcome(
            self.trace.arrivals[at].at,
            None if started == NEVER else started,
            None if ended == NEVER else ended,
            self._states.get(at, "waiting" if started == NEVER else "running" if ended == NEVER else "succeeded"),
            self._queues.get(at, ""),
        )

    def arrive(self, jobs: int) -> None:
        """Count jobs that will be submitted in the next cycle."""
        self.arrived += jobs

    def accept(self, at: int, queue: str) -> None:
        self._queues[at] = queue

    def refuse(self, at: int, why: str) -> None:
        self.refused[at] = why
        self._states[at] = "refused"
        self.over += 1

    @property
    def is_over(self) -> bool:
        return self.over == len(self.trace.arrivals)

    def began(self, partition: Partition) -> None:
        self._partition = partition

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        partition = self._partition
        assert partition is not None
        self.cycles += 1
        self.now = partition.now
        for job_id in partition.touched.jobs:
            job = partition.jobs[job_id]
            if job.ended_at is not None:
                self._end(job_id, partition.now, job.state)
            elif job.allocations:
                self._start(job_id, partition.now)
        for change, before in decided.plan.done:
            kind = type(change)  # quicker than `isinstance` for each class
            if kind is Placed:
                assert isinstance(change, Placed)
                self.placements += 1
                self.tasks += change.tasks
            elif kind is SinglesPlaced:
                assert isinstance(change, SinglesPlaced)
                self.placements += len(change.tasks)
                self.tasks += len(change.tasks)
            elif kind is JobForgotten:
                forgotten: JobForgottenUndo = before  # with keep_ended 0, a job is forgotten when it ends
                self._end(forgotten.job.id, partition.now, forgotten.job.state)
        self._sample(partition.now)

    def stopped(self, partition: Partition, why: str) -> None:
        pass

    def _start(self, job: str, now: Micros) -> None:
        at = self._at.get(job)
        if at is not None and self._started[at] == NEVER:
            self._started[at] = now
            self.started += 1

    def _end(self, job: str, now: Micros, state: str) -> None:
        at = self._at.get(job)
        if at is not None and self._ended[at] == NEVER:
            self._ended[at] = now
            self.over += 1
            if state != "succeeded":
                self._states[at] = state

    def _sample(self, now: Micros) -> None:
        assert self._partition is not None
        used = self._partition.root.account.used.get(self._resource, 0)
        waiting = self.arrived - self.started - len(self.refused)
        self._add_sample(now, used, waiting)

    def _add_sample(self, now: Micros, used: int, waiting: int) -> None:
        if self.times and self.times[-1] == now:
            self.used[-1], self.waiting[-1] = used, waiting
        elif not self.times or (used, waiting) != (self.used[-1], self.waiting[-1]):
            self.times.append(now)
            self.used.append(used)
            self.waiting.append(waiting)
