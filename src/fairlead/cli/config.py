"""`fairlead config`: what becomes of a configuration file, here and on a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli.options import AsJson, ask_as
from fairlead.cli.output import asking, fail, need_file, print_json, say

if TYPE_CHECKING:
    from fairlead.wire import api as wire

app = typer.Typer(name="config", help="Check, get and apply configurations.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="The file, such as fairlead.yaml.")]


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="The file, such as fairlead.yaml.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all defaults filled in.")] = False,
) -> None:
    """Read a configuration file and show how it is understood.

    Shown is what differs from the defaults. Nothing is changed anywhere.
    Exit code: 0 if it is in order, 1 if it is not, 2 if there is no such file.
    """
    need_file(file)
    import yaml

    from fairlead.app import Failed, understood
    from fairlead.cli.documents import Unreadable, read_document

    problem: dict[str, Any] = {"ok": False, "file": str(file)}
    try:
        document = read_document(file)
        shown = understood({} if document is None else document, defaults=as_json)
    except Unreadable as wrong:
        place = f"{file}:{wrong.line}" if wrong.line else str(file)
        fail(f"{place}: {wrong.problem}", as_json and {**problem, "line": wrong.line, "problem": wrong.problem})
    except Failed as wrong:
        fail(f"{file}: {wrong}", as_json and {**problem, "field": wrong.field, "problem": wrong.problem})
    if as_json:
        typer.echo(json.dumps({"ok": True, "file": str(file), **shown}, ensure_ascii=False))
        return
    count = len(shown["partitions"])
    typer.echo(f"{file}: in order, {count} partition{'s' if count != 1 else ''}; what is not shown has its default")
    typer.echo(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, default_flow_style=None), nl=False)


@app.command()
@asking
def get(
    defaults: Annotated[bool, typer.Option("--defaults", help="Also what has its default.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the configuration that the server follows, as it would be written in a file."""
    import yaml

    from fairlead.client.calls import API, Call
    from fairlead.wire import api as wire

    with ask_as() as client:
        found = client.ask(Call(wire.Config, "GET", f"{API}/config", defaults=defaults))
    if as_json:
        print_json(found)
    else:
        shown = {"partitions": found.partitions}
        typer.echo(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, default_flow_style=None), nl=False)


@app.command()
@asking
def diff(file: File, as_json: AsJson = False) -> None:
    """Show what a file would overwrite of what the server follows. Nothing is changed."""
    _send("POST", "config/validate", file, as_json)


@app.command()
@asking
def apply(file: File, as_json: AsJson = False) -> None:
    """Have the server follow a file, all of it or none, and show what it overwrote."""
    _send("PUT", "config", file, as_json)


def _send(method: str, path: str, file: Path, as_json: bool) -> None:
    from fairlead.client.calls import API, Call
    from fairlead.wire import api as wire

    document = document_of(file)
    with ask_as() as client:
        show_differences(client.ask(Call(wire.Applied, method, f"{API}/{path}", document)), as_json)


def document_of(file: Path) -> dict[str, Any]:
    """The document in a file, as far as it is one."""
    from fairlead.cli.documents import Unreadable, read_document

    need_file(file)
    try:
        document = read_document(file)
    except Unreadable as wrong:
        fail(f"{file}{f':{wrong.line}' if wrong.line else ''}: {wrong.problem}")
    if not isinstance(document, dict | None):
        fail(f"{file}: it is written as key: value pairs")
    return document or {}


def show_differences(applied: wire.Applied, as_json: bool) -> None:
    if as_json:
        print_json(applied)
        return
    for each in applied.differences:
        say(f"{each.key}: {_text(each.before)} -> {_text(each.after)}")
    if not applied.differences:
        typer.echo("no difference")


def _text(value: object) -> str:
    return "(default)" if value is None else json.dumps(value, ensure_ascii=False)
