"""Lists with columns to choose from (`-o`), once or refreshed until Ctrl-C (`--watch`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Generic, NamedTuple, TypeVar

import typer

from fairlead.cli.output import print_json, print_table, table_lines

REFRESH = 1.0
"""Seconds between two refreshes."""

Item = TypeVar("Item")

Columns = Annotated[
    str,
    typer.Option(
        "--columns",
        "-o",
        help="Columns to show, with commas between them, such as job,state. A name that does not exist is answered "
        "by the list of all names.",
        metavar="NAMES",
    ),
]
Watch = Annotated[
    bool,
    typer.Option(
        "--watch", help="Show the list again every second, until Ctrl-C. With --json, print one line each time."
    ),
]


class Column(NamedTuple, Generic[Item]):
    """A column: its name, and its cell for an item."""

    name: str
    cell: Callable[[Item], object]
    usual: bool = True
    """True if it is shown without `-o`."""


def chosen(columns: Sequence[Column[Item]], names: str, as_json: bool) -> list[Column[Item]]:
    """Return the columns that `-o` names, or the usual ones."""
    if not names:
        return [column for column in columns if column.usual]
    if as_json:
        raise typer.BadParameter("JSON has all columns; drop -o or --json", param_hint="-o")
    by_name = {column.name: column for column in columns}
    found = []
    for name in (name.strip().lower().replace(" ", "-") for name in names.split(",")):
        if name not in by_name:
            from difflib import get_close_matches

            near = get_close_matches(name, by_name, 1)
            meant = f"; did you mean {near[0]}?" if near else "."
            raise typer.BadParameter(
                f"there is no column {name!r}{meant} The columns are {', '.join(by_name)}", param_hint="-o"
            )
        found.append(by_name[name])
    return found


def show(read: Callable[[], Sequence[Item]], columns: Sequence[Column[Item]], as_json: bool, watch: bool) -> None:
    """Print the items as a table or as JSON; with `watch`, read and print them again every second until Ctrl-C."""
    header = [column.name.upper() for column in columns]

    def rows(items: Sequence[Item]) -> list[list[object]]:
        return [[column.cell(item) for column in columns] for item in items]

    if not watch:
        items = read()
        print_json(items) if as_json else print_table(header, rows(items))
        return
    with suppress(KeyboardInterrupt):
        if as_json or not sys.stdout.isatty():
            while True:
                items = read()
                print_json(items) if as_json else print_table(header, rows(items))
                sys.stdout.flush()
                time.sleep(REFRESH)
        from rich.live import Live
        from rich.text import Text

        with Live(screen=True, auto_refresh=False) as live:
            while True:
                lines = table_lines(header, rows(read()))
                screen = Text("\n".join(lines), no_wrap=True, overflow="crop")
                screen.stylize("bold", 0, len(lines[0]))
                live.update(screen, refresh=True)
                time.sleep(REFRESH)
