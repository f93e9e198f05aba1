"""The Standard Workload Format of batch logs: a header of `;` lines, then a line of 18 columns per job.

The value -1 stands for unknown. The machine is one node with all its processors. A job of n processors is one stage of
n tasks of one CPU that start together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fairlead.core.errors import Refused
from fairlead.core.model import JobSpec, StageSpec
from fairlead.core.resources import CPU, MAX_DURATION, MILLI
from fairlead.sim.traces.trace import Arrival, LeftOut, Overrun, Trace, cpu_node, seconds, settle_overrun

HEADER = re.compile(r";\s*(MaxProcs|MaxNodes)\s*:\s*(\d+)")
FIELDS = 18
ONE_CPU = ((CPU, MILLI),)
MAX_PROCESSORS = 10_000_000


def read_swf(lines: Iterable[tuple[int, str]], name: str, overrun: Overrun, processors: int | None = None) -> Trace:
    """Read a log. The header has the number of processors of the machine, unless `processors` is given."""
    left_out = LeftOut()
    header: dict[str, int] = {}
    read: list[tuple[int, Arrival]] = []
    seen: set[str] = set()
    for at, line in lines:
        if line.startswith(";") or not line.strip():
            match = HEADER.match(line)
            if match is not None:
                header.setdefault(match[1], int(match[2]))
            continue
        try:
            arrival = _arrival(line.split(), overrun)
            if arrival.id in seen:
                raise ValueError("its job number is that of an earlier line")
        except ValueError as problem:
            left_out.add(str(problem), at)
            continue
        seen.add(arrival.id)
        read.append((at, arrival))
    if processors is None:
        processors = header.get("MaxProcs") or header.get("MaxNodes")
    if not processors:
        raise Refused("nodes", "the header has neither MaxProcs nor MaxNodes; say with --nodes what the machine has")
    arrivals: list[Arrival] = []
    for at, arrival in read:
        if arrival.spec.stages[0].count > processors:
            left_out.add(f"more processors than the machine's {processors}", at)
        else:
            arrivals.append(arrival)
    return Trace(name, arrivals, [("machine", cpu_node(processors))], left_out)


def _arrival(fields: list[str], overrun: Overrun) -> Arrival:
    if len(fields) < FIELDS:
        raise ValueError(f"fewer than {FIELDS} columns")
    number = str(_whole(fields[0]))
    submit, wait, run = seconds(fields[1]), seconds(fields[2]), seconds(fields[3])
    processors = _whole(fields[7])
    if processors <= 0:
        processors = _whole(fields[4])
    estimate = seconds(fields[8])
    user, group, executable, queue = map(_whole, fields[11:15])
    if submit < 0:
        raise ValueError("no submit time")
    if run < 0:
        raise ValueError("no run time")
    if processors <= 0:
        raise ValueError("no processors")
    if max(submit, run, estimate) > MAX_DURATION:
        raise ValueError("a time of more than a hundred years")
    if processors > MAX_PROCESSORS:
        raise ValueError(f"more than {MAX_PROCESSORS} processors")
    stage = StageSpec("main", processors, 0, ONE_CPU, estimate=estimate if estimate > 0 else None)
    stage, duration = settle_overrun(stage, run, overrun)
    spec = JobSpec(
        f"x{executable}" if executable >= 0 else f"j{number}",
        f"u{user}" if user >= 0 else "unknown",
        f"q{queue}" if queue >= 0 else "",
        (stage,),
        groups=(f"g{group}",) if group >= 0 else (),
    )
    return Arrival(submit, number, spec, (duration,), submit + wait if wait >= 0 else None)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a whole number") from None
