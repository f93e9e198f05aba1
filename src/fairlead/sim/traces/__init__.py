"""Traces: arrival times and run times of jobs. The format of a file is known from its name or its first line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

from fairlead.core.changes import NodeSpec
from fairlead.core.errors import Refused
from fairlead.core.resources import CPU, MILLI
from fairlead.sim.traces import openb, own, sacct
from fairlead.sim.traces.csv_rows import Table
from fairlead.sim.traces.swf import read_swf
from fairlead.sim.traces.trace import Arrival, LeftOut, Overrun, Trace, open_lines

__all__ = ["Arrival", "LeftOut", "Overrun", "Trace", "parse_nodes", "read_traces"]

NODES = re.compile(r"(\d{1,7})(?:x([0-9a-z].*))?")

Load = Callable[[Path], object]
"""Reads a YAML file."""


def read_traces(
    paths: Sequence[Path],
    load: Load,
    overrun: Overrun = "extend",
    nodes: Sequence[tuple[str, NodeSpec]] | None = None,
    jobs: int | None = None,
    seed: int | None = None,
) -> Trace:
    """Read one trace from all files. `nodes` replaces the nodes of the files."""
    parts = [_read(path, load, overrun, nodes, seed) for path in paths]
    # Arrivals of one instant keep the order of their lines.
    arrivals = sorted(chain.from_iterable(part.arrivals for part in parts), key=lambda arrival: arrival.at)
    all_nodes = list(nodes) if nodes is not None else list(chain.from_iterable(part.nodes for part in parts))
    left_out = LeftOut()
    for part in parts:
        left_out.join(part.left_out, part.name if len(parts) > 1 else "")
    _check(arrivals, all_nodes, [part.name for part in parts])
    return Trace(" + ".join(part.name for part in parts), arrivals[:jobs], all_nodes, left_out)


def _read(
    path: Path, load: Load, overrun: Overrun, nodes: Sequence[tuple[str, NodeSpec]] | None, seed: int | None
) -> Trace:
    stem = path.name.removesuffix(".gz")
    if stem.endswith((".yaml", ".yml")):
        return own.read_document(load(path), path.name, overrun, nodes, seed)
    if stem.endswith(".swf"):
        processors = None if nodes is None else sum(dict(spec.capacity).get(CPU, 0) // MILLI for _, spec in nodes)
        return read_swf(open_lines(path), path.name, overrun, processors)
    if stem.endswith(".csv"):
        return _read_table(path, overrun)
    first = next((line for _, line in open_lines(path) if line.strip()), "")
    if sacct.is_sacct(first):
        return sacct.read_sacct(open_lines(path), path.name, overrun, nodes)
    if sacct.is_sinfo(first):
        return Trace(path.name, [], sacct.read_sinfo(open_lines(path)), LeftOut())
    raise Refused(
        path.name,
        f"not a known kind of trace; its name should end in .swf, .csv, .yaml or one of them + .gz, "
        f"or it should be the output of {sacct.COMMAND}",
    )


def _read_table(path: Path, overrun: Overrun) -> Trace:
    columns = set(Table(open_lines(path)).columns)
    left_out = LeftOut()
    lines = open_lines(path)
    if columns.issuperset(openb.NODE_COLUMNS):
        return Trace(path.name, [], openb.read_nodes(lines, left_out), left_out)
    if columns.issuperset(openb.POD_COLUMNS):
        return Trace(path.name, openb.read_pods(lines, left_out, overrun), [], left_out)
    if columns.issuperset(own.NEEDED):
        return own.read_table(lines, path.name, overrun)
    raise Refused(
        f"{path.name}: columns",
        "not those of a trace; a job needs submit and duration, or it is a list of openb nodes or pods",
    )


def parse_nodes(text: str, load: Load) -> list[tuple[str, NodeSpec]]:
    """Read the `--nodes` option: `64`, `8x16`, `8xcpu=16,gpu=2`, or a file with a list of nodes."""
    match = NODES.fullmatch(text)
    if match is None:
        trace = _read(Path(text), load, "extend", None, None)
        if not trace.nodes:
            raise Refused("nodes", f"{text} has no nodes; name a list of nodes")
        return trace.nodes
    count, node = int(match[1]), match[2] or "1"
    resources = dict(part.partition("=")[::2] for part in node.split(",")) if "=" in node else {"cpu": node}
    return own.parse_nodes([{"name": "n", "count": count, "resources": resources}], "nodes")


def _check(arrivals: Sequence[Arrival], nodes: Sequence[object], names: Sequence[str]) -> None:
    files = " and ".join(names)
    if not arrivals:
        raise Refused("jobs", f"{files} has no job that can be simulated; name a trace with jobs")
    if not nodes:
        raise Refused("nodes", f"{files} has no nodes; name a file with nodes, or give --nodes, such as 8x16")
    seen: set[str] = set()
    for arrival in arrivals:
        if arrival.id in seen:
            raise Refused("jobs", f"{arrival.id} is in more than one of {files}; simulate them separately")
        seen.add(arrival.id)
