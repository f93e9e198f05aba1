"""Logs of tasks, read from where they are written, and how long they are kept."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from time import time

from fairlead.agent.launching import log_folder
from fairlead.agent.spawner.files import open_plain
from fairlead.wire.agent import LogPart, LogRequest

PART = 1 << 16
POLL = 0.2
KEEP = 7 * 24 * 3600
"""Seconds for which the log of an ended task is kept."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
STAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,62}")


def log_path(logs: str, asked: LogRequest) -> Path | None:
    """Where a log is; None for what cannot be the name of one."""
    sound = STAGE.fullmatch(asked.stage) and asked.stream in ("out", "err")
    if not sound or min(asked.number, asked.index, asked.attempt) < 0:
        return None
    folder = Path(logs, log_folder(asked.number))
    return folder / f"{asked.number}.{asked.stage}.{asked.index}.{asked.attempt}.{asked.stream}"


async def read_log(logs: str, asked: LogRequest, is_over: Callable[[], bool]) -> AsyncIterator[LogPart]:
    """A log in parts. Offsets count from the start of what is kept; what was rotated away is not there any more."""
    path = log_path(logs, asked)
    if path is None:
        yield LogPart(asked.request, 0, b"", True, "there is no such log; check the name of the stage")
        return
    older = path.with_name(path.name + ".1")
    base = _size(older)
    size = base + _size(path)
    offset = max(0, size + asked.offset) if asked.offset < 0 else asked.offset
    found = os.path.lexists(path) or asked.follow
    while offset < base and (data := _read(older, offset, min(PART, base - offset))):
        yield LogPart(asked.request, offset, data)
        offset += len(data)
    current = max(0, offset - base)
    while found:
        over = is_over()  # before the last look, so that nothing written before the end is missed
        if _size(path) < current:
            base, current = base + current, 0  # it was rotated
        while data := _read(path, current, PART):
            yield LogPart(asked.request, base + current, data)
            current += len(data)
        if over or not asked.follow:
            break
        await asyncio.sleep(POLL)
    missing = "" if found else "nothing is kept of this task here; it has not started, or its log was removed"
    yield LogPart(asked.request, base + current, b"", True, missing)


def remove_old(logs: str) -> None:
    """Remove what was not written to for long: logs and their folders. What tasks have put deeper stays."""
    limit = time() - KEEP
    # By open folders: a user that replaces one by a link leads nowhere else.
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
    """Remove the old files of an open folder; returns the folders in it."""
    folders: list[str] = []
    with os.scandir(folder) as found:
        for each in found:
            with suppress(OSError):
                if each.is_dir(follow_symlinks=False):
                    folders.append(each.name)
                elif each.stat(follow_symlinks=False).st_mtime < limit:
                    os.unlink(each.name, dir_fd=folder)
    return folders


def _size(path: Path) -> int:
    """The bytes of a log; 0 if there is none, or if its task put something else in its place."""
    fd = _open(path)
    if fd is None:
        return 0
    try:
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def _read(path: Path, offset: int, most: int) -> bytes:
    fd = _open(path)
    if fd is None:
        return b""
    try:
        return os.pread(fd, most, offset)
    except OSError:
        return b""  # the disk gives it no more
    finally:
        os.close(fd)


def _open(path: Path) -> int | None:
    """Open a log if it is a plain file of the user whose folder it is in; None otherwise.

    The user can replace the folder by a link, too, to files that the agent can read and the user cannot.
    """
    held: list[int] = []
    try:
        held.append(os.open(path.parent.parent, os.O_PATH | os.O_DIRECTORY))
        owner = os.fstat(held[0]).st_uid
        held.append(os.open(path.parent.name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=held[0]))
        fd = open_plain(path.name, os.O_RDONLY, held[1])
    except OSError:
        return None
    finally:
        for each in held:
            os.close(each)
    if os.fstat(fd).st_uid == owner:
        return fd
    os.close(fd)
    return None
