"""`fairlead partition` and `fairlead ready`: list and change partitions, and let one start tasks at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    """List partitions: whether they start tasks yet, and the number of their nodes and jobs."""
    from fairlead.wire import operations as op

    common.table(common.request(lambda client: client.send(op.Partitions())).partitions, PARTITIONS)


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
    """Add a partition, or replace the settings of one.

    If the new settings lack a pool that has nodes, the command asks for a confirmation.
    """
    document = {} if file is None else document_of(file)
    others = common.request(lambda client: client.config()).partitions
    confirm_losses(common, {"partitions": {**others, name: document}}, yes)
    show_differences(common, common.request(lambda client: client.set_partition(name, document)))


@partition.command("remove")
def remove_partition(name: PartitionName, *, yes: Yes = False, common: ClusterWide) -> None:
    """Remove a partition: kill its jobs and remove its nodes at once."""
    confirm(f"Kill all jobs of {name} and remove its nodes?", yes)
    show_differences(common, common.request(lambda client: client.remove_partition(name)))


def ready(*, name: PartitionName = "default", common: ClusterWide) -> None:
    """Let a partition start tasks at once after a start of the server.

    Without this command, it starts none until all nodes and resource managers that it knows have reported, or until
    the time `ready_after` of its configuration is over.
    """
    common.change(lambda client: client.mark_ready(name), f"{name} is ready")
