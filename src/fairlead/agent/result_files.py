"""Reads the result files that a spawner has collected, and removes them when the server has stored them.

The user can write to the folder of the files. So names, sizes and counts are checked here again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fairlead.agent.launch_data import each_of, flat_of
from fairlead.agent.spawner.files import FOLDER, open_plain
from fairlead.agent.spawner.records import folder_of
from fairlead.agent.spawner.result_copies import COPIED, LISTED, is_safe
from fairlead.wire.agent_messages import Collected, Output, OutputPart, Tasks

PIECE = 1 << 18
MAX_LIST = 64 << 20
"""Largest size of a list of files."""
MAX_WARNING = 2_000


class _Listed(NamedTuple):
    job: str
    names: list[str]
    warnings: list[str]


async def read_results(logs: str, tasks: Tasks, index: int, files: int, size: int) -> AsyncIterator[OutputPart]:
    """Yield at most `files` result files of a task in pieces, in total at most `size` bytes, then the files' names.

    Yields nothing if no files were collected.
    """
    prefix = _prefix(logs, tasks, index)
    listed = _read_list(prefix)
    if listed is None:
        return
    sent: list[tuple[str, int]] = []
    warnings = listed.warnings
    waiting: list[Output] = []
    held = 0
    for number, name in enumerate(listed.names):
        fd = open_own(prefix.with_name(f"{prefix.name}{COPIED}{number}")) if is_safe(name) else None
        if fd is None:
            warnings.append(f"{name!r} was not sent: its copy is missing")
            continue
        try:
            if len(sent) >= files or os.fstat(fd).st_size > size:
                warnings.append(f"{name} was not sent: it exceeds max_result_files or max_result_bytes")
                continue
            offset = 0
            while offset < size and (data := await asyncio.to_thread(os.pread, fd, min(PIECE, size - offset), offset)):
                waiting.append(Output(index, "file", offset, data, name))
                offset, held = offset + len(data), held + len(data)
                if held >= PIECE:
                    yield OutputPart(0, tuple(waiting))
                    waiting, held = [], 0
            size -= offset
            sent.append((name, offset))
        except OSError as problem:
            warnings.append(f"{name} was not sent: {problem.strerror}")
        finally:
            os.close(fd)
    collected = Collected(index, tuple(sent), "; ".join(warnings)[:MAX_WARNING])
    yield OutputPart(0, tuple(waiting), collected=(collected,))


def remove_results(logs: str, tasks: Tasks) -> None:
    for index in each_of(tasks.indices):
        prefix = _prefix(logs, tasks, index)
        listed = _read_list(prefix)
        if listed is None:
            continue
        with suppress(OSError):
            folder = os.open(prefix.parent, FOLDER)
            try:
                for ending in (LISTED, *(f"{COPIED}{number}" for number in range(len(listed.names)))):
                    with suppress(OSError):
                        os.unlink(f"{prefix.name}{ending}", dir_fd=folder)
            finally:
                os.close(folder)


def staged_results(logs: str) -> list[Tasks]:
    """Return the tasks whose result files are in a folder of logs."""
    found: dict[tuple[str, int, str, int], list[int]] = {}
    for path in Path(logs).glob(f"*/*{LISTED}"):
        number, _, rest = path.name.removesuffix(LISTED).partition(".")
        stage, *last = rest.rsplit(".", 2)  # a stage name may contain dots
        listed = _read_list(path.with_name(path.name.removesuffix(LISTED)))
        if listed is not None and len(last) == 2 and all(word.isdecimal() for word in (number, *last)):
            found.setdefault((listed.job, int(number), stage, int(last[1])), []).append(int(last[0]))
    return [Tasks(*meta, flat_of(indices)) for meta, indices in found.items()]


def _prefix(logs: str, tasks: Tasks, index: int) -> Path:
    return Path(logs, folder_of(tasks.number, index), f"{tasks.number}.{tasks.stage}.{index}.{tasks.attempt}")


def _read_list(prefix: Path) -> _Listed | None:
    fd = open_own(prefix.with_name(prefix.name + LISTED))
    if fd is None:
        return None
    with open(fd, "rb") as file:
        text = file.read(MAX_LIST).decode(errors="replace")
    listed = _Listed("", [], [])
    for line in text.split("\n"):
        kind, _, rest = line.partition(" ")
        if kind == "job":
            listed = listed._replace(job=rest[:100])
        elif kind == "file":
            listed.names.append(rest.partition(" ")[2])
        elif kind == "warning":
            listed.warnings.append(rest)
    return listed


def open_own(path: Path) -> int | None:
    """Open a log or result file; return None if it is not a plain file of the user whose logs are in that folder.

    The user could replace the file or its folder by a link to files that only the agent can read.
    """
    folders: list[int] = []
    try:
        folders.append(os.open(path.parent.parent, os.O_PATH | os.O_DIRECTORY))
        owner = os.fstat(folders[0]).st_uid
        folders.append(os.open(path.parent.name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folders[0]))
        fd = open_plain(path.name, os.O_RDONLY, folders[1])
    except OSError:
        return None
    finally:
        for folder in folders:
            os.close(folder)
    if os.fstat(fd).st_uid == owner:
        return fd
    os.close(fd)
    return None
