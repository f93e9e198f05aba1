"""`fairlead partition` and `fairlead ready`: partitions, and whether they place tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import completion
from fairlead.cli.config import confirm_losses, show_differences
from fairlead.cli.input_files import document_of
from fairlead.cli.options import ClusterWide, Yes
from fairlead.cli.output import Column, confirm
from fairlead.cli.typer_commands import Group

if TYPE_CHECKING:
    from fairlead.wire import api as wire

partition = Group("partition", "List, add, change and remove partitions.")

PartitionName = Annotated[
    str, typer.Argument(help="Name of a partition.", metavar="PARTITION", autocompletion=completion.partitions)
]


def _is_ready(partition: wire.Partition) -> str:
    if partition.ready is None:
        return f"led by {partition.leader or 'no server'}"
    return "yes" if partition.ready else f"waits for {', '.join(partition.waiting_for)}"


PARTITIONS: tuple[Column[wire.Partition], ...] = (
    Column("partition", lambda partition: partition.name),
    Column("ready", _is_ready),
    Column("nodes", lambda partition: partition.nodes),
    Column("jobs", lambda partition: partition.jobs),
)


@partition.command("list")
def list_partitions(common: ClusterWide) -> None:
    """List partitions: whether they place tasks yet, and the number of their nodes and jobs."""
    from fairlead.wire import operations as op

    common.table(common.request(op.Partitions()).partitions, PARTITIONS)


@partition.command("set")
def set_partition(
    name: PartitionName,
    *,
    file: Annotated[
        Path | None,
        typer.Argument(help="YAML file with its settings, as below `partitions: NAME:` in a configuration."),
    ] = None,
    yes: Yes = False,
    common: ClusterWide,
) -> None:
    """Add a partition, or replace the settings of one. A confirmation is asked for if a pool with nodes is removed."""
    from fairlead.wire import operations as op

    document: Any = {} if file is None else document_of(file)
    others = common.request(op.Config()).partitions
    confirm_losses(common, {"partitions": {**others, name: document}}, yes)
    show_differences(common, common.request(op.SetPartition(partition=name, document=document)))


@partition.command("remove")
def remove_partition(name: PartitionName, *, yes: Yes = False, common: ClusterWide) -> None:
    """Remove a partition: kill its jobs and remove its nodes at once."""
    from fairlead.wire import operations as op

    confirm(f"Kill all jobs of {name} and remove its nodes?", yes)
    show_differences(common, common.request(op.RemovePartition(partition=name)))


def ready(*, name: PartitionName = "default", common: ClusterWide) -> None:
    """Place tasks at once after a start of the server.

    Otherwise a partition waits, at most for the setting `ready_after`, until the nodes and resource managers that it
    knows are back.
    """
    from fairlead.wire import operations as op

    common.change(op.MarkReady(partition=name), f"{name} is ready")
