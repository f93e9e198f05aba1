"""Writes the commands into a directory for the PATH."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from fairlead.slurm.commands import NAMES

MARK = "fairlead.slurm.commands"
PROGRAM = """{first}
import sys
sys.path += {folders!r}
from {mark} import run
run({name!r})
"""
ANY_PATH = """#!/bin/sh
'''exec' {python} -IS "$0" "$@"
' '''"""
"""The first lines of a Python program whose interpreter has a path that `#!` cannot name."""


class Occupied(Exception):
    """Raised if another program has the name of a command in the directory."""


def install(directory: Path) -> list[Path]:
    """Write all commands into a directory, and return their files. Raise `Occupied` if one is another program.

    The files name the interpreter of this program and the folders of its packages, so they run with these, whatever
    environment calls them. `-S` leaves the search for packages out, which takes as long as the interpreter's start.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = [directory / name for name in NAMES]
    for file in files:
        if (file.exists() or file.is_symlink()) and not _is_ours(file):
            raise Occupied(f"{file} is another program; choose a directory of its own for Fairlead's commands")
    for file in files:
        new = file.with_name(f".{file.name}.{os.getpid()}")
        new.write_text(PROGRAM.format(first=_first_lines(), mark=MARK, name=file.name, folders=_folders()))
        new.chmod(0o755)
        new.replace(file)
    return files


def _first_lines() -> str:
    plain = f"#!{sys.executable} -IS"
    return (
        plain if len(plain) < 128 and " " not in sys.executable else ANY_PATH.format(python=shlex.quote(sys.executable))
    )


def _folders() -> list[str]:
    """Return the folders of this package and of the others, which the interpreter does not find by itself."""
    own = str(Path(__file__).parents[2])
    return [own, *[path for path in sys.path if path.endswith(("site-packages", "dist-packages")) and path != own]]


def _is_ours(file: Path) -> bool:
    try:
        return file.is_file() and MARK in file.read_text(errors="replace")[:1000]
    except OSError:
        return False
