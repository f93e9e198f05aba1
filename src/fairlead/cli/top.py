"""`fairlead top`: nodes, queues, and running and waiting jobs, live on the terminal."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.cli.options import Common
from fairlead.cli.output import ago, amounts, first, print_json, state_of
from fairlead.cli.typer_commands import option

if TYPE_CHECKING:
    from rich.console import Group

    from fairlead.client import Client
    from fairlead.wire import api as wire

SHOWN = 20
"""Largest number of rows in a table."""
MAX_ROWS = 200
"""Largest number of jobs to read from the server."""


class Snapshot(NamedTuple):
    """Nodes, queues and jobs at one moment."""

    at: float
    nodes: list[wire.Node]
    queues: list[wire.Queue]
    jobs: list[wire.Job]
    """Running jobs, then waiting jobs, oldest first."""
    cut: bool
    """True if there are older jobs, which were not read."""


class TopOptions(Common):
    interval: float = option("Seconds between two refreshes.", default=1.0, min=0.1)
    once: bool = option("Print once and exit.")


def top(options: TopOptions) -> None:
    """Show nodes, queues, and running and waiting jobs, refreshed until Ctrl-C.

    With --json, each refresh is one line.
    """
    with options.client() as client, suppress(KeyboardInterrupt):
        if options.as_json:
            print_json(_read(client)._asdict())
            while not options.once:
                time.sleep(options.interval)
                print_json(_read(client)._asdict())
            return
        from rich.console import Console
        from rich.live import Live

        if options.once:
            Console().print(_screen(_read(client)))
            return
        with Live(_screen(_read(client)), screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(options.interval)
                live.update(_screen(_read(client)), refresh=True)


def _read(client: Client) -> Snapshot:
    jobs, cut = first(MAX_ROWS, client.jobs(state=["running", "stopping", "pending"], limit=MAX_ROWS))
    jobs.sort(key=lambda job: (job.state != "running", job.number))
    return Snapshot(time.time(), list(client.nodes()), client.queues(), jobs, cut)


def _screen(snapshot: Snapshot) -> Group:
    from rich.console import Group
    from rich.text import Text

    running = sum(stage.running for job in snapshot.jobs for stage in job.stages)
    waiting = sum(stage.waiting for job in snapshot.jobs for stage in job.stages)
    most = f" (of the newest {MAX_ROWS} jobs)" if snapshot.cut else ""
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.at))
    return Group(
        Text(f"{len(snapshot.nodes)} nodes, {running} tasks running, {waiting} waiting{most} at {clock}", style="bold"),
        _table(
            ("node", "state", "tasks", "cpu", "use"),
            [(node.name, node.state, node.tasks, _bar(node), amounts(node.used)) for node in snapshot.nodes],
        ),
        _table(
            ("queue", "state", "share", "running", "waiting", "use"),
            [
                (queue.path, queue.state, queue.share, queue.running, queue.asks, amounts(queue.used))
                for queue in snapshot.queues
            ],
        ),
        _table(
            ("job", "name", "user", "queue", "state", "running", "waiting", "age"),
            [
                (
                    job.id,
                    job.name,
                    job.user,
                    job.queue,
                    state_of(job),
                    sum(stage.running for stage in job.stages),
                    sum(stage.waiting for stage in job.stages),
                    ago(job.submitted),
                )
                for job in snapshot.jobs
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
    for row in rows[:SHOWN]:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    if len(rows) > SHOWN:
        table.add_row(f"… {len(rows) - SHOWN} more")
    return table
