"""An asyncio loop on virtual time, with processes that can be stopped and killed between any two of their steps.

When no callback is ready, time jumps to the next timer. Ready callbacks run in the order in which they became ready.
There are no sockets and no threads: work for an executor is done at once.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from typing import Any, TypeVar, TypeVarTuple

Result = TypeVar("Result")
Args = TypeVarTuple("Args")

RUNNING_IN: ContextVar[Process | None] = ContextVar("RUNNING_IN", default=None)
MAX_STEPS = 200_000
"""The most callbacks at one instant; beyond that the loop counts as stuck."""


class Process:
    """A process of the simulation: all tasks and callbacks that it starts, directly or indirectly."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen = False
        self.parked: list[asyncio.Handle] = []
        """Callbacks that were due while the process was frozen or dead."""
        self._loop = loop
        self._context = copy_context()
        self._context.run(RUNNING_IN.set, self)
        self._steps = 0
        self._killed: Callable[[], None] | None = None

    def start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        return self._loop.create_task(work, context=self._context.copy())

    def post(self, call: Callable[[], object]) -> None:
        """Schedule a call in the process."""
        self._loop.call_soon(call, context=self._context.copy())

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        """Continue a frozen process."""
        self.frozen = False
        if self.alive:
            self._loop.go_on(self.parked)
            self.parked = []

    def kill(self) -> None:
        """Run no more callbacks of the process, not even its `finally` blocks."""
        self.alive = False

    def kill_after(self, steps: int, killed: Callable[[], None]) -> None:
        """Call `killed`, which must kill the process, after a number of further steps."""
        self._steps, self._killed = steps, killed

    def may_step(self) -> bool:
        """True if the next callback of the process may run now."""
        if self._killed is not None:
            if self._steps == 0:
                killed, self._killed = self._killed, None
                killed()
            self._steps -= 1
        return self.alive and not self.frozen


class VirtualLoop(asyncio.AbstractEventLoop):
    def __init__(self, expected: tuple[type[BaseException], ...] = ()) -> None:
        """A task that ends with an exception not in `expected` is a fault."""
        self.fault: BaseException | None = None
        self._expected: tuple[type[BaseException], ...] = (asyncio.CancelledError, *expected)
        self._now = 0.0
        self._count = 0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._world = copy_context()
        self._world.run(RUNNING_IN.set, None)

    # -- running -------------------------------------------------------------------------------------------------

    def run(self, over: Callable[[], bool]) -> None:
        """Run until `over()` is true. Raise the first fault."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        steps = 0
        try:
            while not over():
                if self._ready:
                    self._step()
                    steps += 1
                    if steps > MAX_STEPS:
                        raise AssertionError(f"time stands still at {self._now}")
                elif self._timers:
                    when, _, handle = heappop(self._timers)
                    if not handle._cancelled:
                        self._now, steps = max(self._now, when), 0
                        self._ready.append(handle)
                else:
                    raise AssertionError("nothing is left that could happen")
                if self.fault is not None:
                    raise self.fault
        finally:
            events._set_running_loop(before)

    def end(self, processes: Iterable[Process]) -> None:
        """Cancel and finish all tasks, including those of killed processes. Faults are ignored from here on."""
        for process in processes:
            process.alive, process.frozen = True, False
            self.go_on(process.parked)
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for _ in range(3):
                for task in [task for task in self._tasks.values() if not task.done()]:
                    task.cancel()
                while self._ready:
                    self._step()
        finally:
            events._set_running_loop(before)
        for task in self._tasks.values():
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._timers.clear()

    def fail(self, problem: BaseException) -> None:
        self.fault = self.fault or problem

    def go_on(self, handles: Iterable[asyncio.Handle]) -> None:
        self._ready.extend(handles)

    def world_at(self, when: float, call: Callable[[*Args], object], *args: *Args) -> asyncio.TimerHandle:
        """Schedule a call outside all processes, so that it runs even if the calling process dies."""
        return self.call_at(when, call, *args, context=self._world)

    @property
    def is_idle(self) -> bool:
        """True if no callback is ready before the next timer."""
        return not self._ready

    def _step(self) -> None:
        handle = self._ready.popleft()
        if handle._cancelled:
            return
        process = handle._context.get(RUNNING_IN)  # type: ignore[attr-defined]
        if process is not None and not process.may_step():
            process.parked.append(handle)
            return
        handle._run()

    # -- the asyncio interface -----------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heappush(self._timers, (when, self._count, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[id(task)] = task
        task.add_done_callback(self._ended, context=self._world)
        return task

    def run_in_executor(self, executor: Any, func: Callable[[*Args], Result], *args: *Args) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as problem:
            future.set_exception(problem)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.fail(context.get("exception") or AssertionError(context["message"]))

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: `run` skips cancelled timers."""

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[id(task)]
        problem = None if task.cancelled() else task.exception()
        if problem is not None and not isinstance(problem, self._expected):
            self.fail(problem)
