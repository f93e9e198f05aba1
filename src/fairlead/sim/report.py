"""The report of a simulation: one self-contained HTML file with the policies side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from fairlead.core.model import Micros
from fairlead.core.resources import SECOND
from fairlead.sim.batch import Run
from fairlead.sim.charts import Axis, Bars, Line, bar_chart, legend, line_chart, linear, stepped
from fairlead.sim.figures import Job, percentile, started_jobs
from fairlead.sim.text import ROWS, Rows, plural, remarks, span

BUCKETS = 400
MAX_QUEUES = 12
MINUTE, HOUR, DAY = 60, 3_600, 86_400
WAIT_MARKS = (1, 10, MINUTE, 10 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY, 365 * DAY)
LOGO = (
    '<svg viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="7"/>'
    '<path d="M8 24V8h16v4H12.5v3.5H21v4h-8.5V24z" fill="#fff"/></svg>'
)
LOWER_IS_BETTER = ("mean_wait_s", "median_wait_s", "p95_wait_s", "mean_bounded_slowdown_10s", "makespan_s")
HIGHER_IS_BETTER = ("utilisation",)


def page(runs: Sequence[Run]) -> str:
    trace = runs[0].record.trace
    names = [run.policy.name for run in runs]
    parts = [figure_table(runs, ROWS), *charts(runs), notes(runs)]
    about = f"{plural(len(trace.arrivals), 'job')} on {plural(len(trace.nodes), 'node')}, simulated by Fairlead."
    return document(f"{trace.name}: {', '.join(names)}", trace.name, about, parts)


def charts(runs: Sequence[Run]) -> list[str]:
    """Return the sections with charts of the runs side by side."""
    trace = runs[0].record.trace
    names = [run.policy.name for run in runs]
    jobs = [started_jobs(run.record) for run in runs]
    return [
        section(
            "Utilisation",
            f"How much of the {trace.resource.upper()}s is in use over time, from the first job that was submitted.",
            legend(names)
            + _over_time(runs, lambda run: run.record.used, 100 / (trace.amount(trace.resource) or 1), "%"),
        ),
        section(
            "Queue length",
            "The number of waiting jobs over time.",
            legend(names) + _over_time(runs, lambda run: run.record.waiting, 1.0, ""),
        ),
        section(
            "Waits",
            "The part of the jobs that waited no longer than the time below.",
            legend(names) + _waits(jobs, names),
        ),
        section(
            "Wait by job size",
            "The mean wait of jobs by their size, the number of tasks.",
            legend(names) + _by_size(runs, jobs, names),
        ),
        *[_shares(run, own) for run, own in zip(runs, jobs, strict=True)],
    ]


def document(title: str, heading: str, about: str, parts: Sequence[str]) -> str:
    """Return a page that needs no network."""
    style, script = ((files("fairlead.sim") / f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
        f"<style>{style}</style></head>\n"
        f"<body><header>{LOGO}Fairlead</header><h1>{escape(heading)}</h1><p>{escape(about)}</p>\n{''.join(parts)}"
        f'<div id="tip"></div><script>{script}</script></body></html>\n'
    )


def section(title: str, about: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2><p>{escape(about)}</p>{body}</section>\n"


def figure_table(runs: Sequence[Run], rows: Rows) -> str:
    """Return the section with the figures of the runs side by side."""
    head = "".join(f"<th>{escape(run.policy.name)}</th>" for run in runs)
    body = f"<tr><th></th>{head}</tr>"
    for label, key, show in rows:
        values = [run.result[key] for run in runs]
        best = min(values) if key in LOWER_IS_BETTER else max(values) if key in HIGHER_IS_BETTER else None
        body += row(label, values, show, best)
    return section("Figures", "The best of a row is marked.", f"<table>{body}</table>")


def row(label: str, values: Sequence[Any], show: Callable[[Any], str], best: Any = None) -> str:
    """Return a row of a table, with the best values marked unless all are equal."""
    marked = best is not None and len(set(values)) > 1
    cells = "".join(
        f"<td{' class=best' if marked and value == best else ''}>{escape(show(value))}</td>" for value in values
    )
    return f"<tr><td>{escape(label)}</td>{cells}</tr>"


def _over_time(runs: Sequence[Run], values: Callable[[Run], Sequence[int]], factor: float, unit: str) -> str:
    start = min(arrival.at for arrival in runs[0].record.trace.arrivals)
    end = max([run.record.times[-1] for run in runs if run.record.times], default=start + SECOND)
    lines = [
        Line(
            run.policy.name,
            [
                ((when - start) / SECOND, value * factor)
                for when, value in means(run.record.times, values(run), start, end, BUCKETS)
            ],
        )
        for run in runs
    ]
    top = max((value for line in lines for _, value in line.points), default=1.0)
    y = linear(100.0 if unit else max(1.0, top), lambda value: f"{value:,.0f}{f' {unit}' if unit else ''}")
    return line_chart(lines, time_axis((end - start) / SECOND), y)


def means(
    times: Sequence[Micros], values: Sequence[int], start: Micros, end: Micros, buckets: int
) -> list[tuple[float, float]]:
    """Return the mean of a step function in each of `buckets` equal parts of a span, as (middle of the part, mean).

    The function has each value from its time on, and is 0 before the first.
    """
    length = max(1, end - start) / buckets
    points: list[tuple[float, float]] = []
    at, value = 0, 0
    while at < len(times) and times[at] <= start:
        value = values[at]
        at += 1
    now = float(start)
    for number in range(buckets):
        until = start + length * (number + 1)
        total = 0.0
        while at < len(times) and times[at] < until:
            total += value * (times[at] - now)
            now, value = float(times[at]), values[at]
            at += 1
        total += value * (until - now)
        now = until
        points.append((start + length * (number + 0.5), total / length))
    return points


def time_axis(longest: float) -> Axis:
    """Return an axis from 0 to `longest` seconds, in a suitable unit."""
    seconds = max(1.0, longest)
    units = ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1, "s"))
    size, unit = next(entry for entry in units if seconds >= 3 * entry[0] or entry[0] == 1)
    axis = linear(seconds / size, str)
    return Axis(0, seconds, [mark * size for mark in axis.marks], lambda value: f"{value / size:,.3g} {unit}")


def _waits(jobs: Sequence[Sequence[Job]], names: Sequence[str]) -> str:
    lines: list[Line] = []
    for name, own in zip(names, jobs, strict=True):
        ordered = sorted(job.wait for job in own)
        points = [(max(1.0, percentile(ordered, percent) / SECOND), float(percent)) for percent in range(1, 101)]
        lines.append(Line(name, points if ordered else []))
    y = linear(100.0, lambda value: f"{value:.0f} %")
    longest = max((point[0] for line in lines for point in line.points), default=1)
    return line_chart(lines, stepped(WAIT_MARKS, 1.0, max(10.0, longest), span), y, pointed=False)


def _by_size(runs: Sequence[Run], jobs: Sequence[Sequence[Job]], names: Sequence[str]) -> str:
    sizes = {arrival.id: sum(stage.size for stage in arrival.spec.stages) for arrival in runs[0].record.trace.arrivals}
    classes = sorted({sizes[job.id].bit_length() for own in jobs for job in own})
    labels = [_size_label(size) for size in classes]
    groups: list[Bars] = []
    for name, own in zip(names, jobs, strict=True):
        waits: dict[int, list[int]] = {size: [] for size in classes}
        for job in own:
            waits[sizes[job.id].bit_length()].append(job.wait)
        groups.append(Bars(name, [sum(waits[size]) / SECOND / max(1, len(waits[size])) for size in classes]))
    return bar_chart(groups, labels, time_axis(max((value for group in groups for value in group.values), default=1)))


def _size_label(bits: int) -> str:
    """Return the range of the sizes with a number of bits."""
    low, high = 1 << (bits - 1), (1 << bits) - 1
    return str(low) if low == high else f"{low}–{high}"


def _shares(run: Run, jobs: Sequence[Job]) -> str:
    """Return the chart with the share and the use of each queue; empty for one queue, or without the run's queues."""
    settings = {path: queue for path, queue in run.policy.config.queues}
    parents = {path.rpartition(".")[0] for path in settings}
    used: dict[str, int] = {path: 0 for path in settings if path not in parents}
    for job in jobs:
        used[job.queue] = used.get(job.queue, 0) + job.work
    if len(used) < 2 or used.keys() - settings.keys():
        return ""
    total = sum(used.values()) or 1
    largest = sorted(used, key=lambda path: (-used[path], path))[:MAX_QUEUES]
    entitled = _entitled({path: queue.share for path, queue in settings.items()})
    groups = [
        Bars("share", [100 * entitled[path] for path in largest]),
        Bars("use", [100 * used[path] / total for path in largest]),
    ]
    most = max(*groups[0].values, *groups[1].values)
    labels = [path.removeprefix("root.") for path in largest]
    more = f" Shown are the {MAX_QUEUES} of {len(used)} queues that used most." if len(used) > MAX_QUEUES else ""
    return section(
        f"Share against use: {run.policy.name}",
        f"The part of all work that each queue is entitled to, and the part that it used.{more}",
        legend(["share", "use"]) + bar_chart(groups, labels, linear(most, lambda value: f"{value:.0f} %")),
    )


def _entitled(shares: dict[str, int | None]) -> dict[str, float]:
    """Return the fraction of the whole that each queue is entitled to: its share of its parent's fraction."""
    parts: dict[str, float] = {}
    for path, share in shares.items():
        above = path.rpartition(".")[0]
        siblings = [other for other in shares if other.rpartition(".")[0] == above]
        total = sum(shares[other] or 0 for other in siblings)
        own = (share or 0) / total if total else 1 / len(siblings)
        parts[path] = own * parts.get(above, 1.0)
    return parts


def notes(runs: Sequence[Run]) -> str:
    texts = runs[0].record.trace.left_out.texts()
    texts += [f"{run.policy.name}: {text}" for run in runs for text in remarks(run.result)]
    texts += [f"{run.policy.name}: interrupted; these are the figures so far" for run in runs if not run.whole]
    if not texts:
        return ""
    return section(
        "What the figures do not cover", "", f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"
    )
