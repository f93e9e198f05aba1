"""Completion of names in bash, zsh and fish. Names come from the server; without an answer, no name is offered.

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
"""Longest wait for the server."""
SHOWN = 200
"""Jobs that are offered."""
LIVE = ["pending", "running", "stopping"]

SAFE = re.compile(r"[A-Za-z0-9._@+/=-]+")
"""Names that are offered. Zsh evaluates what it is told, and labels are written by other users."""

Answer = TypeVar("Answer")
Items = Iterator[tuple[str, str]]
"""Names, each with a description that zsh and fish show."""


def is_asked_for() -> bool:
    """True if the shell asks for names, instead of running a command."""
    return VARIABLE in os.environ


def complete(run: Callable[[Sequence[str]], object]) -> None:
    """Answer the shell: `run` completes, with the words before the cursor."""
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
    """Return the server's answer about the named partition; None if there is none in time."""
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


def _jobs(ctx: typer.Context, states: list[str]) -> list[Any]:
    from fairlead.wire import operations as op

    page = _ask(op.Jobs(state=states, limit=SHOWN), ctx)
    return [] if page is None else page.jobs


def _nodes(ctx: typer.Context) -> list[Any]:
    from fairlead.wire import operations as op

    page = _ask(op.Nodes(), ctx)
    return [] if page is None else page.nodes


class Named(str):
    """The id of a job whose name begins with the word before the cursor.

    Typer drops what does not begin with that word. Bash takes it in place of the word; zsh and fish drop it.
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
    from fairlead.wire import operations as op

    page = _ask(op.Queues(), ctx)
    for queue in page.queues if page is not None else ():
        yield queue.path, queue.state


def pools(ctx: typer.Context) -> Items:
    from fairlead.wire import operations as op

    page = _ask(op.Pools(), ctx)
    for pool in page.pools if page is not None else ():
        yield pool.name, ""


def partitions(ctx: typer.Context) -> Items:
    from fairlead.wire import operations as op

    page = _ask(op.Partitions(), ctx)
    for partition in page.partitions if page is not None else ():
        yield partition.name, ""
