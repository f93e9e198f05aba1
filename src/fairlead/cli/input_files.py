"""Files that users name: refused with a clear line if they are missing, unreadable, or no YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from fairlead.cli.output import fail


def need_file(path: Path) -> None:
    """Exit with a usage error unless the path is a file."""
    if path.is_dir():
        problem = "is a directory; name a file in it"
    elif not path.exists():
        problem = "does not exist; check the name"
    else:
        return
    typer.echo(f"fairlead: error: {path} {problem}", err=True)
    raise typer.Exit(2)


def document_of(
    file: Path, otherwise: str = "not a mapping; write it as key: value pairs", may_be_empty: bool = True
) -> dict[str, Any]:
    """Return the mapping in a YAML file. Exit with the problem `otherwise` if it has something else.

    The file `-` is standard input.
    """
    from fairlead.cli.yaml_files import Unreadable, read_document

    if str(file) == "-":
        file = Path("/dev/stdin")
    else:
        need_file(file)
    try:
        document = read_document(file)
    except Unreadable as problem:
        fail(f"{file}{f':{problem.line}' if problem.line else ''}: {problem.problem}")
    if document is None and may_be_empty:
        return {}
    if not isinstance(document, dict):
        fail(f"{file}: {otherwise}")
    return document
