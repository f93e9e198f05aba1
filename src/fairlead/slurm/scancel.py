"""`scancel`: cancel jobs and tasks of arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fairlead.slurm.options import Given, error, fail, parse
from fairlead.slurm.queues import is_below
from fairlead.slurm.rows import LONG, Row, each_index, parse_ids, rows_of
from fairlead.slurm.server import caller, connect, pages_of
from fairlead.slurm.tables import SCANCEL
from fairlead.wire.hostlist import expand_hosts

if TYPE_CHECKING:
    from fairlead.client import Client

NAME = "scancel"
STOPPABLE = ("PENDING", "RUNNING", "SUSPENDED")
FILTERS = ("account", "name", "me", "partition", "qos", "state", "user", "nodelist", "wckey")


def main(words: list[str]) -> int:
    given, rest = parse(SCANCEL, words)
    if not rest and not given.keys() & {*FILTERS}:
        fail(NAME, "No job identification provided")
    try:
        ids = [entry for word in rest for entry in parse_ids(word)]
    except ValueError as problem:
        fail(NAME, f"Invalid job id {problem}")
    for job, _ in ids:
        if not job.isdigit():
            fail(NAME, f"Invalid job id {job}")
    if "state" in given and LONG.get(given["state"].upper(), given["state"].upper()) not in STOPPABLE:
        print(f"Invalid job state specified: {given['state']}", file=sys.stderr)
        print("Valid job states are PENDING, RUNNING, and SUSPENDED", file=sys.stderr)
        return 1
    with connect(NAME, given) as client:
        if given.keys() & {*FILTERS} or "interactive" in given or "signal" in given:
            return _cancel_some(client, given, ids)
        return max([_cancel(client, given, job, indices) for job, indices in ids], default=0)


def _cancel(client: Client, given: Given, job: str, indices: set[int] | None) -> int:
    from fairlead.client.calls import Problem
    from fairlead.wire import operations as op
    from fairlead.wire.api import TasksDocument

    try:
        if indices is None:
            client.kill(job)
        else:
            client.send(op.StopTasks(job=job, action="kill", document=TasksDocument(indices=sorted(indices))))
    except Problem as problem:
        if problem.code == "unreachable":
            raise
        if problem.code not in ("missing", "unknown", "conflict") or "quiet" not in given:
            shown = job if indices is None else f"{job}_{min(indices)}"
            if problem.code in ("missing", "unknown", "conflict"):
                if "verbose" in given:
                    error(NAME, f"Kill job error on job id {shown}: Invalid job id specified")
                return 0
            error(NAME, f"Kill job error on job id {shown}: {problem}")
            return 1
    return 0


def _cancel_some(client: Client, given: Given, ids: list[tuple[str, set[int] | None]]) -> int:
    code = 0
    whole: set[str] = set()
    for row in _wanted(client, given, ids):
        if "interactive" in given and not _confirmed(row):
            continue
        if "signal" in given:
            code = max(code, _signal(client, given, row))
        elif not row.index:
            code = max(code, _cancel(client, given, row.number, None))
        elif row.number not in whole:
            code = max(code, _cancel(client, given, row.number, set(each_index(row.indices))))
    return code


def _wanted(client: Client, given: Given, ids: list[tuple[str, set[int] | None]]) -> Iterator[Row]:
    from fairlead.wire import operations as op

    me = caller(client) if "me" in given else ""
    tests: dict[str, Callable[[Row, str], bool]] = {
        "account": lambda row, text: row.account == text,
        "name": lambda row, text: row.job_name == text,
        "me": lambda row, text: row.user == me,
        "partition": lambda row, text: is_below(row.queue, text),
        "qos": lambda row, text: row.label("qos") == text,
        "state": lambda row, text: row.state == LONG.get(text.upper(), text.upper()),
        "user": lambda row, text: row.user == text,
        "nodelist": lambda row, text: not set(expand_hosts(text)).isdisjoint(row.nodes),
        "wckey": lambda row, text: row.label("wckey") == text,
    }
    chosen = {job: indices for job, indices in ids}
    operation = op.Jobs(tasks=True, state=["pending", "running"], limit=1000)
    for page in pages_of(client, operation, list(chosen)):
        for job in page.jobs:
            for row in rows_of(job):
                indices = chosen.get(job.id)
                if row.over or (indices is not None and indices.isdisjoint(each_index(row.indices))):
                    continue
                if all(test(row, given[name]) for name, test in tests.items() if name in given):
                    yield row


def _confirmed(row: Row) -> bool:
    print(f"Cancel job_id={row.id} name={row.job_name} partition={row.partition_name} [y/n]? ", end="", flush=True)
    return sys.stdin.readline().strip().lower().startswith("y")


def _signal(client: Client, given: Given, row: Row) -> int:
    """Handle `--signal`: a signal that ends processes cancels the tasks of a row, and others are refused."""
    if given["signal"].upper().removeprefix("SIG") in ("KILL", "9", "TERM", "15", "INT", "2"):
        return _cancel(client, given, row.number, set(each_index(row.indices)) if row.index else None)
    error(NAME, f"--signal={given['signal']} is not supported: TERM, INT and KILL end a job")
    return 1
