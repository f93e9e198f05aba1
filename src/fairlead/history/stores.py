"""Stores of output: they keep files by key, in a folder (here) or in an object store (`s3.py`).

A key is a path with slashes, made by `OutputStore`. A file is stored completely or not at all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

INCOMING = ".incoming"
"""The folder of incomplete files."""


class Stored(NamedTuple):
    """A file of a store."""

    written: float
    """In seconds since 1970."""
    size: int
    key: str


class Store(Protocol):
    """Keeps files. Its methods block on a disk or a network, and raise `OSError` if the store fails."""

    incoming: Path
    """A folder for incomplete files. It is emptied at the start."""

    def put(self, key: str, file: Path, durable: bool) -> None:
        """Store a file; the original may be moved. With `durable`, it survives a power failure after `settle`."""

    def settle(self, keys: Iterable[str]) -> None:
        """Make files that were put with `durable` survive a power failure. One call for many files saves time."""

    def size(self, key: str) -> int | None:
        """Return the size of a file; None if there is none."""

    def read(self, key: str, offset: int, most: int) -> bytes:
        """Return at most `most` bytes of a file from `offset`; empty beyond its end, or if the file was removed."""

    def renew(self, key: str) -> None:
        """Make a file as new as if it had just been stored."""

    def all(self) -> Iterator[Stored]:
        """Yield all files."""

    def remove(self, keys: Iterable[str]) -> None:
        """Remove files. Missing files are ignored."""


def emptied(folder: Path) -> Path:
    """Create a folder, or empty an existing one, and return it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


class FolderStore:
    """Stores plain files in a folder, which may be on a network file system."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.incoming = emptied(folder / INCOMING)

    def put(self, key: str, file: Path, durable: bool) -> None:
        path = self._folder / key
        if durable:
            _sync(file)
        try:
            _move(file, path)
        except FileNotFoundError:
            _move(file, path)  # `all` removed the empty folder meanwhile

    def settle(self, keys: Iterable[str]) -> None:
        for folder in sorted({folder for key in keys for folder in Path(key).parents}):
            _sync(self._folder / folder)

    def size(self, key: str) -> int | None:
        try:
            return (self._folder / key).stat(follow_symlinks=False).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, key: str, offset: int, most: int) -> bytes:
        try:
            fd = os.open(self._folder / key, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return b""  # it was removed meanwhile
        try:
            return os.pread(fd, most, offset)
        finally:
            os.close(fd)

    def renew(self, key: str) -> None:
        with suppress(FileNotFoundError):
            os.utime(self._folder / key)

    def all(self) -> Iterator[Stored]:
        """Yield all files, and remove empty folders."""
        for place, folders, names in os.walk(self._folder):
            if place == str(self._folder):
                folders[:] = [name for name in folders if name != INCOMING]
            elif not folders and not names:
                with suppress(OSError):
                    os.rmdir(place)
            for name in names:
                path = os.path.join(place, name)
                with suppress(OSError):
                    status = os.stat(path, follow_symlinks=False)
                    yield Stored(status.st_mtime, status.st_size, os.path.relpath(path, self._folder))

    def remove(self, keys: Iterable[str]) -> None:
        for key in keys:
            with suppress(OSError):
                os.unlink(self._folder / key)


def _move(file: Path, path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.replace(path)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
