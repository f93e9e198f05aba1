"""Options that many commands have, and the client that they ask with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fairlead.client import Client

Partition = Annotated[str, typer.Option("--partition", "-p", help="The partition; else the only one, or default.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JobName = Annotated[str, typer.Argument(help="The id of a job.", metavar="JOB")]


def ask_as(partition: str = "") -> Client:
    """The client of the server that the environment, or the data directory of this user, names."""
    from fairlead.client import Client, find_endpoint

    place = find_endpoint()
    return Client(place.url, place.token, place.authority, partition, place.insecure)


def pairs(given: list[str] | None, option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given or ():
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{each!r} is not key=value", param_hint=option)
        found[key] = value
    return found
