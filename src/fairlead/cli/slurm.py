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


@slurm.command()
def restd(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any.", min=0, max=65535)] = 6820,
) -> None:
    """Serve the paths of slurmrestd with which Airflow and Prefect submit, list and cancel jobs.

    Callers send the token that `scontrol token` prints. There is no TLS: on other machines, put a proxy in front.
    """
    from fairlead.client.endpoint import NotFound, find_endpoint
    from fairlead.slurm.restd import serve

    try:
        url = find_endpoint().url
    except NotFound as problem:
        fail(str(problem))
    try:
        serve(host, port, url, lambda bound: print_text(f"slurmrestd of {url} at http://{host}:{bound}"))
    except KeyboardInterrupt:
        return
    except OSError as problem:
        fail(f"{host}:{port}: {problem.strerror}")
