"""Reads slurm.conf and the dump of sacctmgr as entries: their keys and values, and the line that each came from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DEEPEST = 10
"""Files that may include each other."""


class NotRead(Exception):
    """Raised if a file cannot be read. The text names the line and the remedy."""


class Entry(NamedTuple):
    """A line of a file, with its continuations. Keys are in lower case; `words` has them as they were written."""

    place: str
    values: dict[str, str]
    words: dict[str, str]

    @property
    def kind(self) -> str:
        """The first key, such as `partitionname`."""
        return next(iter(self.values))


PAIR = re.compile(r'([A-Za-z_][\w/]*(?:\[\d+\])?)\s*\+?=\s*("[^"]*"|\S*)\s*')
COMMENT = re.compile(r"(?<!\\)#.*")
INCLUDE = re.compile(r"include\s+(\S+)\s*", re.IGNORECASE)


def read_conf(path: Path, depth: int = 0) -> Iterator[Entry]:
    """Yield the entries of a slurm.conf and of the files that it includes."""
    if depth > DEEPEST:
        raise NotRead(f"{path}: files include each other more than {DEEPEST} deep; write them into one file")
    for number, line in _whole_lines(path):
        place = f"{path.name}:{number}"
        included = INCLUDE.fullmatch(line)
        if included:
            yield from read_conf(path.parent / included[1], depth + 1)
            continue
        values: dict[str, str] = {}
        words: dict[str, str] = {}
        at = 0
        while at < len(line):
            pair = PAIR.match(line, at)
            if pair is None:
                raise NotRead(f"{place}: {line[at : at + 40]!r} is not KEY=value; is this a slurm.conf?")
            values[pair[1].lower()], words[pair[1].lower()] = pair[2].strip('"'), pair[1]
            at = pair.end()
        if values:
            yield Entry(place, values, words)


def _whole_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield lines without comments, joined where they end with a backslash, and the number of the first."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as problem:
        raise NotRead(f"{path}: {problem}") from None
    begun, first = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = COMMENT.sub("", raw).strip()
        first = first or number
        if line.endswith("\\"):
            begun += line[:-1] + " "
            continue
        if (begun + line).strip():
            yield first, (begun + line).strip()
        begun, first = "", 0
    if begun.strip():
        yield first, begun.strip()


HEAD = re.compile(r"(\w+)\s+-\s+'?([^':]*)'?")
FIELD = re.compile(r":(\w+)=('[^']*'|[^:]*)")


def read_dump(path: Path) -> Iterator[Entry]:
    """Yield the entries of a file that `sacctmgr dump` wrote: a cluster, parents, accounts and users."""
    for number, line in _whole_lines(path):
        place, head = f"{path.name}:{number}", HEAD.match(line)
        if head is None:
            raise NotRead(f"{place}: {line[:40]!r} is not a line of `sacctmgr dump`, such as Account - 'physics'")
        values, words = {head[1].lower(): head[2]}, {head[1].lower(): head[1]}
        for name, value in FIELD.findall(line[head.end() :]):
            values[name.lower()], words[name.lower()] = value.strip("'"), name
        yield Entry(place, values, words)


def read_qos(path: Path) -> dict[str, Entry]:
    """Return the QOS of a list that `sacctmgr -P show qos` wrote, by name."""
    lines = path.read_text().splitlines()
    heads = lines[0].split("|") if lines else []
    if "Name" not in heads:
        raise NotRead(f"{path.name}:1: there is no column Name; write the file with `sacctmgr -P show qos`")
    found = {}
    for number, line in enumerate(lines[1:], 2):
        pairs = list(zip(heads, line.split("|"), strict=False))
        values = {name.lower(): value for name, value in pairs if value}
        if "name" in values:
            found[values["name"]] = Entry(f"{path.name}:{number}", values, {name.lower(): name for name, _ in pairs})
    return found
