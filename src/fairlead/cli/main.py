"""The root of the command line: all commands, and the options of `fairlead` itself.

Commands import the packages they need inside their function, so that `--help` stays fast.
Results go to stdout, errors to stderr; `cli/output.py` has the exit codes.
"""

import sys
from collections.abc import Callable, Sequence
from copy import copy
from inspect import cleandoc
from itertools import chain
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fairlead import __version__
from fairlead.cli import completion
from fairlead.cli.agent import agent
from fairlead.cli.bench import bench
from fairlead.cli.config import config
from fairlead.cli.database import backup, db, restore
from fairlead.cli.forecast import eta, export_trace, promises, story, whatif
from fairlead.cli.history import history, usage
from fairlead.cli.inspect import explain, ps, show
from fairlead.cli.job_actions import CHANGES, rerun
from fairlead.cli.journal import journal
from fairlead.cli.kubernetes import kubernetes
from fairlead.cli.lane import lane
from fairlead.cli.manager import manager
from fairlead.cli.mcp import mcp
from fairlead.cli.node import node
from fairlead.cli.partition import partition, ready
from fairlead.cli.pipeline import pipeline
from fairlead.cli.pool import pool
from fairlead.cli.queue import queue
from fairlead.cli.results import results
from fairlead.cli.secret import secret
from fairlead.cli.server import server
from fairlead.cli.shadow import shadow
from fairlead.cli.share import share
from fairlead.cli.simulate import simulate
from fairlead.cli.slurm import slurm
from fairlead.cli.submit import run, submit
from fairlead.cli.table import table
from fairlead.cli.task_output import logs
from fairlead.cli.terminal import attach, forward
from fairlead.cli.token import token
from fairlead.cli.top import top
from fairlead.cli.typer_commands import Group
from fairlead.cli.up import down, up
from fairlead.cli.wait import wait
from fairlead.cli.watch import watch


def demo() -> None:
    """Show the scheduler at work on a small virtual cluster.

    The real scheduler runs with virtual nodes on a virtual clock. No task is started and nothing is written.
    """
    from fairlead import demo

    demo.run()


PANELS: dict[str, tuple[Callable[..., object] | typer.Typer, ...]] = {
    "Run work": (submit, run, rerun, attach, forward, wait, logs, table, results),
    "Look": (ps, show, pipeline, explain, eta, promises, story, top, watch, history, usage),
    "Change": CHANGES,
    "Cluster": (node, pool, queue, share, lane, partition, ready, manager),
    "Administer": (
        up,
        down,
        server,
        agent,
        kubernetes,
        mcp,
        config,
        token,
        secret,
        backup,
        restore,
        db,
        journal,
        bench,
        slurm,
    ),
    "Simulate": (demo, simulate, shadow, whatif, export_trace),
}
"""Heading in `fairlead --help` → the commands below it."""
WORDS_AFTER = (submit, run, attach)
"""Commands that pass all words after the program on to the program: `fairlead run ls -l` runs `ls -l`."""


def name_of(command: Callable[..., object] | typer.Typer | None) -> str:
    """Return the name of a command or of a group of commands."""
    if isinstance(command, typer.Typer):
        return str(command.info.name)
    return "" if command is None else command.__name__.replace("_", "-")


ORDER = {name_of(command): at for at, command in enumerate(chain(*PANELS.values()))}


class Commands(TyperGroup):
    """All commands, in the order of `PANELS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=lambda name: ORDER[name])


app = Group(
    "fairlead",
    "Share a fleet of machines fairly among people and jobs.",
    cls=Commands,
    pretty_exceptions_show_locals=False,
)
for panel, entries in PANELS.items():
    for entry in entries:
        if isinstance(entry, typer.Typer):
            app.add_typer(entry, rich_help_panel=panel)
        else:
            settings = {"allow_interspersed_args": False} if entry in WORDS_AFTER else None
            app.command(rich_help_panel=panel, context_settings=settings)(entry)


def _flow(commands: typer.Typer) -> None:
    """Join the lines of each paragraph of the help texts, because Typer does that only in the first paragraph."""
    for entry in commands.registered_commands:
        paragraphs = cleandoc((entry.callback and entry.callback.__doc__) or "").split("\n\n")
        entry.help = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _flow(group.typer_instance)


_flow(app)


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


def narrow_app(words: Sequence[str]) -> typer.Typer:
    """Return the app with only the called command, or the whole app if none is called.

    Building all commands takes longer than running most of them.
    """
    called = words[0] if words else ""
    commands = [entry for entry in app.registered_commands if called == name_of(entry.callback)]
    groups = [
        entry for entry in app.registered_groups if entry.typer_instance and called == entry.typer_instance.info.name
    ]
    if not commands and not groups:
        return app
    narrow = copy(app)
    narrow.registered_commands, narrow.registered_groups = commands, groups
    return narrow


def main() -> None:
    """Run the command line. Print an error of the operating system as one line on stderr."""
    try:
        if completion.is_asked_for():
            completion.complete(lambda words: narrow_app(words)())
        narrow_app(sys.argv[1:])()
    except OSError as error:
        typer.echo(f"fairlead: error: {error}", err=True)
        sys.exit(1)
