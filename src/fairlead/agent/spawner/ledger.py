"""The ledger: a file of the tasks that a spawner has accepted, and their results. The next spawner continues from it.

Records are appended by one write per pass of the loop. They are safe as soon as the kernel has them, since tasks do not
survive a crash of the machine. A task is recorded before it can start. So a recorded task without a result may have
run, and a task that is not in the file has not.

There are two files, of which one is in use. A rewrite fills the other file, then truncates the first. So a spawner that
is not root needs only the two open descriptors. Tasks of the same user cannot open the files, and so cannot forge
reports about tasks.
"""

from __future__ import annotations

import os

from fairlead.agent.spawner.frames import Unpacker, pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from fairlead.agent.spawner.records import Key, Meta, Result

TAKEN, PIDS, ENDED, FORGOTTEN, REWRITTEN = 0, 1, 2, 3, 4
LARGE = 1 << 18
"""A file beyond this many bytes is rewritten when most of its records are obsolete."""


class Ledger:
    def __init__(self, files: tuple[int, int]) -> None:
        """Read the ledger from `files`, which `open_files` returned."""
        self.tasks: dict[Key, tuple[Meta, int]] = {}
        """All accepted tasks that were not forgotten: task → its job, stage and attempt, and its chain."""
        self.ended: dict[Key, Result] = {}
        """The results that the agent has not confirmed."""
        self.pids: dict[Key, int] = {}
        """Started tasks without a result → their process, of this or an earlier spawner."""
        self.written = 0.0
        """The wall-clock time of the last write of the earlier spawner."""
        self._buffer: list[bytes] = []
        self._size = 0
        self._number = 0
        """The number of rewrites."""
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
        """Write the buffered records. If that fails, they stay in the buffer."""
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
        """Write the current content in as few records as possible. If the disk is full, the file stays as it is."""
        try:
            self._rewrite()
            self._rewrite_at = max(LARGE, 2 * self._size)
        except OSError:
            os.ftruncate(self._fd, self._size)  # a partial record would hide the records after it
            self._rewrite_at = max(LARGE, 2 * self._size)

    def _rewrite(self) -> None:
        groups: dict[tuple[Meta, int], list[int]] = {}
        for key, group in self.tasks.items():
            groups.setdefault(group, []).append(key[3])
        data = b"".join(pack((TAKEN, meta, indices, chain)) for (meta, chain), indices in groups.items())
        data += pack((PIDS, self._boot, list(self.pids.items()))) + pack((ENDED, list(self.ended.items())))
        data = pack((REWRITTEN, self._number + 1, len(data))) + data
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
            for record in unpacker.feed(data):  # a partial last record is skipped
                self._replay(*record)
        except (EOFError, IndexError, TypeError, ValueError):
            # Damaged. The tasks in the lost records may have run: their processes are found by their mark and ended,
            # and the server notices that the tasks are missing.
            pass
        self._size = len(data) - unpacker.unread
        self.pids = {key: pid for key, pid in self.pids.items() if key in self.tasks and key not in self.ended}

    def _replay(self, kind: int, *rest: Any) -> None:
        if kind == TAKEN:
            meta, indices, chain = rest
            for index in indices:
                self.tasks[meta[1], meta[2], meta[3], index] = (meta, chain)
        elif kind == PIDS:
            boot, pids = rest
            if boot == self._boot:  # else the machine has rebooted, and other processes have these pids
                self.pids.update(pids)
        elif kind == ENDED:
            self.ended.update(rest[0])
        elif kind == FORGOTTEN:
            for key in rest[0]:
                self.tasks.pop(key, None)
                self.ended.pop(key, None)


def open_files(path: str) -> tuple[int, int]:
    """Open the two files of a ledger, and create them if they are missing."""
    first, second = (os.open(path + end, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600) for end in ("", ".1"))
    return first, second


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _whole(fd: int) -> tuple[int, bytes]:
    """Return the rewrite number of a file and its content.

    The number is -1 if the file is empty or its rewrite is incomplete, and 0 if it was never rewritten.
    """
    data = _read_all(fd)
    try:
        kind, number, size = next(Unpacker().feed(data))
    except (EOFError, StopIteration, TypeError, ValueError):
        kind = TAKEN
    if kind != REWRITTEN:
        return (0, data) if data else (-1, b"")
    return (number, data) if len(data) >= len(pack((REWRITTEN, number, size))) + size else (-1, b"")


def _read_all(fd: int) -> bytes:
    pieces: list[bytes] = []
    while piece := os.pread(fd, 1 << 20, sum(map(len, pieces))):
        pieces.append(piece)
    return b"".join(pieces)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
