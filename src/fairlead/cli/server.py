"""`fairlead server`: run a server without an agent; list and drain the servers of one database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli.option_values import wrong
from fairlead.cli.options import ClusterWide
from fairlead.cli.output import Column
from fairlead.cli.server_options import NetworkOptions, ServerOptions
from fairlead.cli.typer_commands import Command, Group

if TYPE_CHECKING:
    from fairlead.wire import api as wire

server = Group(
    "server",
    "Run a server without an agent; list and drain servers.",
    invoke_without_command=True,
    no_args_is_help=False,
)


@server.callback()
@Command
def run(context: typer.Context, network: NetworkOptions, options: ServerOptions) -> None:
    """Run a server without an agent; list and drain servers.

    Agents on other machines join it with `fairlead agent --join URL`. With a command, list, drain or enable the
    servers that share one database.
    """
    if context.invoked_subcommand is not None:
        for name in context.params:
            source = context.get_parameter_source(name)
            if source is None or source.name != "COMMANDLINE":
                continue
            option = "--json" if name == "as_json" else f"--{name.replace('_', '-')}"
            problem = f"it is for a server that starts; leave it out, or write it behind {context.invoked_subcommand}"
            raise wrong(option, problem)
        return
    from fairlead.cli.server_process import run_server

    run_server(options, network, None)


SERVERS: tuple[Column[wire.Server], ...] = (
    Column("server", lambda server: server.url or "this server"),
    Column("state", lambda server: server.state),
    Column("leads", lambda server: ", ".join(server.leads) or "-"),
)
ServerName = Annotated[str, typer.Argument(help="URL or id of a server, as `server list` shows it.", metavar="SERVER")]


def _servers(common: ClusterWide) -> list[wire.Server]:
    from fairlead.wire import operations as op

    return common.request(op.Servers()).servers


@server.command("list")
def list_servers(common: ClusterWide) -> None:
    """List the running servers, with the partitions that each one schedules."""
    common.table(_servers(common), SERVERS)


@server.command("drain")
def drain_server(name: ServerName, common: ClusterWide) -> None:
    """Move the partitions of a server to other servers, so that it can be stopped. Tasks keep running."""
    _move(name, "drain", "drains", common)


@server.command("enable")
def enable_server(name: ServerName, common: ClusterWide) -> None:
    """Give a drained server partitions again."""
    _move(name, "enable", "leads again", common)


def _move(name: str, action: str, done: str, common: ClusterWide) -> None:
    from fairlead.wire import operations as op

    servers = _servers(common)
    found = next((each.id for each in servers if name.rstrip("/") in (each.id, each.url)), "")
    if not found:
        known = ", ".join(each.url or each.id for each in servers)
        common.fail(f"there is no server {name}; these are up: {known}")
    common.request(op.DrainServer(server=found) if action == "drain" else op.EnableServer(server=found))
    common.show({"ok": True, "server": found}, [f"{name} {done}"])
