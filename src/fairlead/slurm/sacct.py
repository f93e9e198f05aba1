"""`sacct`: jobs of the history, and those of the present."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fairlead.slurm.fields import tres_of
from fairlead.slurm.listing import Named, choose, help_lines, lines_of
from fairlead.slurm.options import Given, error, fail, from_environment, parse
from fairlead.slurm.rows import Row, of_indices, parse_ids, parse_states, past_rows, rows_of
from fairlead.slurm.server import connect, pages_of, uid_of
from fairlead.slurm.squeue import row_filter
from fairlead.slurm.step_lines import StepLine, fields_of, steps_of
from fairlead.slurm.tables import SACCT
from fairlead.slurm.values import format_duration, format_time, parse_time
from fairlead.wire.index_spans import each_index

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.wire import api as wire

NAME = "sacct"
USUAL = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
BRIEF = "JobID,State,ExitCode"
LONG = (
    "JobID,JobIDRaw,JobName,Partition,MaxRSS,NTasks,AllocCPUS,Elapsed,State,ExitCode,Start,End,ReqMem,NodeList,"
    "AllocTRES"
)


class Entry(Row, kw_only=True):
    """A row of sacct: a job, or a step of it."""

    step: str = ""

    @property
    def shown_id(self) -> str:
        return f"{self.id}.{self.step}" if self.step else self.id

    @property
    def step_name(self) -> str:
        return self.step if self.step == "batch" else self.job_name


def clock(seconds: float | None) -> str:
    return "" if seconds is None else format_duration(seconds, hours=True)


def cpu_clock(seconds: float | None) -> str:
    if seconds is None:
        return "00:00:00"
    return clock(seconds) if seconds >= 3600 else f"{int(seconds) // 60:02}:{seconds % 60:06.3f}"


def state_of(entry: Row) -> str:
    if entry.state == "CANCELLED":
        by = (
            entry.told.rpartition("killed by ")[2].split(" ")[0].rstrip(";,.")
            if "killed by " in entry.told
            else entry.user
        )
        return f"CANCELLED by {uid_of(by)}"
    return entry.state


def memory(entry: Row) -> str:
    if "slurm/mem-per-cpu" in entry.labels:
        return entry.label("mem-per-cpu")
    mib = entry.resources.get("memory", 0) / 2**20
    return f"{mib / 1024:g}G" if mib and not mib % 1024 else f"{mib:g}M"


def of_job(value: str, entry: Entry) -> str:
    return "" if entry.step else value


def resident(entry: Entry) -> str:
    return f"{entry.memory // 1024}K" if entry.step and entry.memory is not None else ""


FIELDS: tuple[Named[Entry], ...] = (
    Named("Account", 10, lambda e: e.account),
    Named("AdminComment", 19, lambda e: ""),
    Named("AllocCPUS", 10, lambda e: f"{e.cpus:g}" if e.started is not None else "0"),
    Named("AllocNodes", 10, lambda e: str(e.size) if e.started is not None else "0"),
    Named("AllocTRES", 10, lambda e: tres_of(e) if e.started is not None else ""),
    Named("AssocID", 7, lambda e: ""),
    Named("AveCPU", 10, lambda e: cpu_clock(e.cpu_seconds) if e.step else ""),
    Named("AveCPUFreq", 10, lambda e: ""),
    Named("AveDiskRead", 14, lambda e: ""),
    Named("AveDiskWrite", 14, lambda e: ""),
    Named("AvePages", 10, lambda e: ""),
    Named("AveRSS", 10, resident),
    Named("AveVMSize", 10, lambda e: ""),
    Named("BlockID", 16, lambda e: ""),
    Named("Cluster", 10, lambda e: e.partition),
    Named("Comment", 14, lambda e: of_job(e.label("comment"), e)),
    Named("Constraints", 20, lambda e: e.label("constraint")),
    Named("ConsumedEnergy", 14, lambda e: "0"),
    Named("ConsumedEnergyRaw", 17, lambda e: "0"),
    Named("Container", 10, lambda e: ""),
    Named("CPUTime", 10, lambda e: clock(e.cpus * int(e.elapsed))),
    Named("CPUTimeRAW", 10, lambda e: f"{e.cpus * int(e.elapsed):.0f}"),
    Named("DBIndex", 10, lambda e: e.number),
    Named("DerivedExitCode", 15, lambda e: "0:0"),
    Named("Elapsed", 10, lambda e: clock(e.elapsed)),
    Named("ElapsedRaw", 10, lambda e: str(int(e.elapsed))),
    Named("Eligible", 19, lambda e: format_time(e.submitted)),
    Named("End", 19, lambda e: format_time(e.ended)),
    Named("ExitCode", 8, lambda e: "{}:{}".format(*e.exit) if e.over else "0:0"),
    Named("Flags", 9, lambda e: ""),
    Named("GID", 6, lambda e: str(uid_of(e.user))),
    Named("Group", 9, lambda e: e.user),
    Named("JobID", -12, lambda e: e.shown_id),
    Named("JobIDRaw", -12, lambda e: e.shown_id.partition("_[")[0]),
    Named("JobName", 10, lambda e: e.step_name),
    Named("Layout", 9, lambda e: ""),
    Named("MaxDiskRead", 12, lambda e: ""),
    Named("MaxDiskWrite", 12, lambda e: ""),
    Named("MaxPages", 8, lambda e: ""),
    Named("MaxRSS", 10, resident),
    Named("MaxRSSNode", 10, lambda e: e.nodes[0] if e.step and e.nodes else ""),
    Named("MaxRSSTask", 10, lambda e: "0" if e.step else ""),
    Named("MaxVMSize", 10, lambda e: ""),
    Named("MinCPU", 10, lambda e: cpu_clock(e.cpu_seconds) if e.step else ""),
    Named("NCPUS", 10, lambda e: f"{e.cpus:g}"),
    Named("NNodes", 8, lambda e: str(e.size)),
    Named("NodeList", 15, lambda e: e.hosts or "None assigned"),
    Named("NTasks", 8, lambda e: str(e.tasks) if e.step not in ("", "batch") else "1" if e.step else ""),
    Named("Partition", 10, lambda e: of_job(e.partition_name, e)),
    Named("Planned", 10, lambda e: of_job(clock((e.started or e.ended or time.time()) - e.submitted), e)),
    Named("Priority", 10, lambda e: of_job(str(2**31 + e.priority), e)),
    Named("QOS", 10, lambda e: of_job(e.label("qos"), e)),
    Named("QOSRAW", 10, lambda e: ""),
    Named("Reason", 22, lambda e: e.reason),
    Named("ReqCPUFreq", 10, lambda e: ""),
    Named("ReqCPUS", 8, lambda e: f"{e.cpus:g}"),
    Named("ReqMem", 10, lambda e: of_job(memory(e), e)),
    Named("ReqNodes", 8, lambda e: str(e.size)),
    Named("ReqTRES", 10, lambda e: of_job(tres_of(e), e)),
    Named("Reservation", 20, lambda e: ""),
    Named("ReservationId", 15, lambda e: ""),
    Named("Reserved", 10, lambda e: of_job(clock((e.started or e.ended or time.time()) - e.submitted), e)),
    Named("ResvCPU", 10, lambda e: ""),
    Named("ResvCPURAW", 10, lambda e: ""),
    Named("Start", 19, lambda e: format_time(e.started)),
    Named("State", 10, state_of),
    Named("Submit", 19, lambda e: format_time(e.submitted)),
    Named("SubmitLine", 20, lambda e: ""),
    Named("Suspended", 10, lambda e: "00:00:00"),
    Named("SystemComment", 14, lambda e: ""),
    Named("SystemCPU", 10, lambda e: "00:00:00"),
    Named("Timelimit", 10, lambda e: of_job("UNLIMITED" if e.limit is None else clock(e.limit), e)),
    Named("TimelimitRaw", 12, lambda e: of_job("" if e.limit is None else str(int(e.limit // 60)), e)),
    Named("TotalCPU", 10, lambda e: cpu_clock(e.cpu_seconds)),
    Named("TRESUsageInAve", 14, lambda e: ""),
    Named("TRESUsageInMax", 14, lambda e: ""),
    Named("TRESUsageInTot", 14, lambda e: ""),
    Named("UID", 6, lambda e: of_job(str(uid_of(e.user)), e)),
    Named("User", 9, lambda e: of_job(e.user, e)),
    Named("UserCPU", 10, lambda e: cpu_clock(e.cpu_seconds)),
    Named("WCKey", 10, lambda e: e.label("wckey")),
    Named("WCKeyID", 10, lambda e: ""),
    Named("WorkDir", 10, lambda e: of_job(e.label("chdir"), e)),
)


def main(words: list[str]) -> int:
    given, rest = parse(SACCT, words)
    if rest:
        fail(NAME, f"Unknown arguments:\nsacct: error:  {rest[0]}")
    given = Given({**from_environment(SACCT, os.environ, "SACCT", {}), **given})
    if "helpformat" in given:
        print("\n".join(help_lines(FIELDS)))
        return 0
    usual = BRIEF if "brief" in given else LONG if "long" in given else USUAL
    fields = choose(NAME, FIELDS, given.get("format", usual))
    with connect(NAME, given) as client:
        entries = _entries(client, given)
        if "json" in given:
            from fairlead.slurm.documents import encode, past_fields

            sys.stdout.write(encode(jobs=[past_fields(entry) for entry in entries if not entry.step]))
            return 0
        for line in lines_of(fields, entries, given):
            sys.stdout.write(line + "\n")
    return 0


def _entries(client: Client, given: Given) -> Iterator[Entry]:
    accepts = row_filter(given, client, NAME)
    try:
        states = parse_states(given["state"]) if "state" in given else None
    except ValueError as problem:
        fail(NAME, f"Invalid state: {problem}")
    chosen = _ids(given)
    named: dict[str, set[str]] = {}
    for job, step in re.findall(r"([^,.]+)\.(\w+)", given.get("jobs", "")):
        named.setdefault(job, set()).add(step)
    since, until = _period(given)
    rows = [
        row
        for row in _rows(client, given, chosen, since, until)
        if accepts(row) and (states is None or row.state in states) and of_indices(row, chosen.get(row.number))
    ]
    if "allocations" in given and not named:
        yield from map(entry_of, rows)
        return
    for row, steps in steps_of(client, rows):
        wanted = named.get(row.id) or named.get(row.number)
        if wanted is None:
            yield entry_of(row)
        for entry in step_entries(row, steps):
            if wanted is None or entry.step in wanted:
                yield entry


def entry_of(row: Row, **changes: object) -> Entry:
    from msgspec.structs import asdict

    fields: dict[str, Any] = {**asdict(row), **changes}
    return Entry(**fields)


def step_entries(row: Row, steps: Iterable[StepLine]) -> Iterator[Entry]:
    """Yield the steps of a job: its script, and those that srun started."""
    if row.label("batch") and row.started is not None:
        yield entry_of(row, step="batch", size=1, nodes=row.nodes[:1])
    for step in steps:
        yield entry_of(row, step=str(step.number), **fields_of(row, step))


def _ids(given: Given) -> dict[str, set[int] | None]:
    chosen: dict[str, set[int] | None] = {}
    try:
        for job, indices in parse_ids(given.get("jobs", "")):
            before = chosen.get(job, set())
            chosen[job] = None if indices is None or before is None else before | indices
    except ValueError as problem:
        error(NAME, f"Bad job/step specified: {problem}")
        raise SystemExit(1) from None
    return chosen


def _period(given: Given) -> tuple[float | None, float | None]:
    found: dict[str, float] = {}
    for option in ("starttime", "endtime"):
        if option in given:
            try:
                found[option] = parse_time(given[option], past=True)
            except ValueError:
                fail(NAME, f"Invalid time specification (pos=0): {given[option]}")
    if "starttime" not in found and "jobs" not in given:
        found["starttime"] = parse_time("today")
    return found.get("starttime"), found.get("endtime")


def _rows(
    client: Client, given: Given, chosen: dict[str, set[int] | None], since: float | None, until: float | None
) -> Iterator[Row]:
    """Yield the rows of jobs by their numbers: those of the history, with the live ones merged in."""
    live = {job.number: job for job in _live(client, chosen)}
    past: list[wire.PastJob] = []
    for job in _past(client, given, chosen, since):
        live.pop(job.number, None)
        past.append(job)
    jobs: dict[int, list[Row]] = {job.number: past_rows(job) for job in past}
    for number, present in live.items():
        jobs[number] = _with_ended_tasks(client, present)
    for _, rows in sorted(jobs.items()):
        for row in rows:
            if until is None or row.submitted < until:
                yield row


def _live(client: Client, chosen: dict[str, set[int] | None]) -> Iterator[wire.Job]:
    from fairlead.wire import operations as op

    wanted = op.Jobs(tasks=True, state=["pending", "running", "stopping"], limit=1000)
    for page in pages_of(client, wanted, list(chosen)):
        yield from page.jobs


def _past(
    client: Client, given: Given, chosen: dict[str, set[int] | None], since: float | None
) -> Iterator[wire.PastJob]:
    from fairlead.slurm.request import fairlead_name
    from fairlead.wire import operations as op

    names = given.get("name", "").split(",") if "name" in given else [""]
    name = fairlead_name(names[0]) if len(names) == 1 and names[0] else ""
    wanted = op.History(
        attempts=True,
        name=name if not set(name) & set("[]*?") else "",
        since="" if since is None else f"{since:f}",
        limit=1000,
    )
    for page in pages_of(client, wanted, list(chosen)):
        yield from page.jobs


def _with_ended_tasks(client: Client, job: wire.Job) -> list[Row]:
    """Return the rows of a live job. Its ended tasks have their nodes and times from the history."""
    rows = sorted(rows_of(job), key=lambda row: row.index.zfill(9))
    if not any(row.over for row in rows):
        return rows
    ended = {at: attempt for attempt in client.attempts(job.id).attempts for at in each_index(attempt.indices)}
    for row in rows:
        attempt = ended.get(row.indices[0]) if row.over and row.indices else None
        if attempt is not None:
            row.nodes, row.started, row.ended = [attempt.node], attempt.started, attempt.ended
    return rows
