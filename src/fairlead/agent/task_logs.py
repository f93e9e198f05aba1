"""Reads the logs of tasks from the files that spawners write, and removes old logs."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from time import time
from typing import Literal

from fairlead.agent.launch_data import each_of
from fairlead.agent.result_files import open_own, read_results
from fairlead.agent.spawner.files import FOLDER
from fairlead.agent.spawner.records import folder_of
from fairlead.wire.agent_messages import MAX_OUTPUT, Collected, LogPart, LogRequest, Output, OutputPart, OutputRequest

PART = 1 << 16
TOGETHER = 500
"""Tasks whose result files are sent in one part, if they are small: the server stores them at once."""
POLL = 0.2
STREAMS: tuple[Literal["out", "err"], ...] = ("out", "err")
KEEP = 7 * 24 * 3600
"""Seconds that the log of an ended task is kept."""
STAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,62}")


def log_path(logs: str, request: LogRequest) -> Path | None:
    """Return the path of a log, or None if the request is not valid."""
    valid = STAGE.fullmatch(request.stage) and request.stream in ("out", "err")
    if not valid or min(request.number, request.index, request.attempt) < 0:
        return None
    folder = Path(logs, folder_of(request.number, request.index))
    return folder / f"{request.number}.{request.stage}.{request.index}.{request.attempt}.{request.stream}"


async def read_log(logs: str, request: LogRequest, is_over: Callable[[], bool]) -> AsyncIterator[LogPart]:
    """Yield a log in parts. Offsets count from the first byte that is kept: rotation removes earlier ones."""
    path = log_path(logs, request)
    if path is None:
        yield LogPart(request.request, 0, b"", True, "there is no such log; check the name of the stage")
        return
    older = path.with_name(path.name + ".1")
    base = _size(older)
    size = base + _size(path)
    offset = max(0, size + request.offset) if request.offset < 0 else request.offset
    exists = os.path.lexists(path) or request.follow
    while offset < base and (data := _read(older, offset, min(PART, base - offset))):
        yield LogPart(request.request, offset, data)
        offset += len(data)
    current = max(0, offset - base)
    while exists:
        over = is_over()  # checked before the last read, so that nothing written before the end is missed
        if _size(path) < current:
            base, current = base + current, 0  # it was rotated
        while data := _read(path, current, PART):
            yield LogPart(request.request, base + current, data)
            current += len(data)
        if over or not request.follow:
            break
        await asyncio.sleep(POLL)
    missing = "" if exists else "nothing is kept of this task here; it has not started, or its log was removed"
    yield LogPart(request.request, base + current, b"", True, missing)


async def read_outputs(logs: str, request: OutputRequest) -> AsyncIterator[OutputPart]:
    """Yield the result files of tasks and, if requested, their logs, in parts of about `PART` bytes.

    At most `MAX_OUTPUT` bytes of a log are sent: a task can make it huge at no cost, as a sparse file.
    """
    tasks = request.tasks
    waiting: list[Output] = []
    collected: list[Collected] = []
    size = 0
    for index in each_of(tasks.indices):
        results = read_results(logs, tasks, index, request.max_result_files, request.max_result_bytes)
        async for part in results:
            waiting += part.outputs
            collected += part.collected
            size += sum(len(piece.data) for piece in part.outputs)
            if size >= PART or len(collected) >= TOGETHER:
                yield OutputPart(request.request, tuple(waiting), collected=tuple(collected))
                waiting, collected, size = [], [], 0
        for stream in STREAMS if request.logs else ():
            log = LogRequest(0, tasks.number, tasks.stage, index, tasks.attempt, stream, user=request.user)
            async for piece in read_log(logs, log, lambda: True):
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
        for entry in entries:
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif entry.stat(follow_symlinks=False).st_mtime < limit:
                    os.unlink(entry.name, dir_fd=folder)
    return folders


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
