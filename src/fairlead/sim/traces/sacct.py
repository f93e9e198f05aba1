"""A Slurm cluster's past: the output of `sacct` with one line a job, and that of `sinfo` for the nodes.

A job on n nodes is n tasks that start together. It arrives when it became eligible, so that the wait for other jobs,
or for a start time that its user chose, does not count. Partitions with nodes of their own stay separate, by labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain

import msgspec

from fairlead.core.changes import NodeSpec
from fairlead.core.errors import Refused
from fairlead.core.model import JobSpec, Micros, StageSpec
from fairlead.core.reader import NAME
from fairlead.core.resources import CPU, DAY, GPU, HOUR, MAX_DURATION, MEMORY, MILLI, MINUTE, SECOND
from fairlead.sim.traces.trace import Arrival, LeftOut, Overrun, Trace, settle_overrun
from fairlead.wire.hostlist import expand_hosts

FORMAT = (
    "JobIDRaw,JobName,User,Account,Partition,Submit,Eligible,Start,End,State,Timelimit,NNodes,NCPUS,AllocTRES,NodeList"
)
COMMAND = f"sacct --allusers --allocations --parsable2 --starttime now-30days --format {FORMAT}"
"""What to run on the cluster to be asked about."""
NODES_FORMAT = "%N|%c|%m|%G|%P"
NODES_COMMAND = f"sinfo --Node --format '{NODES_FORMAT}'"

ALIASES = {
    "jobidraw": "jobid",
    "alloccpus": "ncpus",
    "reqcpus": "ncpus",
    "allocnodes": "nnodes",
    "reqnodes": "nnodes",
    "alloctres": "tres",
    "reqtres": "tres",
    "timelimitraw": "timelimit",
}
"""Another name of a column → the name here. Of several columns with one name, the first with a value counts."""
NEEDED = ("jobid", "submit", "start", "end", "ncpus")
NODE_ALIASES = {"nodelist": "name", "nodehost": "name", "avail_features": "features"}
NODE_COLUMNS = ("name", "cpus", "memory")
NOTHING = frozenset(("", "Unknown", "None", "N/A", "(null)", "None assigned", "INVALID"))
STEP = re.compile(r"\d+(_\d+|\+\d+)?\..*")
TIME_LIMIT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")
AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)")
GRES = re.compile(r"gpu(?::[A-Za-z][^:(,]*)?:(\d+)")
UNITS = {"": 2**20, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
MAX_TASKS = 1_000_000
PART_OF = "partition/"
"""Begin of the label of nodes that belong to a partition."""


class Recorded(msgspec.Struct, frozen=True):
    """A job as Slurm ran it."""

    arrival: Arrival
    partition: str
    hosts: tuple[str, ...]


def is_sacct(first_line: str) -> bool:
    """True if a file that begins so is output of `sacct`."""
    return {"jobid", "submit"} <= {_column(name, ALIASES) for name in first_line.strip().split("|")}


def is_sinfo(first_line: str) -> bool:
    """True if a file that begins so is output of `sinfo`."""
    return set(NODE_COLUMNS) <= {_column(name, NODE_ALIASES) for name in first_line.strip().split("|")}


def read_sacct(
    lines: Iterable[tuple[int, str]], name: str, overrun: Overrun, nodes: Sequence[tuple[str, NodeSpec]] | None = None
) -> Trace:
    """Read the jobs of a cluster. Without `nodes`, they are inferred: what ran on each at the same time was there."""
    left_out = LeftOut()
    jobs: list[Recorded] = []
    seen: set[str] = set()
    for at, row in _rows(lines, ALIASES, NEEDED, COMMAND):
        if STEP.fullmatch(row["jobid"]):
            continue
        try:
            job = _recorded(row, overrun)
            if job.arrival.id in seen:
                raise ValueError("its job id is that of an earlier line")
        except ValueError as problem:
            left_out.add(str(problem), at)
            continue
        seen.add(job.arrival.id)
        jobs.append(job)
    if nodes is None:
        nodes = _inferred(jobs)
    apart = {label for _, spec in nodes for label, _ in spec.labels}
    jobs = [_kept_in_partition(job) if PART_OF + _name(job.partition) in apart else job for job in jobs]
    first = min((job.arrival.at for job in jobs), default=0)
    arrivals = [
        msgspec.structs.replace(job.arrival, at=job.arrival.at - first, started=(job.arrival.started or 0) - first)
        for job in jobs
    ]
    return Trace(name, arrivals, list(nodes), left_out)


def read_sinfo(lines: Iterable[tuple[int, str]]) -> list[tuple[str, NodeSpec]]:
    """Read the nodes of a cluster. A node of several partitions has a line for each."""
    found: dict[str, NodeSpec] = {}
    partitions: dict[str, list[str]] = {}
    for at, row in _rows(lines, NODE_ALIASES, NODE_COLUMNS, NODES_COMMAND):
        try:
            capacity = {CPU: _whole(row["cpus"], "CPUS") * MILLI, MEMORY: _whole(row["memory"], "MEMORY") * UNITS["M"]}
            gpus = sum(int(match[1]) for match in GRES.finditer(row.get("gres", "")))
            names = expand_hosts(row["name"])
        except ValueError as problem:
            raise Refused(f"line {at}", f"{problem}; run {NODES_COMMAND}") from None
        for node in names:
            found[node] = NodeSpec(_amounts({**capacity, GPU: gpus * MILLI}))
            partitions.setdefault(node, []).append(row.get("partition", "").rstrip("*"))
    return _labelled(found, partitions)


def _rows(
    lines: Iterable[tuple[int, str]], aliases: Mapping[str, str], needed: Sequence[str], command: str
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a table with `|` between its columns."""
    columns: list[str] = []
    for at, line in lines:
        values = [value.strip() for value in line.rstrip("\r\n").split("|")]
        if not any(values):
            continue
        if not columns:
            columns = [_column(name, aliases) for name in values]
            missing = [name for name in needed if name not in columns]
            if missing:
                raise Refused("columns", f"{', '.join(missing)} missing; run {command}")
            continue
        row: dict[str, str] = {}
        for column, value in zip(columns, values, strict=False):
            if row.get(column, "") in NOTHING:
                row[column] = value
        yield at, row if len(values) >= len([name for name in columns if name]) else dict.fromkeys(columns, "")


