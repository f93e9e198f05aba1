"""The environment that a job takes along from the shell of its submission: variables, files, and an active venv."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from fairlead.cli.input_files import need_file
from fairlead.cli.option_values import wrong

ENVIRONMENTS = ("VIRTUAL_ENV", "CONDA_PREFIX")
"""Variables that name the folder of an active Python environment."""
LEFT = ("FAIRLEAD_", "SSH_", "XDG_", "DBUS_", "DISPLAY", "WAYLAND_", "TERM", "PWD", "OLDPWD", "SHLVL", "_")
"""Variables, and beginnings of names, that `--export all` leaves out: they describe the shell, not the work."""
PYTHON = re.compile(r"python[0-9.]*")
LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")


def environment_of(
    here: Mapping[str, str],
    *,
    given: Sequence[str],
    files: Sequence[Path],
    export: str | None,
    command: Sequence[str],
    local: bool,
    follow: bool,
) -> dict[str, str]:
    """Return the variables of a job. `local` is True if its server is on this machine, `follow` if its output is shown.

    Later sources replace earlier ones: the active Python environment, `--export`, files, single variables.
    """
    variables: dict[str, str] = {}
    if export is None and command:
        variables |= _active(here, command, local)
    elif export not in (None, "none"):
        variables |= _exported(here, str(export))
    for file in files:
        variables |= read_variables(file)
    named: set[str] = set()
    for text in given:
        name, equals, value = text.partition("=")
        if name in named:
            raise wrong("--env", f"{name} is given twice; drop one of them")
        named.add(name)
        if not equals and name not in here:
            raise wrong("--env", f"the variable {name} is not set here; write {name}=value")
        variables[name] = value if equals else here[name]
    if follow and command and PYTHON.fullmatch(Path(command[0]).name):
        variables.setdefault("PYTHONUNBUFFERED", "1")
    return variables


def _active(here: Mapping[str, str], command: Sequence[str], local: bool) -> dict[str, str]:
    """Return the variables of the active Python environment. Print a warning if the nodes may not have it."""
    name = next((name for name in ENVIRONMENTS if here.get(name)), "")
    if not name:
        return {}
    folder = here[name]
    if local:
        return {variable: here[variable] for variable in (name, "PATH", "CONDA_DEFAULT_ENV") if variable in here}
    found = shutil.which(command[0], path=f"{folder}/bin")
    if found is not None:
        typer.echo(
            f"fairlead: warning: the tasks do not use {command[0]} of {folder}, which is active here, but may be "
            f"missing on the nodes; --export PATH,{name} uses it there, --export none ends this warning",
            err=True,
        )
    return {}


def _exported(here: Mapping[str, str], names: str) -> dict[str, str]:
    if names == "all":
        return {name: value for name, value in here.items() if not name.startswith(LEFT) and name.isidentifier()}
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    for name in chosen:
        if name not in here:
            raise wrong("--export", f"the variable {name} is not set here; name others, or write all or none")
    return {name: here[name] for name in chosen}


def read_variables(file: Path) -> dict[str, str]:
    """Return the variables of a file with lines NAME=value, as `.env` files have them."""
    need_file(file)
    variables: dict[str, str] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = LINE.fullmatch(text)
        if match is None:
            raise wrong("--env-file", f"{file}:{number}: {text[:40]!r} is not NAME=value; correct the line")
        name, value = match.groups()
        if value[:1] in ("'", '"') and value[-1:] == value[:1] and len(value) > 1:
            value = value[1:-1]
        else:
            value = value.partition(" #")[0].rstrip()
        variables[name] = value
    return variables
