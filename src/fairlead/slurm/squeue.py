"""`squeue`: list jobs that wait or run."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

from fairlead.slurm.fields import FIELDS, NoSuchField, read_format, read_names
from fairlead.slurm.options import Given, error, fail, from_environment, parse
from fairlead.slurm.queues import is_below
from fairlead.slurm.rows import LIVE, STATES, Row, parse_ids, parse_states, past_rows, rows_of
from fairlead.slurm.server import caller, connect, pages_of
from fairlead.slurm.tables import SQUEUE
from fairlead.slurm.values import listed
from fairlead.wire.hostlist import expand_hosts
from fairlead.wire.index_spans import text_of

if TYPE_CHECKING:
    from fairlead.client import Client

NAME = "squeue"
VARIABLES = {
    "noheader": "", "jobs": "", "format": "SQUEUE_FORMAT", "Format": "SQUEUE_FORMAT2", "me": "", "start": "",
    "user": "SQUEUE_USERS", "name": "SQUEUE_NAMES",
}  # fmt: skip
USUAL = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
STEPS = "%.15i %.8j %.9P %.8u %.9M %N"
OF_PAST = set("NBSeMLRC") | {"exit_code", "nodelist", "starttime", "endtime", "timeused", "reasonlist", "batchhost"}
"""Fields of ended jobs for which the history is read."""


def main(words: list[str]) -> int:
    given, rest = parse(SQUEUE, words)
    option = next((name for name in ("jobs", "steps") if name in given), "")
    if rest and option:  # as the real one, which takes the ids also as words of their own
        given[option] = ",".join(filter(None, [given[option], *rest]))
    elif rest:
        fail(
            NAME,
            f"Unrecognized option: {rest[0]}\nUsage: squeue [-A account] [--clusters names] [-i seconds] [--job jobid]",
        )
    given = Given({**from_environment(SQUEUE, os.environ, "SQUEUE", VARIABLES), **given})
    with connect(NAME, given) as client:
        while True:
            _list(client, given)
            if "iterate" not in given:
                return 0
            sys.stdout.flush()
            time.sleep(max(1.0, float(given["iterate"])))


def _list(client: Client, given: Given) -> None:
    states = _states(given)
    rows = list(_sorted(_wanted(client, given, states), given))
    if "start" in given:
        _add_starts(client, rows)
    if "json" in given:
        from fairlead.slurm.documents import jobs_document

        sys.stdout.write(jobs_document(rows))
        return
    before, columns = _columns(given)
    if any((column.field.letter or column.field.name) in OF_PAST for column in columns) and not set(LIVE) >= {
        row.state for row in rows
    }:
        rows = _with_past(client, rows)
    if "long" in given and "noheader" not in given:
        print(time.strftime("%a %b %d %H:%M:%S %Y"))
    if "steps" in given:
        rows = _steps(client, rows, listed(given["steps"]))
    lines = []
    if "noheader" not in given:
        headings = [
            "STEPID" if "steps" in given and column.field.letter == "i" else column.field.heading for column in columns
        ]
        lines.append(before + "".join([column.text(text) for column, text in zip(columns, headings, strict=True)]))
    values = [(column.field.value, column.text) for column in columns]
    lines += [before + "".join([text(value(row)) for value, text in values]) for row in rows]
    sys.stdout.write("".join([f"{line}\n" for line in lines]))


def _steps(client: Client, rows: list[Row], wanted: Collection[str]) -> list[Row]:
    """Return the running steps of jobs: all, or those with these ids."""
    from fairlead.slurm.sacct import step_entries
    from fairlead.slurm.step_lines import steps_of

    found: list[Row] = []
    for row, steps in steps_of(client, [row for row in rows if row.state == "RUNNING"]):
        for entry in step_entries(row, steps):
            entry.id, entry.labels = entry.shown_id, {**entry.labels, "slurm/name": entry.step_name}
            if entry.state == "RUNNING" and (not wanted or entry.id in wanted or row.id in wanted):
                found.append(entry)
    return found


def _columns(given: Given) -> tuple[str, list[Any]]:
    if "Format" in given:
        try:
            return "", read_names(given["Format"], FIELDS)
        except NoSuchField as problem:
            fail(NAME, f"Invalid job format specification: {problem}")
    default = START if "start" in given else LONG if "long" in given else STEPS if "steps" in given else USUAL
    return read_format(given.get("format", default), FIELDS)


def _states(given: Given) -> set[str] | None:
    try:
        if "states" in given:
            return parse_states(given["states"])
    except ValueError as problem:
        error(NAME, f"Invalid job state specified: {problem}")
        fail(NAME, f"Valid job states include: {','.join(STATES)}\n")
    return {"PENDING"} if "start" in given else set(LIVE)


def _wanted(client: Client, given: Given, states: set[str] | None) -> Iterator[Row]:
    """Yield the rows that all filters accept."""
    from fairlead.wire import operations as op

    ids = _ids(given)
    asked: list[str] = []
    # A killed or failed job may have tasks in other states, so only live states can be left to the server.
    if states is not None and states <= {*LIVE}:
        asked = ["pending", "running", "stopping"] if states - {"SUSPENDED"} else ["pending"]
    accepts = row_filter(given, client)
    users = [caller(client)] if "me" in given else listed(given.get("user", ""))
    operation = op.Jobs(
        tasks=True,
        state=asked,
        user=users[0] if len(users) == 1 and not users[0].isdigit() else "",
        limit=1000,
    )
    each = "array" in given or "array-unique" in given
    found = False
    for page in pages_of(client, operation, list(ids)):
        for job in page.jobs:
            found = True
            chosen = ids.get(job.id)
            for row in rows_of(job, each):
                if chosen is not None and not _in(row, chosen):
                    continue
                if (states is None or row.state in states) and accepts(row):
                    yield row
    if len(ids) == 1 and not found and not (asked and _exists(client, next(iter(ids)))):
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        raise SystemExit(1)


def _ids(given: Given) -> dict[str, set[int] | None]:
    """Return the jobs that --jobs names, each with the indices of its tasks; None for all."""
    ids: dict[str, set[int] | None] = {}
    try:
        for name, indices in parse_ids(given.get("jobs", "")):
            if not name[0].isdigit():
                raise ValueError(name)
            before = ids.get(name, set())
            ids[name] = None if indices is None or before is None else before | indices
    except ValueError as problem:
        fail(NAME, f"Invalid job id: {problem}")
    return ids


def _exists(client: Client, job: str) -> bool:
    from fairlead.client.calls import Problem

    try:
        client.job(job)
    except Problem:
        return False
    return True


def _in(row: Row, chosen: set[int]) -> bool:
    """True if a row has one of the indices. A row of several waiting tasks keeps only those."""
    if not row.index:
        return False
    if not row.index.startswith("["):
        return int(row.index) in chosen
    kept = sorted(
        at
        for at in chosen
        if any(low <= at < high for low, high in zip(row.indices[::2], row.indices[1::2], strict=True))
    )
    if kept:
        flat = [bound for at in kept for bound in (at, at + 1)]
        row.indices = flat
        row.index = f"[{text_of(flat)}]" if len(kept) > 1 else str(kept[0])
        row.id = f"{row.number}_{row.index}"
    return bool(kept)


def row_filter(given: Given, client: Client, command: str = NAME) -> Callable[[Row], bool]:
    """Return the filter of all options but states and ids."""
    tests: list[Callable[[Row], bool]] = []
    users = {caller(client)} if "me" in given else {_user(user) for user in listed(given.get("user", ""))}
    if users:
        tests.append(lambda row: row.user in users)
    labels = {"account": "account", "accounts": "account", "qos": "qos", "wckeys": "wckey", "licenses": "licenses"}
    for option, label in labels.items():
        if option in given:
            tests.append(_among(_value_of(label), set(listed(given[option]))))
    if "name" in given:
        tests.append(_among(lambda row: row.job_name, set(given["name"].split(","))))
    if "partition" in given:
        names = listed(given["partition"])
        tests.append(lambda row: any(is_below(row.queue, name) for name in names))
    if "nodelist" in given:
        try:
            hosts = set(expand_hosts(given["nodelist"]))
        except ValueError:
            fail(command, f"Invalid node name specified: {given['nodelist']}")
        from fairlead.slurm.nodes import read_hosts

        unknown = next((host for host in hosts if host not in {known.name for known in read_hosts(client)}), None)
        if unknown is not None:
            fail(command, f"Invalid node name {unknown}")
        tests.append(lambda row: not hosts.isdisjoint(row.nodes))
    return lambda row: all([test(row) for test in tests])


def _value_of(label: str) -> Callable[[Row], str]:
    return lambda row: row.label(label).partition(":")[0]


def _among(value: Callable[[Row], str], names: set[str]) -> Callable[[Row], bool]:
    return lambda row: value(row) in names


def _user(name: str) -> str:
    if not name.isdigit():
        return name
    import pwd

    try:
        return pwd.getpwuid(int(name)).pw_name
    except KeyError:
        return name


ORDER = {"PENDING": 0, "RUNNING": 1}


def _sorted(rows: Iterator[Row], given: Given) -> list[Row]:
    """Return the rows in the usual order of squeue, or in that of --sort."""
    found = sorted(rows, key=lambda row: (row.partition_name, ORDER.get(row.state, 2), -row.priority))
    if "sort" not in given:
        return found
    by_letter = {field.letter: field for field in FIELDS if field.letter}
    for word in reversed(listed(given["sort"])):
        field = by_letter.get(word.lstrip("+-")[:1])
        if field is None:
            fail(NAME, f"Invalid sort specification: {word}")
        found.sort(key=lambda row, value=field.value: _natural(value(row)), reverse=word.startswith("-"))  # type: ignore[misc]
    return found


def _natural(text: str) -> tuple[int, float, str]:
    head = text.partition("_")[0]
    return (0, float(head), text) if head.isdigit() else (1, 0.0, text)


def _add_starts(client: Client, rows: list[Row]) -> None:
    """Set the predicted start of waiting jobs."""
    from fairlead.client.calls import Problem

    jobs = list(dict.fromkeys(row.number for row in rows))[:1000]
    try:
        starts = {eta.job: eta.start for eta in client.eta(*jobs)} if jobs else {}
    except Problem as problem:
        fail(NAME, str(problem))
    for row in rows:
        row.started = starts.get(row.number)


def _with_past(client: Client, rows: list[Row]) -> list[Row]:
    """Return the rows, with nodes and times of ended ones from the history."""
    from fairlead.wire import operations as op

    jobs = list(dict.fromkeys(str(row.number) for row in rows if row.over))
    past: dict[str, Row] = {}
    for page in pages_of(client, op.History(attempts=True, limit=500), jobs) if jobs else ():
        past.update({row.id: row for job in page.jobs for row in past_rows(job)})
    for row in rows:
        old = past.get(row.id)
        if row.over and old is not None:
            row.nodes, row.started, row.ended, row.exit_code = old.nodes, old.started, old.ended, old.exit_code
    return rows
