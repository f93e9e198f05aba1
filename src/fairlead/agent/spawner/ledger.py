"""What the spawner has taken and what became of it, in a file: a killed spawner's successor starts from here.

Records are appended by one write each pass. They are safe as soon as the kernel has them, since a machine that goes
down takes its tasks along. A task is written down before it can start. So one that is taken and not ended may have
run, and one that the file does not know has not.
"""

from __future__ import annotations

import os

from fairlead.agent.spawner.frames import Unpacker, pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from fairlead.agent.spawner.records import Key, Meta, Result

TAKEN, PIDS, ENDED, FORGOTTEN = 0, 1, 2, 3
LARGE = 1 << 18
"""A file beyond this is written anew when most of it is of no use any more."""


class Ledger:
    def __init__(self, path: str) -> None:
        self.path = path
        self.tasks: dict[Key, tuple[Meta, int]] = {}
        """What is known: task → what it is of, and its chain."""
        self.ended: dict[Key, Result] = {}
        """Those of them that have ended and were not confirmed."""
        self.pids: dict[Key, int] = {}
        """Who was started and not seen ending, by us or by an earlier spawner."""
        self.written = 0.0
        """When the earlier spawner wrote last, by the wall clock."""
        self._buffer: list[bytes] = []
        self._size = 0
        self._rewrite_at = LARGE
        self._read()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def take(self, meta: Meta, indices: list[int], chain: int) -> None:
        self._buffer.append(pack((TAKEN, meta, indices, chain)))
        _, number, stage, attempt = meta
        for index in indices:
            self.tasks[number, stage, attempt, index] = (meta, chain)

    def began(self, pids: list[tuple[Key, int]]) -> None:
        self._buffer.append(pack((PIDS, pids)))
        self.pids.update(pids)

    def end(self, results: list[tuple[Key, Result]]) -> None:
        self._buffer.append(pack((ENDED, results)))
        for key, result in results:
            self.ended[key] = result
            self.pids.pop(key, None)

    def forget(self, keys: Iterable[Key]) -> None:
        gone = [key for key in keys if self.tasks.pop(key, None) is not None]
        for key in gone:
            self.ended.pop(key, None)
        if gone:
            self._buffer.append(pack((FORGOTTEN, gone)))

    def write(self) -> None:
        """What was noted so far is safe from here on. If it cannot be written, it stays noted."""
        if not self._buffer:
            return
        data = b"".join(self._buffer)
        try:
            _write(self._fd, data)
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._buffer.clear()
        self._size += len(data)
        if self._size > self._rewrite_at and self._size > 1_000 * len(self.tasks):
            self.rewrite()

    def rewrite(self) -> None:
        """Write the same in as few records as it takes. Without the disk space for that, the file stays as it is."""
        try:
            self._rewrite()
            self._rewrite_at = LARGE
        except OSError:
            os.ftruncate(self._fd, self._size)  # a record that was cut short would hide those behind it
            self._rewrite_at = max(LARGE, 2 * self._size)

    def _rewrite(self) -> None:
        groups: dict[tuple[Meta, int], list[int]] = {}
        for key, of in self.tasks.items():
            groups.setdefault(of, []).append(key[3])
        data = b"".join(pack((TAKEN, meta, indices, chain)) for (meta, chain), indices in groups.items())
        data += pack((PIDS, list(self.pids.items()))) + pack((ENDED, list(self.ended.items())))
        fresh = self.path + ".new"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            _write(fd, data)
            os.rename(fresh, self.path)
        except OSError:
            os.close(fd)
            os.unlink(fresh)
            raise
        os.close(self._fd)
        self._fd = fd
        self._size = len(data)

    def _read(self) -> None:
        try:
            with open(self.path, "rb") as file:
                data = file.read()
                self.written = os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return
        unpacker = Unpacker()
        try:
            for record in unpacker.feed(data):  # a last one that was cut short is not there
                self._replay(*record)
        except (EOFError, IndexError, TypeError, ValueError):
            # Damaged. What that hides was started or not: its processes are ended by their mark, and the server finds
            # that it is missing.
            pass
        self._size = len(data) - unpacker.unread
        self.pids = {key: pid for key, pid in self.pids.items() if key in self.tasks and key not in self.ended}

    def _replay(self, what: int, *rest: Any) -> None:
        if what == TAKEN:
            meta, indices, chain = rest
            for index in indices:
                self.tasks[meta[1], meta[2], meta[3], index] = (meta, chain)
        elif what == PIDS:
            self.pids.update(rest[0])
        elif what == ENDED:
            self.ended.update(rest[0])
        else:
            for key in rest[0]:
                self.tasks.pop(key, None)
                self.ended.pop(key, None)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
