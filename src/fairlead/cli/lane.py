"""`fairlead lane`: list, reorder and cancel waiting tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli.options import Common, LiveJobName, QueuePath
from fairlead.cli.output import Column, ago, print_text
from fairlead.cli.typer_commands import Group

if TYPE_CHECKING:
    from fairlead.wire import api as wire

lane = Group("lane", "List waiting tasks by queue; move and cancel them.")

StageName = Annotated[str, typer.Argument(help="Name of a stage of the job.", metavar="STAGE")]

LANES: tuple[Column[wire.Lane], ...] = (
    Column("queue", lambda lane: lane.queue),
    Column("shape", lambda lane: lane.shape),
    Column("asks", lambda lane: lane.asks),
    Column("tasks", lambda lane: lane.tasks),
    Column("head", lambda lane: f"{lane.first[0].job} {lane.first[0].stage}" if lane.first else ""),
    Column("waits", lambda lane: ago(lane.first[0].waiting_since) if lane.first else ""),
)


@lane.command("list")
def list_lanes(common: Common) -> None:
    """List waiting tasks by lane. A lane has the tasks of one queue that ask for the same resources and nodes.

    ASKS is the number of groups of waiting tasks, HEAD the job and stage that is next, WAITS how long it has waited.
    """
    answer = common.request(lambda client: client.lanes(first=1))
    if not answer.ready:
        print_text(
            "fairlead: the partition is not ready, so no task starts yet; see `fairlead partition list`", err=True
        )
    common.table(answer.lanes, LANES)


@lane.command()
def front(job: LiveJobName, *, stage: StageName = "main", common: Common) -> None:
    """Move the waiting tasks of a stage to the front of their lane."""
    common.change(lambda client: client.bring_to_front(job, stage), f"{job} {stage} is at the front")


@lane.command()
def cancel(job: LiveJobName, *, stage: StageName = "main", common: Common) -> None:
    """Cancel the waiting tasks of a stage. Its running tasks continue."""
    common.change(lambda client: client.cancel_ask(job, stage), f"cancelled the waiting tasks of {job} {stage}")


@lane.command()
def reset(
    path: QueuePath,
    job: LiveJobName,
    *,
    give_up: Annotated[
        bool, typer.Option("--cancel", help="Cancel the waiting tasks instead of moving them to the end.")
    ] = False,
    common: Common,
) -> None:
    """Move a job to the end of its lane if it is first there and blocks the jobs behind it."""
    common.change(lambda client: client.reset_lane(path, job, give_up), f"{job} is at the end of its lane")
