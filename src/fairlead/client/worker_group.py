"""Workers for calls with the same fields: how many there are, and which worker gets which call.

The jobs of a group are arrays: tasks start as there is capacity in their queue's share, and end when they have had
nothing to do for a while. Calls go to workers through tunnels, without a decision of the scheduler for each.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.client import function_worker
from fairlead.client.calls import NeverRuns, Problem, warn
from fairlead.client.function_worker import KEY
from fairlead.client.worker_link import CallFuture, Lost, PackedCall, Worker
from fairlead.wire import api as wire

if TYPE_CHECKING:
    from fairlead.client.executor import Shared

TICK = 0.1
"""Seconds between two looks at waiting calls."""
FIRST = 4
"""Workers to begin with; then their number doubles while calls wait."""
SETTLING = 0.05
"""Seconds after which new workers count as too few."""
BACKLOG = 0.25
"""Seconds of work for each worker below which no more workers are asked for."""
AHEAD = 0.05
"""Seconds of work that a worker gets in advance."""
MOST_AHEAD = 256
"""Calls that a worker gets in advance."""
ENDING = 10.0
"""Seconds in which workers end that were told to leave; then they are killed."""
OVER = ("succeeded", "failed", "killed")

PROGRAM = inspect.getsource(function_worker)
START = "import sys; sys.path[:] = [path for path in sys.path if path]; exec(sys.argv.pop(1))"
"""Runs the program of a worker; a file in the working directory cannot replace a module that it imports."""


class CallFields(NamedTuple):
    """What the calls of a group have in common."""

    job: dict[str, Any]
    """Fields of the workers' jobs."""
    stage: dict[str, Any]
    most: int
    """Workers at the same time."""


