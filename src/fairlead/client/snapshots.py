"""Stores content on the server, and packs directories as snapshots: equal files are equal bytes, and are sent once."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO

from fairlead.wire import api as wire
from fairlead.wire import operations as op

Storing = Generator[op.StoreContent, wire.Content, str]
"""Yields the requests that store content, gets their answers, and returns the SHA-256."""
PIECE = 4 << 20
"""Bytes of one request."""
TIME = 1_000_000_000
"""The time of all files of a snapshot, so that it depends on their content only."""
NAMED = 3


def storing(content: bytes | IO[bytes]) -> Storing:
    """Return the requests that store content, from where the server has it."""
    size, digest = _size_of(content), _digest_of(content)
    answer = yield op.StoreContent(digest=digest, document=wire.ContentDocument(size=size))
    while answer.stored < size:
        data = _piece(content, answer.stored)
        document = wire.ContentDocument(size=size, offset=answer.stored, data=data)
        answer = yield op.StoreContent(digest=digest, document=document)
    return digest


def snapshot_storing(directory: str | Path) -> Storing:
    """Return the requests that store the files of a directory, without those that git ignores."""
    with TemporaryFile() as file:
        pack(Path(directory), file)
        return (yield from storing(file))


def pack(directory: Path, file: IO[bytes]) -> None:
    """Write the files of a directory as an archive. Raises `ValueError` if they are too large, or git is missing."""
    if not directory.is_dir():
        raise ValueError(f"{directory} is no directory; name one with the files of the job")
    sizes: list[tuple[int, str]] = []
    with gzip.GzipFile("", "wb", 3, file, mtime=0) as packed, tarfile.open(mode="w", fileobj=packed) as tar:
        for name in sorted(files_of(directory)):
            path = directory / name
            if not (path.is_symlink() or path.is_file()):
                continue  # it is in git's index, but was removed; or it is a socket
            entry = tar.gettarinfo(path, name)
            if entry.islnk():
                entry.type = tarfile.REGTYPE
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = TIME, 0, 0, "", ""
            entry.mode = 0o755 if entry.mode & 0o100 else 0o644
            if entry.isreg():
                entry.size = path.stat().st_size
                sizes.append((entry.size, name))
                with path.open("rb") as source:
                    tar.addfile(entry, source)
            else:
                tar.addfile(entry)
            if file.tell() > wire.MAX_CONTENT:
                largest = ", ".join(f"{name} ({size >> 20} MiB)" for size, name in sorted(sizes, reverse=True)[:NAMED])
                raise ValueError(
                    f"{directory} has more than {wire.MAX_CONTENT >> 20} MiB when packed; list what the job does not "
                    f"need in .gitignore, such as {largest}"
                )


def files_of(directory: Path) -> list[str]:
    """Return the files of a directory that git does not ignore, relative to it. It need not be a repository."""
    git = shutil.which("git")
    if git is None:
        if any(directory.rglob(".gitignore")):
            raise ValueError(f"git is needed to read .gitignore of {directory}; install git, or remove the file")
        return [
            str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir() or path.is_symlink()
        ]
    with TemporaryDirectory() as empty:
        words = [git, "-C", str(directory)]
        inside = subprocess.run([*words, "rev-parse", "--is-inside-work-tree"], capture_output=True, check=False)
        if inside.stdout.strip() != b"true":
            subprocess.run([git, "init", "--quiet", "--bare", empty], check=True)
            words += [f"--git-dir={empty}", f"--work-tree={directory.absolute()}"]
        listed = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        done = subprocess.run([*words, *listed], capture_output=True, check=False)
    if done.returncode:
        raise ValueError(f"git could not list {directory}: {done.stderr.decode(errors='replace').strip()}")
    names = list(dict.fromkeys(os.fsdecode(name) for name in done.stdout.split(b"\0") if name))
    found: list[str] = []
    for name in names:
        path = directory / name
        if path.is_dir() and not path.is_symlink():  # a repository within this one
            found += [f"{name.rstrip('/')}/{inner}" for inner in files_of(path)]
        else:
            found.append(name)
    return found


def _size_of(content: bytes | IO[bytes]) -> int:
    return len(content) if isinstance(content, bytes) else content.seek(0, os.SEEK_END)


def _piece(content: bytes | IO[bytes], offset: int) -> bytes:
    if isinstance(content, bytes):
        return content[offset : offset + PIECE]
    content.seek(offset)
    return content.read(PIECE)


def _digest_of(content: bytes | IO[bytes]) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    content.seek(0)
    return hashlib.file_digest(content, "sha256").hexdigest()  # type: ignore[arg-type]  # IO has readinto here
