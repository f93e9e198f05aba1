"""`fairlead up`, `down` and `server`: the control plane on a data directory, with or without an agent beside it."""

from __future__ import annotations

import errno
import fcntl
import getpass
import json
import os
import shlex
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead import __version__
from fairlead.cli.agent import FINAL, own_name
from fairlead.cli.options import LogLevel, LogLevelOption, check_memory, open_client, pairs
from fairlead.cli.output import calls_server, fail, print_json, print_table, progress

if TYPE_CHECKING:
    import asyncio
    import socket

PORT = 7070
ONE_MACHINE = {
    "partitions": {"default": {"ready_after": "5s", "queues": {"root": {"default": {"share": 100, "order": "fair"}}}}}
}
"""The first configuration of `up`. Only one agent reports after a start, so `ready_after` can be short."""
JOIN_TOKEN = "agent-token"
"""The file with the join token of the agent that `up` starts. It admits that agent once."""
AGENT_NOTE = "the agent that `up` starts"
"""The note of that token."""
STOPPING = 20.0
"""Seconds that a server has to stop."""
JOINING = 5.0
"""Seconds after which `up` says that it waits for its agent."""
ROTATION = 60.0
"""Seconds between two checks of the size of the agent's log."""
GRACE = 10.0
"""Seconds that tasks have to stop when no server runs that could set their grace period."""

