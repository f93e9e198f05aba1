"""`scancel`: cancel jobs and tasks of arrays, and send signals to their processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fairlead.slurm.options import Given, error, fail, parse
from fairlead.slurm.queues import is_below
from fairlead.slurm.rows import LONG, Row, Wanted, parse_wanted, rows_of
from fairlead.slurm.server import caller, connect, pages_of
from fairlead.slurm.tables import SCANCEL
from fairlead.wire.hostlist import expand_hosts
from fairlead.wire.index_spans import each_index

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
        ids = [entry for word in rest for entry in parse_wanted(word)]
    except ValueError as problem:
        fail(NAME, f"Invalid job id {problem}")
    for wanted in ids:
        if not wanted.job.isdigit():
            fail(NAME, f"Invalid job id {wanted.job}")
    try:
        number = signal_of(given["signal"]) if "signal" in given else ""
    except ValueError:
        fail(NAME, f"Unknown job signal: {given['signal']}")
    if "state" in given and LONG.get(given["state"].upper(), given["state"].upper()) not in STOPPABLE:
        print(f"Invalid job state specified: {given['state']}", file=sys.stderr)
        print("Valid job states are PENDING, RUNNING, and SUSPENDED", file=sys.stderr)
        return 1
    with connect(NAME, given) as client:
        code = max([_signal(client, given, wanted, number or "TERM") for wanted in ids if wanted.step], default=0)
        jobs = [wanted for wanted in ids if not wanted.step]
        if ids and not jobs:
            return code
        if given.keys() & {*FILTERS} or "interactive" in given or number not in ("", "KILL"):
            return max(code, _cancel_some(client, given, jobs, number))
        return max([code, *[_cancel(client, given, wanted.job, wanted.indices) for wanted in jobs]])


def signal_of(text: str) -> str:
    """Return the name of a signal, which may be a number, without SIG. Raise ValueError for an unknown one."""
    import signal

    name = text.upper().removeprefix("SIG")
    try:
        found = signal.Signals(int(name)) if name.isdigit() else signal.Signals[f"SIG{name}"]
    except KeyError:
        raise ValueError(text) from None
    return found.name.removeprefix("SIG")


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


def _cancel_some(client: Client, given: Given, ids: list[Wanted], number: str) -> int:
    code = 0
    for row in _wanted(client, given, ids):
        if "interactive" in given and not _confirmed(row):
            continue
        indices = set(each_index(row.indices)) if row.index else None
        if number in ("", "KILL"):
            code = max(code, _cancel(client, given, row.number, indices))
        elif row.started is not None:
            code = max(code, _signal(client, given, Wanted(row.number, indices, ""), number))
        else:
            error(NAME, f"Kill job error on job id {row.id}: Job is pending execution")
            code = 1
    return code


def _wanted(client: Client, given: Given, ids: list[Wanted]) -> Iterator[Row]:
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
    chosen = {wanted.job: wanted.indices for wanted in ids}
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


def _signal(client: Client, given: Given, wanted: Wanted, number: str) -> int:
    """Send a signal to the processes of a job, of tasks of an array, or of a step."""
    from fairlead.client.calls import Problem
    from fairlead.slurm.step_lines import run_beside
    from fairlead.slurm.steps import allocation_of

    which = "full" if "full" in given else "batch" if "batch" in given else "steps"
    if wanted.step:
        which = "batch" if wanted.step == "batch" else f"step={wanted.step}"
    with open(os.path.join(os.path.dirname(__file__), "signal.sh")) as file:
        program = file.read()
    shown = [wanted.job] if wanted.indices is None else [f"{wanted.job}_{at}" for at in sorted(wanted.indices)]
    sent = False
    for job in shown:
        try:
            allocation = allocation_of(client, job)
            places = [] if allocation is None else allocation.places
            for place in places:
                sent = not run_beside(client, wanted.job, place, program, "sh", which, number).returncode or sent
        except Problem as problem:
            error(NAME, f"Kill job error on job id {job}: {problem}")
            return 1
    if not sent and "quiet" not in given:
        suffix = f".{wanted.step}" if wanted.step else ""
        error(NAME, f"Kill job error on job id {shown[0]}{suffix}: Job/step already completing or completed")
    return int(not sent)
