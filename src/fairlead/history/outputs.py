"""The server's copies of output: logs and result files of attempts, limited by age and size.

The key of a file begins with the partition and the user of its job. So a user never gets the output of another user,
even if a partition was removed and a new one of the same name numbers its jobs from 1 again. Each attempt of a task has
its own files: `NUMBER.STAGE.INDEX.ATTEMPT` with the suffix `.out` or `.err` for logs, and `.results/NAME` for result
files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import mkdtemp
from time import time
from urllib.parse import quote

import msgspec

from fairlead.core.ranges import Ranges, indices
from fairlead.history.recorder import ResultRow
from fairlead.history.stores import Store
from fairlead.wire.agent_messages import MAX_OUTPUT, Collected, LogRequest, Output, OutputPart, Stream, Tasks
from fairlead.wire.result_names import is_safe_name

JOBS_PER_FOLDER, TASKS_PER_FOLDER = 100, 100
CHECKED_AFTER = 16
"""The limits are applied again when files of 1/16 of the size limit were written."""
PUT_THREADS = 8
MAX_BEGUN = 4
"""Contents of a user that may be incomplete at a time. Beginning another one removes the oldest."""
NOT_THERE = "its files were no longer on its node, or the disk of the node was full"

Record = Callable[[str, int, list[ResultRow], bool], None]
"""Writes the result files of a job's tasks to the history: partition, job number, rows. The last argument is False if
existing rows must not be replaced."""


class OutputStore:
    """Stores and finds output. Several threads may use it. Its methods block until the store has answered."""

    def __init__(self, store: Store, size: int = 2**62, age: float = 2.0**40, now: Callable[[], float] = time) -> None:
        """`size` is the limit in bytes for all files together. Files older than `age` seconds are removed."""
        self._now = now
        self._store = store
        self._size = size
        self._age = age
        self._unchecked = 0
        self._lock = threading.Lock()
        self._contents = threading.Lock()

    def size(self, partition: str, asked: LogRequest) -> int | None:
        """Return the size of a log; None if the server has no copy of it."""
        return self._store.size(log_key(partition, asked))

    def read(self, partition: str, asked: LogRequest, offset: int, most: int) -> bytes:
        return self._store.read(log_key(partition, asked), offset, most)

    def result_size(self, partition: str, user: str, number: int, row: ResultRow, name: str) -> int | None:
        """Return the size of a result file; None if it was removed."""
        return self._store.size(result_key(partition, user, number, row, name))

    def read_result(
        self, partition: str, user: str, number: int, row: ResultRow, name: str, offset: int, most: int
    ) -> bytes:
        key = result_key(partition, user, number, row, name)
        return self._store.read(key, offset, most)

    # -- content that users store ----------------------------------------------------------------------------------

    def content_size(self, partition: str, user: str, digest: str) -> int | None:
        """Return the size of stored content; None if there is none."""
        return self._store.size(content_key(partition, user, digest))

    def read_content(self, partition: str, user: str, digest: str, offset: int, most: int) -> bytes:
        return self._store.read(content_key(partition, user, digest), offset, most)

    def add_content(self, partition: str, user: str, digest: str, size: int, offset: int, data: bytes) -> int | None:
        """Store a piece of content. Return how much of it is stored, or None if all of it is and has another digest.

        Content that is stored already keeps its place and becomes new, so that its age begins again.
        """
        key = content_key(partition, user, digest)
        with self._contents:
            if self._store.size(key) is not None:
                if not data:
                    self._store.renew(key)
                return size
            file = self._store.incoming / f"content-{hashlib.sha256(user.encode()).hexdigest()[:16]}-{digest}"
            if not file.exists():
                begun = sorted(file.parent.glob(f"{file.name[:24]}-*"), key=lambda each: each.stat().st_mtime)
                for oldest in begun[: 1 - MAX_BEGUN]:
                    oldest.unlink()
            stored = file.stat().st_size if file.exists() else 0
            if offset > stored:
                return stored
            if data or not size:
                _write(file, offset, data)
            stored = max(stored, offset + len(data))
            if stored < size:
                return stored
        with file.open("rb") as written:
            same = hashlib.file_digest(written, "sha256").hexdigest() == digest
        if not same:
            file.unlink(missing_ok=True)
            return None
        self.put({key: file}, durable=True)
        return size

    def shrink(self) -> None:
        """Remove files that are too old, then the oldest files of users with more than their share of the size limit.

        A user may use what the others leave. So the files of one user do not push out those of others.
        """
        with self._lock:
            self._unchecked = 0
            files = sorted(self._store.all())
            used: dict[str, int] = {}
            for file in files:
                used[_user_of(file.key)] = used.get(_user_of(file.key), 0) + file.size
            share, oldest = _share(used.values(), self._size), self._now() - self._age
            removed: list[str] = []
            for written, size, key in files:
                user = _user_of(key)
                if used[user] > share or written < oldest:
                    removed.append(key)
                    used[user] -= size
            self._store.remove(removed)

    # -- for `Incoming` ------------------------------------------------------------------------------------------

    def folder(self) -> Path:
        """Return a new folder for incomplete files."""
        return Path(mkdtemp(dir=self._store.incoming))

    def put(self, files: dict[str, Path], durable: bool) -> None:
        """Store complete files, given by key."""
        size = sum(path.stat().st_size for path in files.values())
        with ThreadPoolExecutor(PUT_THREADS) as threads:
            for _ in threads.map(lambda item: self._store.put(item[0], item[1], durable), files.items()):
                pass
        if durable:
            self._store.settle(files)
        with self._lock:
            self._unchecked += size
            due = self._unchecked * CHECKED_AFTER > self._size
        if due:
            self.shrink()


class Incoming:
    """Receives the output of one block of tasks into incomplete files, and stores each file when it is complete."""

    def __init__(
        self,
        store: OutputStore,
        partition: str,
        user: str,
        tasks: Tasks,
        limits: tuple[int, int],
        record: Record,
        only_results: bool,
    ) -> None:
        """Receive the output of some tasks. `limits` are the maximum number and bytes of result files per task.

        With `only_results`, the node has announced result files of all these tasks. A task whose files do not arrive
        gets a warning.
        """
        self._store = store
        self._partition = partition
        self._user = user
        self._tasks = tasks
        self._asked = Ranges(tasks.indices)
        self._limits = limits
        self._record = record
        self._only_results = only_results
        self._stored: set[int] = set()
        self._folder = store.folder()
        self._logs: dict[str, Path] = {}
        """Key → the incomplete file."""
        self._files: dict[int, dict[str, Path]] = {}
        """Task → name → the incomplete file."""
        self._bytes: dict[int, int] = {}

    def write(self, part: OutputPart) -> tuple[int, ...]:
        """Write a part of the output. Returns the tasks whose result files are now complete, stored and recorded."""
        for item in part.outputs:
            if item.index in self._asked:
                (self._write_result if item.stream == "file" else self._write_log)(item)
        complete = [collected for collected in part.collected if collected.index in self._asked]
        if complete:
            self._store_results(complete)
        stored = tuple(collected.index for collected in complete)
        self._stored.update(stored)
        return stored

    def finish(self) -> None:
        """Store the logs of the tasks. Record a warning for tasks whose announced result files did not arrive."""
        self._store.put(self._logs, durable=False)
        self._logs = {}
        tasks = self._tasks
        missing = [index for index in indices(tasks.indices) if self._only_results and index not in self._stored]
        if missing:
            rows = [ResultRow(tasks.stage, index, tasks.attempt, (), NOT_THERE) for index in missing]
            self._record(self._partition, tasks.number, rows, False)

    def close(self) -> None:
        """Remove incomplete files."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write_log(self, item: Output) -> None:
        tasks = self._tasks
        stream: Stream = "err" if item.stream == "err" else "out"
        if item.offset + len(item.data) > MAX_OUTPUT:
            return
        log = LogRequest(0, tasks.number, tasks.stage, item.index, tasks.attempt, stream, user=self._user)
        file = self._logs.setdefault(log_key(self._partition, log), self._folder / f"log{len(self._logs)}")
        _write(file, item.offset, item.data)

    def _write_result(self, item: Output) -> None:
        files = self._files.setdefault(item.index, {})
        total = self._bytes[item.index] = self._bytes.get(item.index, 0) + len(item.data)
        most, size = self._limits
        too_large = total > size or item.offset + len(item.data) > size
        if not is_safe_name(item.name) or too_large or (item.name not in files and len(files) >= most):
            return  # the file is reported as refused when the task is complete
        file = files.setdefault(item.name, self._folder / f"file{item.index}.{len(files)}")
        _write(file, item.offset, item.data)

    def _store_results(self, complete: list[Collected]) -> None:
        """Store the result files of tasks, then record them in the history."""
        paths: dict[str, Path] = {}
        rows = [self._check_results(collected, paths) for collected in complete]
        self._store.put(paths, durable=True)
        self._record(self._partition, self._tasks.number, rows, True)

    def _check_results(self, collected: Collected, paths: dict[str, Path]) -> ResultRow:
        """Add the completely received files of a task to `paths`, by key. Returns the task's row for the history."""
        tasks = self._tasks
        received = self._files.pop(collected.index, {})
        self._bytes.pop(collected.index, None)
        row = ResultRow(tasks.stage, collected.index, tasks.attempt, (), "")
        warnings = [collected.warning] if collected.warning else []
        files: dict[str, int] = {}
        for name, size in collected.files:
            path = received.pop(name, None)
            if path is None and size == 0 and is_safe_name(name) and len(files) < self._limits[0]:
                path = self._folder / f"file{collected.index}.empty{len(files)}"
                _write(path, 0, b"")
            if path is None or path.stat().st_size != size:
                warnings.append(f"{name[:200]!r} was refused: its name or size is not allowed, or it was not complete")
                continue
            files[name] = size
            paths[result_key(self._partition, self._user, tasks.number, row, name)] = path
        return msgspec.structs.replace(row, files=tuple(files.items()), warning="; ".join(warnings))


