"""Opens and rotates the log files of tasks. They are truncated in place, since the tasks keep them open.

A task may have replaced its log by any other file. So logs are opened without following links and without blocking,
used only if they are plain files with one name, and copied up to a limit.
"""

from __future__ import annotations

import os
import stat

LARGE = 16 << 20
"""Bytes from which a log is moved to NAME.1, replacing the log that was moved before."""
MAX_COPIED = 2 * LARGE
"""Largest number of bytes to move. Of a larger file only the end is kept."""
SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
LOG_MODE = 0o640
"""Mode of logs: the agent reads them as a member of their group."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags to open a folder that is not a link."""


def close_all_but(*kept: int) -> None:
    """Close all other descriptors above 2."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept:
            try:
                os.close(fd)
            except OSError:
                continue  # the descriptor of the listing itself


def make_log_folder(path: str) -> None:
    """Create a folder for logs. The agent removes old logs as a member of its group, which the parent folder sets."""
    mask = os.umask(0o007)
    try:
        os.makedirs(path, 0o770, exist_ok=True)
    finally:
        os.umask(mask)


def is_plain(status: os.stat_result) -> bool:
    """True for a regular file with one name, which thus cannot be a hard link to a file elsewhere."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def open_plain(path: str, flags: int, folder: int | None = None) -> int:
    """Open an existing log; `path` may be relative to an open `folder`. Raises `OSError` if it is no plain file."""
    fd = os.open(path, flags | SAFELY, dir_fd=folder)
    if not is_plain(os.fstat(fd)):
        os.close(fd)
        raise FileNotFoundError(path)
    return fd


def rotate(path: str) -> None:
    """Move a log to NAME.1 if it is too large.

    Output that a task writes in the few microseconds before the log is truncated is lost.
    """
    try:
        status = os.lstat(path)
        if status.st_size < LARGE or not is_plain(status):
            return
        source = open_plain(path, os.O_RDWR)
    except OSError:
        return
    try:
        _copy(source, path + ".1", status)
        os.ftruncate(source, 0)
    except OSError:
        return  # the disk is full, or a folder has that name: try again at the next call
    finally:
        os.close(source)


def _copy(source: int, path: str, status: os.stat_result) -> None:
    if os.path.lexists(path):
        os.unlink(path)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | SAFELY, status.st_mode & 0o777)
    at = max(0, status.st_size - MAX_COPIED)
    end = at + MAX_COPIED + LARGE
    try:
        while at < end and (copied := os.sendfile(target, source, at, 1 << 20)):
            at += copied
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(target)
