"""Completion of names in bash, zsh and fish. The names come from the server; if it does not answer, none is offered.

The shell calls `fairlead` with the variable `_FAIRLEAD_COMPLETE` and the words of the line in other variables.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout, suppress
from io import StringIO
from typing import TYPE_CHECKING, Any, TypeVar

import typer

if TYPE_CHECKING:
    from fairlead.wire.operation import Operation

VARIABLE = "_FAIRLEAD_COMPLETE"
SECONDS = 1.0
"""Longest time to wait for the server."""
SHOWN = 200
"""Largest number of jobs to offer."""
LIVE = ["pending", "running", "stopping"]

SAFE = re.compile(r"[A-Za-z0-9._@+/=-]+")
"""Names that are safe to offer: zsh evaluates them, and other users may have written them."""

Answer = TypeVar("Answer")
Items = Iterator[tuple[str, str]]
"""Names, each with a description that zsh and fish show."""


def is_asked_for() -> bool:
    """True if the shell asks for names, instead of running a command."""
    return VARIABLE in os.environ


def complete(run: Callable[[Sequence[str]], object]) -> None:
    """Answer the shell. `run` is called with the words before the cursor, and prints the completions."""
    if "COMP_WORDS" not in os.environ:
        run(_split(os.environ.get("_TYPER_COMPLETE_ARGS", ""))[1:])
        return
    # Bash splits words at `=`, and replaces only the part behind it.
    words, at = _split(os.environ["COMP_WORDS"]), int(os.environ.get("COMP_CWORD", "0"))
    words = [*words[:at], "".join(words[at : at + 1])]
    prefix = ""
    if len(words) > 3 and words[-2] == "=":
        prefix = f"{words[-3]}="
        words[-3:] = [prefix + words[-1]]
    elif len(words) > 2 and words[-1] == "=":
        prefix = f"{words[-2]}="
        words[-2:] = [prefix]
    os.environ.update(COMP_WORDS=shlex.join(words), COMP_CWORD=str(len(words) - 1))
    said = StringIO()
    try:
        with redirect_stdout(said):
            run(words[1:])
    finally:
        for line in said.getvalue().splitlines():
            print(line.removeprefix(prefix))


def _split(line: str) -> list[str]:
    """Return the words of a line that may end within quotes."""
    for ending in ("", "'", '"'):
        with suppress(ValueError):
            return shlex.split(line + ending)
    return line.split()


def _ask(operation: Operation[Answer], ctx: typer.Context) -> Answer | None:
    """Return the server's answer to an operation; None if it does not answer in time."""
    from fairlead.client.calls import Call, Problem
    from fairlead.client.endpoint import NotFound, find_endpoint
    from fairlead.client.http_pool import LOST, Connections

    with suppress(NotFound, Problem, *LOST):
        connections = Connections(find_endpoint())
        sent = Call(operation, ctx.params.get("partition") or "")
        reply = connections.request(sent, SECONDS)
        connections.close()
        return sent.read(reply.status, reply.content)
    return None


def _list(operation: Callable[[Any], Operation[Any]], of: str, ctx: typer.Context) -> list[Any]:
    """Return the items in the field `of` of the answer to an operation; an empty list if there is no answer."""
    from fairlead.wire import operations

    return getattr(_ask(operation(operations), ctx), of, [])


def _jobs(ctx: typer.Context, states: list[str]) -> list[Any]:
    return _list(lambda op: op.Jobs(state=states, limit=SHOWN), "jobs", ctx)


def _nodes(ctx: typer.Context) -> list[Any]:
    return _list(lambda op: op.Nodes(), "nodes", ctx)


class Named(str):
    """The id of a job, offered because the name of the job begins with the word before the cursor.

    Typer offers only texts that begin with that word, so this text claims to. Bash then replaces the word by the id;
    zsh and fish offer nothing.
    """

    __slots__ = ()

    def startswith(self, *_: object) -> bool:
        return True


def jobs(ctx: typer.Context, incomplete: str) -> Items:
    """Yield the newest jobs, by id or by the beginning of their name."""
    yield from _described(_jobs(ctx, []), incomplete)


def live_jobs(ctx: typer.Context, incomplete: str) -> Items:
    """Yield the newest jobs that are not over, by id or by the beginning of their name."""
    yield from _described(_jobs(ctx, LIVE), incomplete)


def _described(jobs: list[Any], incomplete: str) -> Items:
    for job in jobs:
        known = SAFE.fullmatch(job.name) and SAFE.fullmatch(job.user)
        by_name = incomplete and job.name.startswith(incomplete)
        yield Named(job.id) if by_name else job.id, f"{job.name} of {job.user}, {job.state}" if known else job.state


def job_names(ctx: typer.Context) -> Items:
    """Yield the names of the newest jobs."""
    yield from ((name, "") for name in sorted({job.name for job in _jobs(ctx, [])}) if SAFE.fullmatch(name))


def job_labels(ctx: typer.Context) -> Items:
    """Yield the labels of the newest jobs, as key=value."""
    yield from _labels(_jobs(ctx, []))


def _labels(items: list[Any]) -> Items:
    seen = {f"{key}={value}" for item in items for key, value in item.labels.items()}
    yield from ((label, "") for label in sorted(seen) if SAFE.fullmatch(label))


def nodes(ctx: typer.Context) -> Items:
    for node in _nodes(ctx):
        yield node.name, node.state


def node_labels(ctx: typer.Context) -> Items:
    """Yield the labels of nodes, as key=value."""
    yield from _labels(_nodes(ctx))


def queues(ctx: typer.Context) -> Items:
    yield from ((queue.path, queue.state) for queue in _list(lambda op: op.Queues(), "queues", ctx))


def pools(ctx: typer.Context) -> Items:
    yield from ((pool.name, "") for pool in _list(lambda op: op.Pools(), "pools", ctx))


def partitions(ctx: typer.Context) -> Items:
    yield from ((partition.name, "") for partition in _list(lambda op: op.Partitions(), "partitions", ctx))