def _share(used: Iterable[int], size: int) -> int:
    """Return the most bytes that each user may keep, so that all together are within `size`."""
    amounts = sorted(used)
    for at, amount in enumerate(amounts):
        share = size // (len(amounts) - at)
        if amount > share:
            return share
        size -= amount
    return amounts[-1] if amounts else size


def _user_of(key: str) -> str:
    return "".join(key.split("/", 2)[1:2])  # empty for a file that is not ours


def log_key(partition: str, asked: LogRequest) -> str:
    base = _base(partition, asked.user, asked.number, asked.stage, asked.index, asked.attempt)
    return f"{base}.{asked.stream}"


def result_key(partition: str, user: str, number: int, row: ResultRow, name: str) -> str:
    """Return the key of a result file. Raises `ValueError` if the name is not safe."""
    if not is_safe_name(name):
        raise ValueError(f"{name!r} is not the name of a result file")
    return f"{_base(partition, user, number, row.stage, row.index, row.attempt)}.results/{name}"


def content_key(partition: str, user: str, digest: str) -> str:
    return f"{_plain(partition)}/{_plain(user)}/contents/{digest}"


def _base(partition: str, user: str, number: int, stage: str, index: int, attempt: int) -> str:
    folder = f"{number // JOBS_PER_FOLDER}.{index // TASKS_PER_FOLDER}"
    return f"{_plain(partition)}/{_plain(user)}/{folder}/{number}.{_plain(stage)}.{index}.{attempt}"


def _plain(name: str) -> str:
    """Return a name quoted so that it is safe as the name of a folder: it cannot point outside its parent."""
    quoted = quote(name, safe="")
    return quoted if not quoted.startswith(".") else "%2E" + quoted[1:]


def _write(file: Path, offset: int, data: bytes) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if offset == 0:
            os.ftruncate(fd, 0)
        rest = memoryview(data)
        while rest:
            written = os.pwrite(fd, rest, offset)
            rest, offset = rest[written:], offset + written
    finally:
        os.close(fd)
