"""Reads the logs of tasks from the files that spawners write, of one task or shared, and removes old logs.

A user can make the folder slow, so it is read in a thread, in pieces. Only what many small tasks share is read at once.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import islice
from math import inf
from pathlib import Path
from time import monotonic, time
from typing import Literal

from fairlead.agent.result_files import open_own, read_results
from fairlead.agent.result_lists import ResultList
from fairlead.agent.spawner.files import FOLDER
from fairlead.agent.spawner.records import TASKS_PER_FOLDER, folder_of
from fairlead.agent.spawner.shared_logs import ENDING, PAIRS, SMALL, records
from fairlead.wire.agent_messages import MAX_OUTPUT, Collected, LogPart, LogRequest, Output, OutputPart, OutputRequest
from fairlead.wire.index_spans import each_index

PART = 1 << 16
TOGETHER = 500
"""Tasks whose result files are sent in one part, if they are small: the server stores them at once."""
POLL = 0.2
YOUNG = 0.3
"""Seconds to wait for the log of a task that has just started: it has its own file after a tenth of a second."""
MAX_SHARED = 200
"""Shared files of one folder that are read: one for each spawner."""
MAX_RECORDS_READ = 1_000_000
"""Records of the shared files of one folder that are read, a hundred for each of its tasks."""
MISSING = "nothing is kept of this task here; it has not started, or its log was removed"
STREAMS: tuple[Literal["out", "err"], ...] = ("out", "err")
KEEP = 7 * 24 * 3600
"""Seconds that the log of an ended task is kept."""
MAX_SEEN = 200_000
"""Largest number of entries of a folder that are examined in a sweep: a user can fill a folder without end."""
STAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,62}")


def log_path(logs: str, request: LogRequest) -> Path | None:
    """Return the path of a log, or None if the request is not valid."""
    valid = STAGE.fullmatch(request.stage) and request.stream in ("out", "err")
    if not valid or min(request.number, request.index, request.attempt) < 0:
        return None
    folder = Path(logs, folder_of(request.number, request.index))
    return folder / f"{request.number}.{request.stage}.{request.index}.{request.attempt}.{request.stream}"


class SharedOutput:
    """Reads the output of ended tasks that have no files of their own. Remembers where each output is.

    A user can write any number of names into shared files, so only those of wanted stages and attempts are remembered.
    """

    def __init__(self, logs: str) -> None:
        self._logs = logs
        self._places: dict[tuple[str, str, str], dict[str, tuple[Path, int, int, int]]] = {}
        """Folder, begin and end of names → name of a task → its shared file, offset, and sizes of output and errors."""

    async def read(self, request: LogRequest) -> bytes | None:
        """Return the output or errors of a task; None if they are not in a shared file."""
        folder = folder_of(request.number, request.index)
        wanted = (folder, f"{request.number}.{request.stage}.", f".{request.attempt}")
        if wanted not in self._places:
            self._places[wanted] = await asyncio.to_thread(self._find, *wanted)
        place = self._places[wanted].get(f"{request.number}.{request.stage}.{request.index}.{request.attempt}")
        if place is None:
            return None
        path, at, out, err = place
        where = (at, out) if request.stream == "out" else (at + out, err)
        return await asyncio.to_thread(_read, path, *where)

    def _find(self, folder: str, begin: str, end: str) -> dict[str, tuple[Path, int, int, int]]:
        """Return where the outputs are of tasks whose names begin with `begin` and end with `end`."""
        left = MAX_RECORDS_READ
        places: dict[str, tuple[Path, int, int, int]] = {}
        try:
            with os.scandir(Path(self._logs, folder)) as entries:
                names = [entry.name for entry in islice(entries, MAX_SEEN) if entry.name.endswith(ENDING)]
        except OSError:
            return places
        for name in sorted(names)[:MAX_SHARED]:
            path = Path(self._logs, folder, name)
            fd = open_own(path)
            if fd is not None:
                with suppress(OSError):
                    for task, at, out, err in islice(records(fd), left):
                        left -= 1
                        if task.startswith(begin) and task.endswith(end) and len(places) < TASKS_PER_FOLDER:
                            places.setdefault(task, (path, at, min(out, SMALL), min(err, SMALL)))
                os.close(fd)
        return places


async def read_log(
    logs: str, request: LogRequest, is_over: Callable[[], bool], shared: SharedOutput | None = None
) -> AsyncIterator[LogPart]:
    """Yield a log in parts. Offsets count from the first byte that is kept: rotation removes earlier ones.

    `shared` is given if several logs of ended tasks are read.
    """
    path = log_path(logs, request)
    if path is None:
        yield LogPart(request.request, 0, b"", True, "there is no such log; check the name of the stage")
        return
    older = path.with_name(path.name + ".1")
    over, exists, base, size = await _wait_for_log(path, older, is_over, request.follow)
    if over and not exists:
        yield await _read_shared(shared or SharedOutput(logs), request)
        return
    offset = max(0, base + size + request.offset) if request.offset < 0 else request.offset
    while offset < base and (data := await asyncio.to_thread(_read, older, offset, min(PART, base - offset))):
        yield LogPart(request.request, offset, data)
        offset += len(data)
    current = max(0, offset - base)
    if exists and (size > current or not over):
        async for more in _pieces(path, current, is_over, request.follow):
            if more is None:
                base, current = base + current, 0
            else:
                yield LogPart(request.request, base + current, more)
                current += len(more)
    yield LogPart(request.request, base + current, b"", True, "" if exists else MISSING)


async def _wait_for_log(
    path: Path, older: Path, is_over: Callable[[], bool], follow: bool
) -> tuple[bool, bool, int, int]:
    """Wait until a log exists, with `follow` until its task is over. Return if it is, and what `_look` returns."""
    until = inf if follow else monotonic() + YOUNG
    while True:
        over = is_over()
        exists, base, size = await asyncio.to_thread(_look, path, older)
        if over or exists or monotonic() >= until:
            return over, exists, base, size
        await asyncio.sleep(POLL / 4)


async def _pieces(path: Path, offset: int, is_over: Callable[[], bool], follow: bool) -> AsyncIterator[bytes | None]:
    """Yield a log from an offset on, with `follow` until its task is over. None says that the log begins anew."""
    while True:
        over = is_over()  # checked before the last read, so that nothing written before the end is missed
        more = await asyncio.to_thread(_read_on, path, offset)
        offset = 0 if more is None else offset + len(more)
        if more is None or more:
            yield more
        if more is not None and len(more) < PART:
            if over or not follow:
                return
            await asyncio.sleep(POLL)


async def _read_shared(shared: SharedOutput, request: LogRequest) -> LogPart:
    text = await shared.read(request)
    if text is None:
        return LogPart(request.request, 0, b"", True, "" if request.follow else MISSING)
    offset = max(0, len(text) + request.offset) if request.offset < 0 else request.offset
    return LogPart(request.request, offset, text[offset:], True)


async def read_outputs(
    logs: str, request: OutputRequest, listed: Callable[[int], ResultList | None] = lambda index: None
) -> AsyncIterator[OutputPart]:
    """Yield the result files of tasks and, if requested, their logs, in parts of about `PART` bytes.

    `listed` returns the list of a task's result files. At most `MAX_OUTPUT` bytes of a log are sent: a task can make it
    huge at no cost, as a sparse file.
    """
    tasks = request.tasks
    waiting: list[Output] = []
    collected: list[Collected] = []
    size = 0
    shared = SharedOutput(logs)
    for index in each_index(tasks.indices):
        limits = (request.max_result_files, request.max_result_bytes)
        results = read_results(logs, listed(index), tasks, index, *limits)
        async for part in results:
            waiting += part.outputs
            collected += part.collected
            size += sum(len(piece.data) for piece in part.outputs)
            if size >= PART or len(collected) >= TOGETHER:
                yield OutputPart(request.request, tuple(waiting), collected=tuple(collected))
                waiting, collected, size = [], [], 0
        for stream in STREAMS if request.logs else ():
            log = LogRequest(0, tasks.number, tasks.stage, index, tasks.attempt, stream, user=request.user)
            async for piece in read_log(logs, log, lambda: True, shared):
                if piece.offset + len(piece.data) > MAX_OUTPUT:
                    break
                if piece.data:
                    waiting.append(Output(index, stream, piece.offset, piece.data))
                    size += len(piece.data)
                if size >= PART:
                    yield OutputPart(request.request, tuple(waiting), collected=tuple(collected))
                    waiting, collected, size = [], [], 0
        await asyncio.sleep(0)  # many small files must not delay the agent's heartbeats
    yield OutputPart(request.request, tuple(waiting), True, tuple(collected))


def remove_old(logs: str) -> None:
    """Remove logs, and folders of logs, that were not written to for `KEEP` seconds."""
    limit = time() - KEEP
    # Use open folders, so that a folder that a user has replaced by a link is not followed.
    top = os.open(logs, FOLDER)
    try:
        for name in _remove_old_files(top, limit):
            with suppress(OSError):
                folder = os.open(name, FOLDER, dir_fd=top)
                try:
                    _remove_old_files(folder, limit)
                finally:
                    os.close(folder)
                if os.stat(name, dir_fd=top, follow_symlinks=False).st_mtime < limit:
                    os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def _remove_old_files(folder: int, limit: float) -> list[str]:
    folders: list[str] = []
    with os.scandir(folder) as entries:
        for entry in islice(entries, MAX_SEEN):
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith(PAIRS):  # their spawners have them open
                        folders.append(entry.name)
                elif entry.stat(follow_symlinks=False).st_mtime < limit:
                    os.unlink(entry.name, dir_fd=folder)
    return folders


def _look(path: Path, older: Path) -> tuple[bool, int, int]:
    """Return if a log exists, the size of its older part, and its own."""
    if not os.path.lexists(path):
        return False, _size(older), 0
    return True, _size(older), _size(path)


def _read_on(path: Path, offset: int) -> bytes | None:
    """Return the next piece of a log, or None if it was rotated: the log is shorter than what was read."""
    return None if _size(path) < offset else _read(path, offset, PART)


def _size(path: Path) -> int:
    fd = open_own(path)
    if fd is None:
        return 0
    try:
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def _read(path: Path, offset: int, most: int) -> bytes:
    fd = open_own(path)
    if fd is None:
        return b""
    try:
        return os.pread(fd, most, offset)
    except OSError:
        return b""  # a read error of the disk
    finally:
        os.close(fd)
