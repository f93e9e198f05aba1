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
from typing import Any
from urllib.parse import urlsplit

import typer

from fairlead.cli.option_values import check_memory, pairs, wrong
from fairlead.cli.options import LogLevel, LogLevelOption, Partition
from fairlead.cli.typer_commands import Options, option

AGENT_USER = "fairlead"
LEVELS: tuple[LogLevel, ...] = ("debug", "info", "warning", "error")
FINAL = 78
"""Exit code of an agent that the server refuses: starting it again is of no use (EX_CONFIG of sysexits.h)."""


class AgentOptions(Options):
    join: str = option(
        "Address of the server, such as https://host:7070. Separate several servers of one cluster by commas.",
        required=True,
        metavar="URL",
    )
    name: str = option("Name of this node. By default the machine's name.")
    partition: Partition = ""
    pool: str = option("Pool of this node. By default none.")
    label: list[str] | None = option("Label of this node, as key=value; jobs select nodes by labels. May be repeated.")
    taint: list[str] | None = option(
        "Taint of this node: it runs only tasks that tolerate this taint. May be repeated."
    )
    resource: list[str] | None = option(
        "Amount of a resource that tasks may use, such as cpu=4 or memory=8Gi. By default all that the machine has. "
        "May be repeated."
    )
    checkpoints: Path | None = option(
        "Folder in which each task gets one of its own, FAIRLEAD_CHECKPOINT, which its later attempts find again. All "
        "nodes of the site should see it, and all users must be able to create folders there.",
        metavar="DIRECTORY",
    )
    address: str = option(
        "Address at which tasks of a gang on other nodes reach this node. By default the one that the server sees."
    )
    directory: Path | None = option(
        "Directory for the state of the agent and the logs of tasks. By default `agent` in the data directory."
    )
    token_file: Path | None = option(
        "File with a token of `fairlead token create --role join`, needed for the first start only. By default the "
        "variable FAIRLEAD_TOKEN."
    )
    for_user: list[str] | None = option(
        "Run only tasks of this user of Fairlead, as the system user of the agent; may be repeated. An agent that "
        "is not started as root takes tasks of its own user by default. As root, add --user root.",
        "--for",
        metavar="USER",
    )
    user: str = option("When started as root: system user that the agent itself runs as.", show_default=AGENT_USER)
    user_map: Path | None = option(
        "When started as root: file with lines user=system-user, for users that have another name on this machine."
    )
    uids: str = option(
        "When started as root: user ids that tasks may run as, such as 1000-60000. By default the range in "
        "/etc/login.defs."
    )
    ca: Path | None = option(
        "PEM file with certificates to trust. By default the file in the variable FAIRLEAD_CA, else the certificates "
        "of the machine."
    )
    insecure: bool = option(
        "Allow http:// to another machine, although tokens and secrets can then be read on the network."
    )
    log_level: LogLevelOption = "info"


def agent(options: AgentOptions) -> None:
    """Make this machine a node: run tasks for a server, until Ctrl-C.

    Tasks keep running after Ctrl-C, and the next agent on this machine finds them again.

    If the agent is started as root, each task runs as the user that submitted it. Otherwise all tasks run as the user
    of the agent, and this node runs only tasks of that user, or of the users named by --for.
    """
    import uvloop

    from fairlead.agent.process import Agent, Settings, Taken
    from fairlead.agent.session import Refused
    from fairlead.agent.split import CannotSplit, Users, split

    log = _logger(options.log_level)
    _check_servers(options.join, options.insecure)
    labels, resources = pairs(options.label, "--label"), pairs(options.resource, "--resource")
    check_memory(resources.get("memory", ""), "--resource", none=True)
    for_users = tuple(options.for_user or ())
    _check_users(for_users, options.user, {"--user-map": options.user_map, "--uids": options.uids})
    separates = os.geteuid() == 0 and not for_users
    users = () if separates else for_users or (own_name(),)
    whole = (options.directory or _data() / "agent").absolute()
    own = whole / "agent" if separates else whole
    token = _token(options.token_file, own)  # before the split: the file may be readable for root only
    authority = _authority(options.ca)  # before the split too: it may change the working directory
    helper = None
    try:
        if separates:
            accounts = Users(agent=options.user or AGENT_USER, map_file=options.user_map, uids=_uids(options.uids))
            helper = split(whole, accounts)
        else:
            guarded = "only by processes of the same user: if all are stopped together, tasks can run twice"
            log("single-user node", {"tasks run as": own_name(), "for users": " ".join(users), "guarded": guarded})
        settings = Settings(
            directory=own,
            users=users,
            token=token,
            labels=labels,
            taints=tuple(options.taint or ()),
            resources=dict(resources),
            authority=authority,
            checkpoints=_checkpoints(options.checkpoints),
            **{name: getattr(options, name) for name in ("join", "name", "partition", "pool", "address")},
        )

        async def work() -> None:
            await Agent(settings, log, helper=helper).run()

        uvloop.run(work())
    except KeyboardInterrupt:
        log("stopped", {"tasks": "they keep running; start the agent again to find them"})
    except (CannotSplit, Refused, Taken) as problem:
        typer.echo(f"fairlead: error: {problem}{_missing(options.token_file)}", err=True)
        raise typer.Exit(FINAL if isinstance(problem, Refused) else 1) from None


