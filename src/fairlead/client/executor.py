"""`Executor`: run Python functions on the cluster, in the style of `concurrent.futures`.

A call is pickled into the arguments of a job with one task. Its result comes back through the task's output, so no
shared disk is needed. Both are sealed with a key of the executor, which its tasks get as a secret. Three threads serve
an executor: one submits calls in batches, one follows job events, and one fetches results.
"""

from __future__ import annotations

import queue
import secrets
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor as Base
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from time import monotonic
from typing import Any, ParamSpec, TypeVar

import cloudpickle  # type: ignore[import-untyped]

from fairlead.client.calls import EventReader, NeverRuns, Problem, warn
from fairlead.client.sealed_calls import KEY, RUNNER, call_arguments, result_of
from fairlead.client.sync import Client
from fairlead.wire import api as wire
from fairlead.wire import operations as op

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

GATHER = 0.005
"""Seconds during which calls are collected, to be submitted together."""
LIFE = 7 * 24 * 3600.0
"""Seconds that the server keeps the key for tasks, unless it is stored again."""


class Remote(Exception):
    """The traceback of a function on its node, as text. It is the cause of the exception raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Lost(Exception):
    """Raised for a call without a result: its task was killed, lost or never started."""


class CallFuture(Future[Result]):
    """The future of a call. Cancelling it kills the call's job, even while it runs."""

    def __init__(self, cancelled: Callable[[Future[Any]], None], call: str) -> None:
        super().__init__()
        self._cancelled = cancelled
        self.call = call
        """The id of the call, which is part of its seals."""
        self.job = ""
        """The id of the call's job; empty until it is submitted."""

    def cancel(self) -> bool:
        if not super().cancel():
            return False
        self.set_running_or_notify_cancel()
        self._cancelled(self)
        return True


