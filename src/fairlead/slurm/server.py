"""The connection of a command to the server, and the messages of its failures in the form of Slurm's."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from fairlead.slurm.options import Given, fail

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.wire import operations as op

MOST_IDS = 200
"""The number of ids that one request may name."""
ANY_CLUSTER = ("", "all", "fairlead", "none")
"""Names of clusters that mean the default partition of the server."""


@contextmanager
def connect(command: str, given: Given) -> Iterator[Client]:
    """Yield a client of the partition that `--clusters` names. A failure ends the command with a message."""
    from fairlead.client.calls import Problem
    from fairlead.client.endpoint import NotFound
    from fairlead.client.sync import Client

    cluster = given.get("clusters", "").partition(",")[0]
    try:
        with Client(partition="" if cluster in ANY_CLUSTER else cluster) as client:
            yield client
    except NotFound as problem:
        fail(command, str(problem))
    except Problem as problem:
        if problem.code == "unreachable":
            fail(command, f"Unable to contact slurm controller (connect failure): {problem}")
        fail(command, str(problem))


def pages_of(client: Client, wanted: op.Jobs | op.History, ids: Sequence[str]) -> Iterator[Any]:
    """Yield pages of the jobs with these ids, in as many requests as they need; of all jobs without ids.

    While a page is used, the next one is on its way.
    """
    from msgspec.structs import replace

    for at in range(0, max(1, len(ids)), MOST_IDS):
        part: Any = replace(wanted, id=list(ids[at : at + MOST_IDS]))
        page = client.send(part)
        if not page.next:
            yield page
            continue
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as ahead:
            while page.next:
                coming = ahead.submit(client.send, replace(part, cursor=page.next))
                yield page
                page = coming.result()
            yield page


def caller(client: Client) -> str:
    """Return the user of the token, who may have another name on this machine."""
    from fairlead.wire import operations as op

    return client.send(op.Whoami()).user


@cache
def user_name() -> str:
    """Return the name of this process's user."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return os.environ.get("USER", str(os.geteuid()))


@cache
def uid_of(user: str) -> int:
    """Return the number of a user, as far as this machine knows it; else that of `nobody`."""
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return os.geteuid() if user == os.environ.get("LOGNAME") else 65534