def _checkpoints(folder: Path | None) -> Path | None:
    if folder is not None and not folder.is_dir():
        raise wrong("--checkpoints", f"{folder} is not a folder; create it, or mount its file system first")
    return None if folder is None else folder.absolute()


def _authority(file: Path | None) -> Path | None:
    """Return the path of the certificates to trust; None for those of the machine."""
    named = file or os.environ.get("FAIRLEAD_CA")
    return Path(named).absolute() if named else None


def _missing(file: Path | None) -> str:
    """Return a hint that the token file is missing; empty if it is not."""
    try:
        return "" if file is None or file.exists() else f" ({file} does not exist)"
    except PermissionError:
        return ""  # the agent's user cannot look there


def _check_servers(join: str, insecure: bool) -> None:
    """Refuse a text that is no address of a server, and a server to which tokens would be sent unencrypted."""
    from fairlead.wire.addresses import is_exposed, servers

    for url in servers(join) or [join]:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise wrong("--join", f"{url!r} is not the address of a server, such as https://host:7070")
        if is_exposed(url) and not insecure:
            raise wrong(
                "--join",
                f"{url} is another machine, and without TLS the join token and the secrets of jobs can be read on "
                "the network; use https://, or add --insecure if the network is trusted",
            )


def _token(file: Path | None, directory: Path) -> str:
    """Return the join token; empty if there is none, or if the machine has joined before and needs none."""
    from fairlead.agent.node_key import FILE, USER_TOKEN

    if file is not None:
        return file.read_text().strip() if file.exists() else ""  # after the first join the file may be removed
    token = os.environ.get("FAIRLEAD_TOKEN", "")
    # The variable may hold the user's own token instead, which a joined machine does not need.
    return "" if token.startswith(USER_TOKEN) and (directory / FILE).exists() else token


def _check_users(for_users: tuple[str, ...], user: str, others: dict[str, object]) -> None:
    """Refuse options without effect, and refuse to run tasks of other users as root without `--user root`."""
    if os.geteuid() != 0:
        for name in [name for name, value in {"--user": user, **others}.items() if value]:
            raise wrong(name, "it needs an agent that is started as root; leave it out, or start the agent as root")
    elif for_users:
        for name in [name for name, value in others.items() if value]:
            raise wrong(name, "with --for all tasks run as the user of the agent; leave out one of the two")
        if user not in ("", own_name()) or (not user and set(for_users) != {own_name()}):
            raise wrong(
                "--for",
                f"tasks of {', '.join(for_users)} would run as root; leave --for out, so that each task runs as its "
                "user, or add --user root if they should run as root",
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
    """Return a function that logs to standard error. Lines with a field `problem` are warnings, others are info."""

    def log(event: str, fields: dict[str, Any]) -> None:
        level = "warning" if "problem" in fields else "info"
        if LEVELS.index(level) < LEVELS.index(least):
            return
        details = " ".join(f"{name}={value}" for name, value in fields.items())
        with suppress(OSError):  # the disk of the log may be full; the agent continues
            print(f"{strftime('%Y-%m-%d %H:%M:%S')} {level} {event} {details}", file=sys.stderr, flush=True)

    return log
