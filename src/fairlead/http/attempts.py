"""Finds the attempts of a task: running ones in the state, ended ones in the history."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from fairlead.core.errors import Refused
from fairlead.core.model import Stage
from fairlead.core.resources import shown
from fairlead.core.state import Partition
from fairlead.http.context import Services

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two checks of a task that waits for its next attempt."""


class LogSource(NamedTuple):
    """An attempt with a log, and its node."""

    stage: str
    attempt: int
    node: str
    """Empty if it is unknown, because the server crashed before it was written."""


class _Task(NamedTuple):
    """The present state of a task."""

    stage: str
    running: LogSource | None
    over: bool
    """True if no further attempt will follow."""
    last: int
    """The number of the last attempt; 0 if the state does not have it."""


class TaskAttempts:
    """The attempts of one task."""

    def __init__(
        self, services: Services, partition: str, job_id: str, number: int, stage: str, index: int, stream: str
    ) -> None:
        """`stage` may be empty if the job has only one stage. `stream` is that of the wanted log: out or err; empty
        if no log is wanted."""
        self._stream = stream
        self._services = services
        self._partition = partition
        self._job_id = job_id
        self._number = number
        self._stage = stage
        self._index = index
        self._moved: asyncio.Future[None] | None = None
        """Resolved when the state of the job changes."""

    async def numbered(self, attempt: int) -> LogSource:
        """Return an attempt by its number. Raise `Refused` if there is none."""
        task = await self._look()
        if task.running is not None and task.running.attempt == attempt:
            return task.running
        known = await self._known(task)
        if attempt not in known:
            having = f"it has {', '.join(map(str, sorted(known)[:20]))}" if known else "it has not run yet"
            raise Refused("attempt", f"{self._name} has no attempt {attempt}; {having}", "missing")
        return known[attempt]

    async def last(self) -> LogSource | None:
        """Return the running attempt, or the last one that ended; None if there is none."""
        task = await self._look()
        if task.running is not None:
            return task.running
        known = await self._known(task)
        return known[max(known)] if known else None

    async def following(self, after: int, wait: bool) -> LogSource:
        """Return the first attempt above a number. With `wait`, wait until there is one.

        Raise `Refused` if there is none, with the code `gone` if there will never be one.
        """
        pause = FIRST_PAUSE
        while True:
            task = await self._look()
            if not (task.over and 0 < task.last <= after) and (task.over or task.running is not None):
                known = await self._known(task)
                later = [attempt for attempt in known if attempt > after]
                if later:
                    return known[min(later)]
            if task.over:
                none = f"attempt {after} was its last" if after else "it has ended and no attempt of it is known"
                raise Refused("log", f"{self._name} has no further attempt; {none}", "gone")
            if not wait:
                none = f"no attempt after {after} yet" if after else "not started yet"
                remedy = f"`fairlead explain {self._job_id}` shows why it waits, and `logs -f` waits for its output"
                raise Refused("log", f"{self._name} has {none}; {remedy}", "missing")
            assert self._moved is not None  # set, because a task that is not over is in the state
            await asyncio.wait((self._moved,), timeout=pause)
            pause = min(LONGEST_PAUSE, 1.5 * pause)

    async def is_running(self, attempt: int) -> bool:
        running = (await self._look()).running
        return running is not None and running.attempt == attempt

    @property
    def _name(self) -> str:
        return f"task {self._index} of job {self._job_id}"

    async def _look(self) -> _Task:
        served = self._services.control.find(self._partition)

        def look(state: Partition) -> _Task:
            job = state.jobs.get(self._job_id)
            if job is None or job.number != self._number:
                return _Task(self._stage or "main", None, True, 0)
            names = [candidate.name for candidate in job.stages]
            stage = job.stage(self._stage) if self._stage else job.stages[0] if len(names) == 1 else None
            if stage is None:
                problem = f"job {job.id} has no stage {shown(self._stage)}; it has {', '.join(names[:20])}"
                raise Refused("stage", problem, "missing")
            if self._index >= stage.count:
                raise Refused("index", f"stage {stage.name} has {stage.count} tasks, and they count from 0", "missing")
            place = stage.spec.output if self._stream == "out" else stage.spec.error or stage.spec.output
            if self._stream and place:
                problem = f"the output of stage {stage.name} goes to {shown(place)} on its node; read it there"
                raise Refused("log", problem, "conflict")
            if self._moved is None or self._moved.done():
                self._moved = served.when_moved(job)
            return _task(state, stage, self._index)

        return await served.read(look)

    async def _known(self, task: _Task) -> dict[int, LogSource]:
        """Return the attempts that have ended or run, by number."""
        query, name = self._services.records.task_attempts, self._services.control.find(self._partition).name
        rows = await self._services.recorded(query, name, self._number, task.stage, self._index)
        running = {} if task.running is None else {task.running.attempt: task.running}
        return running | {row.attempt: LogSource(task.stage, row.attempt, row.node) for row in rows}


def _task(state: Partition, stage: Stage, index: int) -> _Task:
    allocation = (stage.live or {}).get(index)
    if allocation is not None:
        if allocation.started is None:
            return _Task(stage.name, None, False, 0)
        node = state.nodes.name[state.nodes.rows[allocation.node]]
        return _Task(stage.name, LogSource(stage.name, allocation.attempt, node), False, 0)
    outcome = next((outcome for outcome, ranges in (stage.ended or {}).items() if index in ranges), "")
    # A task that succeeded at its first attempt has no stored history.
    return _Task(stage.name, None, bool(outcome), stage.past(index).attempt or int(outcome == "succeeded"))
