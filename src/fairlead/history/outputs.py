"""The server's copies of logs: one plain file per stream of an attempt, in small folders, limited by age and size.

The folder of a log begins with the partition and the user of its job, and a log is looked for only there. So a user
never gets the log of another one, even if a partition was removed and another of the same name counts jobs anew.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import time
from urllib.parse import quote

from fairlead.wire.agent import MAX_OUTPUT, LogRequest

JOBS_PER_FOLDER, TASKS_PER_FOLDER = 100, 100
CHECKED_AFTER = 16
"""The limits are applied whenever this part of the size, one in so many, was written."""


class OutputStore:
    """Writes and reads logs below a folder. It may be used by several threads; its methods wait for a disk."""

    def __init__(self, folder: Path, size: int = 2**62, age: float = 2.0**40, now: Callable[[], float] = time) -> None:
        """`size` is the limit of all logs in bytes, `age` the time in seconds after which a log is removed."""
        self._now = now
        self._folder = folder
        self._size = size
        self._age = age
        self._unchecked = 0
        self._lock = threading.Lock()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.shrink()

    def write(self, partition: str, pieces: Sequence[tuple[LogRequest, int, bytes]]) -> None:
        """Write pieces of logs at their offsets. A request names the log."""
        for asked, offset, data in pieces:
            if offset + len(data) > MAX_OUTPUT:
                continue
            path = self._path(partition, asked)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(fd, data, offset)
            finally:
                os.close(fd)
        with self._lock:
            self._unchecked += sum(len(data) for _, _, data in pieces)
            due = self._unchecked * CHECKED_AFTER > self._size
        if due:
            self.shrink()

    def size(self, partition: str, asked: LogRequest) -> int | None:
        """Return the size of a log; None if it is not here."""
        try:
            return self._path(partition, asked).stat().st_size
        except OSError:
            return None

    def read(self, partition: str, asked: LogRequest, offset: int, most: int) -> bytes:
        try:
            fd = os.open(self._path(partition, asked), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return b""  # it was removed meanwhile
        try:
            return os.pread(fd, most, offset)
        finally:
            os.close(fd)

    def shrink(self) -> None:
        """Remove logs that are too old, then the oldest ones while all are larger than the limit."""
        with self._lock:
            self._unchecked = 0
            files: list[tuple[float, int, str]] = []
            for place, folders, names in os.walk(self._folder):
                if not folders and not names and place != str(self._folder):
                    with suppress(OSError):
                        os.rmdir(place)
                for name in names:
                    with suppress(OSError):
                        status = os.stat(os.path.join(place, name), follow_symlinks=False)
                        files.append((status.st_mtime, status.st_size, os.path.join(place, name)))
            files.sort()
            total, oldest = sum(size for _, size, _ in files), self._now() - self._age
            for written, size, path in files:
                if total <= self._size and written >= oldest:
                    break
                with suppress(OSError):
                    os.unlink(path)
                total -= size

    def _path(self, partition: str, asked: LogRequest) -> Path:
        folder = f"{asked.number // JOBS_PER_FOLDER}.{asked.index // TASKS_PER_FOLDER}"
        name = f"{asked.number}.{_plain(asked.stage)}.{asked.index}.{asked.attempt}.{asked.stream}"
        return self._folder / _plain(partition) / _plain(asked.user) / folder / name


def _plain(name: str) -> str:
    """Return a name as the name of a folder: it cannot lead elsewhere, whatever the name is."""
    quoted = quote(name, safe="")
    return quoted if not quoted.startswith(".") else "%2E" + quoted[1:]