def _column(name: str, aliases: Mapping[str, str]) -> str:
    name = name.strip().lower()
    return aliases.get(name, name)


def _recorded(row: Mapping[str, str], overrun: Overrun) -> Recorded:
    number = row["jobid"]
    if not number:
        raise ValueError("fewer values than columns")
    arrived, started, ended = _times(row)
    tres = _tres(row.get("tres", ""))
    nodes = _whole(row.get("nnodes", "") or str(tres.get("node", 1)), "NNodes") or 1
    cpus = _whole(row["ncpus"], "NCPUS") or tres.get("cpu", 0)
    if not cpus:
        raise ValueError("no CPUs")
    if max(cpus, nodes) > MAX_TASKS:
        raise ValueError(f"more than {MAX_TASKS:,} CPUs or nodes")
    gpus = tres.get("gres/gpu", 0)
    amounts = {CPU: cpus * MILLI, MEMORY: tres.get("mem", 0), GPU: gpus * MILLI}
    each = {name: -(-amount // nodes) for name, amount in amounts.items()}
    each[GPU] = -(-gpus // nodes) * MILLI
    stage = StageSpec("main", nodes, 0, _amounts(each), estimate=_limit(row.get("timelimit", "")))
    stage, duration = settle_overrun(stage, ended - started, overrun)
    partition = row.get("partition", "").partition(",")[0]
    queue = row.get("account", "") if row.get("account", "") not in NOTHING else partition
    spec = JobSpec(
        row.get("jobname") or f"j{number}",
        _name(row.get("user", "")) or "unknown",
        _name(queue).replace(".", "-"),
        (stage,),
    )
    hosts = tuple(expand_hosts(row["nodelist"])) if row.get("nodelist", "") not in NOTHING else ()
    return Recorded(Arrival(arrived, number, spec, (duration,), started), partition, hosts)


def _times(row: Mapping[str, str]) -> tuple[Micros, Micros, Micros]:
    """Return when a job arrived, started and ended."""
    submit, started, ended = _time(row["submit"]), _time(row["start"]), _time(row["end"])
    if submit is None:
        raise ValueError("no submit time")
    if started is None or (ended is not None and ended <= started and row.get("state", "").startswith("CANCELLED")):
        raise ValueError("never ran")
    if ended is None:
        raise ValueError("had not ended")
    if not 0 <= ended - started <= MAX_DURATION or started < submit:
        raise ValueError("its times are not in order")
    return max(submit, min(started, _time(row.get("eligible", "")) or submit)), started, ended


def _name(text: str) -> str:
    """Return a text as a name, with `-` for all that names do not have."""
    name = re.sub(r"[^A-Za-z0-9_.-]|\.(?=\.)", "-", text)
    return name if not name or NAME.fullmatch(name) else f"x{name}"


def _amounts(amounts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))


def _time(text: str) -> Micros | None:
    """Return a time as Slurm writes it, in the clock of the cluster; None if there is none."""
    if text in NOTHING:
        return None
    if text.isdigit():
        return int(text) * SECOND
    try:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a time such as 2026-10-01T12:30:00") from None


def _limit(text: str) -> Micros | None:
    """Return a time limit; None if there is none, or only that of the partition."""
    if text.isdigit():
        return int(text) * MINUTE or None
    match = TIME_LIMIT.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    limit = days * DAY + hours * HOUR + minutes * MINUTE + seconds * SECOND
    return limit if 0 < limit <= MAX_DURATION else None


def _tres(text: str) -> dict[str, int]:
    """Return the resources of a job: amounts by name, memory in bytes."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, amount = part.partition("=")
        match = AMOUNT.fullmatch(amount)
        if match is None:
            continue
        if name == "mem":
            found[name] = int(float(match[1]) * UNITS[match[2]])
        elif not match[2]:
            # `gres/gpu:a100=4` beside `gres/gpu=4` are the same GPUs.
            kind = "gres/gpu" if name.startswith("gres/gpu:") else name
            found[kind] = max(found.get(kind, 0), int(float(match[1])))
    return found


def _whole(text: str, column: str) -> int:
    if not text.rstrip("+").isdigit():
        raise ValueError(f"{column} {text[:40]!r} is not a whole number")
    return int(text.rstrip("+"))


def _inferred(jobs: Sequence[Recorded]) -> list[tuple[str, NodeSpec]]:
    """Return the nodes that the jobs ran on, each with the most that ran there at one time."""
    if not any(job.hosts for job in jobs):
        whole = _peak([(job.arrival, job.arrival.spec.stages[0].count) for job in jobs])
        return [("cluster", NodeSpec(whole))] if whole else []
    on: dict[str, list[tuple[Arrival, int]]] = {}
    partitions: dict[str, list[str]] = {}
    for job in jobs:
        for host in job.hosts:
            on.setdefault(host, []).append((job.arrival, 1))
            partitions.setdefault(host, []).append(job.partition)
    return _labelled({host: NodeSpec(_peak(on[host])) for host in sorted(on)}, partitions)


def _peak(tasks: Iterable[tuple[Arrival, int]]) -> tuple[tuple[str, int], ...]:
    """Return the highest use of each resource at one time by these jobs, each with its number of tasks."""
    steps: list[tuple[Micros, bool, dict[str, int]]] = []
    for arrival, count in tasks:
        started = arrival.started or 0
        amounts = {name: amount * count for name, amount in arrival.spec.stages[0].resources}
        steps += [(started, True, amounts), (started + arrival.run, False, amounts)]
    used: dict[str, int] = {}
    most: dict[str, int] = {}
    for _, begins, amounts in sorted(steps, key=lambda step: step[:2]):  # ends first
        for name, amount in amounts.items():
            used[name] = used.get(name, 0) + (amount if begins else -amount)
            most[name] = max(most.get(name, 0), used[name])
    return _amounts(most)


def _labelled(nodes: Mapping[str, NodeSpec], partitions: Mapping[str, Sequence[str]]) -> list[tuple[str, NodeSpec]]:
    """Return the nodes with a label for each of their partitions, except for partitions that all nodes have."""
    members = {name: set(partitions.get(name, ())) - {""} for name in nodes}
    everywhere = set.intersection(*members.values()) if members else set()
    apart = sorted(set(chain.from_iterable(members.values())) - everywhere)
    return [
        (
            name,
            msgspec.structs.replace(
                spec, labels=tuple((PART_OF + _name(part), "yes") for part in apart if part in members[name])
            ),
        )
        for name, spec in nodes.items()
    ]


def _kept_in_partition(job: Recorded) -> Recorded:
    """Return the job with a selector for the nodes of its partition."""
    stage, *_ = job.arrival.spec.stages
    stage = msgspec.structs.replace(stage, selectors=((PART_OF + _name(job.partition), ("yes",)),))
    spec = msgspec.structs.replace(job.arrival.spec, stages=(stage,))
    return msgspec.structs.replace(job, arrival=msgspec.structs.replace(job.arrival, spec=spec))
