"""Options that several commands have: single options, and records of options with functions that use them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar

import typer

from fairlead.cli import completion
from fairlead.cli.option_values import wrong
from fairlead.cli.output import Column, cells, fail, first, print_json, print_table, print_text, say_cut, table_lines
from fairlead.cli.typer_commands import Options, option

if TYPE_CHECKING:
    from fairlead.client import Client

Answer = TypeVar("Answer")
Item = TypeVar("Item")

REFRESH = 1.0
"""Seconds between two refreshes of a watched list."""

LogLevel = Literal["debug", "info", "warning", "error"]
LogLevelOption = Annotated[
    LogLevel,
    typer.Option(
        "--log-level",
        envvar="FAIRLEAD_LOG_LEVEL",
        help="Write log lines of this level and above. At the level debug, the server also logs why tasks wait.",
    ),
]
Partition = Annotated[
    str,
    typer.Option(
        "--partition",
        "-p",
        help="Partition of the cluster. By default the only one, or the one called `default`.",
        autocompletion=completion.partitions,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
JobName = Annotated[str, typer.Argument(help="Id of a job.", metavar="JOB", autocompletion=completion.jobs)]
LiveJobName = Annotated[str, typer.Argument(help="Id of a job.", metavar="JOB", autocompletion=completion.live_jobs)]
LiveJobNames = Annotated[
    list[str], typer.Argument(help="Ids of jobs.", metavar="JOB…", autocompletion=completion.live_jobs)
]
QueuePath = Annotated[
    str, typer.Argument(help="Path of a queue, such as root.ml.", metavar="QUEUE", autocompletion=completion.queues)
]


def open_client(partition: str = "") -> Client:
    """Return a client of the server in FAIRLEAD_URL, or else of the server that runs on the data directory."""
    from fairlead.client import Client, find_endpoint

    place = find_endpoint()
    return Client(place.url, place.token, place.authority, partition, place.insecure)


class Output(Options):
    """The option `--json`, with functions that print an answer as text or as JSON."""

    as_json: bool = option("Print JSON.", "--json")

    def fail(self, text: str, code: int = 1, **fields: Any) -> NoReturn:
        """Print the error as a line, or with the fields as JSON, and exit with the code."""
        fail(text, self.as_json and {"ok": False, **fields, "problem": text}, code)

    def show(self, answer: object, lines: Iterable[str]) -> None:
        """Print an answer as lines of text, or as JSON."""
        if self.as_json:
            print_json(answer)
            return
        for line in lines:
            print_text(line)

    def table(self, items: Sequence[Item], columns: Sequence[Column[Item]]) -> None:
        """Print a table with one row per item, or the items as JSON."""
        print_json(items) if self.as_json else print_table(*cells(columns, items))


class ClusterWide(Output):
    """The option of commands that call a server about all of its partitions."""

    partition = ""

    def client(self) -> Client:
        return open_client(self.partition)

    def request(self, send: Callable[[Client], Answer]) -> Answer:
        """Return the server's answer to one request."""
        with self.client() as client:
            return send(client)

    def change(self, send: Callable[[Client], str], done: str) -> None:
        """Request a change. Print the server's note about it, or `done` if there is none."""
        note = self.request(send)
        self.show({"note": note}, [note or done])


class Common(ClusterWide):
    """The options of commands that call a server about one partition."""

    partition: Partition = ""


class Listed(Common):
    """The options of commands that list items in columns."""

    columns: str = option(
        "Columns to show: their headings, separated by commas. An unknown heading prints all headings.",
        "-o",
        metavar="NAMES",
    )
    watch: bool = option("Show the list again every second, until Ctrl-C. With --json, print one line a second.")

    def show_list(self, read: Callable[[], Sequence[Item]], columns: Sequence[Column[Item]]) -> None:
        """Print a list of items once, or every second with --watch. Unknown columns are refused before reading."""
        shown = self._chosen(columns)
        if not self.watch:
            self.table(read(), shown)
            return
        with suppress(KeyboardInterrupt):
            if self.as_json or not sys.stdout.isatty():
                while True:
                    self.table(read(), shown)
                    sys.stdout.flush()
                    time.sleep(REFRESH)
            _redraw(lambda: table_lines(*cells(shown, read())))

    def _chosen(self, columns: Sequence[Column[Item]]) -> Sequence[Column[Item]]:
        """Return the columns that `-o` names, or else the usual ones."""
        if not self.columns:
            return [column for column in columns if column.usual]
        if self.as_json:
            raise wrong("-o", "JSON has all columns; drop -o or --json")
        by_name = {column.name: column for column in columns}
        names = [name.strip().lower().replace(" ", "-") for name in self.columns.split(",")]
        for name in names:
            if name not in by_name:
                from difflib import get_close_matches

                near = get_close_matches(name, by_name, 1)
                meant = f"; did you mean {near[0]}?" if near else "."
                raise wrong("-o", f"there is no column {name!r}{meant} The columns are {', '.join(by_name)}")
        return [by_name[name] for name in names]


class JobFilters(Listed):
    """The options of commands that list jobs."""

    user: str = option("Only jobs of this user.")
    queue: str = option("Only jobs in this queue and the queues below it.", "-q", autocompletion=completion.queues)
    label: str = option("Only jobs with this label, as key=value.", "-l", autocompletion=completion.job_labels)

    def show_jobs(self, find: Callable[..., Iterator[Item]], limit: int, columns: Sequence[Column[Item]]) -> None:
        """Print the first `limit` jobs that `find` yields for the filters. Print a note if there are more."""

        def read() -> list[Item]:
            found = find(user=self.user, queue=self.queue, label=self.label, limit=min(limit + 1, 1000))
            jobs, cut = first(limit, found)
            if cut and not self.watch:
                say_cut(limit, "jobs, the newest,")
            return jobs

        self.show_list(read, columns)


def _redraw(lines: Callable[[], list[str]]) -> NoReturn:
    """Show lines on the whole terminal, with a bold header, and refresh them."""
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as live:
        while True:
            text = lines()
            screen = Text("\n".join(text), no_wrap=True, overflow="crop")
            screen.stylize("bold", 0, len(text[0]))
            live.update(screen, refresh=True)
            time.sleep(REFRESH)
