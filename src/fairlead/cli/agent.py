"""`fairlead agent`: this machine runs tasks for a server."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from time import strftime
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer


def agent(
    join: Annotated[str, typer.Option(help="The server, such as https://host:7070.", metavar="URL")],
    name: Annotated[str, typer.Option(help="The name of this node; else the machine's.")] = "",
    partition: Annotated[str, typer.Option(help="The partition to join; else the only one, or default.")] = "",
    pool: Annotated[str, typer.Option(help="The pool that this node belongs to.")] = "",
    label: Annotated[
        list[str] | None, typer.Option(help="A label for selectors, as key=value; may be repeated.")
    ] = None,
    taint: Annotated[list[str] | None, typer.Option(help="A taint that tasks must tolerate; may be repeated.")] = None,
    resource: Annotated[
        list[str] | None,
        typer.Option(help="What this node offers, as cpu=4 or memory=8Gi, instead of what it has; may be repeated."),
    ] = None,
    address: Annotated[str, typer.Option(help="Where other nodes reach this one; else as the server sees it.")] = "",
    directory: Annotated[Path | None, typer.Option(help="Where state and logs of tasks are kept.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token; else the variable FAIRLEAD_TOKEN.")
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="Certificates to trust, instead of the machine's.")] = None,
) -> None:
    """Run tasks for a server on this machine, until interrupted. Tasks go on then, and the next agent finds them."""
    from fairlead.agent.main import Agent, Settings, Taken
    from fairlead.agent.session import Refused

    parts = urlsplit(join)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise typer.BadParameter(
            f"{join!r} is not the address of a server, such as https://host:7070", param_hint="--join"
        )
    token = token_file.read_text().strip() if token_file is not None else os.environ.get("FAIRLEAD_TOKEN", "")
    settings = Settings(
        join=join,
        directory=directory or _data() / "agent",
        token=token,
        name=name,
        partition=partition,
        pool=pool,
        labels=_pairs(label, "--label"),
        taints=tuple(taint or ()),
        resources=dict(_pairs(resource, "--resource")),
        address=address,
        authority=ca,
    )
    import uvloop

    async def work() -> None:
        await Agent(settings, _say).run()

    try:
        uvloop.run(work())
    except KeyboardInterrupt:
        _say("stopped", {"tasks": "they go on; start the agent again to find them"})
    except (Refused, Taken) as problem:
        typer.echo(f"fairlead: error: {problem}", err=True)
        raise typer.Exit(1) from None


def _data() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "fairlead"


def _pairs(given: list[str] | None, option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for each in given or ():
        key, found, value = each.partition("=")
        if not found or not key:
            raise typer.BadParameter(f"{each!r} is not key=value", param_hint=option)
        pairs[key] = value
    return pairs


def _say(event: str, fields: dict[str, Any]) -> None:
    particulars = " ".join(f"{name}={value}" for name, value in fields.items())
    with suppress(OSError):  # the disk of the log may be full, and the agent works on
        print(f"{strftime('%Y-%m-%d %H:%M:%S')} {event} {particulars}", file=sys.stderr, flush=True)
