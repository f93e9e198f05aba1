"""`fairlead history` and `usage`: list finished jobs, and add up the use of resources."""

from __future__ import annotations

import csv
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fairlead.cli import completion
from fairlead.cli.option_values import moment, wrong
from fairlead.cli.options import JobFilters, Output, open_client
from fairlead.cli.output import Column, ago, amounts, clock, labels_of, lasted, print_json, print_table, print_text
from fairlead.cli.typer_commands import option

if TYPE_CHECKING:
    from fairlead.wire import api as wire

EndState = Literal["succeeded", "failed", "killed"]
Since = Annotated[
    str,
    typer.Option(
        help="Only from this time on: a date such as 2026-11-30 or 2026-11-30T12:00, or an age such as 7d or 12h."
    ),
]
Until = Annotated[str, typer.Option(help="Only up to this time, written like --since. By default now.")]
GIB = 2**30


class HistoryOptions(JobFilters):
    state: EndState | None = option("Only jobs in this state.")
    name: str = option(
        "Only jobs with this name, or with a name that matches a pattern such as 'train-*'.",
        metavar="PATTERN",
        autocompletion=completion.job_names,
    )
    node: str = option("Only jobs with a task that ran on this node.", autocompletion=completion.nodes)
    since: Since = ""
    until: Until = ""
    limit: int = option("Largest number of jobs to list.", default=50, min=1)


def history(options: HistoryOptions) -> None:
    """List finished jobs, newest first.

    --since and --until select jobs by the time at which they ended.
    """
    begin, end = moment(options.since, "--since"), moment(options.until, "--until")
    with options.client() as client:
        options.show_jobs(
            lambda **of: client.history(
                state=options.state or "", name=options.name, node=options.node, since=begin, until=end, **of
            ),
            options.limit,
            PAST_JOBS,
        )


PAST_JOBS: tuple[Column[wire.PastJob], ...] = (
    Column("job", lambda job: job.id),
    Column("name", lambda job: job.name),
    Column("user", lambda job: job.user),
    Column("queue", lambda job: job.queue),
    Column("state", lambda job: job.state),
    Column("tasks", lambda job: ", ".join(f"{number} {outcome}" for outcome, number in sorted(job.tasks.items()))),
    Column("waited", lambda job: lasted((job.ended if job.started is None else job.started) - job.submitted)),
    Column("ran", lambda job: "" if job.started is None else lasted(job.ended - job.started)),
    Column("ended", lambda job: ago(job.ended)),
    Column(
        "cpus-used", lambda job: f"{(job.cpu_seconds or 0.0) / job.ran_seconds:.2f}" if job.ran_seconds else "", False
    ),
    Column(
        "memory-used",
        lambda job: amounts({"memory": job.most_memory}).partition("=")[2] if job.most_memory else "",
        False,
    ),
    Column("reason", lambda job: job.reason, False),
    Column("labels", lambda job: labels_of(job.labels), False),
    Column("submitted", lambda job: clock(job.submitted), False),
    Column("started", lambda job: clock(job.started), False),
    Column("end", lambda job: clock(job.ended), False),
)
"""The columns that `history` can show."""


class UsageOptions(Output):
    by: str = option(
        "One row for each user, queue, partition or job, or for each combination of them, such as user,queue.",
        default="user",
        metavar="GROUPS",
    )
    since: Since = ""
    until: Until = ""
    user: str = option("Only work of this user.")
    partition: str = option("Partition. By default all of them.", "-p", autocompletion=completion.partitions)
    used: bool = option("Also show how much of it was used, and name jobs that asked for much more than they used.")
    waits: bool = option("Show how long jobs waited for what instead, by user, queue or week.")
    as_csv: bool = option("Print CSV.", "--csv")


