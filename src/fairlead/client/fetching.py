"""Writes fetched result files below a directory: `STAGE.INDEX/NAME`.

Names come from a server and, before that, from a task. A file is written only below the directory: names that lead out
of it are refused, and links in it are not followed. A file appears when it is complete, and replaces an older one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from fairlead.client.calls import Problem, part
from fairlead.wire import api as wire
from fairlead.wire.results import is_safe_name

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Broken(Exception):
    """The answer had another length than the file. It is asked for again."""


@contextmanager
def new_file(directory: Path, task: wire.TaskResults, file: wire.ResultFile) -> Iterator[BinaryIO]:
    """Yield a file to write a result to. It is moved to `target` at the end, and removed after an error."""
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


def target(directory: Path, task: wire.TaskResults, file: wire.ResultFile) -> Path:
    """Return the path of a result file below a directory."""
    return directory / f"{part(task.stage, 'stage')}.{task.index}" / file.name


def cut_off(file: wire.ResultFile) -> Problem:
    return Problem(f"{file.name} did not arrive whole; fetch it again", code="unreachable")
