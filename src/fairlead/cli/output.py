"""How commands end when something is wrong: one line on stderr, or JSON on stdout, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, NoReturn

import typer


def fail(text: str, document: dict[str, Any] | Literal[False] = False) -> NoReturn:
    """End with code 1: the document on stdout if JSON is wanted, else the text on stderr."""
    if document:
        typer.echo(json.dumps(document, ensure_ascii=False))
    else:
        typer.echo(f"fairlead: error: {text}", err=True)
    raise typer.Exit(1)


def need_file(path: Path) -> None:
    """Usage: the name must be that of a file."""
    if path.is_dir():
        problem = "is a directory; name a file in it"
    elif not path.exists():
        problem = "does not exist; check the name"
    else:
        return
    typer.echo(f"fairlead: error: {path} {problem}", err=True)
    raise typer.Exit(2)
