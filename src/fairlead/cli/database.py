"""`fairlead db copy`, `backup` and `restore`: all data of a server in another place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairlead import __version__
from fairlead.cli.journal import Bar
from fairlead.cli.option_values import moment, wrong
from fairlead.cli.options import Output
from fairlead.cli.typer_commands import Group

db = Group("db", "Copy the data of a server to another place.")

PLACE = "a data directory, or a database such as postgresql://host/fairlead"


@db.callback()
def root() -> None:
    """Copy the data of a server to another place."""


@db.command()
def copy(
    source: Annotated[str, typer.Argument(help=f"Where the data are: {PLACE}.", metavar="FROM")],
    target: Annotated[str, typer.Argument(help=f"Where the copy goes, an empty place: {PLACE}.", metavar="TO")],
    *,
    secrets_key: Annotated[
        Path | None,
        typer.Option(
            help="File with the key that encrypts secrets, for both places. By default beside the data directory."
        ),
    ] = None,
    output: Output,
) -> None:
    """Copy all data of a server into an empty place, and compare the copy.

    This is how a server moves from files to a database, or back. Journal, history, tokens, secrets and keys are copied.
    Output is not: it stays in the place of --outputs. All servers of both places must be stopped. If a copy fails,
    remove it and begin anew.
    """
    from fairlead.server.backup import Failed, copy_data

    copied: dict[str, int] = {}

    def told(what: str, count: int) -> None:
        copied[what] = count
        if not output.as_json:
            typer.echo(f"{what}: {count}")

    try:
        key = copy_data(source, target, secrets_key, told)
    except Failed as problem:
        output.fail(str(problem))
    done = f"copied, and equal to the original; servers need the key file {key}"
    output.show({"ok": True, "copied": copied, "secrets_key": str(key)}, [done])


SecretsKey = Annotated[
    Path | None, typer.Option(help="File with the key that encrypts secrets. By default beside the data directory.")
]


def backup(
    source: Annotated[str, typer.Argument(help=f"Where the data of the server are: {PLACE}.", metavar="FROM")],
    target: Annotated[Path, typer.Argument(help="Folder for the backup, which does not exist yet.", metavar="FOLDER")],
    *,
    secrets_key: SecretsKey = None,
    output: Output,
) -> None:
    """Back up all data of a server into a new folder, while it runs.

    The backup has journal, history, tokens, secrets and keys. Secrets and the server's key are encrypted in it: keep
    the file of --secrets-key too, in another place. Output is not in it: it stays in the place of --outputs.
    """
    from fairlead.server.backup import Failed, back_up, shown_time

    copied: dict[str, int] = {}
    try:
        with Bar() as bar:
            made = back_up(source, target, secrets_key, __version__, copied.__setitem__, bar.show)
    except Failed as problem:
        output.fail(str(problem))
    lines = [
        f"partition {name}: can be restored to revisions {span.first} to {span.last}, "
        f"{shown_time(span.first_time)} to {shown_time(span.last_time)}"
        for name, span in made.partitions.items()
    ]
    lines.append(f"{target}: {sum(copied.values())} rows, compared with the original")
    spans = {name: span._asdict() for name, span in made.partitions.items()}
    output.show({"ok": True, "copied": copied, "partitions": spans}, lines)


def restore(
    source: Annotated[Path, typer.Argument(help="Folder of a backup.", metavar="FOLDER")],
    target: Annotated[str, typer.Argument(help=f"Where the data go: {PLACE}.", metavar="TO")],
    *,
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
    output: Output,
) -> None:
    """Restore a backup into a data directory or a database.

    By default the latest state of the backup is restored. All servers of the place must be stopped. Agents join the
    restored servers and keep their tasks. Tasks that the restored state does not know go on; their nodes are drained
    and reported.
    """
    from fairlead.server.backup import Failed, Point, keeps_token, restore_backup, shown_time

    if time and revision:
        raise wrong("--revision", "name a time or a revision, not both")
    since = moment(time, "--time")
    point = None
    if since is not None or revision:
        point = Point(0 if since is None else int(since * 1_000_000), partition if revision else "", revision)
    copied: dict[str, int] = {}
    try:
        with Bar() as bar:
            spans, kept = restore_backup(source, target, secrets_key, point, replace, copied.__setitem__, bar.show)
    except Failed as problem:
        output.fail(str(problem))
    same_token = keeps_token(target)
    lines = [
        f"partition {name}: restored to revision {span.last}, {shown_time(span.last_time)}"
        for name, span in spans.items()
    ]
    if kept:
        lines.append(f"the data from before are kept in {kept}")
    if not same_token:
        where = "its data directory" if "://" in target else target
        lines.append(
            f"the administrator's token changes: the next start of the server writes a new one to the file token in "
            f"{where}; other tokens are those of the backup"
        )
    partitions = {name: span._asdict() for name, span in spans.items()}
    answer = {"ok": True, "copied": copied, "partitions": partitions, "replaced": kept, "token_kept": same_token}
    output.show(answer, lines)
