"""Input of commands: files that users name, and standard input. Files that are missing or no YAML are refused."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import termios
from pathlib import Path
from typing import Any

import typer

from fairlead.cli.output import fail

STDIN = 0
REMEDY = "a task reads no standard input; pass a file in its arguments, or add `< /dev/null`"


def need_file(path: Path) -> None:
    """Exit with a usage error unless the path is a file."""
    if path.is_dir():
        problem = "is a directory; name a file in it"
    elif not path.exists():
        problem = "does not exist; check the name"
    else:
        return
    typer.echo(f"fairlead: error: {path} {problem}", err=True)
    raise typer.Exit(2)


def document_of(
    file: Path, otherwise: str = "not a mapping; write it as key: value pairs", may_be_empty: bool = True
) -> dict[str, Any]:
    """Return the mapping in a YAML file; `-` is standard input. Exit with `otherwise` if the file has no mapping."""
    from fairlead.cli.yaml_files import Unreadable, read_document

    if str(file) == "-":
        file = Path("/dev/stdin")
    else:
        need_file(file)
    try:
        document = read_document(file)
    except Unreadable as problem:
        fail(f"{file}{f':{problem.line}' if problem.line else ''}: {problem.problem}")
    if document is None and may_be_empty:
        return {}
    if not isinstance(document, dict):
        fail(f"{file}: {otherwise}")
    return document


def has_input() -> bool:
    """True if standard input is a file, a pipe or a socket with unread bytes."""
    try:
        mode = os.fstat(STDIN).st_mode
        if stat.S_ISREG(mode):
            return os.fstat(STDIN).st_size > os.lseek(STDIN, 0, os.SEEK_CUR)
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            (waiting,) = struct.unpack("i", fcntl.ioctl(STDIN, termios.FIONREAD, b"\0" * 4))
            return bool(waiting)
    except OSError:  # closed, or a kind of file that cannot be polled
        pass
    return False
