"""Output and exit codes of commands: tables for people, JSON for programs, one line on stderr for an error.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 server cannot be reached, 124 timed out, 128 + N ended by
signal N (130 by Ctrl-C). `run` and `submit --wait` exit with the status of the job.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from time import localtime, strftime, time
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, NoReturn, TypeVar

import typer

if TYPE_CHECKING:
    from fairlead.client import Problem
    from fairlead.wire import api as wire

Item = TypeVar("Item")

UNREACHABLE = 3
TIME_OVER = 124
CONTROLS = re.compile("[\x7f-\x9f]")
"""Control characters that JSON does not escape."""


def plain(text: str) -> str:
    """Return the text without characters that control a terminal, such as escape sequences.

    The text may come from other users.
    """
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)


def print_text(text: str, err: bool = False, nl: bool = True) -> None:
    """Print a line that may contain text of other users."""
    typer.echo(plain(text), err=err, nl=nl)


def print_safe_json(document: str) -> None:
    """Print a JSON document with its control characters escaped, so that it is safe for a terminal."""
    typer.echo(CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", document))


def fail(text: str, document: dict[str, Any] | Literal[False] = False, code: int = 1) -> NoReturn:
    """Exit with the code, after printing an error: the document on stdout if there is one, else the text on stderr."""
    if document:
        print_safe_json(json.dumps(document, ensure_ascii=False))
    else:
        print_text(f"fairlead: error: {text}", err=True)
    raise typer.Exit(code)


def confirm(question: str, yes: bool) -> None:
    """Ask a question on the terminal unless `yes` is True. Exit if the answer is no, or if there is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail(f"{question} There is no terminal to ask on; add --yes")
    typer.confirm(plain(question), abort=True, err=True)


def problem_document(problem: Problem) -> dict[str, Any]:
    """Return a refusal of the server as a JSON document."""
    cause = {"ok": False, "status": problem.status, "code": problem.code, "field": problem.field}
    return {**cause, "problem": problem.detail}


def is_unreachable(problem: Problem) -> bool:
    return problem.status in (0, 502, 503, 504)


def print_json(value: Any) -> None:
    import msgspec

    print_safe_json(msgspec.json.encode(value).decode())


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a table whose columns are as wide as their cells. The first line is the header."""
    cells = [list(columns), *([plain(str(cell)).replace("\n", "?") for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table. The header is bold on a terminal."""
    for at, line in enumerate(table_lines(columns, rows)):
        typer.secho(line, bold=at == 0 and sys.stdout.isatty())


class Column(NamedTuple, Generic[Item]):
    """A column of a list: its name, and its cell for an item."""

    name: str
    cell: Callable[[Item], object]
    usual: bool = True
    """True if the column is shown without `-o`."""


def cells(columns: Sequence[Column[Item]], items: Iterable[Item]) -> tuple[list[str], list[list[object]]]:
    """Return the header and the rows of a list."""
    return [column.name.upper() for column in columns], [[column.cell(item) for column in columns] for item in items]


def state_of(job: wire.Job) -> str:
    """Return the state of a job: `assigned` instead of `running` while no agent has confirmed that a task runs."""
    confirmed = any(stage.running or stage.stopping for stage in job.stages)
    assigned = job.state == "running" and not confirmed and any(stage.assigned for stage in job.stages)
    return "assigned" if assigned else job.state


def ago(moment: float | None) -> str:
    """Return the time since a moment as text, such as `5min`."""
    return "" if moment is None else lasted(max(0.0, time() - moment))


def clock(moment: float | None) -> str:
    """Return a moment in local time, with its date unless it is today."""
    if moment is None:
        return ""
    today = strftime("%Y-%m-%d", localtime())
    return strftime("%Y-%m-%d %H:%M:%S", localtime(moment)).removeprefix(f"{today} ")


def first(limit: int, items: Iterator[Item]) -> tuple[list[Item], bool]:
    """Return the first `limit` items, and True if there are more."""
    return list(islice(items, limit)), next(items, None) is not None


def say_cut(shown: int, what: str) -> None:
    """Print that a list is not complete."""
    typer.echo(f"fairlead: only {shown} {what} are shown; --limit shows more", err=True)


def ahead(moment: float) -> str:
    """Return the time until a moment as text, such as `5min`."""
    return lasted(max(0.0, moment - time()))


def lasted(seconds: float) -> str:
    """Return a duration as text, such as `5min`. Negative durations, from different clocks, become `0.0s`."""
    seconds = max(0.0, seconds)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s" if seconds >= 10 else f"{seconds:.1f}s"


def amounts(vector: dict[str, int | float]) -> str:
    """Return resources as text, such as `cpu=4 memory=8Gi`."""
    return " ".join(f"{name}={_amount(name, value)}" for name, value in sorted(vector.items()))


def labels_of(labels: dict[str, str]) -> str:
    """Return labels as text, such as `gpu=a100 zone=b`."""
    return " ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _amount(name: str, value: int | float) -> str:
    if name != "memory":
        return f"{value:g}"
    for unit, size in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return str(value)
