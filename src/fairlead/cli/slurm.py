"""`fairlead slurm`: Slurm's commands for this cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.output import fail, print_text
from fairlead.cli.typer_commands import Group

slurm = Group("slurm", "Slurm's commands for this cluster.")


@slurm.command()
def install(
    directory: Annotated[Path, typer.Argument(help="A directory of its own, to put on the PATH.", metavar="DIR")],
) -> None:
    """Write sbatch, squeue and the other commands of Slurm into a directory.

    Programs in that directory are not replaced, unless they are these commands.
    """
    from fairlead.slurm.install import Occupied
    from fairlead.slurm.install import install as write

    try:
        files = write(directory.absolute())
    except Occupied as problem:
        fail(str(problem))
    print_text(f"{len(files)} commands are in {directory.absolute()}; put it first on the PATH:")
    print_text(f'  export PATH="{directory.absolute()}:$PATH"')
