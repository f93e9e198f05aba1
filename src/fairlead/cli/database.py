"""`fairlead db`: copy all data of a server between its data directory and a PostgreSQL database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.output import fail

app = typer.Typer(name="db", help="Copy the data of a server.", no_args_is_help=True)

PLACE = "a data directory, or a database such as postgresql://host/fairlead"


@app.callback()
def root() -> None:
    """Copy the data of a server."""


@app.command()
def copy(
    source: Annotated[str, typer.Argument(help=f"The original: {PLACE}.", metavar="FROM")],
    target: Annotated[str, typer.Argument(help=f"The copy, which must be empty: {PLACE}.", metavar="TO")],
    secrets_key: Annotated[
        Path | None,
        typer.Option(help="File with the key of the secrets, of both. By default beside the data directory."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Copy journal, history, tokens, secrets and keys into an empty place, and compare the copy with the original.

    All servers of both places must be stopped. The original is not changed. Copies of logs of pool nodes are not
    copied: they are files in the folder of --outputs. If a copy fails, remove it and begin anew.
    """
    from fairlead.app import Failed, copy_data

    copied: dict[str, int] = {}

    def told(what: str, count: int) -> None:
        copied[what] = count
        if not as_json:
            typer.echo(f"{what}: {count}")

    try:
        key = copy_data(source, target, secrets_key, told)
    except Failed as problem:
        fail(str(problem), as_json and {"ok": False, "problem": str(problem)})
    if as_json:
        typer.echo(json.dumps({"ok": True, "copied": copied, "secrets_key": str(key)}))
    else:
        typer.echo(f"copied, and equal to the original; servers need the key file {key}")
