"""Small documents that are always replaced as a whole: files of the data directory, or rows of a database.

A file is replaced atomically, and only its owner can read it. The servers of a cluster share the rows.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

import msgspec

from fairlead.journal.journal import JournalError

Content = TypeVar("Content")
Arguments = ParamSpec("Arguments")

LEFTOVER = re.compile(r"\..+\.[0-9a-f]{16}")
"""Matches the names of temporary files."""


class FileProblem(Exception):
    """Raised if a document cannot be read or written. The message names the document and the remedy."""


class Conflict(FileProblem):
    """Raised if another server has changed a document since it was read. Nothing was written; read it and retry."""


SPARE_BYTES = 256
"""Bytes that a document may grow by when it is written to its spare file."""
TRIES = 10
"""Number of retries after conflicts."""


def again_on_conflict(change: Callable[Arguments, Content]) -> Callable[Arguments, Content]:
    """Return a function that retries `change` after a `Conflict`. `change` has to read the present content itself."""

    @wraps(change)
    def changed(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Content:
        for _ in range(TRIES):
            with suppress(Conflict):
                return change(*args, **kwargs)
        return change(*args, **kwargs)

    return changed


class Document(Protocol):
    """A small document. `name` is its location in messages. All methods may raise `FileProblem`."""

    name: str

    def read(self) -> bytes | None:
        """Return the content; None if the document does not exist."""

    def write(self, content: bytes, spare: bool = False) -> None:
        """Replace the content. Raise `Conflict` if another server has changed it since the last `read` or `write`.

        `spare` allows the use of space that is set aside for a full disk. It is for revocations.
        """

    def is_changed(self) -> bool:
        """True if another server has changed the content since the last `read` or `write`."""


class SmallFile:
    """A document in a file. No other process writes it."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path

    def read(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise FileProblem(f"{self._path}: {problem.strerror}; check the rights on the file") from None

    def write(self, content: bytes, spare: bool = False) -> None:
        aside = self._path.with_name(f".{self._path.name}.spare")
        try:
            write_small(self._path, content)
        except FileProblem:
            if not spare or not _fill(aside, content):
                raise
            aside.replace(self._path)
        with suppress(FileProblem):
            if not aside.exists() or aside.stat().st_size < len(content) + SPARE_BYTES:
                write_small(aside, bytes(2 * (len(content) + SPARE_BYTES)))

    def is_changed(self) -> bool:
        return False


def _fill(spare: Path, content: bytes) -> bool:
    """Write a content over a spare file, which needs no free space on the disk. Return False if that fails."""
    try:
        if spare.stat().st_size < len(content):
            return False
        with spare.open("r+b") as file:
            file.write(content)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        return False
    return True


class Rows(Protocol):
    """Documents in a database, each with a version number that grows. All methods may raise `JournalError`."""

    where: str

    def get(self, name: str) -> tuple[int, bytes]:
        """Return the version and the content of a document; version 0 if there is no such document."""

    def version(self, name: str) -> int: ...

    def put(self, name: str, version: int, content: bytes) -> bool:
        """Replace the content if the document has this version; otherwise return False."""


class StoredDocument:
    """A document in a database."""

    def __init__(self, rows: Rows, name: str) -> None:
        self.name = f"{rows.where}, document {name}"
        self._rows = rows
        self._row = name
        self._version = 0

    def read(self) -> bytes | None:
        with _problems():
            version, content = self._rows.get(self._row)
        self._version = version
        return content if version else None

    def write(self, content: bytes, spare: bool = False) -> None:
        with _problems():
            written = self._rows.put(self._row, self._version, content)
        if not written:
            raise Conflict(f"{self.name}: another server has changed it meanwhile; try again")
        self._version += 1

    def is_changed(self) -> bool:
        with _problems():
            return self._rows.version(self._row) != self._version


def document_at(place: Path | Document) -> Document:
    return SmallFile(place) if isinstance(place, Path) else place


@contextmanager
def _problems() -> Iterator[None]:
    try:
        yield
    except JournalError as problem:
        raise FileProblem(str(problem)) from problem


def write_small(path: Path, content: bytes) -> None:
    """Replace the content of a file. After a crash at any moment it has the old or the new content.

    Each write has a temporary file of its own. Of parallel writes, the last to finish wins.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as problem:
        raise FileProblem(f"{path}: {problem.strerror}; check the disk and the rights on the file") from problem


def read_small(place: Path | Document, kind: type[Content], remedy: str) -> Content | None:
    """Return the content of a JSON document; None if it does not exist. Errors of damaged documents name `remedy`."""
    document = document_at(place)
    content = document.read()
    try:
        return None if content is None else msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # The error text may quote the content, which is secret.
        raise FileProblem(f"{document.name}: the file is damaged; restore it from a copy, or {remedy}") from None