class WorkerGroup:
    """Calls with the same fields, and the workers that run them."""

    def __init__(self, shared: Shared, fields: CallFields) -> None:
        self.shared = shared
        self._fields = fields
        self.waiting: deque[PackedCall] = deque()
        self.workers: dict[tuple[str, int], Worker] = {}
        self._coming: dict[str, int] = {}
        """Job → its tasks that have not started."""
        self._met: set[str] = set()
        """Jobs of which a worker was connected."""
        self._mean: float | None = None
        """Seconds that a call takes, by the last ones."""
        self._grown_at = 0.0
        self._growing = False

    @property
    def open(self) -> list[PackedCall]:
        return [*self.waiting, *(call for worker in self.workers.values() for call in worker.open.values())]

    def measure(self, seconds: float) -> None:
        self._mean = seconds if self._mean is None else 0.8 * self._mean + 0.2 * seconds

    def fail(self, calls: Iterable[PackedCall], error: BaseException) -> None:
        for call in calls:
            call.future.settle(error=error)

    def retry(self, call: PackedCall, why: str, used: int = 1) -> None:
        """Let a call run again whose process or worker has gone, or fail it."""
        call.tries -= used
        if call.tries > 0:
            self.waiting.appendleft(call)
        else:
            call.future.settle(error=Lost(f"the call has no result: {why}"))

    def cancel(self, future: CallFuture) -> None:
        for worker in self.workers.values():
            for call in worker.open.values():
                if call.future is future:
                    worker.cancel(call)
                    self.balance()
                    return

    # -- giving calls to workers -------------------------------------------------------------------------------------

    def balance(self) -> None:
        """Give waiting calls to workers, and ask for more workers if there are too few."""
        ready = [worker for worker in self.workers.values() if worker.ready]
        if self.waiting and ready:
            ahead = 1 if self._mean is None else max(1, min(MOST_AHEAD, int(AHEAD / max(self._mean, 1e-6))))
            given = sum(len(worker.open) for worker in ready)
            each = min(ahead, -(-(len(self.waiting) + given) // len(ready)))
            for worker in sorted(ready, key=lambda worker: len(worker.open)):
                while self.waiting and len(worker.open) < each:
                    call = self.waiting.popleft()
                    if not call.future.done():
                        worker.give(call)
        elif ready:
            self._take_back(ready)
        if self.waiting:
            self._grow()

    def _take_back(self, ready: list[Worker]) -> None:
        """Ask for calls that wait behind a long one, if another worker has nothing to do."""
        if all(worker.open for worker in ready):
            return
        longest = max(ready, key=lambda worker: len(worker.open))
        if len(longest.open) > 1 and monotonic() - longest.busy_since > TICK:
            calls = list(longest.open.values())[1:]
            for call in calls[len(calls) // 2 :]:
                if not call.recalled:
                    longest.recall(call)

    def _grow(self) -> None:
        """Ask for more workers if calls wait longer than it takes to start them, and none are on their way."""
        now, live = monotonic(), len(self.workers)
        coming = any(self._coming.values()) or any(not worker.met for worker in self.workers.values())
        if self._growing or coming or live >= self._fields.most:
            return
        if live and (now - self._grown_at < SETTLING or len(self.waiting) * (self._mean or 1.0) < BACKLOG * live):
            return
        self._growing = True
        self.shared.spawn(self._submit(min(self._fields.most - live, len(self.waiting), max(FIRST, live))))

    async def _submit(self, tasks: int) -> None:
        command = [self.shared.python, "-c", START, PROGRAM, str(self.shared.idle)]
        named = {**self._fields.stage.get("secrets", {}), KEY: self.shared.secret}
        stage = {"command": command, "array": tasks, **self._fields.stage, "secrets": named}
        try:
            await self.shared.in_thread(self.shared.store_key)
            (item,) = await self.shared.in_thread(
                self.shared.client.submit_many, [{**self._fields.job, "stages": [stage]}]
            )
            if item.problem is not None:
                found = item.problem
                raise Problem(found.detail, found.status, found.code, found.field)
        except Exception as error:
            self.fail(self.waiting, error)
            self.waiting.clear()
            return
        finally:
            self._growing = False
        with suppress(NeverRuns):  # it is raised if warnings are errors
            warn(item.job, item.warning, 2)
        self._grown_at = monotonic()
        self._coming[item.job] = tasks
        for call in self.waiting:
            call.future.job = item.job
        threading.Thread(target=self._watch, args=(item.job,), daemon=True).start()

    # -- what becomes of workers -------------------------------------------------------------------------------------

    def _watch(self, job: str) -> None:
        """Follow the events of a job until it is over, in a thread."""
        try:
            for event in self.shared.client.watch(job, began=lambda: self._look(job)):
                self.shared.post(self._handle, job, event)
                if event.what == "reset":
                    self._look(job)
                if event.what == "state" and event.state in OVER:
                    return
        except (Problem, RuntimeError) as error:  # the client was closed, or its token has ended
            self.shared.post(self._abandon, error)

    def _look(self, job: str) -> None:
        """Read the state of a job, because events may have been missed."""
        view = self.shared.client.job(job)
        for task in self.shared.client.tasks(job):
            if task.state == "running":
                self.shared.post(self._started, job, task.index, task.attempt)
            elif task.state in OVER:
                self.shared.post(self._over, job, task.index, task.attempt, task.state, task.reason)
        if view.over:
            self.shared.post(self._job_over, job, view.state, view.reason)

    def _abandon(self, error: Exception) -> None:
        self.fail(self.open, error)
        self.waiting.clear()
        for worker in self.workers.values():
            worker.open.clear()

    def _handle(self, job: str, event: wire.Event) -> None:
        for index in event.indices:
            if event.what == "running":
                self._started(job, index, event.attempt)
            elif event.what == "ended":
                self._over(job, index, event.attempt, event.state, event.reason)
        if event.what == "state" and event.state in OVER:
            self._job_over(job, event.state, event.reason)

    def _started(self, job: str, index: int, attempt: int) -> None:
        known = self.workers.get((job, index))
        if known is not None:
            if known.attempt >= attempt:
                return
            known.end("its worker was lost", "lost")
        elif self._coming.get(job, 0):
            self._coming[job] -= 1
        worker = self.workers[job, index] = Worker(self, job, index, attempt)
        self.shared.spawn(worker.run())

    def _over(self, job: str, index: int, attempt: int, outcome: str, reason: str) -> None:
        worker = self.workers.get((job, index))
        if worker is not None and worker.attempt <= attempt:
            worker.end(f"its worker {outcome}" + (f" ({reason})" if reason else ""), outcome)

    def _job_over(self, job: str, state: str, reason: str) -> None:
        self._coming.pop(job, None)
        why = f"job {job} of its worker is {state}" + (f" ({reason})" if reason else "")
        for worker in self.workers.values():
            if worker.job == job and not worker.ended:
                worker.end(why, state)
        if state == "killed" or (state == "failed" and job not in self._met):
            self.fail(self.waiting, Lost(f"the call did not run: {why}; `fairlead logs {job}` shows its output"))
            self.waiting.clear()
        self.balance()

    def connected(self, worker: Worker) -> None:
        self._met.add(worker.job)
        self.balance()

    async def lost(self, worker: Worker) -> None:
        """Give the calls of a worker that has ended to others, unless its user killed the job."""
        calls = list(worker.open.values())
        worker.open.clear()
        killed = False
        if calls and worker.outcome == "killed":
            with suppress(Problem, RuntimeError):
                killed = (await self.shared.in_thread(self.shared.client.job, worker.job)).state == "killed"
        if self.workers.get((worker.job, worker.index)) is worker:
            del self.workers[worker.job, worker.index]
        why = f"{worker.ended or 'its worker cannot be reached'}; it was task {worker.index} of job {worker.job}"
        for call in reversed(calls):
            if killed or not call.again:
                self.retry(call, why, call.tries)
            else:
                self.retry(call, why, worker.outcome == "failed" and call is calls[0])
        self.balance()

    async def end(self) -> None:
        """End all workers: those that are connected leave, the others are killed."""
        for worker in self.workers.values():
            worker.leave()
        until = monotonic() + ENDING
        while any(worker.ready for worker in self.workers.values()) and monotonic() < until:
            await asyncio.sleep(TICK / 10)
        left = (job for job, tasks in self._coming.items() if tasks)
        for job in sorted({*left, *(worker.job for worker in self.workers.values() if not worker.ended)}):
            with suppress(Problem, RuntimeError):
                await self.shared.in_thread(self.shared.client.kill, job)
