"""Small files of the data directory, written atomically and readable only by their owner."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import TypeVar

import msgspec

Content = TypeVar("Content")

LEFTOVER = re.compile(r"\..+\.[0-9a-f]{16}")
"""The names of temporary files."""


class FileProblem(Exception):
    """A file that cannot be read or written; the message names the file and the remedy."""


def write_small(path: Path, content: bytes) -> None:
    """Replace the content of a file. After a crash at any moment the file has the old or the new content.

    Each write has its own temporary file, so parallel writes do not mix; the last write to finish wins.
    """
    try:
        _replace(path, path.with_name(f".{path.name}.{secrets.token_hex(8)}"), content)
    except OSError as problem:
        raise FileProblem(f"{path}: {problem.strerror}; check the disk and the rights on the file") from problem


def is_leftover(name: str) -> bool:
    """True if the name is that of a temporary file, which only a crash leaves behind."""
    return LEFTOVER.fullmatch(name) is not None


def read_small(path: Path, kind: type[Content], remedy: str) -> Content | None:
    """Return the content of a JSON file, or None if the file does not exist."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise FileProblem(f"{path}: {problem.strerror}; check the rights on the file") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        # The error text may quote the content, which is secret.
        raise FileProblem(f"{path}: the file is damaged; restore it from a copy, or {remedy}") from None


def _replace(path: Path, beside: Path, content: bytes) -> None:
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
