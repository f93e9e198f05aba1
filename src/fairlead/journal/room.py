"""Free space on the disk of a journal. A server that stopped on a full disk restarts when enough space is free."""

import os

from fairlead.journal.base import NotWritten

ROOM = 16 * 2**20
"""Bytes that must be free: more than one cycle writes."""


class NoRoom(NotWritten):
    """The disk has less than `ROOM` bytes of free space."""


def need_room(folder: str | os.PathLike[str]) -> None:
    """Raise `NoRoom` unless a folder has space for `ROOM` more bytes. Disk quotas and reserved blocks count."""
    path = os.path.join(folder, ".room")
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(fd, 0, ROOM)
        finally:
            os.unlink(path)
            os.close(fd)
    except OSError as problem:
        raise NoRoom(
            f"{folder}: {problem.strerror}; make at least {ROOM // 2**20} MiB of room on its disk"
        ) from problem
