"""`fairlead server`: run a server without an agent; list and drain the servers of one database."""

from __future__ import annotations

import time
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

    Agents on other machines join it with `fairlead agent --join URL`. The commands below list, drain and enable the
    servers that share one database.
    """
    command = context.invoked_subcommand
    if command is None:
        from fairlead.cli.server_process import run_server

        return run_server(options, network, None)
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = "--json" if name == "as_json" else f"--{name.replace('_', '-')}"
            raise wrong(flag, f"it is for a server that starts; leave it out, or write it after {command}")


MOVES = 3.0
"""Seconds in which a partition usually moves to a server that was enabled."""
SERVERS: tuple[Column[wire.Server], ...] = (
    Column("server", lambda server: server.url or "this server"),
    Column("state", lambda server: server.state),
    Column("leads", lambda server: ", ".join(server.leads) or "-"),
    Column("version", lambda server: server.version or "-"),
)
ServerName = Annotated[str, typer.Argument(help="URL or id of a server, as `server list` shows it.", metavar="SERVER")]


@server.command("list")
def list_servers(common: ClusterWide) -> None:
    """List the running servers with the partitions that each of them leads, that is, schedules."""
    common.table(common.request(lambda client: client.servers()), SERVERS)


@server.command("drain")
def drain_server(name: ServerName, common: ClusterWide) -> None:
    """Move the partitions of a server to other servers, so that it can be stopped. Tasks keep running."""
    server = _find(name, common)
    common.request(lambda client: client.drain_server(server))
    common.show({"ok": True, "server": server}, [f"{name} drains"])


@server.command("enable")
def enable_server(name: ServerName, common: ClusterWide) -> None:
    """Let a drained server lead partitions again, and say which ones it leads."""
    server = _find(name, common)
    common.request(lambda client: client.enable_server(server))
    deadline = time.monotonic() + MOVES
    while not (leads := _leads(server, common)) and time.monotonic() < deadline:
        time.sleep(0.1)
    said = f"leads {', '.join(leads)}" if leads else "may lead again, and leads nothing now: other servers lead all"
    common.show({"ok": True, "server": server, "leads": leads}, [f"{name} {said}"])


def _leads(server: str, common: ClusterWide) -> list[str]:
    found = common.request(lambda client: client.servers())
    return next((list(each.leads) for each in found if each.id == server), [])


def _find(name: str, common: ClusterWide) -> str:
    """Return the id of the server with this id or URL. Exit if there is none."""
    servers = common.request(lambda client: client.servers())
    found = next((each.id for each in servers if name.rstrip("/") in (each.id, each.url)), None)
    if found is None:
        known = ", ".join(each.url or each.id for each in servers)
        common.fail(f"there is no server {name}; these run: {known}")
    return found
