"""What the spawner has taken and what became of it, in files: a killed spawner's successor starts from here.

Records are appended by one write each pass. They are safe as soon as the kernel has them, since a machine that goes
down takes its tasks along. A task is written down before it can start. So one that is taken and not ended may have
run, and one that the file does not know has not.

There are two files, of which one is in use: to write the ledger anew, the other is filled and then the first is cut to
nothing. So a spawner that is not root needs no more than the two open files, and the user's tasks, which have the same
uid, cannot open them: a forged ledger could tell of tasks of other users.
"""

from __future__ import annotations

import os

from fairlead.agent.spawner.frames import Unpacker, pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from fairlead.agent.spawner.records import Key, Meta, Result

TAKEN, PIDS, ENDED, FORGOTTEN, ANEW = 0, 1, 2, 3, 4
LARGE = 1 << 18
"""A file beyond this is written anew when most of it is of no use any more."""


class Ledger:
    def __init__(self, files: tuple[int, int]) -> None:
        """`files` are those of `open_files`."""
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
        self._number = 0
        """How often the ledger was written anew."""
        self._rewrite_at = LARGE
        self._boot = _boot()
        self._fd, self._spare = files
        self._read()

    def take(self, meta: Meta, indices: list[int], chain: int) -> None:
        self._buffer.append(pack((TAKEN, meta, indices, chain)))
        _, number, stage, attempt = meta
        for index in indices:
            self.tasks[number, stage, attempt, index] = (meta, chain)

    def began(self, pids: list[tuple[Key, int]]) -> None:
        self._buffer.append(pack((PIDS, self._boot, pids)))
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
        data += pack((PIDS, self._boot, list(self.pids.items()))) + pack((ENDED, list(self.ended.items())))
        data = pack((ANEW, self._number + 1, len(data))) + data
        try:
            os.ftruncate(self._spare, 0)
            _write(self._spare, data)
        except OSError:
            os.ftruncate(self._spare, 0)
            raise
        self._fd, self._spare = self._spare, self._fd
        os.ftruncate(self._spare, 0)
        self._number += 1
        self._size = len(data)

    def _read(self) -> None:
        first, second = _whole(self._fd), _whole(self._spare)
        if second[0] > first[0]:
            self._fd, self._spare = self._spare, self._fd
            first = second
        self._number, data = max(0, first[0]), first[1]
        self.written = os.fstat(self._fd).st_mtime
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
            boot, pids = rest
            if boot == self._boot:  # else the machine has started since, and the numbers are those of others
                self.pids.update(pids)
        elif what == ENDED:
            self.ended.update(rest[0])
        elif what == FORGOTTEN:
            for key in rest[0]:
                self.tasks.pop(key, None)
                self.ended.pop(key, None)


def open_files(path: str) -> tuple[int, int]:
    """The two files of a ledger, open."""
    first, second = (os.open(path + end, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600) for end in ("", ".1"))
    return first, second


def _boot() -> str:
    """What tells this start of the machine from all others."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _whole(fd: int) -> tuple[int, bytes]:
    """How often the ledger had been written anew when a file was begun, and what is in it; -1 if it is not whole."""
    data = _read_all(fd)
    try:
        what, number, size = next(Unpacker().feed(data))
    except (EOFError, StopIteration, TypeError, ValueError):
        what = TAKEN
    if what != ANEW:
        return (0, data) if data else (-1, b"")
    return (number, data) if len(data) >= len(pack((ANEW, number, size))) + size else (-1, b"")


def _read_all(fd: int) -> bytes:
    pieces: list[bytes] = []
    while piece := os.pread(fd, 1 << 20, sum(map(len, pieces))):
        pieces.append(piece)
    return b"".join(pieces)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