Data = Annotated[
    Path | None, typer.Option("--data", help="Data directory. By default FAIRLEAD_DATA, else ~/.local/share/fairlead.")
]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.", min=0, max=65_535)]
Config = Annotated[
    Path | None,
    typer.Option(
        help="Configuration file for the first start. Later starts keep the configuration that the data directory has; "
        "`fairlead config apply` changes it."
    ),
]
Database = Annotated[
    str,
    typer.Option(
        help="Keep the data in this PostgreSQL database, such as postgresql://host/fairlead, instead of the data "
        "directory. Several servers may share it: the partitions are spread over them, and each takes over those of a "
        "server that fails.",
        envvar="FAIRLEAD_DATABASE",
        metavar="URL",
        show_envvar=True,
    ),
]
SecretsKey = Annotated[
    Path | None,
    typer.Option(
        help="File with the key that encrypts secrets. By default the credential of systemd, else a file "
        "beside the data directory."
    ),
]
LogSize = Annotated[str, typer.Option(help="Largest size of the server's log; older lines are dropped.")]
HistorySize = Annotated[
    str, typer.Option(help="Largest size of the history of finished jobs; the oldest jobs are dropped.")
]
HistoryAge = Annotated[
    str, typer.Option(help="Drop jobs from the history at this age, such as 365d. By default only its size counts.")
]
JournalAge = Annotated[
    str,
    typer.Option(help="Keep records in the journal for this time. A backup can be restored to any moment within it."),
]
Outputs = Annotated[
    str,
    typer.Option(
        help="Where to keep output: result files of all tasks, and logs of tasks on nodes of pools, copied before such "
        "a node is removed. A folder, or an object store as s3://BUCKET/PREFIX. By default a folder in the data "
        "directory.",
        metavar="PLACE",
    ),
]
OutputsEndpoint = Annotated[
    str, typer.Option(help="With --outputs s3://…: address of the object store, if it is not AWS.", metavar="URL")
]
OutputsSize = Annotated[str, typer.Option(help="Largest size of all kept output; the oldest is dropped.")]
OutputsAge = Annotated[str, typer.Option(help="Age at which kept output is dropped.")]
Traces = Annotated[
    str,
    typer.Option(
        help="Send a trace of each job to this OpenTelemetry collector (OTLP over HTTP), such as "
        "http://127.0.0.1:4318/v1/traces. Needs the extra: pip install 'fairlead\\[otel]'.",
        metavar="URL",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def up(
    data: Data = None,
    port: Port = PORT,
    config: Config = None,
    name: Annotated[str, typer.Option(help="Name of this machine's node. By default the machine's name.")] = "",
    resource: Annotated[
        list[str] | None,
        typer.Option(
            help="Amount of a resource that tasks may use, as cpu=4 or memory=8Gi, instead of all that this machine "
            "has; may be repeated."
        ),
    ] = None,
    secrets_key: SecretsKey = None,
    log_size: LogSize = "160Mi",
    log_level: LogLevelOption = "info",
    history_size: HistorySize = "4Gi",
    history_age: HistoryAge = "",
    journal_age: JournalAge = "1h",
    outputs: Outputs = "",
    outputs_endpoint: OutputsEndpoint = "",
    outputs_size: OutputsSize = "16Gi",
    outputs_age: OutputsAge = "30d",
    traces: Traces = "",
    as_json: AsJson = False,
) -> None:
    """Run Fairlead on this machine: a server, and an agent that runs tasks.

    Ctrl-C stops both. Running tasks go on, and the next `up` finds them again; `fairlead down --kill` ends them.
    """
    resources = pairs(resource, "--resource")
    check_memory(resources.get("memory", ""), "--resource")
    _check_node(name, resources)
    options = [
        "--log-level",
        log_level,
        "--for",
        getpass.getuser(),
        *["--user", "root"] * (os.geteuid() == 0),
        *["--name", name] * bool(name),
    ]
    for text in resource or ():
        options += ["--resource", text]
    _run(
        data,
        "127.0.0.1",
        port,
        config,
        None,
        None,
        secrets_key,
        as_json,
        options,
        log_size,
        (history_size, history_age, journal_age),
        (outputs, outputs_endpoint, outputs_size, outputs_age),
        traces,
        log_level,
    )


server_group = typer.Typer(
    name="server", help="Run a server without an agent; list and drain servers.", invoke_without_command=True
)


@server_group.callback()
def server(
    context: typer.Context,
    data: Data = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. One that other machines can reach needs --certificate and --key.")
    ] = "127.0.0.1",
    port: Port = PORT,
    config: Config = None,
    certificate: Annotated[Path | None, typer.Option(help="PEM file with the certificate for TLS.")] = None,
    key: Annotated[Path | None, typer.Option(help="PEM file with the private key of --certificate.")] = None,
    secrets_key: SecretsKey = None,
    database: Database = "",
    lease: Annotated[
        str,
        typer.Option(help="With --database: other servers take over from one that has been silent for this time."),
    ] = "3s",
    advertise: Annotated[
        str,
        typer.Option(
            help="With --database: URL at which agents, users and other servers reach this one. By default made from "
            "--host and --port.",
            metavar="URL",
        ),
    ] = "",
    log_size: LogSize = "160Mi",
    log_level: LogLevelOption = "info",
    history_size: HistorySize = "4Gi",
    history_age: HistoryAge = "",
    journal_age: JournalAge = "1h",
    outputs: Outputs = "",
    outputs_endpoint: OutputsEndpoint = "",
    outputs_size: OutputsSize = "16Gi",
    outputs_age: OutputsAge = "30d",
    traces: Traces = "",
    kubernetes: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Also schedule the pods of the Kubernetes cluster in this kubeconfig file, as `fairlead kubernetes` "
            "does; `pod` means the cluster that this server runs in.",
        ),
    ] = "",
    kubernetes_rules: Annotated[
        Path | None, typer.Option(help="Rules file for pods, as in `fairlead kubernetes --rules`.")
    ] = None,
    kubernetes_lease: Annotated[
        str, typer.Option(help="Lease for leader election, as in `fairlead kubernetes --lease`.")
    ] = "",
    as_json: AsJson = False,
) -> None:
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
            raise typer.BadParameter(problem, param_hint=option)
        return
    _run(
        data,
        host,
        port,
        config,
        certificate,
        key,
        secrets_key,
        as_json,
        None,
        log_size,
        (history_size, history_age, journal_age),
        (outputs, outputs_endpoint, outputs_size, outputs_age),
        traces,
        log_level,
        database,
        lease,
        advertise,
        (kubernetes, kubernetes_rules, kubernetes_lease),
    )


