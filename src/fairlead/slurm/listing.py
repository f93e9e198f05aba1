"""Lists of named fields as sacct, sacctmgr and sshare print them: columns with widths, or separated by a character."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from fairlead.slurm.options import Given, fail

Item = TypeVar("Item")


class Named(NamedTuple, Generic[Item]):
    """A field: its name, its width (negative to the left), and its value."""

    name: str
    width: int
    value: Callable[[Item], str]


def choose(command: str, fields: Sequence[Named[Item]], wanted: str) -> list[Named[Item]]:
    """Return the fields of `--format`. The beginning of a name is enough, and `%N` after it is a width."""
    chosen = []
    for word in filter(None, re.split(r"[,\s]+", wanted)):
        name, _, width = word.partition("%")
        field = next((f for f in fields if f.name.lower() == name.lower()), None) or next(
            (f for f in fields if f.name.lower().startswith(name.lower())), None
        )
        if field is None:
            fail(command, f'Invalid field requested: "{name}"')
        chosen.append(field._replace(width=int(width)) if re.fullmatch(r"-?\d+", width) else field)
    return chosen


def lines_of(fields: Sequence[Named[Item]], items: Iterable[Item], given: Given) -> Iterable[str]:
    """Yield the lines of a list, with a header unless `--noheader` is given."""
    if "parsable2" in given or "parsable" in given:
        mark = given.get("delimiter", "|")
        end = mark if "parsable2" not in given else ""
        if "noheader" not in given:
            yield mark.join([field.name for field in fields]) + end
        for item in items:
            yield mark.join([field.value(item) for field in fields]) + end
        return
    if "noheader" not in given:
        yield "".join([_cell(field.name, field.width) + " " for field in fields])
        yield "".join(["-" * abs(field.width) + " " for field in fields])
    for item in items:
        yield "".join([_cell(field.value(item), field.width) + " " for field in fields])


def _cell(text: str, width: int) -> str:
    if width < 0:
        return text[:-width].ljust(-width)
    return (text if len(text) <= width else f"{text[: width - 1]}+").rjust(width)


def help_lines(fields: Sequence[Named[Item]]) -> Iterable[str]:
    names = [field.name for field in fields]
    for at in range(0, len(names), 4):
        yield " ".join([f"{name:<19}" for name in names[at : at + 4]]).rstrip()
