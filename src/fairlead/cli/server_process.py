"""The process of a server: its data directory, tokens, socket and signals, and the agent beside it, if any."""

from __future__ import annotations

import errno
import getpass
import json
import os
import shlex
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import typer

from fairlead import __version__
from fairlead.cli.agent import own_name
from fairlead.cli.input_files import document_of
from fairlead.cli.local_agent import AGENT_NOTE, JOIN_TOKEN, keep_agent
from fairlead.cli.output import fail
from fairlead.cli.server_options import NetworkOptions, ServerOptions, check_database, directory_of, lock

if TYPE_CHECKING:
    import asyncio
    import socket

JOINING = 5.0
"""Seconds after which `up` prints that it waits for its agent."""


def run_server(options: ServerOptions, network: NetworkOptions, agent: list[str] | None) -> None:
    """Run a server until it is stopped. `agent` has the options of the agent to run beside it; None for no agent."""
    if (network.certificate is None) != (network.key is None):
        given, missing = ("--key", "--certificate") if network.certificate is None else ("--certificate", "--key")
        fail(f"{given} is given without {missing}; TLS needs both", code=2)
    check_database(network.database)
    directory = directory_of(options.data)
    held = _open_directory(directory, network)
    document = _document(options.config)
    from fairlead.server.failure import Failed
    from fairlead.server.start_options import ServerOptions as Settings

    _issue_tokens(directory, options, network, agent)
    listening = _listen(network.host, options.port)
    url = network.advertise or _url(
        "http" if network.certificate is None else "https", network.host, listening.getsockname()[1]
    )
    import uvloop

    values = {**vars(network), **vars(options)}
    same: dict[str, Any] = {name: values[name] for name in Settings.__struct_fields__ if name in values}
    same |= {
        "config": document,
        "notify_allow": tuple(options.notify_allow or ()),
        "mail_domains": tuple(domain.lower() for domain in options.mail_domain or ()),
        "config_file": "" if options.config is None else str(options.config),
        "kubernetes": (network.kubernetes, network.kubernetes_rules, network.kubernetes_lease),
    }
    settings = Settings(directory=directory, url=url, version=__version__, **same)
    try:
        uvloop.run(_main(settings, listening, options.as_json, agent))
    except Failed as problem:
        fail(str(problem))
    finally:
        (directory / "server.json").unlink(missing_ok=True)
        os.close(held)


def _open_directory(directory: Path, network: NetworkOptions) -> int:
    """Create and lock the data directory, and return the open lock. Exit if another server runs, or TLS is missing."""
    from fairlead.http.listener import check_tls
    from fairlead.identity.datafolder import prepare
    from fairlead.identity.smallfile import FileProblem
    from fairlead.wire.addresses import is_loopback

    try:
        if network.certificate is not None and network.key is not None:
            check_tls(network.certificate, network.key)
        warning = prepare(directory)
    except FileProblem as problem:
        fail(str(problem))
    if warning:
        typer.echo(f"fairlead: warning: {warning}", err=True)
    held = lock(directory)
    if held is None:
        fail(f"another server runs on {directory}; use it, or stop it with `fairlead down`")
    if not is_loopback(network.host) and network.certificate is None:
        fail(f"{network.host} can be reached from other machines, so TLS is needed; give --certificate and --key")
    return held


def _issue_tokens(directory: Path, options: ServerOptions, network: NetworkOptions, agent: list[str] | None) -> None:
    """Create the token in the data directory, and the join token of the agent beside the server."""
    from fairlead.agent.machine import host_name
    from fairlead.control.walltime import in_seconds, kept_wall
    from fairlead.identity.node_keys import Identities
    from fairlead.identity.smallfile import FileProblem, write_small
    from fairlead.identity.tokens import Tokens
    from fairlead.server.failure import Failed
    from fairlead.server.storage import documents_of

    try:
        wall = kept_wall(directory / "clock", lambda text: None)  # the server logs the warning
        documents = documents_of(directory, network.database, options.secrets_key)
        tokens = Tokens(documents("tokens"), in_seconds(wall))
        # Each server of a database has a token of its own, so that a new one does not revoke those of the others.
        owner = f"owner-{token_hex(3)}" if network.database else "owner"
        tokens.standing(
            directory / "token", owner, "admin", getpass.getuser(), "for commands on the machine of the server"
        )
        if agent is not None:
            node = agent[agent.index("--name") + 1] if "--name" in agent else host_name()
            for token in tokens.all():
                if token.role == "join" and token.note == AGENT_NOTE:  # left by an earlier start that did not use it
                    tokens.revoke(token.id)
            [(secret, _)] = Identities(directory, tokens).invite((node,), users=(getpass.getuser(),), note=AGENT_NOTE)
            write_small(directory / JOIN_TOKEN, secret.encode())
    except (FileProblem, Failed) as problem:
        fail(str(problem))


