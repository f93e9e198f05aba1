"""`fairlead db copy`, `backup` and `restore`: copy, back up and restore all data of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairlead import __version__
from fairlead.cli.option_values import moment, wrong
from fairlead.cli.options import Output
from fairlead.cli.progress import Bar
from fairlead.cli.typer_commands import Group, argument, option

db = Group("db", "Copy the data of a server to another place.")

PLACE = "a data directory, or a database such as postgresql://host/fairlead"


class CopyOptions(Output):
    source: str = argument(f"Where the data are: {PLACE}.", required=True, metavar="FROM")
    target: str = argument(f"Where to copy them; this place must be empty: {PLACE}.", required=True, metavar="TO")
    secrets_key: Path | None = option(
        "File with the key that encrypts secrets, used for both places. By default a file beside the data directory."
    )


@db.command()
def copy(options: CopyOptions) -> None:
    """Copy all data of a server into an empty place, and compare the copy.

    Use it to move a server from files to a database, or back. Journal, history, tokens, secrets and keys are copied.
    Output of tasks is not copied: it stays where --outputs of the server puts it. All servers of both places must be
    stopped. If a copy fails, remove what it has written and start again.
    """
    from fairlead.server.backup import Failed, copy_data

    copied: dict[str, int] = {}

    def told(what: str, count: int) -> None:
        copied[what] = count
        if not options.as_json:
            typer.echo(f"{what}: {count}")

    try:
        key = copy_data(options.source, options.target, options.secrets_key, told)
    except Failed as problem:
        options.fail(str(problem))
    done = f"copied, and equal to the original; servers need the key file {key}"
    options.show({"ok": True, "copied": copied, "secrets_key": str(key)}, [done])


SecretsKey = Annotated[
    Path | None,
    typer.Option(help="File with the key that encrypts secrets. By default a file beside the data directory."),
]


class BackupOptions(Output):
    source: str = argument(f"Where the data of the server are: {PLACE}.", required=True, metavar="FROM")
    target: Path = argument("Folder for the backup; it must not exist yet.", required=True, metavar="FOLDER")
    secrets_key: SecretsKey = None


def backup(options: BackupOptions) -> None:
    """Back up all data of a server into a new folder, while it runs.

    The backup has journal, history, tokens, secrets and keys. Secrets and the server's key are encrypted in it, so a
    restore needs the file of --secrets-key too: keep a copy of it in another place. Output of tasks is not in the
    backup: it stays where --outputs of the server puts it.
    """
    from fairlead.server.backup import Failed, back_up, shown_time

    copied: dict[str, int] = {}
    try:
        with Bar() as bar:
            made = back_up(
                options.source, options.target, options.secrets_key, __version__, copied.__setitem__, bar.show
            )
    except Failed as problem:
        options.fail(str(problem))
    lines = [
        f"partition {name}: can be restored to revisions {span.first} to {span.last}, "
        f"{shown_time(span.first_time)} to {shown_time(span.last_time)}"
        for name, span in made.partitions.items()
    ]
    lines.append(f"{options.target}: {sum(copied.values())} rows, compared with the original")
    spans = {name: span._asdict() for name, span in made.partitions.items()}
    options.show({"ok": True, "copied": copied, "partitions": spans}, lines)


class RestoreOptions(Output):
    source: Path = argument("Folder of a backup.", required=True, metavar="FOLDER")
    target: str = argument(f"Where to restore the data: {PLACE}.", required=True, metavar="TO")
    time: str = option("Restore the state at this time, such as 2026-11-30T12:00, or an age such as 2h.")
    revision: int = option(
        "Restore the state after this record in the journal of --partition.", default=0, metavar="NUMBER", min=0
    )
    partition: str = option("Partition whose records --revision counts.", default="default")
    replace: bool = option("Replace data that exist at TO. They are kept under another name.")
    secrets_key: SecretsKey = None


def restore(options: RestoreOptions) -> None:
    """Restore a backup into a data directory or a database.

    By default the latest state of the backup is restored. All servers that use TO must be stopped. Agents then connect
    to the restored servers, and their tasks keep running. A node with tasks that the restored state does not know is
    drained and reported; these tasks keep running too.
    """
    from fairlead.server.backup import Failed, Point, keeps_token, restore_backup, shown_time

    if options.time and options.revision:
        raise wrong("--revision", "name a time or a revision, not both")
    since = moment(options.time, "--time")
    point = None
    if since is not None or options.revision:
        point = Point(
            0 if since is None else int(since * 1_000_000),
            options.partition if options.revision else "",
            options.revision,
        )
    copied: dict[str, int] = {}
    try:
        with Bar() as bar:
            spans, kept = restore_backup(
                options.source,
                options.target,
                options.secrets_key,
                point,
                options.replace,
                copied.__setitem__,
                bar.show,
            )
    except Failed as problem:
        options.fail(str(problem))
    same_token = keeps_token(options.target)
    lines = [
        f"partition {name}: restored to revision {span.last}, {shown_time(span.last_time)}"
        for name, span in spans.items()
    ]
    if kept:
        lines.append(f"the replaced data are kept in {kept}")
    if not same_token:
        where = "its data directory" if "://" in options.target else options.target
        lines.append(
            f"the administrator's token changes: the next start of the server writes a new one to the file token in "
            f"{where}; other tokens are those of the backup"
        )
    partitions = {name: span._asdict() for name, span in spans.items()}
    answer = {"ok": True, "copied": copied, "partitions": partitions, "replaced": kept, "token_kept": same_token}
    options.show(answer, lines)
