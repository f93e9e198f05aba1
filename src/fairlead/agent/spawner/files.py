"""The log files of tasks. They are truncated in place, since the tasks keep them open.

A task may have replaced a log by anything. So logs are opened without following links and without blocking, used only
if they are plain files with one name, and copied up to a limit.
"""

from __future__ import annotations

import os
import stat

LARGE = 16 << 20
"""Bytes from which a log is moved to its older file, which is replaced."""
MAX_COPIED = 2 * LARGE
"""Largest number of bytes to move. Of a larger file only the end is kept."""
SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def is_plain(status: os.stat_result) -> bool:
    """True for a regular file with one name, which thus cannot be a hard link to a file elsewhere."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def open_plain(path: str, flags: int, folder: int | None = None) -> int:
    """Open an existing log, relative to an open folder if one is given. Raises `OSError` if it is not a plain file."""
    fd = os.open(path, flags | SAFELY, dir_fd=folder)
    if not is_plain(os.fstat(fd)):
        os.close(fd)
        raise FileNotFoundError(path)
    return fd


def rotate(path: str) -> None:
    """Move a log to its older file if it is too large.

    Output written between the last copied byte and the truncation, a few microseconds, is lost.
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
    """Copy the end of a file to a new file."""
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
