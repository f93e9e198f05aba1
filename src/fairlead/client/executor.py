"""`Executor`: run Python functions on the cluster, in the style of `concurrent.futures`.

Calls run in workers, which are tasks. A loop in one thread serves them; the blocking client is used in other threads.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import secrets
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor as Base
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from typing import Any, ParamSpec, TypeVar

import cloudpickle  # type: ignore[import-untyped]

from fairlead.client.calls import Problem, job_document
from fairlead.client.function_worker import ERROR, LIMIT, RESULT
from fairlead.client.sync import Client
from fairlead.client.worker_group import TICK, CallFields, WorkerGroup
from fairlead.client.worker_link import CallFuture, Lost, PackedCall, Remote

__all__ = ["CallFuture", "Executor", "Lost", "Remote"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

LIFE = 7 * 24 * 3600.0
"""Seconds that the server keeps the key for workers, unless it is stored again."""
LARGE = 1 << 20
"""Bytes of a result from which on it is unpickled in a thread."""
WORKERS = 64
IDLE = 10.0
OF_WORKERS = frozenset(("array", "count", "min", "command", "parameters", "throttle", "script", "stdin", "pty"))
"""Fields of a stage that an executor's workers set or cannot have."""


class Executor(Base):
    """Runs functions on the cluster: `with Executor(resources={"cpu": 1}) as ex: ex.submit(f, 1).result()`.

    `fields` are fields of a job and its stage, for the tasks that run the calls. `but` returns an executor with other
    fields. `python` is the interpreter on the nodes, which must have `cloudpickle` and the modules that the functions
    import. Calls of equal fields share at most `max_workers` tasks, which end `idle` seconds after their last call.
    """

    def __init__(
        self,
        client: Client | None = None,
        python: str = "",
        max_workers: int = WORKERS,
        idle: float = IDLE,
        **fields: Any,
    ) -> None:
        if max_workers < 1:
            raise ValueError(f"max_workers must be greater than 0, not {max_workers}")
        self._shared = Shared(client or Client(), python, idle)
        self._most = max_workers
        self._fields = {"name": "calls", "resources": {"cpu": 1}, **fields}
        self._prepare()

    def but(self, **fields: Any) -> Executor:
        """Return this executor with other fields, as in `ex.but(resources={"gpu": 1}).submit(train)`."""
        other = Executor.__new__(Executor)
        other._shared, other._most, other._fields = self._shared, self._most, {**self._fields, **fields}
        other._prepare()
        return other

    def _prepare(self) -> None:
        fields = dict(self._fields)
        if wrong := sorted(OF_WORKERS & fields.keys()):
            raise TypeError(f"an executor has no field {wrong[0]}: it runs calls of functions in tasks of its own")
        limit = fields.pop("time_limit", None) or 0
        if not isinstance(limit, int | float):
            raise TypeError(f"time_limit is the number of seconds that a call may take, not {limit!r}")
        self._limit = LIMIT.pack(float(limit))
        self._tries = fields.pop("tries", None) or 1
        self._again = fields.get("on_loss") != "fail"
        document = job_document(["python"], None, fields)
        (stage,) = document.pop("stages")
        del stage["command"]
        self._workers = CallFields(document, stage, self._most)

    def submit(
        self, fn: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        return self._start(False, fn, args, kwargs)

    def _start(self, many: bool, *call: Any) -> Future[Any]:
        packed = pickle.dumps((_own_paths(), many, sys.version_info[:2], cloudpickle.dumps(call, 5)), 5)
        return self._shared.start(self._workers, self._limit + packed, self._tries, self._again)

    def map(
        self, fn: Callable[..., Result], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Result]:
        """Map as in `concurrent.futures`; each chunk of `chunksize` calls is sent, and runs again, as one."""
        if chunksize < 1:
            raise ValueError(f"chunksize must be at least 1, not {chunksize}")
        deadline = None if timeout is None else monotonic() + timeout
        calls = zip(*iterables, strict=False)
        futures = [
            self._start(True, fn, chunk, {}) for chunk in iter(lambda: list(itertools.islice(calls, chunksize)), [])
        ]
        futures.reverse()

        def results() -> Iterator[Result]:
            try:
                while futures:
                    chunk = futures[-1].result(None if deadline is None else deadline - monotonic())
                    futures.pop()
                    chunk.reverse()
                    while chunk:
                        yield chunk.pop()
            finally:
                for future in futures:
                    future.cancel()

        return results()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._shared.shutdown(wait, cancel_futures)


def _own_paths() -> list[str]:
    """Return the folders in which this program finds modules of its own; workers look there too, at the end."""
    installed = (sys.prefix, sys.base_prefix)
    return [path or os.getcwd() for path in sys.path if not path.startswith(installed) and not path.endswith(".zip")]


class Shared:
    """State that executors with different fields share: the key, the loop and its thread, and the groups."""

    def __init__(self, client: Client, python: str, idle: float) -> None:
        self.client = client
        self.python = python or sys.executable
        self.idle = idle
        self.key = secrets.token_bytes(32)
        self.secret = f"executor-{secrets.token_hex(8)}"
        """The name of the secret that holds the key for workers."""
        self._store_key_at = 0.0
        """When to store the key on the server again; 0 if it is not stored yet."""
        self._lock = threading.Lock()
        self._new: deque[tuple[CallFields, PackedCall]] = deque()
        self._numbers = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._groups: dict[str, WorkerGroup] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(64, "fairlead-executor")
        self._unsettled: set[Future[Any]] = set()
        self._closed = False
        self._told = False
        """True if the loop was told of new calls."""

    def start(self, fields: CallFields, content: bytes, tries: int, again: bool) -> CallFuture:
        """Let a packed call run."""
        future = CallFuture(self._cancelled)
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown: the executor was shut down")
            self._numbers += 1
            self._new.append((fields, PackedCall(self._numbers, content, tries, again, future)))
            self._unsettled.add(future)
            if self._thread is None:
                begun = threading.Event()
                self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(begun)), daemon=True)
                self._thread.start()
                begun.wait()
            tell, self._told = not self._told, True
        future.add_done_callback(self._unsettled.discard)
        if tell:
            self.post(self._distribute)
        return future

    def shutdown(self, wait: bool, cancel: bool) -> None:
        with self._lock:
            self._closed = True
            waiting = list(self._unsettled)
        if cancel:
            for future in waiting:
                future.cancel()
        self.post(lambda: None)
        if wait and self._thread is not None:
            for future in waiting:
                if not future.cancelled():
                    future.exception()
            self._thread.join()

    def post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the loop."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(function, *arguments)

    def spawn(self, work: Any) -> None:
        """Run a coroutine in the loop."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def _serve(self, begun: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        begun.set()
        while not (self._closed and not self._unsettled):
            await asyncio.sleep(TICK if self._unsettled or self._closed else 10 * TICK)
            for group in self._groups.values():
                group.balance()
            if self._store_key_at and monotonic() >= self._store_key_at:
                with suppress(Problem, RuntimeError):  # more attempts follow before the key expires
                    await self.in_thread(self.store_key)
        for group in self._groups.values():
            await group.end()
        await self.in_thread(self._remove_key)
        self._threads.shutdown(wait=False)

    def _distribute(self) -> None:
        with self._lock:
            self._told = False
            new, self._new = self._new, deque()
        changed: dict[int, WorkerGroup] = {}
        for fields, call in new:
            name = repr(fields)
            group = self._groups.get(name)
            if group is None:
                group = self._groups[name] = WorkerGroup(self, fields)
            group.waiting.append(call)
            changed[id(group)] = group
        for group in changed.values():
            group.balance()

    def _cancelled(self, future: CallFuture) -> None:
        self.post(self._cancel, future)

    def _cancel(self, future: CallFuture) -> None:
        for group in self._groups.values():
            group.cancel(future)

    def settle(self, future: CallFuture, kind: int, content: bytes) -> None:
        """Set the outcome of a call from its pickled value."""
        if len(content) < LARGE:
            _unpack(future, kind, content)
        else:
            self._threads.submit(_unpack, future, kind, content)

    def store_key(self) -> None:
        """Store the key on the server, for workers that start; also again, long before it expires."""
        now = monotonic()
        if now >= self._store_key_at:
            self.client.set_secret(self.secret, self.key.hex(), expires_in=LIFE)
            self._store_key_at = now + LIFE / 8

    def _remove_key(self) -> None:
        """Remove the key from the server. If this fails, the key expires."""
        if self._store_key_at:
            with suppress(Problem, RuntimeError):
                self.client.remove_secret(self.secret)


def _unpack(future: CallFuture, kind: int, content: bytes) -> None:
    try:
        value = pickle.loads(content)
        if kind == RESULT:
            future.settle(value)
            return
        assert kind == ERROR
        error, trace = value
        error.__cause__ = Remote(trace)
    except Exception as problem:
        error = problem
    future.settle(error=error)
