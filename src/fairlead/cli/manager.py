"""`fairlead manager`: list and remove resource managers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli.options import Common, Yes
from fairlead.cli.output import Column, ago, confirm
from fairlead.cli.typer_commands import Group

if TYPE_CHECKING:
    from fairlead.wire import api as wire

manager = Group("manager", "List and remove resource managers: outside schedulers with nodes and jobs of their own.")

MANAGERS: tuple[Column[wire.Manager], ...] = (
    Column("manager", lambda manager: manager.name),
    Column("registered", lambda manager: ago(manager.registered)),
    Column("reported", lambda manager: "yes" if manager.reported else "no"),
    Column("nodes", lambda manager: manager.nodes),
    Column("jobs", lambda manager: manager.jobs),
)


@manager.command("list")
def list_managers(common: Common) -> None:
    """List resource managers.

    REGISTERED is the time since a manager last registered. REPORTED is `yes` once it has sent its nodes and jobs.
    """
    common.table(common.request(lambda client: client.managers()), MANAGERS)


@manager.command("remove")
def remove_manager(
    name: Annotated[str, typer.Argument(help="Name of a resource manager.", metavar="MANAGER")],
    *,
    yes: Yes = False,
    common: Common,
) -> None:
    """Remove a resource manager for good: kill its jobs and remove its nodes at once."""
    if not yes and any(entry.name == name for entry in common.request(lambda client: client.managers())):
        confirm(f"Kill all jobs of {name} and remove its nodes?", yes)
    common.change(lambda client: client.remove_manager(name), f"{name} is removed")
