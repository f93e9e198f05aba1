"""Traces in Fairlead's own format: a YAML document for small traces, a CSV table for large ones.

    nodes:
      - {name: n, count: 4, resources: {cpu: 8, memory: 32Gi}}      # n0 … n3
    jobs:
      - {id: a, submit: 0s, user: ann, stages: [{count: 8, resources: {cpu: 1}, duration: 90s}]}
    generate: {jobs: 1000, seed: 1}

A job is written as for `fairlead submit`, with its time of submission and, for each stage, the run time of a task.
`generate` adds made-up jobs, which `generate.py` draws.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from fairlead.core.changes import NodeSpec
from fairlead.core.documents import parse_job, parse_node
from fairlead.core.errors import Refused
from fairlead.core.model import Micros, renamed
from fairlead.core.reader import Reader, check_name
from fairlead.core.resources import parse_duration, shown
from fairlead.sim.traces.csv_rows import Lines, Table
from fairlead.sim.traces.generate import generate, parse_workload
from fairlead.sim.traces.trace import Arrival, LeftOut, Overrun, Trace, job_id, settle_overrun

MAX_NODES = 1_000_000
NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,6})?")
RESOURCES = ("cpu", "memory", "gpu")
NEEDED = ("submit", "duration")
"""The columns of every table."""
COLUMNS = (
    *("id", *NEEDED, "count", "min", *RESOURCES, "estimate"),
    *("user", "queue", "priority", "after"),
)


def read_document(
    document: object,
    name: str,
    overrun: Overrun,
    instead: Sequence[tuple[str, NodeSpec]] | None = None,
    seed: int | None = None,
) -> Trace:
    """Read a document. `instead` replaces its nodes, and `seed` the seed of generated jobs."""
    read = Reader({} if document is None else document, "", "a trace")
    nodes = parse_nodes(read.get("nodes", []), "nodes")
    nodes = nodes if instead is None else list(instead)
    left_out = LeftOut()
    arrivals: list[Arrival] = []
    ids: set[str] = set()
    for at, job in enumerate(_list(read.get("jobs", []), "jobs"), 1):
        _add(arrivals, ids, left_out, at, job, overrun)
    generated = read.get("generate")
    if generated is not None:
        workload = parse_workload(generated, "generate")
        workload = workload if seed is None else msgspec.structs.replace(workload, seed=seed)
        arrivals += generate(workload, nodes, overrun)
    read.close()
    return Trace(name, arrivals, nodes, left_out)


def read_table(lines: Lines, name: str, overrun: Overrun) -> Trace:
    """Read a table with one job of one stage per row. Empty values have their defaults."""
    table = Table(lines)
    table.need(*NEEDED)
    table.allow(COLUMNS)
    left_out = LeftOut()
    arrivals: list[Arrival] = []
    ids: set[str] = set()
    for at, row in table:
        if "" in row:
            left_out.add("more values than columns", at)
        else:
            _add(arrivals, ids, left_out, at, _document(row), overrun)
    return Trace(name, arrivals, [], left_out)


def parse_nodes(document: object, field: str) -> list[tuple[str, NodeSpec]]:
    """Read a list of nodes. An entry with a `count` of N stands for N equal nodes with numbered names."""
    nodes: dict[str, NodeSpec] = {}
    for at, entry in enumerate(_list(document, field)):
        place = f"{field}[{at}]"
        read = Reader(entry, place, "a node")
        count = read.optional_count("count", 1, MAX_NODES)
        name, spec = parse_node({key: value for key, value in read.doc.items() if key != "count"}, place)
        names = [name] if count is None else [f"{name}{number}" for number in range(count)]
        for node in names:
            if check_name(node, f"{place}.name") in nodes:
                raise Refused(f"{place}.name", f"there is already a node {node}; give each its own name")
            nodes[node] = spec
    return list(nodes.items())


def _document(row: Mapping[str, str]) -> dict[str, Any]:
    """Return a row as a job document. Plain numbers become numbers; other values stay text, as in YAML."""
    given: dict[str, Any] = {key: _number(value) for key, value in row.items() if value}
    stage: dict[str, Any] = {key: given.pop(key) for key in ("duration", "count", "min", "estimate") if key in given}
    stage["resources"] = {key: given.pop(key) for key in RESOURCES if key in given} or {"cpu": 1}
    if "after" in given:
        given["after"] = row["after"].split()
    for key in ("id", "user", "queue"):
        if key in given:
            given[key] = row[key]
    return {**given, "stages": [stage]}


def _number(text: str) -> int | Decimal | str:
    if not NUMBER.fullmatch(text):
        return text
    return Decimal(text) if "." in text else int(text)


def _add(
    arrivals: list[Arrival], ids: set[str], left_out: LeftOut, at: int, document: object, overrun: Overrun
) -> None:
    try:
        arrival = _arrival(document, at, overrun)
        if arrival.id in ids:
            raise Refused("id", f"there is already a job {arrival.id}; give each its own")
    except Refused as problem:
        left_out.add(str(problem), at)
        return
    ids.add(arrival.id)
    arrivals.append(arrival)


def _arrival(document: object, number: int, overrun: Overrun) -> Arrival:
    read = Reader(document, "", "a job")
    rest: dict[str, Any] = dict(read.doc)
    name = check_name(str(rest.pop("id", number)), "id")
    submit = parse_duration(rest.pop("submit", 0), "submit")
    durations: list[Micros] = []
    stages: list[dict[str, Any]] = []
    for at, entry in enumerate(_list(rest.get("stages"), "stages")):
        stage = dict(Reader(entry, f"stages[{at}]", "a stage").doc)
        if stage.get("duration") is None:
            raise Refused(f"stages[{at}].duration", "missing; say how long its tasks run")
        durations.append(parse_duration(stage.pop("duration"), f"stages[{at}].duration"))
        stages.append(stage)
    spec = parse_job({"name": job_id(name), **rest, "stages": stages})
    settled = [settle_overrun(stage, run, overrun) for stage, run in zip(spec.stages, durations, strict=True)]
    spec = msgspec.structs.replace(spec, stages=tuple(stage for stage, _ in settled), after=renamed(spec.after, job_id))
    return Arrival(submit, name, spec, tuple(run for _, run in settled))


def _list(document: object, field: str) -> list[object]:
    if not isinstance(document, list | tuple):
        raise Refused(field, f"{shown(document)} is not a list; write a list")
    return list(document)
