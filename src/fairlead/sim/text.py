"""Results of simulations as text tables and CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO

from fairlead.core.model import Micros
from fairlead.core.resources import parse_duration
from fairlead.sim.batch import Run
from fairlead.sim.figures import plain

UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def parse_time(text: str, field: str) -> Micros:
    """Read a simulated time: the duration since the start of the simulation. Plain numbers are seconds."""
    return parse_duration(int(text) if text.isdigit() else text, field)


def span(seconds: float) -> str:
    """Return a duration as text in its two largest units."""
    left = round(seconds)
    parts: list[str] = []
    for length, unit in UNITS:
        if left >= length or (unit == "s" and not parts):
            parts.append(f"{left // length} {unit}")
            left %= length
        elif parts:
            break
    return " ".join(parts[:2])


Rows = tuple[tuple[str, str, Callable[[Any], str]], ...]
"""(Label, key of the figure, formatter) of each row."""

ROWS: Rows = (
    ("jobs", "jobs", lambda value: f"{value:,}"),
    ("mean wait", "mean_wait_s", span),
    ("median wait", "median_wait_s", span),
    ("95 % wait at most", "p95_wait_s", span),
    ("mean slowdown (at least 10 s)", "mean_bounded_slowdown_10s", lambda value: f"{value:,.2f}"),
    ("largest slowdown", "max_bounded_slowdown_10s", lambda value: f"{value:,.2f}"),
    ("utilisation", "utilisation", lambda value: f"{100 * value:.2f} %"),
    ("makespan", "makespan_s", span),
    ("cycles", "cycles", lambda value: f"{value:,}"),
    ("decisions a second", "decisions_per_s", lambda value: f"{value:,.0f}"),
    ("wall time", "wall_s", lambda value: f"{value:.1f} s"),
)


PACKING_ROWS: Rows = (
    ("GPUs allocated", "gpu_allocation_percent", lambda value: f"{value:.2f} %"),
    ("lowest shuffle", "lowest_percent", lambda value: f"{value:.2f} %"),
    ("highest shuffle", "highest_percent", lambda value: f"{value:.2f} %"),
    ("GPUs not allocated", "unallocated_gpus", lambda value: f"{value:,.1f}"),
    ("of these unusable", "fragmented_gpus", lambda value: f"{value:,.1f}"),
    ("jobs that did not fit", "failed_pods", lambda value: f"{value:,.1f}"),
    ("jobs", "arrived_pods", lambda value: f"{value:,.1f}"),
    ("shuffles", "shuffles", str),
    ("wall time", "wall_s", lambda value: f"{value:.1f} s"),
)


def table(results: Sequence[dict[str, Any]], rows: Rows = ROWS) -> Iterator[str]:
    """Yield the lines of a table with one column per policy."""
    cells = [["", *(str(result["policy"]) for result in results)]]
    cells += [[label, *(show(result[key]) for result in results)] for label, key, show in rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    for row in cells:
        first, *rest = row
        yield "  ".join(
            [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        )


def plural(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def remarks(result: dict[str, Any]) -> Iterator[str]:
    """Yield sentences about jobs that the figures do not cover, and about outages."""
    if result["not_started"]:
        yield f"{result['not_started']:,} of {result['submitted']:,} jobs had not started"
    if result["not_ended"] > result["not_started"]:
        yield f"{plural(result['not_ended'] - result['not_started'], 'job')} had not ended"
    if result["outages"]:
        yield f"nodes had {plural(result['outages'], 'outage')}"
    for refusal in result["refused"]:
        yield f"{refusal['count']:,} refused ({', '.join(refusal['jobs'])}): {refusal['why']}"


def write_starts(file: TextIO, runs: Iterable[Run]) -> None:
    """Write a CSV row for each job and policy. Times are in seconds, empty if the event did not happen."""
    out = csv.writer(file, lineterminator="\n")
    out.writerow(["id", "submit_s", "start_s", "end_s", "state", "user", "queue", "policy"])
    for run in runs:
        record = run.record
        for at, arrival in enumerate(record.trace.arrivals[: record.arrived]):
            job = record.job(at)
            times = ["" if time is None else plain(time) for time in (job.submitted, job.started, job.ended)]
            out.writerow([arrival.id, *times, job.state, arrival.spec.user, job.queue, run.policy.name])
