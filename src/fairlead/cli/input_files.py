"""Input of commands: files that users name, and standard input. Missing and invalid files are refused.

The size of YAML is limited before and after its aliases are expanded.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import termios
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairlead.cli.output import fail

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 1_000_000
MAX_NODES = 100_000
MAX_DEPTH = 100


class Unreadable(Exception):
    """Raised if a file is not valid YAML, with the problem and its line, if known."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem, line)
        self.problem = problem
        self.line = line


def read_document(path: Path) -> object:
    """Return the document in a YAML file, None if the file is empty."""
    import yaml  # its import takes longer than most commands need for theirs

    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise Unreadable(f"larger than {MAX_BYTES:,} bytes; a configuration is never that large")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        raise Unreadable(f"byte {content[problem.start]:#04x} is not UTF-8; save the file as UTF-8", line) from None
    try:
        loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        _measure(text, loader)
        return yaml.load(text, loader)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        detail = ": ".join(part for part in (problem.context, problem.problem) if part)
        raise Unreadable(f"not YAML: {detail}", mark.line + 1 if mark else None) from None
    except yaml.YAMLError as problem:
        raise Unreadable(f"not YAML: {' '.join(str(problem).split())}") from None
    except (ValueError, OverflowError) as problem:  # a value that looks like a number or a date but is invalid
        raise Unreadable(f"a value cannot be read: {problem}; put it in quotes") from None


class _Open:
    """A mapping or sequence that is not closed yet."""

    def __init__(self, anchor: str | None, mapping: bool) -> None:
        self.anchor = anchor
        self.size = 1
        self.keys: set[str] | None = set() if mapping else None
        self.at_key = True


def _measure(text: str, loader: type[yaml.SafeLoader]) -> None:
    """Refuse a document that is too large with its aliases expanded, or that has a key twice in a mapping."""
    import yaml

    above = [_Open(None, False)]
    sizes: dict[str, int] = {}
    for event in yaml.parse(text, loader):
        match event:
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                if len(above) > MAX_DEPTH:
                    raise Unreadable(f"more than {MAX_DEPTH} levels deep", _line(event))
                above.append(_Open(event.anchor, isinstance(event, yaml.MappingStartEvent)))
                continue
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                done = above.pop()
                size, anchor = done.size, done.anchor
            case yaml.AliasEvent():
                if event.anchor not in sizes and any(collection.anchor == event.anchor for collection in above):
                    raise Unreadable(f"*{event.anchor} contains itself; remove the alias", _line(event))
                size, anchor = sizes.get(event.anchor or "", 1), None
            case yaml.ScalarEvent():
                size, anchor = 1, event.anchor
                _check_key(above[-1], event)
            case _:
                continue
        if anchor is not None:
            sizes[anchor] = size
        parent = above[-1]
        parent.size += size
        parent.at_key = not parent.at_key
        if parent.size > MAX_NODES:
            raise Unreadable(f"more than {MAX_NODES:,} values, with its aliases followed; write less", _line(event))


def _check_key(parent: _Open, event: yaml.ScalarEvent) -> None:
    if parent.keys is None or not parent.at_key or event.value == "<<":
        return
    if event.value in parent.keys:
        raise Unreadable(f"{event.value[:40]!r} is twice in one mapping; remove one", _line(event))
    parent.keys.add(event.value)


def _line(event: yaml.Event) -> int | None:
    return event.start_mark.line + 1 if event.start_mark else None


STDIN = 0
REMEDY = "standard input goes to a single task; pass a file in the arguments of the tasks, or add `< /dev/null`"


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
    from fairlead.cli.input_files import Unreadable, read_document

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


def may_have_input() -> bool:
    """True if standard input is a terminal, a file, a pipe or a socket, but not if it is closed or /dev/null."""
    try:
        mode = os.fstat(STDIN).st_mode
    except OSError:
        return False
    return os.isatty(STDIN) or stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


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
