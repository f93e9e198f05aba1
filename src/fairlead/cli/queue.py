"""`fairlead queue`: list, stop and start queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.cli.options import Common, QueuePath
from fairlead.cli.output import Column, amounts
from fairlead.cli.typer_commands import Group

if TYPE_CHECKING:
    from fairlead.wire import api as wire

queue = Group("queue", "List, stop and start queues.")

QUEUES: tuple[Column[wire.Queue], ...] = (
    Column("queue", lambda queue: "  " * queue.path.count(".") + queue.path.rpartition(".")[2]),
    Column("state", lambda queue: queue.state),
    Column("share", lambda queue: "" if queue.share is None else queue.share),
    Column("used", lambda queue: amounts(queue.used) or "-"),
    Column("limit", lambda queue: "" if queue.limit is None else amounts(queue.limit)),
    Column("running", lambda queue: queue.running),
    Column("waiting", lambda queue: queue.asks),
)


@queue.command("list")
def list_queues(common: Common) -> None:
    """List queues with their share and use.

    RUNNING is the number of jobs with running tasks. WAITING is the number of groups of waiting tasks: one or more
    for each stage of a job. USED is what running tasks have, LIMIT the most that they may have.
    """
    common.table(common.request(lambda client: client.queues()), QUEUES)


@queue.command()
def stop(path: QueuePath, common: Common) -> None:
    """Stop a queue: it takes no new jobs and starts no tasks. Running tasks continue."""
    common.change(lambda client: client.move_queue(path, "stop"), f"{path} is stopped")


@queue.command()
def start(path: QueuePath, common: Common) -> None:
    """Start a queue that was stopped."""
    common.change(lambda client: client.move_queue(path, "start"), f"{path} is active")
