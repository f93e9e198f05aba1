"""Writes fetched result files below a directory: `STAGE.INDEX/NAME`.

The names of files come from tasks, so they are not trusted: a name that leads out of the directory is refused, and
links in the directory are not followed. A file appears when it is complete, and replaces an older one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import RawIOBase
from pathlib import Path
from shutil import copyfileobj
from typing import BinaryIO
from uuid import uuid4

from fairlead.client.calls import Problem, part
from fairlead.wire import api as wire
from fairlead.wire.result_names import is_safe_name

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CHUNK = 1 << 16
FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Broken(Exception):
    """Raised if an answer is shorter or longer than the file. The client then requests the file again."""


@contextmanager
def new_file(directory: Path, task: wire.TaskResults, file: wire.ResultFile) -> Iterator[BinaryIO]:
    """Yield a temporary file to write a result file to. It is renamed to `target`, or removed after an error."""
    if not is_safe_name(file.name):
        raise Problem(f"the server named a result file {file.name[:100]!r}, which is not written", code="unsafe")
    directory.mkdir(parents=True, exist_ok=True)
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *folders, name = target(directory, task, file).relative_to(directory).parts
        for inner in folders:
            with suppress(FileExistsError):
                os.mkdir(inner, dir_fd=folder)
            above, folder = folder, os.open(inner, FOLDER, dir_fd=folder)
            os.close(above)
        unfinished = f".{uuid4().hex}.part"
        try:
            with open(os.open(unfinished, FILE, 0o666, dir_fd=folder), "wb") as output:
                yield output
                if output.tell() != file.size:
                    raise Broken
            os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(unfinished, dir_fd=folder)
            raise
    finally:
        os.close(folder)


class Wanted:
    """The result files that have not been written yet."""

    def __init__(self, directory: Path, tasks: list[wire.TaskResults]) -> None:
        self._directory = directory
        self._files = {_entry(task, file.name): (task, file) for task in tasks for file in task.files}
        """Name in an archive → the file."""

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[tuple[wire.TaskResults, wire.ResultFile]]:
        return iter(self._files.values())

    def remove(self, task: wire.TaskResults, file: wire.ResultFile) -> None:
        del self._files[_entry(task, file.name)]

    def unpack(self, parts: Iterator[bytes]) -> Iterator[None]:
        """Write the wanted files of an archive, and yield after each. A broken archive ends the iteration early."""
        from tarfile import TarError, open

        with suppress(TarError), open(fileobj=_Reader(parts), mode="r|", bufsize=CHUNK) as archive:
            for entry in archive:
                wanted = self._files.get(entry.name)
                data = archive.extractfile(entry) if wanted is not None and entry.isfile() else None
                if wanted is None or data is None:
                    continue
                with suppress(Broken):
                    with new_file(self._directory, *wanted) as output:
                        copyfileobj(data, output)
                    self.remove(*wanted)
                yield


def _entry(task: wire.TaskResults, name: str) -> str:
    return f"{task.stage}.{task.index}.{task.attempt}/{name}"


class _Reader(RawIOBase):
    """A file whose content are the parts of an answer."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, at most `size`; nothing at the end."""
        if not self._rest:
            self._rest = next(self._parts, b"")
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def target(directory: Path, task: wire.TaskResults, file: wire.ResultFile) -> Path:
    """Return the path of a result file below a directory."""
    return directory / f"{part(task.stage, 'stage')}.{task.index}" / file.name


def cut_off(file: wire.ResultFile) -> Problem:
    return Problem(f"{file.name} did not arrive whole; fetch it again", code="unreachable")
