"""Checks the free space on a journal's disk. A server that stopped on a full disk starts again when it is free.

Space is set aside for that: when it is released, there is room for a snapshot, after which old records are dropped.
"""

import os
from contextlib import suppress

from fairlead.journal.journal import NotWritten

NEEDED = 16 * 2**20
"""Bytes that must be free. One cycle writes less."""
RESERVE = ".reserve"
"""Name of the file that sets space aside."""
RESERVED = 2 * NEEDED
SHARES = 8
"""The jobs of one user may take one of this many equal parts of a disk."""
TIGHT = 2**30
"""A disk with fewer free bytes is tight if they are also less than half of the disk."""


def room_on(folder: str | os.PathLike[str]) -> int:
    """Return the bytes of a disk that the jobs of one user may take."""
    disk = os.statvfs(folder)
    return disk.f_blocks * disk.f_frsize // SHARES


def is_tight(folder: str | os.PathLike[str]) -> bool:
    """True if a disk is nearly full."""
    disk = os.statvfs(folder)
    return disk.f_bavail < disk.f_blocks // 2 and disk.f_bavail * disk.f_frsize < TIGHT


class DiskFull(NotWritten):
    """The disk has less than `NEEDED` bytes of free space."""


def need_disk_space(folder: str | os.PathLike[str]) -> None:
    """Raise `DiskFull` unless this user can write `NEEDED` more bytes to a folder."""
    path = os.path.join(folder, ".space")
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(fd, 0, NEEDED)
        finally:
            os.unlink(path)
            os.close(fd)
    except OSError as problem:
        raise DiskFull(f"{folder}: {problem.strerror}; free at least {NEEDED // 2**20} MiB on its disk") from problem


def reserve(folder: str | os.PathLike[str]) -> None:
    """Set space aside, unless that is done already or the disk has little space left."""
    path = os.path.join(folder, RESERVE)
    disk = os.statvfs(folder)
    if os.path.exists(path) or disk.f_bavail * disk.f_frsize < 4 * RESERVED:
        return
    with suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(fd, 0, RESERVED)
        finally:
            os.close(fd)


def release(folder: str | os.PathLike[str]) -> bool:
    """Free the space that was set aside. Return False if there was none."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, RESERVE))
        return True
    return False
