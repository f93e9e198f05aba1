"""`fairlead top`: nodes, queues, what runs and what waits, live on the terminal."""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from fairlead.cli.options import AsJson, Partition, ask_as
from fairlead.cli.output import ago, amounts, asking, print_json

if TYPE_CHECKING:
    from rich.console import Group

    from fairlead.client import Client
    from fairlead.wire import api as wire

SHOWN = 20
"""Rows of each table."""
MAX_ROWS = 200
"""Jobs that are looked at."""


class Look(NamedTuple):
    """What there is at one moment."""

    at: float
    nodes: list[wire.Node]
    queues: list[wire.Queue]
    jobs: list[wire.Job]
    """Those that run, then those that wait, the oldest first."""


@asking
def top(
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Show nodes, queues, what runs and what waits, until interrupted. As JSON it is a line a look."""
    with ask_as(partition) as client, suppress(KeyboardInterrupt):
        if as_json:
            print_json(_look(client)._asdict())
            while not once:
                time.sleep(interval)
                print_json(_look(client)._asdict())
            return
        from rich.console import Console
        from rich.live import Live

        if once:
            Console().print(_screen(_look(client)))
            return
        with Live(_screen(_look(client)), screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(interval)
                live.update(_screen(_look(client)), refresh=True)


def _look(client: Client) -> Look:
    jobs = list(islice(client.jobs(state=["running", "pending"], limit=MAX_ROWS), MAX_ROWS))
    jobs.sort(key=lambda job: (job.state != "running", job.number))
    return Look(time.time(), list(client.nodes()), client.queues(), jobs)


def _screen(look: Look) -> Group:
    from rich.console import Group
    from rich.text import Text

    running = sum(stage.running for job in look.jobs for stage in job.stages)
    waiting = sum(stage.waiting for job in look.jobs for stage in job.stages)
    clock = time.strftime("%H:%M:%S", time.localtime(look.at))
    return Group(
        Text(f"{len(look.nodes)} nodes, {running} tasks running, {waiting} waiting at {clock}", style="bold"),
        _table(
            ("node", "state", "tasks", "cpu", "use"),
            [(each.name, each.state, each.tasks, _bar(each), amounts(each.used)) for each in look.nodes[:SHOWN]],
        ),
        _table(
            ("queue", "state", "share", "running", "waiting", "use"),
            [
                (each.path, each.state, each.share, each.running, each.asks, amounts(each.used))
                for each in look.queues[:SHOWN]
            ],
        ),
        _table(
            ("job", "name", "user", "queue", "state", "running", "waiting", "age"),
            [
                (
                    each.id,
                    each.name,
                    each.user,
                    each.queue,
                    each.state,
                    sum(stage.running for stage in each.stages),
                    sum(stage.waiting for stage in each.stages),
                    ago(each.submitted),
                )
                for each in look.jobs[:SHOWN]
            ],
        ),
    )


def _bar(node: Any) -> str:
    has = node.resources.get("cpu", 0)
    full = round(10 * min(1.0, node.used.get("cpu", 0) / has)) if has else 0
    return "█" * full + "·" * (10 - full)


def _table(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Any:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    return table
