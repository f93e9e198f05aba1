"""`fairlead manager`: list and remove resource managers."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.options import AsJson, Partition, Yes, open_client
from fairlead.cli.output import ago, calls_server, print_json, print_list, print_text

manager = typer.Typer(
    name="manager",
    help="List and remove resource managers: outside schedulers with nodes and jobs of their own.",
    no_args_is_help=True,
)


@manager.command("list")
@calls_server
def list_managers(partition: Partition = "", as_json: AsJson = False) -> None:
    """List resource managers. REPORTED says whether one has sent its state since it registered."""
    with open_client(partition) as client:
        managers = client.managers()
    print_list(
        managers,
        as_json,
        ("MANAGER", "REGISTERED", "REPORTED", "NODES", "JOBS"),
        lambda entry: (entry.name, ago(entry.registered), "yes" if entry.reported else "no", entry.nodes, entry.jobs),
    )


@manager.command("remove")
@calls_server
def remove_manager(
    name: Annotated[str, typer.Argument(help="Name of a resource manager.", metavar="MANAGER")],
    yes: Yes = False,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Remove a resource manager for good: kill its jobs and remove its nodes at once."""
    with open_client(partition) as client:
        if not yes and any(entry.name == name for entry in client.managers()):
            typer.confirm(f"Kill all jobs of {name} and remove its nodes?", abort=True)
        note = client.remove_manager(name)
    if as_json:
        print_json({"note": note})
    else:
        print_text(note or f"{name} is removed")
