"""The Standard Workload Format of batch logs: a header of `;` lines, then a line of 18 columns per job.

The value -1 stands for unknown. The machine is one node with all its processors. A job of n processors is one stage of
n tasks of one CPU that start together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from fairlead.core.errors import Refused
from fairlead.core.model import JobSpec, Micros, StageSpec
from fairlead.core.resources import CPU, MAX_DURATION, MILLI
from fairlead.sim.traces.trace import Arrival, LeftOut, Overrun, Trace, cpu_node, seconds, settle_overrun

HEADER = re.compile(r";\s*(MaxProcs|MaxNodes)\s*:\s*(\d+)")
FIELDS = 18
ONE_CPU = ((CPU, MILLI),)
MAX_PROCESSORS = 10_000_000


class Row(msgspec.Struct, frozen=True, gc=False):
    """The columns of a line that are used. Times are in microseconds."""

    line: int
    number: str
    submit: Micros
    run: Micros
    processors: int
    estimate: Micros
    user: int
    group: int
    executable: int
    queue: int


def read_swf(lines: Iterable[tuple[int, str]], name: str, overrun: Overrun, processors: int | None = None) -> Trace:
    """Read a log. The machine has the number of processors in the header, unless `processors` is given."""
    left_out = LeftOut()
    header: dict[str, int] = {}
    rows: list[Row] = []
    seen: set[str] = set()
    for at, line in lines:
        if line.startswith(";") or not line.strip():
            match = HEADER.match(line)
            if match is not None:
                header.setdefault(match[1], int(match[2]))
            continue
        try:
            row = _row(at, line)
            if row.number in seen:
                raise ValueError("its job number stands before")
        except ValueError as problem:
            left_out.add(str(problem), at)
            continue
        seen.add(row.number)
        rows.append(row)
    if processors is None:
        processors = header.get("MaxProcs") or header.get("MaxNodes")
    if not processors:
        raise Refused("nodes", "the header has neither MaxProcs nor MaxNodes; say with --nodes what the machine has")
    arrivals: list[Arrival] = []
    for row in rows:
        if row.processors > processors:
            left_out.add(f"more processors than the machine's {processors}", row.line)
        else:
            arrivals.append(_arrival(row, overrun))
    return Trace(name, arrivals, [("machine", cpu_node(processors))], left_out)


def _row(at: int, line: str) -> Row:
    fields = line.split()
    if len(fields) < FIELDS:
        raise ValueError(f"fewer than {FIELDS} columns")
    number, submit, _, run, allocated, _, _, requested, estimate = fields[:9]
    processors = _whole(requested)
    if processors <= 0:
        processors = _whole(allocated)
    row = Row(
        at,
        str(_whole(number)),
        seconds(submit),
        seconds(run),
        processors,
        seconds(estimate),
        _whole(fields[11]),
        _whole(fields[12]),
        _whole(fields[13]),
        _whole(fields[14]),
    )
    if row.submit < 0:
        raise ValueError("no submit time")
    if row.run < 0:
        raise ValueError("no run time")
    if row.processors <= 0:
        raise ValueError("no processors")
    if max(row.submit, row.run, row.estimate) > MAX_DURATION:
        raise ValueError("a time of more than a hundred years")
    if row.processors > MAX_PROCESSORS:
        raise ValueError(f"more than {MAX_PROCESSORS} processors")
    return row


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a whole number") from None


def _arrival(row: Row, overrun: Overrun) -> Arrival:
    stage = StageSpec("main", row.processors, 0, ONE_CPU, estimate=row.estimate if row.estimate > 0 else None)
    stage, duration = settle_overrun(stage, row.run, overrun)
    spec = JobSpec(
        f"x{row.executable}" if row.executable >= 0 else f"j{row.number}",
        f"u{row.user}" if row.user >= 0 else "unknown",
        f"q{row.queue}" if row.queue >= 0 else "",
        (stage,),
        groups=(f"g{row.group}",) if row.group >= 0 else (),
    )
    return Arrival(row.submit, row.number, spec, (duration,))
