"""`fairlead top`: nodes, queues, what runs and what waits, live on the terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli.options import Partition, ask_as
from fairlead.cli.output import ago, amounts, asking

if TYPE_CHECKING:
    from rich.console import Group

    from fairlead.client import Client

SHOWN = 20


@asking
def top(
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    partition: Partition = "",
) -> None:
    """Show nodes, queues, what runs and what waits, until interrupted."""
    from rich.console import Console
    from rich.live import Live

    with ask_as(partition) as client:
        if once:
            Console().print(_screen(client))
            return
        with Live(_screen(client), screen=True, auto_refresh=False) as live:
            try:
                while True:
                    time.sleep(interval)
                    live.update(_screen(client), refresh=True)
            except KeyboardInterrupt:
                return


def _screen(client: Client) -> Group:
    from rich.console import Group
    from rich.text import Text

    nodes = list(client.nodes())
    jobs = []
    for job in client.jobs(state=["running", "pending"], limit=200):
        jobs.append(job)
        if len(jobs) == 200:
            break
    jobs.sort(key=lambda job: (job.state != "running", job.number))
    running = sum(stage.running for job in jobs for stage in job.stages)
    waiting = sum(stage.waiting for job in jobs for stage in job.stages)
    head = f"{len(nodes)} nodes, {running} tasks running, {waiting} waiting at {time.strftime('%H:%M:%S')}"
    return Group(
        Text(head, style="bold"),
        _table(
            ("node", "state", "tasks", "cpu", "use"),
            [(each.name, each.state, each.tasks, _bar(each), amounts(each.used)) for each in nodes[:SHOWN]],
        ),
        _table(
            ("queue", "state", "share", "running", "waiting", "use"),
            [
                (each.path, each.state, each.share, each.running, each.reservations, amounts(each.used))
                for each in client.queues()[:SHOWN]
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
                for each in jobs[:SHOWN]
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
