"""Job scripts: `fairlead submit job.sh` stores the script with the job, and reads options from its #FAIRLEAD lines."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import typer
from typer.exceptions import TyperException

from fairlead.cli.job_options import JobOptions
from fairlead.cli.option_values import wrong
from fairlead.cli.output import print_text

MARK, SLURM = "#FAIRLEAD", "#SBATCH"
MOST = 100_000
"""The largest script in bytes. A word of a command can have 128 KiB."""
OF_PAIRS = ("env", "label", "secret", "resource", "selector", "grid")
"""Options of which a script and the command line may give different keys."""
SHELLS = ("sh", "bash", "dash", "ash", "ksh", "zsh")
"""Interpreters to which a script can be given with `-c` and a name."""


def read_script(job: JobOptions, context: typer.Context) -> None:
    """If the command is a job script, take options from it, and replace the command by the script itself.

    A file is a job script if it begins with `#!`, and has lines for a scheduler or cannot be executed. Options of the
    command line go before those of the script.
    """
    if not job.command or job.shell:
        return
    path, *rest = job.command
    script = _script_in(Path(path))
    if script is None:
        return
    for number, line in enumerate(script.splitlines(), 1):
        if line.startswith(MARK):
            _take(job, line.removeprefix(MARK), f"{path}:{number}", context)
    if any(line.startswith(SLURM) for line in script.splitlines()):
        print_text(
            f"fairlead: warning: {path}: its {SLURM} lines are ignored; write {MARK} lines, or submit it with "
            "sbatch of `fairlead slurm install`",
            err=True,
        )
    job.name = job.name or Path(path).stem
    first = script.splitlines()[0]
    try:
        interpreter, *words = shlex.split(first[2:])
    except ValueError:  # it is empty, or a quote is open
        raise wrong("COMMAND", f"{path}:1: {first!r} names no interpreter; write one such as #!/bin/sh") from None
    name = os.path.basename(words[-1] if os.path.basename(interpreter) == "env" and words else interpreter)
    if name in SHELLS:
        job.command = [interpreter, *words, "-c", script, path, *rest]
    elif name.startswith("python"):
        job.command = [interpreter, *words, "-c", script, *rest]
    else:
        raise wrong("COMMAND", f"{path} is a script for {name}, which cannot be stored with the job; set its run bit")


def _script_in(path: Path) -> str | None:
    """Return the text of a file that is a job script; None for other files."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:  # a program may be very large
            data = file.read(2)
            if data != b"#!":
                return None
            data += file.read(MOST)
    except OSError:
        return None
    marked = any(line.startswith((MARK.encode(), SLURM.encode())) for line in data.splitlines())
    if not marked and os.access(path, os.X_OK):
        return None
    if len(data) > MOST:
        raise wrong("COMMAND", f"{path} is larger than {MOST:,} bytes, so it cannot be stored; submit a short script")
    try:
        return data.decode()
    except UnicodeDecodeError as problem:
        raise wrong("COMMAND", f"{path}: byte {problem.start} is not UTF-8; save it as UTF-8") from None


def _take(job: JobOptions, line: str, where: str, context: typer.Context) -> None:
    """Take the options of a line that the command line does not give."""
    try:
        found = context.command.make_context(where, shlex.split(line, comments=True), parent=context.parent)
    except ValueError as problem:
        raise typer.BadParameter(f"{where}: {problem}; close the quote") from None
    except TyperException as problem:
        raise typer.BadParameter(f"{where}: {problem}") from None
    options = {name: value for name, value in found.params.items() if value not in (None, [], (), False, "")}
    if options.pop("command", None):
        raise typer.BadParameter(f"{where}: write options only; the rest of the script is the command")
    for name, value in options.items():
        source = found.get_parameter_source(name)
        if name in JobOptions.fields():
            setattr(job, name, _joined(name, value, getattr(job, name)))
        elif source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"{where}: --{name.replace('_', '-')} belongs to the command line; remove it")


def _joined(name: str, value: Any, given: Any) -> Any:
    """Return the value of an option from the script and the command line, which decides."""
    if name in OF_PAIRS and given:
        keys = {entry.partition("=")[0] for entry in given}
        return [*(entry for entry in value if entry.partition("=")[0] not in keys), *given]
    return given or value
