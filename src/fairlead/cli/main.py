"""The root of the command line: the app, its global options and the first commands.

Commands import the packages they need inside their function, so that `--help` stays fast.
Results go to stdout, errors to stderr; `cli/output.py` has the exit codes.
"""

import sys
from collections.abc import Callable, Sequence
from copy import copy
from typing import Annotated

import typer

from fairlead import __version__
from fairlead.cli import (
    agent,
    bench,
    cluster,
    config,
    database,
    future,
    jobs,
    journal,
    managers,
    past,
    pools,
    results,
    serving,
    top,
    watch,
)
from fairlead.cli.kubernetes import kubernetes
from fairlead.cli.simulate import simulate

app = typer.Typer(
    name="fairlead",
    help="Share a fleet of machines fairly among people and jobs.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
app.add_typer(config.app)
app.add_typer(journal.app)
app.add_typer(database.app)
app.command()(serving.up)
app.command()(serving.down)
app.add_typer(serving.server_group)
app.command()(database.backup)
app.command()(database.restore)
app.command()(simulate)
app.command()(agent.agent)
app.command()(kubernetes)
# Words after the program belong to the program: `fairlead run ls -l` runs `ls -l`.
app.command(context_settings={"allow_interspersed_args": False})(jobs.submit)
app.command(context_settings={"allow_interspersed_args": False})(jobs.run)
for command in (
    jobs.ps,
    jobs.show,
    jobs.logs,
    results.results,
    jobs.kill,
    jobs.hold,
    jobs.release,
    jobs.requeue,
    jobs.scale,
    jobs.priority,
    jobs.wait,
    jobs.explain,
    future.eta,
    future.story,
    future.whatif,
    past.history,
    past.usage,
    future.export_trace,
    cluster.ready,
    top.top,
    watch.watch,
    bench.bench,
):
    app.command()(command)
for group in (*cluster.GROUPS, pools.pool, managers.manager):
    app.add_typer(group)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fairlead {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Share a fleet of machines fairly among people and jobs."""


@app.command()
def demo() -> None:
    """Show a small cluster at work, on a virtual clock.

    The real scheduler runs against virtual nodes. Nothing is started on this machine and nothing is written.
    """
    from fairlead.demo import run

    run()


def narrow_app(words: Sequence[str]) -> typer.Typer:
    """Return the app with only the called command, or the whole app if no command is called.

    Building all commands takes longer than running most of them.
    """
    called = words[0] if words else ""
    commands = [entry for entry in app.registered_commands if called == (entry.name or _name_of(entry.callback))]
    groups = [
        entry for entry in app.registered_groups if entry.typer_instance and called == entry.typer_instance.info.name
    ]
    if not commands and not groups:
        return app
    narrow = copy(app)
    narrow.registered_commands, narrow.registered_groups = commands, groups
    return narrow


def _name_of(command: Callable[..., object] | None) -> str:
    return "" if command is None else command.__name__.replace("_", "-")


def main() -> None:
    """Run the command line. Print an error of the operating system as one line on stderr."""
    try:
        narrow_app(sys.argv[1:])()
    except OSError as error:
        typer.echo(f"fairlead: error: {error}", err=True)
        sys.exit(1)
