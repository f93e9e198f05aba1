"""The files that tasks write to. They are cut in place, since the tasks keep them open.

A task may have put anything in their place. So they are opened without following links and without waiting, used only
if they are plain files with one name, and copied up to a bound.
"""

from __future__ import annotations

import os
import stat

LARGE = 16 << 20
"""A file of output beyond this is moved to an older one, which it replaces."""
MOST_COPIED = 2 * LARGE
"""Bytes that are moved at most: of a larger file the end is kept."""
SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def is_plain(found: os.stat_result) -> bool:
    """True if it is a regular file with one name, so not one of another folder."""
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def open_plain(path: str, flags: int, folder: int | None = None) -> int:
    """Open an existing log, in an open folder if one is given. Raises `OSError` if it is not there as a plain file."""
    fd = os.open(path, flags | SAFELY, dir_fd=folder)
    if not is_plain(os.fstat(fd)):
        os.close(fd)
        raise FileNotFoundError(path)
    return fd


def rotate(path: str) -> None:
    """What a task writes between the last copied byte and the cut, a few microseconds, is lost."""
    try:
        found = os.lstat(path)
        if found.st_size < LARGE or not is_plain(found):
            return
        source = open_plain(path, os.O_RDWR)
    except OSError:
        return
    try:
        _copy(source, path + ".1", found)
        os.ftruncate(source, 0)
    except OSError:
        return  # the disk is full, or a folder is in the way: the log stays as it is, and is looked at again
    finally:
        os.close(source)


def _copy(source: int, path: str, found: os.stat_result) -> None:
    """Copy the end of a file to another, which is made anew."""
    if os.path.lexists(path):
        os.unlink(path)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | SAFELY, found.st_mode & 0o777)
    at = max(0, found.st_size - MOST_COPIED)
    end = at + MOST_COPIED + LARGE
    try:
        while at < end and (copied := os.sendfile(target, source, at, 1 << 20)):
            at += copied
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(target)
