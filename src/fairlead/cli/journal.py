"""`fairlead journal`: check the journal, in a file or a database, for damage."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from fairlead.cli.input_files import need_file
from fairlead.cli.options import Output
from fairlead.cli.output import fail
from fairlead.cli.progress import Bar
from fairlead.cli.typer_commands import Group

journal = Group("journal", "Check the journal of a server for damage.")


@journal.command()
def verify(
    place: Annotated[
        str,
        typer.Argument(
            help="File of the journal (`journal` in a data directory), or a database such as "
            "postgresql://host/fairlead.",
            metavar="PATH",
        ),
    ],
    output: Output,
) -> None:
    """Check a whole journal: its digests, its snapshots, and the state that its records give, and the data beside it.

    One line is printed for each stream of records: one for the cluster, and one for each partition. Further lines are
    for history, tokens, keys and secrets, if they are in the same place. Nothing is written, and the server may run
    meanwhile. Exit code: 0 if all are sound, 1 if one is damaged, 2 if the file does not exist.
    """
    if not place.startswith(("postgresql://", "postgres://")):
        _need_journal(Path(place))
    from fairlead.server.failure import Failed
    from fairlead.server.verification import shown_place, verify_data

    reports: list[dict[str, Any]] = []
    problem = ""
    with Bar() as bar:
        try:
            for report in verify_data(place, bar.show):
                reports.append({name: getattr(report, name) for name in report.__struct_fields__})
                reports[-1]["time"] = _time(report.time)
                if not output.as_json:
                    _print(reports[-1])
        except Failed as failure:
            problem = failure.problem
    path = shown_place(place)
    damaged = [report["stream"] for report in reports if report["problem"]]
    if problem or damaged:
        text = problem or f"{path}: damaged: {', '.join(damaged)}"
        fail(text, output.as_json and {"ok": False, "file": str(path), "problem": problem, "streams": reports})
    if output.as_json:
        typer.echo(json.dumps({"ok": True, "file": str(path), "streams": reports}))
    elif not reports:
        typer.echo(f"{path}: sound, and empty")


def _need_journal(path: Path) -> None:
    if not path.name:
        need_file(path)  # a directory such as `.`
    if not any(path.with_name(path.name + suffix).exists() for suffix in ("-wal", "-head", "-snapshots")):
        need_file(path)  # with one of these files the path is right, and the journal itself is missing


def _print(report: dict[str, Any]) -> None:
    if report["problem"]:
        typer.echo(f"{report['stream']}: DAMAGED: {report['problem']}")
        return
    count = report["records"]
    parts = [f"{count} record{'s' * (count != 1)}"]
    if not report["digest"]:
        typer.echo(f"{report['stream']}: sound, {count} {'entry' if count == 1 else 'entries'}")
        return
    if report["last"] != count:
        parts.append(f"the last is {report['last']}")
    if report["time"]:
        parts.append(f"last cycle {report['time']}")
    if report["snapshots"]:
        parts.append(f"snapshot{'s' * (len(report['snapshots']) != 1)} {', '.join(map(str, report['snapshots']))}")
    typer.echo(f"{report['stream']}: sound, {', '.join(parts)}, digest {report['digest']}")


def _time(micros: int | None) -> str | None:
    if micros is None:
        return None
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{micros} us"