class Executor(Base):
    """Runs functions on the cluster: `with Executor(resources={"cpu": 1}) as ex: ex.submit(f, 1).result()`.

    `fields` are fields of a job and its stage, used for every call. `but` returns an executor with other fields.
    `python` is the interpreter on the nodes, which must have `cloudpickle` and the modules that the functions import.
    """

    def __init__(self, client: Client | None = None, python: str = "", **fields: Any) -> None:
        self._shared = _Shared(client or Client())
        self._python = python or sys.executable
        self._fields = {"name": "call", "resources": {"cpu": 1}, **fields}

    def but(self, **fields: Any) -> Executor:
        """Return this executor with other fields, as in `ex.but(resources={"gpu": 1}).submit(train)`."""
        other = Executor.__new__(Executor)
        other._shared, other._python, other._fields = self._shared, self._python, {**self._fields, **fields}
        return other

    def submit(
        self, fn: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        packed = zlib.compress(cloudpickle.dumps((fn, args, kwargs)), 1)
        call = secrets.token_hex(16)
        command = [self._python, "-c", RUNNER, *self._shared.arguments(call, packed)]
        stage_keys = set(wire.StageDocument.__struct_fields__) - {"name"}
        stage = {key: value for key, value in self._fields.items() if key in stage_keys}
        job = {key: value for key, value in self._fields.items() if key not in stage_keys}
        stage["secrets"] = {**stage.get("secrets", {}), KEY: self._shared.secret}
        return self._shared.start({**job, "stages": [{"command": command, **stage}]}, call)

    def map(
        self, fn: Callable[..., Result], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Result]:
        """Map as in `concurrent.futures`; each chunk of `chunksize` calls is one task."""
        calls = list(zip(*iterables, strict=False))
        chunks = [calls[at : at + chunksize] for at in range(0, len(calls), max(1, chunksize))]
        futures = [self.submit(_each, fn, chunk) for chunk in chunks]
        deadline = None if timeout is None else monotonic() + timeout

        def results() -> Iterator[Result]:
            try:
                for future in futures:
                    yield from future.result(None if deadline is None else deadline - monotonic())
            finally:
                for future in futures:
                    future.cancel()

        return results()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._shared.shutdown(wait, cancel_futures)


def _settle(future: Future[Any], result: Any = None, error: BaseException | None = None) -> None:
    with suppress(InvalidStateError):  # the future was cancelled meanwhile
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


def _each(fn: Callable[..., Result], calls: list[tuple[Any, ...]]) -> list[Result]:
    """Call a function with each tuple of arguments. It is pickled by its name, so nodes need this module."""
    return [fn(*arguments) for arguments in calls]


class _Shared:
    """State shared by executors with different fields: the open calls, the key and the threads."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.key = secrets.token_bytes(32)
        self.secret = f"executor-{secrets.token_hex(8)}"
        """The name of the secret that holds the key for tasks."""
        self._store_key_at = 0.0
        """When to store the key on the server again; 0 if it is not stored yet."""
        self._lock = threading.Condition()
        self._new: list[tuple[dict[str, Any], CallFuture[Any]]] = []
        self._sent: list[CallFuture[Any]] = []
        """Calls that are being submitted."""
        self._open: dict[str, CallFuture[Any]] = {}
        self._early: set[str] = set()
        """Jobs whose end was received before the answer to their submission."""
        self._ended: queue.SimpleQueue[tuple[str, CallFuture[Any]] | None] = queue.SimpleQueue()
        self._closed = False
        self._following = threading.Event()
        """Set when job events arrive, or when it is clear that they cannot be received."""
        self._threads: list[threading.Thread] = []

    def arguments(self, call: str, packed: bytes) -> list[str]:
        """Return the arguments of a task for a pickled call."""
        return call_arguments(self.key, call, packed, self._client.store)

    def start(self, document: dict[str, Any], call: str) -> CallFuture[Any]:
        future: CallFuture[Any] = CallFuture(self._cancelled, call)
        with self._lock:
            if self._closed:
                raise RuntimeError("the executor was shut down")
            if not self._threads:
                for work in (self._submit, self._follow, self._fetch):
                    thread = threading.Thread(target=work, daemon=True)
                    self._threads.append(thread)
                    thread.start()
        # Events must arrive before the first job can end, or its end is noticed late. The follower needs the lock.
        self._following.wait(10.0)
        with self._lock:
            if self._closed:
                raise RuntimeError("the executor was shut down")
            self._new.append((document, future))
            self._lock.notify_all()
        return future

    def shutdown(self, wait: bool, cancel: bool) -> None:
        with self._lock:
            self._closed = True
            waiting = [future for _, future in self._new] + self._sent + list(self._open.values())
            self._lock.notify_all()
        if cancel:
            for future in waiting:
                future.cancel()
        if wait:
            with self._lock:  # cancelled calls must be killed even while they are being submitted
                self._lock.wait_for(lambda: not (self._new or self._sent))
            for future in waiting:
                if not future.cancelled():
                    future.exception()
            self._ended.put(None)
            self._remove_key()

    def _cancelled(self, future: Future[Any]) -> None:
        job = future.job if isinstance(future, CallFuture) else ""
        if job:
            with self._lock:
                self._open.pop(job, None)
            self._kill(job)

    def _kill(self, job: str) -> None:
        try:
            self._client.kill(job)
        except Problem as problem:
            if problem.status != 404:
                raise

    def _submit(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._new or self._closed)
                if not self._new:
                    return
                self._lock.wait(GATHER)
                batch, self._new = self._new[:500], self._new[500:]
                new = [(document, future) for document, future in batch if not future.cancelled()]
                self._sent = [future for _, future in new]
            if new:
                self._send(new)
            with self._lock:
                self._sent = []
                self._lock.notify_all()

    def _send(self, new: list[tuple[dict[str, Any], CallFuture[Any]]]) -> None:
        try:
            self._store_key()
            items = self._client.submit_many([document for document, _ in new])
        except Exception as error:
            for _, future in new:
                _settle(future, error=error)
            return
        for item in [item for item in items if item.warning][:1]:  # once, because calls of a batch are mostly alike
            with suppress(NeverRuns):  # it is raised if warnings are errors, and would end the thread
                warn(item.job, item.warning, 2)
        for (_, future), item in zip(new, items, strict=True):
            if item.problem is not None:
                problem = item.problem
                _settle(future, error=Problem(problem.detail, problem.status, problem.code, problem.field))
                continue
            future.job = item.job
            with self._lock:
                self._open[item.job] = future
                early = item.job in self._early
                self._early.discard(item.job)
            if future.cancelled():
                self._cancelled(future)
            elif early:
                self._ended.put((item.job, future))

    def _store_key(self) -> None:
        """Store the key on the server, for tasks that start. Store it again long before it expires."""
        now = monotonic()
        if now >= self._store_key_at:
            self._client.set_secret(self.secret, self.key.hex(), expires_in=LIFE)
            self._store_key_at = now + LIFE / 8

    def _remove_key(self) -> None:
        """Remove the key from the server, when no open call needs it. If this fails, the key expires."""
        with self._lock:
            stored, self._store_key_at = self._store_key_at, 0.0
        if stored:
            with suppress(Problem, RuntimeError):
                self._client.remove_secret(self.secret)

    def _is_over(self) -> bool:
        """True if the executor is shut down and no call is open."""
        with self._lock:
            return self._closed and not (self._new or self._sent or self._open)

    def _follow(self) -> None:
        """Follow job events. After a broken stream or missed events, check each open job."""
        while not self._is_over():
            reader = EventReader(None)
            try:
                for at, part in enumerate(self._client.stream(op.Watch())):
                    if at == 0 and self._following.is_set():
                        self._check_open()
                    self._following.set()
                    for event in reader.feed(part):
                        self._handle(event)
                    if self._is_over():
                        break
                self._check_open()
            except Problem:
                self._following.set()
                threading.Event().wait(0.5)
            except RuntimeError as closed:  # the client was closed: no more events will arrive
                self._following.set()
                self._fail_all(closed)
                return
        self._remove_key()

    def _fail_all(self, error: Exception) -> None:
        with self._lock:
            futures = [*self._sent, *self._open.values()]
            self._open.clear()
        for future in futures:
            _settle(future, error=error)

    def _handle(self, event: wire.Event) -> None:
        if event.what == "reset":
            self._check_open()
        elif event.what == "state" and event.state in ("succeeded", "failed", "killed"):
            self._end(event.job)

    def _end(self, job: str) -> None:
        with self._lock:
            future = self._open.get(job)
            if future is None:
                self._early.add(job)
                return
        self._ended.put((job, future))

    def _check_open(self) -> None:
        for job in list(self._open):
            try:
                if self._client.job(job).over:
                    self._end(job)
            except Problem as problem:
                if problem.status == 404:
                    self._end(job)

    def _fetch(self) -> None:
        while True:
            ended: tuple[str, CallFuture[Any]] | tuple[()] | None = ()
            with suppress(queue.Empty):
                ended = self._ended.get(timeout=LIFE / 8)
            if ended is None:
                return
            if self._store_key_at:
                with suppress(Problem, RuntimeError):  # more attempts follow before the key expires
                    self._store_key()
            if not ended:
                continue
            job, future = ended
            with self._lock:
                if self._open.pop(job, None) is None:
                    continue
            try:
                _settle(future, self._result(job, future.call))
            except Exception as problem:
                _settle(future, error=problem)

    def _result(self, job: str, call: str) -> Any:
        try:
            text = b"".join(self._client.log(job)).strip()
        except Problem as problem:
            text, cause = b"", str(problem)
        else:
            cause = ""
        if not text:
            view = self._client.job(job)
            raise Lost(f"job {job} is {view.state} without a result: {view.reason or cause or 'see its log'}")
        kind, value = result_of(
            self.key, call, job, text, lambda digest: b"".join(self._client.stream(op.Content(digest=digest)))
        )
        if kind == "result":
            return value
        error, trace = value
        error.__cause__ = Remote(trace)
        raise error