def _listen(host: str, port: int) -> socket.socket:
    from fairlead.http.listener import listen

    try:
        return listen(host, port)
    except OSError as problem:
        fail(_not_listening(host, port, problem))


def _not_listening(host: str, port: int, problem: OSError) -> str:
    if problem.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use by another program; choose another one with --port, such as {port + 1}"
    if problem.errno == errno.EACCES:
        return f"port {port} of {host} is for root only; choose one above 1023 with --port"
    return f"{host} is not an address of this machine ({problem.strerror}); choose another one with --host"


def _url(scheme: str, host: str, port: int) -> str:
    """Return the URL of the server. If it listens on all addresses, the URL has the name of the machine."""
    if host in ("0.0.0.0", "::"):
        host = os.uname().nodename
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


async def _main(settings: Any, listening: socket.socket, as_json: bool, agent: list[str] | None) -> None:
    import asyncio

    over = asyncio.Event()
    interrupted = False

    def stop(number: signal.Signals) -> None:
        nonlocal interrupted
        interrupted = number == signal.SIGINT
        over.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    directory, url = settings.directory, settings.url
    joined = asyncio.Event()
    """Set when the agent of this machine has joined, or cannot join."""
    # The agent starts at the same time as the server: its connection waits in the backlog of the socket.
    beside = asyncio.create_task(keep_agent(directory, url, agent, joined)) if agent is not None else None
    await asyncio.sleep(0)
    from fairlead.client.endpoint import Running
    from fairlead.server.compose import serve

    started = False
    greeting: asyncio.Task[None] | None = None

    async def greet() -> None:
        if agent is not None:
            try:
                await asyncio.wait_for(joined.wait(), JOINING)
            except TimeoutError:
                typer.echo(f"waiting for the agent of this machine; its log is {directory / 'agent.log'}", err=True)
                await joined.wait()
        _greet(url, directory, as_json, agent is not None)

    def is_up(warning: str) -> None:
        import msgspec

        nonlocal started, greeting
        started = True
        fresh = directory / "server.json.new"
        fresh.write_bytes(msgspec.json.encode(Running(pid=os.getpid(), url=url)))
        fresh.replace(directory / "server.json")
        if warning:
            typer.echo(f"fairlead: warning: {warning}", err=True)
        greeting = asyncio.create_task(greet())

    try:
        await serve(settings, listening, is_up, over, joined.set)
    finally:
        for task in (beside, greeting):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        if started and not as_json:
            # `fairlead down` prints itself what happens to tasks.
            typer.echo("stopped; running tasks continue" if agent is not None and interrupted else "stopped")


def _greet(url: str, directory: Path, as_json: bool, agent: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"url": url, "data": str(directory), "pid": os.getpid()}))
        return
    typer.echo(f"Fairlead {__version__} is up at {url}, with its data in {directory}.")
    typer.echo(f"The web page is at the same address. Log in with the token in {directory / 'token'}.")
    if agent:
        typer.echo(f"Tasks run as {own_name()}. This machine runs only tasks of user {getpass.getuser()}.")
        typer.echo("In another terminal:")
        program = _program()
        typer.echo(f"  {program} run echo hello     # run a command and show its output")
        typer.echo(f"  {program} submit --array 10 sleep 5")
        typer.echo(f"  {program} ps                 # list running and waiting jobs")
        typer.echo(f"  {program} top                # the same, live")
        typer.echo(f"Ctrl-C stops the server. Tasks keep running; `{program} down --kill` ends them.")
    else:
        typer.echo(f"Agents join with: fairlead agent --join {url} --token-file FILE")
        typer.echo(f"A token for one machine: {_program()} token create --role join")


def _program() -> str:
    """Return this program as to be typed in another terminal: its name if it is on PATH there, else its full path."""
    called = Path(sys.argv[0]).absolute()
    on_path = shutil.which(called.name)
    if on_path is not None and Path(on_path).absolute() == called and "UV" not in os.environ:  # uvx changes PATH
        return called.name
    return shlex.quote(str(called))


def _document(config: Path | None) -> object:
    if config is None:
        return None
    from fairlead.server.failure import Failed, checked_config

    document = document_of(config)
    try:
        checked_config(document, defaults=False)
    except Failed as problem:
        fail(f"{config}: {problem}")
    return document
