"""Collects the result files of an ended task: copies them beside its logs, where the agent finds them.

A child process of the spawner copies the files, with the rights of the task's user. It follows no link, opens only
regular files, and keeps to limits. It returns the list of the copies in memory that it shares with the spawner: a file
beside the copies could be written by the user.
"""

from __future__ import annotations

import marshal
import mmap
import os
import signal
import stat

from fairlead.agent.spawner.files import FOLDER, LOG_MODE, SAFELY, close_all_but, make_log_folder
from fairlead.agent.spawner.frames import FORMAT, HEAD
from fairlead.agent.spawner.task_start import name_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fairlead.agent.spawner.records import Listing, Task

COPIED = ".file"
"""The suffix of copies: `.file0`, `.file1` and so on."""
TIME = 600
"""Seconds after which collecting is abandoned."""
MAX_SEEN = 200_000
"""Largest number of directory entries to examine for one task."""
MAX_DEPTH = 32
MAX_NAME = 700
"""Largest number of bytes of a file name with its folders."""
MAX_WARNINGS = 10
MAX_WARNING = 1_000
"""Largest number of characters of a warning."""
MAX_LIST = 16 << 20
"""Largest number of bytes of the list of a task."""
PIECE = 1 << 20
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Collection:
    """Copies the files of one task that match its patterns, and notes why others could not be copied."""

    def __init__(self, prefix: str, max_files: int, max_bytes: int) -> None:
        """Take the limits. `prefix` is the path of the task's logs, without the suffix."""
        self._prefix = prefix
        self._max_files = max_files
        self._max_bytes = max_bytes
        self.files: list[str] = []
        """The names of the files that were copied. Their copies are numbered in this order."""
        self.warnings: list[str] = []
        self._names: set[str] = set()
        self._bytes = 0
        self._seen = 0
        self._matched = False
        self._left_out = 0
        self._unlisted = 0

    def collect(self, folder: int, patterns: list[str]) -> None:
        """Copy the files below an open directory that match one of the patterns."""
        for pattern in patterns:
            self._matched = False
            self._walk(folder, "", [part for part in pattern.split("/") if part not in ("", ".")])
            if not self._matched:
                self.warn(f"no file matches {pattern}")
        if self._left_out:
            self.warnings.append(
                f"{self._left_out} files were not collected: a task may have {self._max_files} files with "
                f"{self._max_bytes >> 20} MiB (max_result_files, max_result_bytes)"
            )
        if self._unlisted:
            self.warnings.append(f"{self._unlisted} further warnings")

    def warn(self, text: str) -> None:
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(text)
        else:
            self._unlisted += 1

    def _walk(self, folder: int, above: str, parts: list[str]) -> None:
        """Copy the files below an open directory that match a pattern, which is split at `/` into parts."""
        part, rest = parts[0], parts[1:]
        if above.count("/") >= MAX_DEPTH:
            return self.warn(f"{above} is too deep")
        deep = part == "**"
        if deep and rest:
            self._walk(folder, above, rest)
        for name in self._entries(folder, above):
            path = above + name
            if not fits(name, part):
                continue
            try:
                mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            except OSError:
                continue  # removed meanwhile
            if stat.S_ISDIR(mode):
                if deep or rest:
                    self._descend(folder, name, path, parts if deep else rest)
                else:
                    self._matched = True
                    self.warn(f"{path} is a directory; write {path}/** for all files below it")
            elif not rest:
                self._matched = True
                self._take(folder, name, path, mode)

    def _entries(self, folder: int, above: str) -> list[str]:
        try:
            names = sorted(os.listdir(folder))
        except OSError as problem:
            self.warn(f"{above or '.'}: {problem.strerror}")
            return []
        self._seen += len(names)
        if self._seen > MAX_SEEN:
            self.warn(f"{above or '.'} was not searched: more than {MAX_SEEN} entries; name the files more exactly")
            return []
        return names

    def _descend(self, folder: int, name: str, path: str, parts: list[str]) -> None:
        try:
            inner = os.open(name, FOLDER, dir_fd=folder)
        except OSError as problem:
            return self.warn(f"{path}: {problem.strerror}")
        try:
            self._walk(inner, path + "/", parts)
        finally:
            os.close(inner)

    def _take(self, folder: int, name: str, path: str, mode: int) -> None:
        if path in self._names:
            return
        self._names.add(path)
        if not is_safe(path):
            return self.warn(f"{path!r} was not collected: its name is too long or has control characters")
        if not stat.S_ISREG(mode):
            kind = "a link" if stat.S_ISLNK(mode) else "not a regular file"
            return self.warn(f"{path} was not collected: it is {kind}")
        try:
            source = os.open(name, os.O_RDONLY | SAFELY, dir_fd=folder)
            try:
                self._copy(source, path)
            finally:
                os.close(source)
        except OSError as problem:
            self.warn(f"{path} was not collected: {problem.strerror}")

    def _copy(self, source: int, path: str) -> None:
        status = os.fstat(source)
        if not stat.S_ISREG(status.st_mode):
            return self.warn(f"{path} was not collected: it is not a regular file")
        if len(self.files) >= self._max_files or self._bytes + status.st_size > self._max_bytes:
            self._left_out += 1
            return
        copy = f"{self._prefix}{COPIED}{len(self.files)}"
        target = _create(copy)
        try:
            _copy(source, target, status.st_size)
        except OSError:
            os.unlink(copy)
            raise
        finally:
            os.close(target)
        self.files.append(path)
        self._bytes += status.st_size


