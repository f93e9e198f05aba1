"""`fairlead config`: check a configuration file, compare it with a server's, apply it, and convert those of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli.options import AsJson, open_client
from fairlead.cli.output import calls_server, fail, need_file, print_json, print_text

if TYPE_CHECKING:
    from fairlead.wire import api as wire

app = typer.Typer(name="config", help="Check, compare and apply the configuration.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="Configuration file, such as fairlead.yaml.")]


@app.command()
def check(
    file: File,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all defaults filled in.")] = False,
) -> None:
    """Check a configuration file without a server.

    The settings that differ from their defaults are printed as they are understood. Exit code: 0 if the file is in
    order, 1 if it is not, 2 if there is no such file.
    """
    need_file(file)
    import yaml

    from fairlead.app import Failed, checked_config
    from fairlead.cli.documents import Unreadable, read_document

    problem: dict[str, Any] = {"ok": False, "file": str(file)}
    try:
        document = read_document(file)
        shown = checked_config({} if document is None else document, defaults=as_json)
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


imports = typer.Typer(name="import", help="Convert configurations of other schedulers.", no_args_is_help=True)
app.add_typer(imports)


@imports.command()
def yunikorn(
    file: Annotated[Path, typer.Argument(help="queues.yaml of YuniKorn, or its ConfigMap.")],
) -> None:
    """Convert the queues of YuniKorn and print a configuration for Fairlead.

    Each field that has no counterpart is named in a warning.
    """
    import yaml

    from fairlead.app import Failed, checked_config
    from fairlead.kubernetes.yunikorn import NotConverted, convert

    try:
        document, warnings = convert(document_of(file))
        checked_config(document, defaults=False)
    except (NotConverted, Failed, yaml.YAMLError) as problem:
        fail(f"{file}: {problem}")
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, default_flow_style=None), nl=False)


@app.command()
@calls_server
def get(
    defaults: Annotated[bool, typer.Option("--defaults", help="Also show settings that have their default.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the configuration of the server, as a file for `config apply`."""
    import yaml

    from fairlead.client.calls import API, Call
    from fairlead.wire import api as wire

    with open_client() as client:
        config = client.send(Call(wire.Config, "GET", f"{API}/config", defaults=defaults))
    if as_json:
        print_json(config)
    else:
        shown = {"partitions": config.partitions}
        typer.echo(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, default_flow_style=None), nl=False)


@app.command()
@calls_server
def diff(file: File, as_json: AsJson = False) -> None:
    """Show what `config apply` would change. Nothing is changed."""
    _send("POST", "config/validate", file, as_json)


@app.command()
@calls_server
def apply(file: File, as_json: AsJson = False) -> None:
    """Replace the configuration of the server by a file, and show what changed.

    If a part of the file is refused, nothing is changed.
    """
    _send("PUT", "config", file, as_json)


def _send(method: str, path: str, file: Path, as_json: bool) -> None:
    from fairlead.client.calls import API, Call
    from fairlead.wire import api as wire

    document = document_of(file)
    with open_client() as client:
        show_differences(client.send(Call(wire.Applied, method, f"{API}/{path}", document)), as_json)


def document_of(file: Path) -> dict[str, Any]:
    """Return the document in a file. Exit with an error if it cannot be read or is not a mapping."""
    from fairlead.cli.documents import Unreadable, read_document

    need_file(file)
    try:
        document = read_document(file)
    except Unreadable as problem:
        fail(f"{file}{f':{problem.line}' if problem.line else ''}: {problem.problem}")
    if not isinstance(document, dict | None):
        fail(f"{file}: not a mapping; write it as key: value pairs")
    return document or {}


def show_differences(applied: wire.Applied, as_json: bool) -> None:
    """Print the settings that changed, one per line, or as JSON."""
    if as_json:
        print_json(applied)
        return
    for difference in applied.differences:
        print_text(_line(difference))
    if not applied.differences:
        typer.echo("no difference")


def _line(difference: wire.Difference) -> str:
    if difference.what != "setting" and difference.after is None:
        return f"{difference.key}: {difference.what} removed"
    if difference.what != "setting" and difference.before is None:
        return f"{difference.key}: {difference.what} added, {_text(difference.after)}"
    return f"{difference.key}: {_text(difference.before)} -> {_text(difference.after)}"


def _text(value: object) -> str:
    return "(default)" if value is None else json.dumps(value, ensure_ascii=False)
