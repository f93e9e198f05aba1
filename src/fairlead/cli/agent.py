"""`fairlead agent`: run tasks for a server on this machine."""

from __future__ import annotations

import getpass
import os
import pwd
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import strftime
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from fairlead.cli.option_values import check_memory, pairs, wrong
from fairlead.cli.options import LogLevel, LogLevelOption, Partition

AGENT_USER = "fairlead"
LEVELS: tuple[LogLevel, ...] = ("debug", "info", "warning", "error")
FINAL = 78
"""Exit code of an agent that cannot work until an operator acts (EX_CONFIG of sysexits.h): do not start it again."""


def agent(
    join: Annotated[
        str,
        typer.Option(
            help="Address of the server, such as https://host:7070. Several servers of one cluster are separated by "
            "commas.",
            metavar="URL",
        ),
    ],
    name: Annotated[str, typer.Option(help="Name of this node. By default the machine's name.")] = "",
    partition: Partition = "",
    pool: Annotated[str, typer.Option(help="The pool that this node belongs to.")] = "",
    label: Annotated[
        list[str] | None,
        typer.Option(help="Label of this node, as key=value; jobs choose nodes by it. May be repeated."),
    ] = None,
    taint: Annotated[
        list[str] | None,
        typer.Option(help="Taint of this node: only tasks that tolerate it run here. May be repeated."),
    ] = None,
    resource: Annotated[
        list[str] | None,
        typer.Option(
            help="Amount of a resource that tasks may use, as cpu=4 or memory=8Gi, instead of all it has; "
            "may be repeated."
        ),
    ] = None,
    address: Annotated[
        str,
        typer.Option(
            help="Address at which other nodes reach this one, for gangs. By default the one that the server sees."
        ),
    ] = "",
    directory: Annotated[
        Path | None,
        typer.Option(
            help="Directory for the state of the agent and the logs of tasks. By default `agent` in the data directory."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with a token of `fairlead token create --role join`, needed once. By default the variable "
            "FAIRLEAD_TOKEN."
        ),
    ] = None,
    for_user: Annotated[
        list[str] | None,
        typer.Option(
            "--for",
            metavar="USER",
            help="Run only tasks of this user of Fairlead, as the system user of this agent; may be repeated. Without "
            "root, the default is the user that starts the agent. As root, add --user root.",
        ),
    ] = None,
    user: Annotated[
        str,
        typer.Option(help="Started as root: system user that the agent itself runs as.", show_default=AGENT_USER),
    ] = "",
    user_map: Annotated[
        Path | None,
        typer.Option(
            help="Started as root: file with lines user=system-user, for users that have another name on this machine."
        ),
    ] = None,
    uids: Annotated[
        str,
        typer.Option(
            help="Started as root: user ids that tasks may run as, such as 1000-60000. By default from /etc/login.defs."
        ),
    ] = "",
    ca: Annotated[
        Path | None,
        typer.Option(
            help="PEM file with certificates to trust. By default the variable FAIRLEAD_CA, else those of the machine."
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow http:// to another machine: tokens and secrets can be read on the way."),
    ] = False,
    log_level: LogLevelOption = "info",
) -> None:
    """Make this machine a node: run tasks for a server, until Ctrl-C.

    Tasks keep running after that, and the next agent finds them again.

    If the agent is started as root, each task runs as the user that submitted it. Otherwise all tasks run as the user
    of the agent, and only tasks of that user, or of the users named by --for, run here.
    """
    import uvloop

    from fairlead.agent.process import Agent, Settings, Taken
    from fairlead.agent.session import Refused
    from fairlead.agent.split import CannotSplit, Users, split

    log = _logger(log_level)
    _check_servers(join, insecure)
    if ca is None and os.environ.get("FAIRLEAD_CA"):
        ca = Path(os.environ["FAIRLEAD_CA"])
    labels, resources = pairs(label, "--label"), pairs(resource, "--resource")
    check_memory(resources.get("memory", ""), "--resource", of_node=True)
    whole = (directory or _data() / "agent").absolute()
    _check_users(for_user or [], user, {"--user-map": user_map, "--uids": uids})
    as_users = os.geteuid() == 0 and not for_user
    own = whole / "agent" if as_users else whole
    token = _token(token_file, own)  # before the split: the file may be readable for root only
    helper = None
    if as_users:
        if ca is not None:
            ca = ca.absolute()
        try:
            helper = split(whole, Users(agent=user or AGENT_USER, map_file=user_map, uids=_uids(uids)))
        except CannotSplit as problem:
            typer.echo(f"fairlead: error: {problem}", err=True)
            raise typer.Exit(1) from None
    else:
        log("single-user node", {"tasks run as": own_name(), "for users": " ".join(for_user or [own_name()])})
    settings = Settings(
        join=join,
        directory=own,
        users=() if as_users else tuple(for_user or [own_name()]),
        token=token,
        name=name,
        partition=partition,
        pool=pool,
        labels=labels,
        taints=tuple(taint or ()),
        resources=dict(resources),
        address=address,
        authority=ca,
    )

    async def work() -> None:
        await Agent(settings, log, helper=helper).run()

    try:
        uvloop.run(work())
    except KeyboardInterrupt:
        log("stopped", {"tasks": "they keep running; start the agent again to find them"})
    except (CannotSplit, Refused, Taken) as problem:
        missing = "" if token_file is None or token_file.exists() else f" ({token_file} does not exist)"
        typer.echo(f"fairlead: error: {problem}{missing}", err=True)
        raise typer.Exit(FINAL if isinstance(problem, Refused) else 1) from None


def _check_servers(join: str, insecure: bool) -> None:
    """Refuse what is not the address of a server, and servers to which tokens would go in the clear."""
    from fairlead.wire.addresses import is_exposed, servers

    for url in servers(join) or [join]:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise wrong("--join", f"{url!r} is not the address of a server, such as https://host:7070")
        if is_exposed(url) and not insecure:
            raise wrong(
                "--join",
                f"{url} is another machine, and without TLS the join token and the secrets of jobs can be read on "
                "the way; use https://, or add --insecure if the network is trusted",
            )


def _token(file: Path | None, directory: Path) -> str:
    """Return the token to join with; empty if there is none, or if the machine has joined and needs none."""
    from fairlead.agent.node_key import FILE, USER_TOKEN

    if file is not None:
        return file.read_text().strip() if file.exists() else ""  # it may be gone after the machine has joined
    token = os.environ.get("FAIRLEAD_TOKEN", "")
    # The variable may also have the token for commands.
    return "" if token.startswith(USER_TOKEN) and (directory / FILE).exists() else token


def _check_users(for_users: list[str], user: str, others: dict[str, object]) -> None:
    """Refuse options without effect, and refuse to run tasks of other users as root without `--user root`."""
    if os.geteuid() != 0:
        for option in [name for name, value in {"--user": user, **others}.items() if value]:
            raise wrong(option, "only for an agent that was started as root; leave it out, or start the agent as root")
    elif for_users:
        for option in [name for name, value in others.items() if value]:
            raise wrong(option, "with --for all tasks run as the user of the agent; leave out one of the two")
        if user not in ("", own_name()) or (not user and set(for_users) != {own_name()}):
            raise wrong(
                "--for",
                f"tasks of {', '.join(for_users)} would run as root; leave --for out, so that each task runs as its "
                "user, or add --user root if that is meant",
            )


def own_name() -> str:
    """Return the name of the system user of this process."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return getpass.getuser()


def _uids(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    first, sign, last = text.partition("-")
    if not (sign and first.isdigit() and last.isdigit() and 0 < int(first) <= int(last)):
        raise wrong("--uids", f"{text!r} is not a range of uids above 0, such as 1000-60000")
    return int(first), int(last)


def _data() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "fairlead"


def _logger(least: LogLevel) -> Callable[[str, dict[str, Any]], None]:
    """Return a function that writes lines to standard error. Lines with a problem are warnings, others info."""

    def log(event: str, fields: dict[str, Any]) -> None:
        level = "warning" if "problem" in fields else "info"
        if LEVELS.index(level) < LEVELS.index(least):
            return
        details = " ".join(f"{name}={value}" for name, value in fields.items())
        with suppress(OSError):  # the disk of the log may be full; the agent continues
            print(f"{strftime('%Y-%m-%d %H:%M:%S')} {level} {event} {details}", file=sys.stderr, flush=True)

    return log
