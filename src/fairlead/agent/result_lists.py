"""The lists of result files that wait on this node until the server has stored the files.

A spawner sends the list with the end of its task. The lists are in the agent's own directory, which users cannot write.
Only the copies of the files are in folders of users.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from fairlead.agent.spawner.records import Listing, Meta, folder_of
from fairlead.wire.agent_messages import Tasks
from fairlead.wire.index_spans import each_index, spans_of

MAX_WAITING = 64 << 20
"""Most bytes of the lists of one user. Further lists are replaced by a warning."""
TOO_MANY = "its files were not kept: too many result files of this user wait on the node"


class ResultList(msgspec.Struct, array_like=True):
    job: str
    number: int
    stage: str
    attempt: int
    index: int
    names: list[str]
    """The names of the files. Their copies are numbered in this order."""
    warnings: list[str]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ResultList).decode


class ResultLists:
    def __init__(self, folder: Path, log: Callable[[str, dict[str, Any]], None]) -> None:
        """Keep lists below `folder`, which only the agent can write."""
        self._folder = folder
        self._log = log
        self._unwritten: dict[Path, ResultList] = {}
        """Lists that the full disk did not take."""
        self._bytes: dict[str, int] = {}
        """The size of each user's lists."""

    def add(self, user: str, meta: Meta, index: int, listing: Listing) -> None:
        """Keep the list of a task. `user` is empty where all users share a spawner."""
        job, number, stage, attempt = meta
        names, warnings = listing
        kept = ResultList(job, number, stage, attempt, index, list(names), list(warnings))
        data = _encode(kept)
        if self._size(user) + len(data) > MAX_WAITING:
            kept.names, kept.warnings = [], [TOO_MANY]
            data = _encode(kept)
        path = self._path(user, number, stage, index, attempt)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = path.with_name(path.name + ".new")
            fresh.write_bytes(data)
            fresh.replace(path)
            self._bytes[user] += len(data)
        except OSError as problem:
            self._unwritten[path] = kept
            self._log("list of result files not written", {"file": str(path), "problem": str(problem)})

    def find(self, user: str, tasks: Tasks, index: int) -> ResultList | None:
        path = self._path(user, tasks.number, tasks.stage, index, tasks.attempt)
        return self._unwritten.get(path) or _read(path)

    def remove(self, user: str, tasks: Tasks) -> None:
        for index in each_index(tasks.indices):
            path = self._path(user, tasks.number, tasks.stage, index, tasks.attempt)
            self._unwritten.pop(path, None)
            with suppress(OSError):
                size = path.stat().st_size
                path.unlink()
                self._bytes[user] = max(0, self._size(user) - size)

    def all(self) -> list[Tasks]:
        """Return all tasks with a list."""
        found: dict[Meta, list[int]] = {}
        lists = [_read(path) for path in self._folder.glob("*/*/*") if path.suffix != ".new"]
        for each in (*lists, *self._unwritten.values()):
            if each is not None:
                found.setdefault((each.job, each.number, each.stage, each.attempt), []).append(each.index)
        return [Tasks(*meta, spans_of(indices)) for meta, indices in sorted(found.items())]

    def _path(self, user: str, number: int, stage: str, index: int, attempt: int) -> Path:
        return self._folder / f"of-{user}" / folder_of(number, index) / f"{number}.{stage}.{index}.{attempt}"

    def _size(self, user: str) -> int:
        if user not in self._bytes:
            self._bytes[user] = sum(path.stat().st_size for path in (self._folder / f"of-{user}").glob("*/*"))
        return self._bytes[user]


def _read(path: Path) -> ResultList | None:
    """Return the list in a file; None if there is none, or if a crash of the machine has cut it."""
    try:
        return _decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None