@server_group.command("list")
@calls_server
def list_servers(as_json: AsJson = False) -> None:
    """List the running servers, with the partitions that each one schedules."""
    from fairlead.client import calls

    with open_client("") as client:
        servers = client.send(calls.servers()).servers
    if as_json:
        return print_json(servers)
    rows = [(each.url or "this server", each.state, ", ".join(each.leads) or "-") for each in servers]
    print_table(("SERVER", "STATE", "LEADS"), rows)


ServerName = Annotated[str, typer.Argument(help="URL or id of a server, as `server list` shows it.", metavar="SERVER")]


@server_group.command("drain")
@calls_server
def drain_server(name: ServerName, as_json: AsJson = False) -> None:
    """Move the partitions of a server to other servers, so that it can be stopped. Tasks keep running."""
    _move_server(name, "drain", "drains", as_json)


@server_group.command("enable")
@calls_server
def enable_server(name: ServerName, as_json: AsJson = False) -> None:
    """Give a drained server partitions again."""
    _move_server(name, "enable", "leads again", as_json)


def _move_server(name: str, action: str, done: str, as_json: bool) -> None:
    from fairlead.client import calls

    with open_client("") as client:
        servers = client.send(calls.servers()).servers
        found = next((each.id for each in servers if name.rstrip("/") in (each.id, each.url)), "")
        if not found:
            known = ", ".join(each.url or each.id for each in servers)
            fail(f"there is no server {name}; these are up: {known}", as_json and {"ok": False})
        client.send(calls.drain_server(found, action))
    typer.echo(json.dumps({"ok": True, "server": found}) if as_json else f"{name} {done}")


