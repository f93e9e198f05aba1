"""`fairlead config`: what becomes of a configuration file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fairlead.cli.output import fail, need_file

app = typer.Typer(name="config", help="Check configuration files.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """Check configuration files."""


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
