"""`fairlead db copy`, `backup` and `restore`: all data of a server in another place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fairlead import __version__
from fairlead.cli.journal import Bar
from fairlead.cli.output import fail
from fairlead.cli.past import moment

app = typer.Typer(name="db", help="Copy the data of a server to another place.", no_args_is_help=True)

PLACE = "a data directory, or a database such as postgresql://host/fairlead"


@app.callback()
def root() -> None:
    """Copy the data of a server to another place."""


@app.command()
def copy(
    source: Annotated[str, typer.Argument(help=f"Where the data are: {PLACE}.", metavar="FROM")],
    target: Annotated[str, typer.Argument(help=f"Where the copy goes, an empty place: {PLACE}.", metavar="TO")],
    secrets_key: Annotated[
        Path | None,
        typer.Option(
            help="File with the key that encrypts secrets, for both places. By default beside the data directory."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Copy all data of a server into an empty place, and compare the copy.

    This is how a server moves from files to a database, or back. Journal, history, tokens, secrets and keys are copied.
    Output is not: it stays in the place of --outputs. All servers of both places must be stopped. If a copy fails,
    remove it and begin anew.
    """
    from fairlead.backup import Failed, copy_data

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


SecretsKey = Annotated[
    Path | None, typer.Option(help="File with the key that encrypts secrets. By default beside the data directory.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def backup(
    source: Annotated[str, typer.Argument(help=f"Where the data of the server are: {PLACE}.", metavar="FROM")],
    target: Annotated[Path, typer.Argument(help="Folder for the backup, which does not exist yet.", metavar="FOLDER")],
    secrets_key: SecretsKey = None,
    as_json: AsJson = False,
) -> None:
    """Back up all data of a server into a new folder, while it runs.

    The backup has journal, history, tokens, secrets and keys. Secrets and the server's key are encrypted in it: keep
    the file of --secrets-key too, in another place. Output is not in it: it stays in the place of --outputs.
    """
    from fairlead.backup import Failed, back_up, shown_time

    copied: dict[str, int] = {}
    try:
        with Bar() as bar:
            made = back_up(source, target, secrets_key, __version__, copied.__setitem__, bar.show)
    except Failed as problem:
        fail(str(problem), as_json and {"ok": False, "problem": str(problem)})
    spans = {name: span._asdict() for name, span in made.partitions.items()}
    if as_json:
        typer.echo(json.dumps({"ok": True, "copied": copied, "partitions": spans}))
        return
    for name, span in made.partitions.items():
        typer.echo(
            f"partition {name}: can be restored to revisions {span.first} to {span.last}, "
            f"{shown_time(span.first_time)} to {shown_time(span.last_time)}"
        )
    typer.echo(f"{target}: {sum(copied.values())} rows, compared with the original")


def restore(
    source: Annotated[Path, typer.Argument(help="Folder of a backup.", metavar="FOLDER")],
    target: Annotated[str, typer.Argument(help=f"Where the data go: {PLACE}.", metavar="TO")],
    time: Annotated[
        str,
        typer.Option(help="Restore the state at this time, such as 2026-11-30T12:00, or an age such as 2h."),
    ] = "",
    revision: Annotated[
        int,
        typer.Option(
            help="Restore the state after this record of the journal of --partition.", metavar="NUMBER", min=0
        ),
    ] = 0,
    partition: Annotated[str, typer.Option(help="Partition that --revision counts in.")] = "default",
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace data that are there already. They are kept under another name.")
    ] = False,
    secrets_key: SecretsKey = None,
    as_json: AsJson = False,
) -> None:
    """Restore a backup into a data directory or a database.

    By default the latest state of the backup is restored. All servers of the place must be stopped. Agents join the
    restored servers and keep their tasks. Tasks that the restored state does not know go on; their nodes are drained
    and reported.
    """
    from fairlead.backup import Failed, Point, keeps_token, restore_backup, shown_time

    if time and revision:
        raise typer.BadParameter("name a time or a revision, not both", param_hint="--revision")
    since = moment(time, "--time")
    point = None
    if since is not None or revision:
        point = Point(0 if since is None else int(since * 1_000_000), partition if revision else "", revision)
    copied: dict[str, int] = {}
    try:
        with Bar() as bar:
            spans, kept = restore_backup(source, target, secrets_key, point, replace, copied.__setitem__, bar.show)
    except Failed as problem:
        fail(str(problem), as_json and {"ok": False, "problem": str(problem)})
    same_token = keeps_token(target)
    if as_json:
        partitions = {name: span._asdict() for name, span in spans.items()}
        answer = {"ok": True, "copied": copied, "partitions": partitions, "replaced": kept, "token_kept": same_token}
        typer.echo(json.dumps(answer))
        return
    for name, span in spans.items():
        typer.echo(f"partition {name}: restored to revision {span.last}, {shown_time(span.last_time)}")
    if kept:
        typer.echo(f"the data from before are kept in {kept}")
    if not same_token:
        where = "its data directory" if "://" in target else target
        typer.echo(
            f"the administrator's token changes: the next start of the server writes a new one to the file token in "
            f"{where}; other tokens are those of the backup"
        )
