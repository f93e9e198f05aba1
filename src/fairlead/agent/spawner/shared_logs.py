"""The output of quick tasks, which share files: creating and removing two files can cost more than the task.

A task starts with a **pair** of open files that earlier tasks have used. Its output is appended to a file that all
tasks of a folder share, before its end is reported, and the pair is free again. A task gets log files of its own, which
are its renamed pair, when it has run for a tenth of a second, has printed more than `SMALL` bytes, or leaves a process
behind that may print more.

The folder of a spawner's pairs has a file `owners` with the task of each pair. If a spawner is killed, the next one
keeps the output of the killed spawner's tasks.

A shared file is a sequence of records: a line with the name of a task and the sizes of its standard output and error,
then both. The first record of a name counts. The user of the tasks can write to the file.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import stat

from fairlead.agent.spawner.files import LOG_MODE, SAFELY, is_plain, make_log_folder, open_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairlead.agent.spawner.records import Task

ENDING = ".shared"
"""End of the name of a shared file."""
PAIRS = "pairs-"
"""Start of the name of a folder with the pairs of a spawner."""
STREAMS = ("out", "err")
SMALL = 1 << 14
"""Largest output, in bytes, that is shared."""
MAX_RECORDS = 50_000
"""Records of a shared file. Further tasks get files of their own."""
MAX_PAIRS, OTHER_FILES = 64, 32
"""Largest number of pairs, and descriptors that are left for other uses where few are allowed."""
OWNER = 256
"""Bytes for the owner of each pair, in the file `owners`."""
HEAD, WINDOW = 512, 1 << 16
"""Largest size of the first line of a record, and bytes to read at a time."""
REMEMBERED = 1_000
"""Shared files whose number of records is remembered."""


class Pair:
    """Files for the output and errors of one task at a time."""

    __slots__ = ("files", "number")

    def __init__(self, number: int, files: list[int]) -> None:
        self.number = number
        self.files = files


class SharedLogs:
    def __init__(self, logs: str, name: str) -> None:
        """Share output below the folder `logs`. Spawners with the same folder need different names."""
        self.logs = logs
        self._ending = f"{name}{ENDING}"
        self._pairs = f"{logs}/{PAIRS}{name}"
        self._free: list[Pair] = []
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._numbers = list(range(min(MAX_PAIRS, (allowed - OTHER_FILES) // 2)))[::-1]
        """Numbers of pairs that do not exist."""
        self._owners = -1
        self._ended: dict[str, list[tuple[Task, bytes, bytes]]] = {}
        """Folder → ended tasks with their output and errors, which are not written yet."""
        self._records: dict[str, int] = {}
        """Folder → number of records in its shared file."""
        self._last = ("", -1)
        """The folder whose shared file was written last, and that file, which stays open."""

    def take(self, task: Task) -> Pair | None:
        """Give a task a free pair and return it; return None if the task needs files of its own."""
        folder = task.folder
        try:
            if self._count(folder) >= MAX_RECORDS or not (self._free or self._make()):
                return None
            pair = self._free[-1]
            os.pwrite(self._owners, f"{folder}/{task.name}".encode().ljust(OWNER, b"\0"), OWNER * pair.number)
        except OSError:
            return None  # with files of its own, the task starts, or fails with the reason
        task.pair = self._free.pop()
        return pair

    def give_back(self, task: Task) -> None:
        """Take the pair back from a task that did not start."""
        if task.pair is not None:
            self._free.append(task.pair)
            task.pair = None

    def part(self, task: Task) -> None:
        """Make the pair of a task its own log files."""
        pair, task.pair = task.pair, None
        if pair is None:
            return
        for stream, named in zip(STREAMS, _has_named_files(task), strict=True):
            if named:
                _remove(f"{self._pairs}/{pair.number}.{stream}")
            else:
                self._move(pair.number, stream, task)
        self._close(pair)

    def end(self, task: Task) -> None:
        """Take the output of an ended task, for the next `write`, or make its pair its own log files."""
        if task.pair is None:
            return
        try:
            out, err = (_finished(fd) for fd in task.pair.files)
            if out is not None and err is not None:
                folder = task.folder
                self._records[folder] = self._count(folder) + 1
                self._ended.setdefault(folder, []).append((task, out, err))
                return
        except OSError:
            pass  # the shared file cannot be used any more
        self.part(task)

    def write(self) -> None:
        """Write the output of ended tasks, and free their pairs. If that fails, the tasks get files of their own."""
        if not self._ended:
            return
        for folder, ended in self._ended.items():
            try:
                self._append(folder, b"".join(_record(task, out, err) for task, out, err in ended))
            except OSError:
                for task, _, _ in ended:
                    self.part(task)
                continue
            for task, out, err in ended:
                self._release(task, out, err)
        self._ended.clear()

    def take_over(self, lost: Iterable[Task]) -> None:
        """Keep what the tasks of a killed spawner have written to its pairs, and remove the pairs."""
        try:
            left = set(os.listdir(self._pairs))
        except FileNotFoundError:
            return
        by_owner = {f"{task.folder}/{task.name}": task for task in lost}
        for number, owner in enumerate(_owners(f"{self._pairs}/owners")):
            task = by_owner.get(owner)
            if task is None or not {f"{number}.{stream}" for stream in STREAMS} & left:
                continue
            try:
                out, err = (_text_of(f"{self._pairs}/{number}.{stream}") for stream in STREAMS)
                self._count(task.folder)
                self._append(task.folder, _record(task, out, err))
            except OSError:
                for stream in STREAMS:
                    self._move(number, stream, task)
        for name in left:
            _remove(f"{self._pairs}/{name}")

    # -- pairs ---------------------------------------------------------------------------------------------------

    def _make(self) -> bool:
        """Make a pair; return False if there are as many pairs as allowed."""
        if not self._numbers:
            return False
        if self._owners < 0:
            make_log_folder(self._pairs)
            self._owners = os.open(f"{self._pairs}/owners", os.O_RDWR | os.O_CREAT | SAFELY, 0o600)
        pair = Pair(self._numbers[-1], [])
        try:
            for stream in STREAMS:
                path = f"{self._pairs}/{pair.number}.{stream}"
                _remove(path)
                pair.files.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | SAFELY, LOG_MODE))
                fcntl.fcntl(pair.files[-1], fcntl.F_SETSIG, signal.SIGURG)  # see `_finished`; SIGIO ends a process
        except OSError:
            for fd in pair.files:
                os.close(fd)
            raise
        self._numbers.pop()
        self._free.append(pair)
        return True

    def _release(self, task: Task, out: bytes, err: bytes) -> None:
        pair, task.pair = task.pair, None
        assert pair is not None
        try:
            for fd, text in zip(pair.files, (out, err), strict=True):
                if text:
                    # A file that is truncated while it is open is flushed to the disk by ext4 when it is closed next.
                    os.close(os.open(path_of(fd), os.O_WRONLY | os.O_TRUNC))
            self._free.append(pair)
        except OSError:
            self._close(pair)

    def _close(self, pair: Pair) -> None:
        for fd in pair.files:
            os.close(fd)
        self._numbers.append(pair.number)

    def _move(self, number: int, stream: str, task: Task) -> None:
        folder = f"{self.logs}/{task.folder}"
        try:
            if not os.path.isdir(folder):
                make_log_folder(folder)
            os.rename(f"{self._pairs}/{number}.{stream}", f"{folder}/{task.name}.{stream}")
        except OSError:
            return  # a task has removed the file, or replaced a folder

    # -- shared files --------------------------------------------------------------------------------------------

    def _count(self, folder: str) -> int:
        """Return the number of records in a shared file. Remove an incomplete one, which a killed spawner has left."""
        number = self._records.get(folder)
        if number is None:
            fd = self._open(folder)
            try:
                number = end = 0
                for _, at, out, err in records(fd):
                    end, number = at + out + err, number + 1
                os.ftruncate(fd, end)
            finally:
                os.close(fd)
            if len(self._records) >= REMEMBERED:
                self._records.clear()
            self._records[folder] = number
        return number

    def _append(self, folder: str, data: bytes) -> None:
        last, fd = self._last
        if last != folder or not is_plain(os.fstat(fd)):  # it was removed, because it was old
            if last:
                self._last = ("", -1)
                os.close(fd)
            fd = self._open(folder)
            self._last = (folder, fd)
        written = os.write(fd, data)
        if written < len(data):
            os.ftruncate(fd, os.fstat(fd).st_size - written)
            raise OSError("the disk is full")

    def _open(self, folder: str) -> int:
        path = f"{self.logs}/{folder}/{self._ending}"
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | SAFELY
        try:
            fd = os.open(path, flags, LOG_MODE)
        except FileNotFoundError:
            make_log_folder(f"{self.logs}/{folder}")
            fd = os.open(path, flags, LOG_MODE)
        if not is_plain(os.fstat(fd)):
            os.close(fd)
            raise FileNotFoundError(path)
        return fd


def path_of(fd: int) -> str:
    """Return a path by which this process and its children can open the file of a descriptor again."""
    return f"/proc/self/fd/{fd}"


def records(fd: int) -> Iterator[tuple[str, int, int, int]]:
    """Yield the complete records of a shared file: name, offset of the output, sizes of output and errors."""
    end = os.fstat(fd).st_size
    window, start, at = b"", 0, 0
    for _ in range(MAX_RECORDS):
        if at + HEAD > start + len(window) and start + len(window) < end:
            window, start = os.pread(fd, WINDOW, at), at
        line_end = window.find(b"\n", at - start, at - start + HEAD)
        try:
            name, *numbers = window[at - start : max(0, line_end)].decode().split(" ")
            out, err = map(int, numbers)
        except ValueError:
            return
        at = start + line_end + 1
        if min(out, err) < 0 or at + out + err > end:
            return
        yield name, at, out, err
        at += out + err


def _record(task: Task, out: bytes, err: bytes) -> bytes:
    return b"%s %d %d\n%s%s" % (task.name.encode(), len(out), len(err), out, err)


def _finished(fd: int) -> bytes | None:
    """Return the content of a pair's file, if it is small and only this process has it open, else None."""
    status = os.fstat(fd)
    if status.st_size > SMALL or not is_plain(status) or stat.S_IMODE(status.st_mode) != LOG_MODE:
        return None
    try:
        # The kernel grants a lease only for a file that is open nowhere else.
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return None
    return os.pread(fd, SMALL, 0) if status.st_size else b""


def _text_of(path: str) -> bytes:
    """Return the content of a small file; empty if it is missing. Raise `OSError` if it is large or not plain."""
    if not os.path.lexists(path):
        return b""
    fd = open_plain(path, os.O_RDONLY)
    try:
        text = os.pread(fd, SMALL + 1, 0)
    finally:
        os.close(fd)
    if len(text) > SMALL:
        raise OSError(f"{path} is large")
    return text


def _owners(path: str) -> list[str]:
    try:
        fd = open_plain(path, os.O_RDONLY)
    except OSError:
        return []
    try:
        data = os.pread(fd, OWNER * MAX_PAIRS, 0)
    finally:
        os.close(fd)
    entries = (data[at : at + OWNER] for at in range(0, len(data), OWNER))
    return [entry.rstrip(b"\0").decode(errors="replace") for entry in entries]


def _has_named_files(task: Task) -> tuple[bool, bool]:
    """Return whether standard output and error of a task go to files that its stage names."""
    if task.spec is None:
        return False, False
    output, error = task.spec[5:7]
    return bool(output), bool(output or error)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return  # it is gone, or a folder