def fits(name: str, pattern: str) -> bool:
    """True if a name matches a pattern with `*`, `?` and `[abc]`. Only a dot in the pattern matches a leading dot."""
    if name.startswith(".") and not pattern.startswith("."):
        return False
    at, place = 0, 0
    star, kept = -1, 0
    while at < len(name):
        step = _one(name[at], pattern, place) if place < len(pattern) else 0
        if place < len(pattern) and pattern[place] == "*":
            star, kept = place, at
            place += 1
        elif step:
            at, place = at + 1, place + step
        elif star >= 0:
            kept += 1
            at, place = kept, star + 1
        else:
            return False
    return pattern[place:].strip("*") == ""


def _one(char: str, pattern: str, place: int) -> int:
    """Return the length of the pattern's element at `place` if it matches a character, else 0."""
    first = pattern[place]
    end = pattern.find("]", place + 2 + (pattern[place + 1 : place + 2] == "!")) if first == "[" else -1
    if first != "[" or end < 0:
        return int(first in ("?", char))
    members = pattern[place + 1 : end]
    negated = members.startswith("!")
    members = members[1:] if negated else members
    found, at = False, 0
    while at < len(members):
        if members[at + 1 : at + 2] == "-" and at + 2 < len(members):
            found = found or members[at] <= char <= members[at + 2]
            at += 3
        else:
            found = found or members[at] == char
            at += 1
    return end + 1 - place if found != negated else 0


def is_safe(name: str) -> bool:
    """True if a relative path can be stored and printed, and does not leave its directory."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    parts = name.split("/")
    return name.isprintable() and size <= MAX_NAME and all(part not in ("", ".", "..") for part in parts)


class Collecting:
    """A process that collects the files of a task, and the memory in which it leaves their list."""

    __slots__ = ("_memory", "pid", "task")

    def __init__(self, task: Task, prefix: str, directory: str) -> None:
        """Start the process. Raises `OSError` if that fails."""
        assert task.spec is not None and task.spec[7] is not None
        self.task = task
        size = (task.spec[7][1] + MAX_WARNINGS) * (MAX_NAME + 16) + MAX_WARNINGS * 4 * MAX_WARNING
        self._memory = mmap.mmap(-1, min(MAX_LIST, size))
        self.pid = _start(task, prefix, directory, self._memory)

    def listing(self) -> Listing | None:
        """Return the list, after the process has exited with success; None if it has left none."""
        size = int.from_bytes(self._memory[:HEAD], "little")
        data = self._memory[HEAD : HEAD + size]
        self._memory.close()
        return marshal.loads(data) if size else None


def _start(task: Task, prefix: str, directory: str, memory: mmap.mmap) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        # It stays in the spawner's session, so that the guard of a dead spawner finds and ends it.
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGALRM, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(TIME)
        close_all_but()
        leave_list(_collect(task, prefix, directory), memory)
        code = 0
    finally:
        os._exit(code)


def _collect(task: Task, prefix: str, directory: str) -> Collection:
    assert task.spec is not None and task.spec[7] is not None
    patterns, max_files, max_bytes = task.spec[7]
    collection = Collection(prefix, max_files, max_bytes)
    try:
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as problem:
        collection.warn(f"the working directory {directory}: {problem.strerror}")
    else:
        collection.collect(folder, [name_of(pattern, task) for pattern in patterns])
    return collection


def leave_list(collection: Collection, memory: mmap.mmap) -> None:
    """Write the list of a collection into shared memory, its length last. Files beyond the memory are left out."""
    names = collection.files
    data = b""
    while not data or len(data) > len(memory) - HEAD:
        if data:
            names = names[: len(names) // 2]
            collection.warn(f"only {len(names)} files are listed: their names are too long")
        warnings = [
            "".join(char if char.isprintable() else "?" for char in text[:MAX_WARNING]) for text in collection.warnings
        ]
        data = marshal.dumps((names, warnings), FORMAT)
    memory[HEAD : HEAD + len(data)] = data
    memory[:HEAD] = len(data).to_bytes(HEAD, "little")


def _create(path: str) -> int:
    try:
        return os.open(path, CREATE, LOG_MODE)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, CREATE, LOG_MODE)
    except FileNotFoundError:
        make_log_folder(os.path.dirname(path))
        return os.open(path, CREATE, LOG_MODE)


def _copy(source: int, target: int, size: int) -> None:
    """Copy at most `size` bytes, by sharing blocks where the file system can."""
    copied = 0
    while copied < size:
        try:
            done = os.copy_file_range(source, target, min(PIECE, size - copied))
        except OSError:
            done = os.sendfile(target, source, None, min(PIECE, size - copied))
        if not done:
            break
        copied += done
