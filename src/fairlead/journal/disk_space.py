"""Free space on the disk of a journal. A server that stopped on a full disk restarts when enough space is free."""

import os

from fairlead.journal.journal import NotWritten

NEEDED = 16 * 2**20
"""Bytes that must be free: more than one cycle writes."""


class DiskFull(NotWritten):
    """The disk has less than `NEEDED` bytes of free space."""


def need_disk_space(folder: str | os.PathLike[str]) -> None:
    """Raise `DiskFull` unless a folder has space for `NEEDED` more bytes. Disk quotas and reserved blocks count."""
    path = os.path.join(folder, ".space")
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(fd, 0, NEEDED)
        finally:
            os.unlink(path)
            os.close(fd)
    except OSError as problem:
        raise DiskFull(
            f"{folder}: {problem.strerror}; make at least {NEEDED // 2**20} MiB of room on its disk"
        ) from problem