def usage(options: UsageOptions) -> None:
    """Add up the CPU-, GPU- and memory-hours of users, queues or jobs.

    Each attempt of a task counts from its start to its end or until now, also if it failed or was preempted. WAIT,
    MEDIAN and 95% are the mean, the median and the 95th percentile of the times from submission to first start.

    With --waits, each group has the causes for which its jobs waited, with the time that they waited for it together.
    These come from the journal, as far as it reaches back (--journal-age of the server).

    fairlead usage --by user,queue --since 7d
    """
    if options.as_csv and options.as_json:
        raise wrong("--csv", "the report is printed once; drop --csv or --json")
    times = moment(options.since, "--since"), moment(options.until, "--until")
    if options.waits:
        _show_waits(options, *times)
        return
    with open_client(options.partition) as client:
        report = client.usage_report(
            [name.strip() for name in options.by.split(",") if name.strip()],
            *times,
            user=options.user,
            used=options.used,
        )
    if options.as_json:
        print_json(report)
        return
    kinds = sorted({"cpu", "memory", *report.total.hours})
    if options.as_csv:
        _print_csv(report, kinds)
        return
    columns = [*(name.upper() for name in report.by), "JOBS", "ATTEMPTS", "PREEMPTED"]
    columns += [f"{'GiB' if kind == 'memory' else kind.upper()}-HOURS" for kind in kinds]
    rows = [(*row.group.values(), *_cells(row, kinds, options.used)) for row in report.rows]
    if len(rows) != 1:
        label = ["total", *[""] * (len(report.by) - 1)] if report.by else []
        rows.append((*label, *_cells(report.total, kinds, options.used)))
    print_table((*columns, *(["CPU USED"] if options.used else []), "WAIT", "MEDIAN", "95%"), rows)
    for waste in report.wasteful:
        print_text(f"job {waste.job} of {waste.user}: {waste.text} ({_hours(waste.cpu_hours)} CPU-hours unused)")


def _show_waits(options: UsageOptions, since: float | None, until: float | None) -> None:
    if options.used or options.as_csv:
        raise wrong("--waits", "it is a report of its own; drop --used and --csv, or use --json")
    with open_client(options.partition) as client:
        found = client.waits(options.by, since, until, options.user)
    if options.as_json:
        print_json(found)
        return
    rows = [
        (*([""] * len(row.group) if at else row.group.values()), lasted(part.seconds), part.text)
        for row in found.rows
        for at, part in enumerate(row.causes)
    ]
    print_table((*(name.upper() for name in found.by), "WAITED", "CAUSE"), rows)
    print_text(f"since {clock(found.since)}")


def _cells(row: wire.Used, kinds: list[str], used: bool) -> list[object]:
    hours = [_hours(_amount(kind, row)) for kind in kinds]
    waits = ["" if wait is None else lasted(wait) for wait in (row.wait_mean, row.wait_median, row.wait_95)]
    share = f"{100 * row.cpu_hours_used / row.cpu_hours_had:.0f}%" if row.cpu_hours_had else ""
    return [row.jobs, row.attempts, row.preempted, *hours, *([share] if used else []), *waits]


def _amount(kind: str, row: wire.Used) -> float:
    hours = row.hours.get(kind, 0.0)
    return hours / GIB if kind == "memory" else hours


def _hours(hours: float) -> str:
    if 0 < hours < 0.0001:
        return "<0.0001"
    return f"{hours:.3g}" if hours < 100 else f"{hours:.0f}"


def _print_csv(report: wire.UsageReport, kinds: list[str]) -> None:
    """Print the rows, without the total. Waits are in seconds."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    hours = ["memory_gib_hours" if kind == "memory" else f"{kind}_hours" for kind in kinds]
    writer.writerow([*report.by, "jobs", "attempts", "preempted", *hours, "wait_mean", "wait_median", "wait_95"])
    for row in report.rows if report.by else [report.total]:
        amounts = [_amount(kind, row) for kind in kinds]
        waits = (row.wait_mean, row.wait_median, row.wait_95)
        writer.writerow([*row.group.values(), row.jobs, row.attempts, row.preempted, *amounts, *waits])
