"""Sends the result files that a spawner has collected, and removes them when the server has stored them.

Which files a task has is known from its list, which the user cannot write. The copies are in a folder of the user, so
their types and sizes are checked here again, and they are read in pieces.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from fairlead.agent.result_lists import ResultList, ResultLists
from fairlead.agent.spawner.files import FOLDER, open_plain
from fairlead.agent.spawner.records import folder_of
from fairlead.agent.spawner.result_copies import COPIED, is_safe
from fairlead.wire.agent_messages import Collected, Output, OutputPart, Tasks
from fairlead.wire.index_spans import each_index

PIECE = 1 << 18
MAX_WARNING = 2_000


async def read_results(
    logs: str, listed: ResultList | None, tasks: Tasks, index: int, files: int, size: int
) -> AsyncIterator[OutputPart]:
    """Yield at most `files` result files of a task in pieces, in total at most `size` bytes, then the files' names.

    Yields nothing if no files were collected, or if none of the copies is there any more.
    """
    if listed is None:
        return
    prefix = _prefix(logs, tasks, index)
    sent: list[tuple[str, int]] = []
    warnings = list(listed.warnings)
    waiting: list[Output] = []
    held = missing = 0
    for number, name in enumerate(listed.names):
        fd = open_own(prefix.with_name(f"{prefix.name}{COPIED}{number}")) if is_safe(name) else None
        if fd is None:
            missing += 1
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
    if missing and missing == len(listed.names):
        return  # the server has taken them before, and the end of the task was reported again
    collected = Collected(index, tuple(sent), "; ".join(warnings)[:MAX_WARNING])
    yield OutputPart(0, tuple(waiting), collected=(collected,))


def remove_results(logs: str, lists: ResultLists, tasks: Tasks, user: str) -> None:
    """Remove the copies of tasks and their lists."""
    for index in each_index(tasks.indices):
        listed = lists.find(user, tasks, index)
        prefix = _prefix(logs, tasks, index)
        with suppress(OSError):
            folder = os.open(prefix.parent, FOLDER)
            try:
                for number in range(len(listed.names) if listed is not None else 0):
                    with suppress(OSError):
                        os.unlink(f"{prefix.name}{COPIED}{number}", dir_fd=folder)
            finally:
                os.close(folder)
    lists.remove(user, tasks)


def _prefix(logs: str, tasks: Tasks, index: int) -> Path:
    return Path(logs, folder_of(tasks.number, index), f"{tasks.number}.{tasks.stage}.{index}.{tasks.attempt}")


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