def down(
    data: Data = None,
    kill: Annotated[bool, typer.Option("--kill", help="Kill all running and waiting jobs first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Stop the server on this machine.

    Tasks keep running unless --kill is given. With --kill, tasks that an earlier server left running are ended too.
    """
    from fairlead.client.endpoint import running

    directory = _directory(data)
    server = running(directory)
    if server is None or not _is_locked(directory):
        if kill and any((directory / part).exists() for part in ("agent", "pools")):
            return _end_left_tasks(directory, as_json)
        fail(
            f"no server runs on {directory}; `fairlead up` starts one",
            as_json and {"ok": False, "data": str(directory)},
        )
    killed = _kill_all(directory, as_json) if kill else 0
    with suppress(ProcessLookupError):
        os.kill(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOPPING
    while _is_locked(directory):
        if time.monotonic() > deadline:
            fail(f"the server (process {server.pid}) does not stop; see {directory / 'server.log'}")
        time.sleep(0.02)
    machines = _end_machines(directory) if kill else 0
    if kill:
        _end_agent(directory)
    if as_json:
        typer.echo(json.dumps({"ok": True, "data": str(directory), "killed": killed, "machines": machines}))
    else:
        ended = f"jobs killed: {killed}" + (f"; machines of pools ended: {machines}" if machines else "")
        typer.echo(f"stopped; {ended if kill else 'running tasks continue'}")


def rotate_key(
    data: Data = None, secrets_key: SecretsKey = None, database: Database = "", as_json: AsJson = False
) -> None:
    """Encrypt all secrets with a new key, or create the first key.

    The server must be stopped. With --database all servers must be stopped, and need the new key file before they
    start.
    """
    from fairlead.app import Failed, rotate_secrets_key

    _check_database(database)
    directory = _directory(data)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = _lock(directory)
    if lock is None:
        fail(f"a server runs on {directory}; stop it with `fairlead down`, and start it again afterwards")
    try:
        key = rotate_secrets_key(directory, secrets_key, database)
    except Failed as problem:
        fail(str(problem))
    finally:
        os.close(lock)
    typer.echo(json.dumps({"ok": True, "key": str(key)}) if as_json else f"{key} has a new key")


# -- inside ------------------------------------------------------------------------------------------------------


def _run(
    data: Path | None,
    host: str,
    port: int,
    config: Path | None,
    certificate: Path | None,
    key: Path | None,
    secrets_key: Path | None,
    as_json: bool,
    agent: list[str] | None,
    log_size: str,
    history: tuple[str, str, str],
    outputs: tuple[str, str, str, str],
    traces: str,
    log_level: LogLevel,
    database: str = "",
    lease: str = "3s",
    advertise: str = "",
    kubernetes: tuple[str, Path | None, str] = ("", None, ""),
) -> None:
    """Run a server. `agent` holds the options of the agent to run beside it, or None for no agent."""
    if (certificate is None) != (key is None):
        given, missing = ("--key", "--certificate") if certificate is None else ("--certificate", "--key")
        fail(f"{given} is given without {missing}; TLS needs both", code=2)
    _check_database(database)
    directory = _directory(data)
    from fairlead.agent.machine import host_name
    from fairlead.api.datafolder import prepare
    from fairlead.api.identities import Identities
    from fairlead.api.listening import check_tls, listen
    from fairlead.api.smallfile import FileProblem, write_small
    from fairlead.api.tokens import Tokens
    from fairlead.api.walltime import in_seconds, kept_wall
    from fairlead.wire.addresses import is_loopback

    try:
        if certificate is not None and key is not None:
            check_tls(certificate, key)
        warning = prepare(directory)
    except FileProblem as problem:
        fail(str(problem))
    if warning:
        typer.echo(f"fairlead: warning: {warning}", err=True)
    lock = _lock(directory)
    if lock is None:
        fail(f"another server runs on {directory}; use it, or stop it with `fairlead down`")
    if not is_loopback(host) and (certificate is None or key is None):
        fail(f"{host} is reached from other machines, so TLS is needed; give --certificate and --key")
    document = _document(config)
    if document is None and agent is not None:
        document = ONE_MACHINE
    from fairlead.app import Failed, Serve, open_documents

    try:
        wall = kept_wall(directory / "clock", lambda text: None)  # the server logs the warning
        documents = open_documents(directory, database, secrets_key)
        tokens = Tokens(documents("tokens"), in_seconds(wall))
        # Servers of one database have a token each: the other ones must not be revoked.
        owner = f"owner-{token_hex(3)}" if database else "owner"
        tokens.standing(directory / "token", owner, "admin", getpass.getuser(), "every reader of the data directory")
        if agent is not None:
            node = agent[agent.index("--name") + 1] if "--name" in agent else host_name()
            for token in tokens.all():
                if token.role == "join" and token.note == AGENT_NOTE:  # left by an earlier start that did not use it
                    tokens.revoke(token.id)
            [(secret, _)] = Identities(directory, tokens).invite((node,), users=(getpass.getuser(),), note=AGENT_NOTE)
            write_small(directory / JOIN_TOKEN, secret.encode())
    except (FileProblem, Failed) as problem:
        fail(str(problem))
    try:
        listening = listen(host, port)
    except OSError as problem:
        fail(_not_listening(host, port, problem))
    port = listening.getsockname()[1]
    url = advertise or _url("http" if certificate is None else "https", host, port)
    import uvloop

    settings = Serve(
        directory=directory,
        url=url,
        config=document,
        config_file="" if config is None else str(config),
        secrets_key=secrets_key,
        certificate=certificate,
        key=key,
        version=__version__,
        log_size=log_size,
        log_level=log_level,
        history_size=history[0],
        history_age=history[1],
        journal_age=history[2],
        outputs=outputs[0],
        outputs_endpoint=outputs[1],
        outputs_size=outputs[2],
        outputs_age=outputs[3],
        traces=traces,
        database=database,
        lease=lease,
        kubernetes=kubernetes,
    )
    try:
        uvloop.run(_main(settings, listening, url, as_json, agent))
    except Failed as problem:
        fail(str(problem))
    finally:
        (directory / "server.json").unlink(missing_ok=True)
        os.close(lock)


def _not_listening(host: str, port: int, problem: OSError) -> str:
    if problem.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is used by another program; choose another one with --port, such as {port + 1}"
    if problem.errno == errno.EACCES:
        return f"port {port} of {host} is for root only; choose one above 1023 with --port"
    return f"{host} is no address of this machine ({problem.strerror}); choose another one with --host"


def _check_database(database: str) -> None:
    if database and not database.startswith(("postgresql://", "postgres://")):
        fail("--database: it is not an address such as postgresql://host/fairlead", code=2)


def _url(scheme: str, host: str, port: int) -> str:
    """Return the address for people, agents and pools. A server on all addresses is named by its machine."""
    if host in ("0.0.0.0", "::"):
        host = os.uname().nodename
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


async def _main(settings: Any, listening: socket.socket, url: str, as_json: bool, agent: list[str] | None) -> None:
    import asyncio

    over = asyncio.Event()
    interrupted = False

    def stop(number: signal.Signals) -> None:
        nonlocal interrupted
        interrupted = number == signal.SIGINT
        over.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    directory: Path = settings.directory
    joined = asyncio.Event()
    """Set when the agent of this machine has joined, or cannot join."""
    # The agent starts at the same time as the server: its connection waits in the backlog of the socket.
    beside = asyncio.create_task(_keep_agent(directory, url, agent, joined)) if agent is not None else None
    await asyncio.sleep(0)
    from fairlead.app import serve
    from fairlead.client.endpoint import Running

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
            # `fairlead down` says itself what happens to tasks.
            typer.echo("stopped; running tasks continue" if agent is not None and interrupted else "stopped")


async def _keep_agent(directory: Path, url: str, options: list[str], joined: asyncio.Event) -> None:
    """Run an agent on this machine and restart it when it ends. It ends with the server.

    `joined` is set if the agent can never join.
    """
    import asyncio

    command = [sys.executable, "-P", "-c", "from fairlead.cli import main; main()", "agent", "--join", url]
    command += ["--directory", str(directory / "agent"), "--token-file", str(directory / JOIN_TOKEN), *options]
    pause = 0.1
    while True:
        with (directory / "agent.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_end_with_parent
            )
        rotating = asyncio.create_task(_rotate(str(directory / "agent.log")))
        try:
            code = await process.wait()
            if code == FINAL:
                cause = (directory / "agent.log").read_text(errors="replace").splitlines()[-1]
                typer.echo(
                    f"{cause}\nfairlead: this machine runs no tasks until that is mended; start it again", err=True
                )
                joined.set()
                return
            said = f"the agent ended with code {code} and is started again; its log is {directory / 'agent.log'}"
            typer.echo(f"fairlead: {said}", err=True)
        finally:
            rotating.cancel()
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.terminate()
                await process.wait()
        await asyncio.sleep(pause)
        pause = min(2 * pause, 5.0)


async def _rotate(path: str) -> None:
    """Limit the size of the agent's log."""
    import asyncio

    from fairlead.agent.spawner.files import rotate

    while True:
        await asyncio.to_thread(rotate, path)
        await asyncio.sleep(ROTATION)


def _end_with_parent() -> None:
    import ctypes

    os.setsid()  # Ctrl-C must reach only the server, which ends the agent itself
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _check_node(name: str, resources: dict[str, str]) -> None:
    """Refuse options with which the agent of this machine could never join."""
    from fairlead.agent.machine import host_name
    from fairlead.app import Failed, check_node

    try:
        check_node(name or host_name(), resources)
    except Failed as problem:
        fail(str(problem), code=2)


def _greet(url: str, directory: Path, as_json: bool, agent: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"url": url, "data": str(directory), "pid": os.getpid()}))
        return
    typer.echo(f"Fairlead {__version__} is up at {url}, with its data in {directory}.")
    typer.echo(f"The web page is at the same address; {directory / 'token'} has a token to log in with.")
    if agent:
        typer.echo(f"Tasks run as {own_name()}; only tasks of user {getpass.getuser()} are taken.")
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
    """Return how to call this program in any terminal: by its name if it is on PATH, else by its full path."""
    called = Path(sys.argv[0]).absolute()
    on_path = shutil.which(called.name)
    if on_path is not None and Path(on_path).absolute() == called:
        return called.name
    return shlex.quote(str(called))


def _directory(data: Path | None) -> Path:
    from fairlead.client.endpoint import data_directory

    return (data or data_directory()).absolute()


def _document(config: Path | None) -> object:
    if config is None:
        return None
    from fairlead.app import Failed, checked_config
    from fairlead.cli.documents import Unreadable, read_document
    from fairlead.cli.output import need_file

    need_file(config)
    try:
        document = read_document(config)
        checked_config({} if document is None else document, defaults=False)
    except Unreadable as problem:
        fail(f"{config}: {problem.problem}")
    except Failed as problem:
        fail(f"{config}: {problem}")
    return {} if document is None else document


def _lock(directory: Path) -> int | None:
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _is_locked(directory: Path) -> bool:
    lock = _lock(directory) if directory.exists() else -1
    if lock is None:
        return True
    if lock >= 0:
        os.close(lock)
    return False


def _end_left_tasks(directory: Path, as_json: bool) -> None:
    """End the tasks that an earlier server left running.

    Their jobs do not change: jobs are in the journal, which only a server writes.
    """
    ended = _end_agent(directory)
    machines = _end_machines(directory)
    if as_json:
        answer = {"ok": True, "data": str(directory), "killed": 0, "ended": ended, "machines": machines}
        typer.echo(json.dumps(answer))
    else:
        again = "; unfinished jobs continue with the next `fairlead up`" if ended or machines else ""
        pools = f"; machines of pools ended: {machines}" if machines else ""
        typer.echo(f"no server runs on {directory}; leftover tasks ended: {ended}{pools}{again}")


def _end_agent(directory: Path) -> int:
    """End the tasks and spawners of the agent beside the server; return the number of tasks."""
    from fairlead.agent.link import end_all, is_used

    deadline = time.monotonic() + STOPPING
    while is_used(directory / "agent"):  # the agent may be about to end, as its server has
        if time.monotonic() > deadline:
            fail(f"no server runs on {directory}, but an agent does; stop the agent first")
        time.sleep(0.02)
    return end_all(directory / "agent", GRACE)


def _end_machines(directory: Path) -> int:
    from fairlead.app import Failed, end_local_machines

    try:
        return end_local_machines(directory)
    except Failed as problem:
        fail(str(problem))


def _kill_all(directory: Path, as_json: bool) -> int:
    """Kill all running and waiting jobs, wait until no task runs, and return the number of jobs."""
    from fairlead.client import NotFound, Problem

    try:
        return _killed_jobs(directory)
    except (NotFound, Problem) as problem:
        fail(
            f"no job was killed, and the server runs on: {problem}", as_json and {"ok": False, "problem": str(problem)}
        )


def _killed_jobs(directory: Path) -> int:
    from fairlead.client import Client, find_endpoint

    place = find_endpoint(directory)
    killed = 0
    with Client(place.url, place.token, place.authority) as client:
        for name in client.partitions():
            client.partition = name
            with progress("killing", list(client.jobs(state=["pending", "running"]))) as jobs:
                for job in jobs:
                    client.kill(job.id)
                    killed += 1
            while any(node.tasks and not node.manager for node in client.nodes()):
                time.sleep(0.05)
    return killed
