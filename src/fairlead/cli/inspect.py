"""`fairlead ps`, `show` and `explain`: list jobs, show a job with its tasks, and say why it waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli.options import Common, JobFilters, JobName
from fairlead.cli.output import (
    Column,
    ago,
    amounts,
    clock,
    first,
    labels_of,
    lasted,
    print_json,
    print_table,
    print_text,
    say_cut,
    state_of,
)
from fairlead.cli.typer_commands import option

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.wire import api as wire

SHOWN = 1_000
"""Largest number of tasks that `show` lists by default."""
FAILED_SHOWN, LAST_LINES, LAST_BYTES = 2, 5, 2_000
"""Failed tasks whose last output is shown, and how many lines and bytes of it."""
LIVE = frozenset(("assigned", "running", "stopping"))


class ListOptions(JobFilters):
    everything: bool = option("List finished jobs too.", "--all", "-a")
    state: list[str] | None = option(
        "Only jobs in this state: pending, running, stopping, succeeded, failed or killed; may be repeated."
    )
    limit: int = option("Largest number of jobs to list.", default=100, min=1)


def ps(options: ListOptions) -> None:
    """List running and waiting jobs, newest first.

    REASON says in short why tasks of a job wait, or why the job ended. `fairlead explain JOB` gives all reasons.
    """
    states = options.state or ([] if options.everything else ["pending", "running", "stopping"])
    with options.client() as client:
        options.show_jobs(lambda **of: client.jobs(state=states, **of), options.limit, JOBS)


def _progress(job: wire.Job) -> str:
    ended: dict[str, int] = {}
    for stage in job.stages:
        for outcome, number in stage.ended.items():
            ended[outcome] = ended.get(outcome, 0) + number
    present = {
        "running": sum(stage.running for stage in job.stages),
        "assigned": sum(stage.assigned for stage in job.stages),
        "stopping": sum(stage.stopping for stage in job.stages),
        "pending": sum(stage.waiting for stage in job.stages),
    }
    parts = [f"{number} {state}" for state, number in present.items() if number]
    return ", ".join(parts + [f"{number} {outcome}" for outcome, number in sorted(ended.items())])


JOBS: tuple[Column[wire.Job], ...] = (
    Column("job", lambda job: job.id),
    Column("name", lambda job: job.name),
    Column("user", lambda job: job.user),
    Column("queue", lambda job: job.queue),
    Column("state", state_of),
    Column("tasks", _progress),
    Column("age", lambda job: ago(job.submitted)),
    Column("reason", lambda job: job.waits_for or job.reason),
    Column("priority", lambda job: job.priority, False),
    Column("labels", lambda job: labels_of(job.labels), False),
    Column("after", lambda job: " ".join(job.after), False),
    Column("submitted", lambda job: clock(job.submitted), False),
    Column("ended", lambda job: clock(job.ended), False),
    Column("held-by", lambda job: job.held_by, False),
    Column("resources", lambda job: "; ".join(dict.fromkeys(amounts(stage.resources) for stage in job.stages)), False),
    Column("command", lambda job: "; ".join(" ".join(stage.command) for stage in job.stages)[:200], False),
)
"""The columns that `ps` can show."""


def show(
    job: JobName,
    *,
    limit: Annotated[int, typer.Option(help="Largest number of tasks to list.", min=1)] = SHOWN,
    usage: Annotated[
        bool,
        typer.Option("--usage", help="List the CPU time and the memory that tasks used, beside what they asked for."),
    ] = False,
    common: Common,
) -> None:
    """Show a job with its tasks.

    A job that ended long ago is in the history only. Then the attempts of its tasks are listed instead.
    """
    with common.client() as client:
        if usage:
            return _show_usage(client, job, limit, common)
        view = client.job(job)
        tasks, cut = ([], False) if view.forgotten else first(limit, client.tasks(job))
        attempts = [] if common.as_json and not view.forgotten else _attempts(client, job)
        errors = [] if common.as_json else list(_last_errors(client, view, tasks))
    if cut:
        say_cut(limit, f"of {sum(stage.count for stage in view.stages)} tasks")
    if common.as_json:
        print_json({"job": view, **({"attempts": attempts} if view.forgotten else {"tasks": tasks})})
        return
    _print_job(view, [task.started for task in tasks], attempts)
    if view.forgotten:
        _print_attempts(attempts)
    else:
        _print_tasks(tasks, _past(tasks, attempts, limit))
    for line in errors:
        print_text(line)


def _show_usage(client: Client, job: str, limit: int, common: Common) -> None:
    from fairlead.wire import operations as op

    tasks: list[wire.TaskUse] = []
    for page in client.pages(op.JobUsage(job=job, limit=min(limit, 1_000))):
        stages = page.stages
        tasks += page.tasks
        if len(tasks) > limit or (len(tasks) == limit and page.next):
            say_cut(limit, "attempts")
            tasks = tasks[:limit]
            break
    if common.as_json:
        print_json({"stages": stages, "tasks": tasks})
        return
    rows = []
    for task in tasks:
        asked = stages[task.stage].asked
        cpus = task.cpu_seconds / task.ran if task.ran else 0.0
        memory, limit_of = amounts({"memory": task.memory}), amounts({"memory": asked.get("memory", 0)})
        rows.append(
            (
                f"{task.stage}[{task.index}]",
                task.attempt,
                lasted(task.ran),
                f"{cpus:.2f} of {asked.get('cpu', 0):g}",
                memory.partition("=")[2] + (f" of {limit_of.partition('=')[2]}" if asked.get("memory") else ""),
                f"{asked['gpu']:g}" if asked.get("gpu") else "",
            )
        )
    print_table(("TASK", "ATTEMPT", "RAN", "CPUS USED", "MEMORY USED", "GPUS"), rows)
    for name, stage in stages.items():
        if stage.hint:
            print_text(f"stage {name}: {stage.hint}")
    if not tasks:
        print_text("no use is known yet: it is measured when tasks end")


def _print_job(job: wire.Job, starts: list[float | None], attempts: list[wire.Attempt]) -> None:
    reason = f", {job.reason}" if job.reason else ""
    print_text(f"job {job.id} ({job.name}) of {job.user} in {job.queue}: {state_of(job)}{reason}")
    if job.matched is not None:
        print_text(f"in that queue because its user matches {job.matched!r}")
    typer.echo(_times(job, starts + [attempt.started for attempt in attempts], [each.ended for each in attempts]))
    for stage in job.stages:
        tasks = "1 task" if stage.count == 1 else f"{stage.count} tasks"
        least = "all" if stage.min == stage.count else f"at least {stage.min}"
        gang = f" ({least} at once)" if stage.min > 1 else ""
        print_text(f"stage {stage.name}: {tasks}{gang}, {amounts(stage.resources)}")
        print_text(f"  {' '.join(stage.command)[:200]}")


def _attempts(client: Client, job: str) -> list[wire.Attempt]:
    """Return all attempts of a job that have ended."""
    from fairlead.wire import operations as op

    return [attempt for page in client.pages(op.Attempts(job=job, limit=1000)) for attempt in page.attempts]


def _times(job: wire.Job, starts: list[float | None], ends: list[float]) -> str:
    """Return when a job was submitted and started, and how long it ran, up to the end of its last attempt."""
    start = min((moment for moment in starts if moment is not None), default=None)
    end = None if job.ended is None else max([job.ended, *ends])
    ended = f", ended {clock(end)}" if end is not None else ""
    if start is None:
        return f"submitted {clock(job.submitted)}, not started{ended}"
    ran = lasted((end or time.time()) - start)
    waited = lasted(start - job.submitted)
    word = "ran" if job.over else "runs for"
    return f"submitted {clock(job.submitted)}, waited {waited}, started {clock(start)}, {word} {ran}{ended}"


def _print_attempts(attempts: list[wire.Attempt]) -> None:
    from fairlead.wire.index_spans import text_of

    rows = [
        (
            f"{attempt.stage}[{text_of(attempt.indices)}]",
            attempt.outcome,
            attempt.attempt,
            attempt.node,
            clock(attempt.started),
            "" if attempt.started is None else lasted(attempt.ended - attempt.started),
            _code(attempt.exit_code),
            attempt.reason,
        )
        for attempt in attempts
    ]
    print_table(("TASKS", "STATE", "ATTEMPT", "NODE", "STARTED", "RAN", "EXIT", "NOTE"), rows)


def _print_tasks(tasks: list[wire.Task], past: Past) -> None:
    rows = [
        (
            f"{task.stage}[{task.index}]",
            task.state,
            task.attempt,
            *past.get((task.stage, task.index), (task.node or "", clock(task.started), ago(task.started))),
            _code(task.exit_code) if task.state not in LIVE else "",
            _note(task),
        )
        for task in tasks
    ]
    print_table(("TASK", "STATE", "ATTEMPT", "NODE", "STARTED", "RAN", "EXIT", "NOTE"), rows)


def _note(task: wire.Task) -> str:
    """Return the remark on a task. A running task has no remark on its last attempt."""
    if task.state in LIVE:
        return task.note
    before = "last attempt: " if task.state in ("waiting", "pending") and task.reason and task.attempt else ""
    return f"{before}{task.reason}" if task.reason else task.note


def _last_errors(client: Client, job: wire.Job, tasks: list[wire.Task] | None = None) -> Iterator[str]:
    """Yield the last lines that failed tasks of a job wrote to standard error, or else to standard output."""
    from fairlead.client import Problem

    if job.forgotten or not any(stage.ended.get("failed") for stage in job.stages):
        return
    if tasks is None:
        tasks, _ = first(SHOWN, client.tasks(job.id))
    for task in [task for task in tasks if task.state == "failed" and task.attempt][:FAILED_SHOWN]:
        for stream, name in (("err", "standard error"), ("out", "standard output")):
            try:
                told = b"".join(client.log(job.id, task.stage, task.index, stream, offset=-LAST_BYTES))
            except Problem:
                break  # it has no log, or its node is away
            lines = told.decode("utf-8", "replace").rstrip().split("\n")[-LAST_LINES:]
            if any(lines):
                yield f"{task.stage}[{task.index}] wrote last to {name}:"
                yield from (f"  {line}" for line in lines)
                break


Past = dict[tuple[str, int], tuple[str, str, str]]


def _past(tasks: list[wire.Task], attempts: list[wire.Attempt], limit: int) -> Past:
    """Return the node, start and run time of the finished tasks whose attempts are in the history."""
    from fairlead.wire.index_spans import each_index

    over = {(task.stage, task.index, task.attempt) for task in tasks if task.node is None and task.attempt}
    past: Past = {}
    for attempt in attempts if over else ():
        ran = "" if attempt.started is None else lasted(attempt.ended - attempt.started)
        for index in takewhile(lambda index: index < limit, each_index(attempt.indices)):
            if (attempt.stage, index, attempt.attempt) in over:
                past[attempt.stage, index] = (attempt.node, clock(attempt.started), ran)
    return past


def _code(exit_code: int | None) -> str:
    return "" if exit_code is None else str(exit_code)


def explain(job: JobName, common: Common) -> None:
    """Show why a job waits, and what would start it.

    The first line is the main reason. For waiting tasks, the next lines say what they lack and what is ahead of them. A
    line `would start if` is a remedy: when all that it says is done, the tasks start. For running tasks the lines say
    why they run on their nodes, and for stopping tasks which job they stop for.
    """
    with common.client() as client:
        found = client.explain(job)
        errors = [] if common.as_json else list(_last_errors(client, client.job(job)))
    told = ("last attempt", "on loan")  # the sentence has them whole
    causes = [cause.text for cause in found.causes if cause.code not in told]
    if not found.waiting and len(causes) == 1:
        causes = []
    lines = [found.sentence, *causes, *waiting_lines(found.waiting), *errors]
    common.show(found, lines)


def waiting_lines(waiting: list[wire.Waiting], explained: bool = False) -> Iterator[str]:
    """Yield lines about waiting tasks: what they lack, unless that is `explained`, what will happen, and remedies."""
    said: list[wire.Remedy] = []
    for ask in waiting:
        if not explained:
            yield ask.text
        for coming in ask.comes:
            yield f"  comes by itself: {coming}"
        if ask.no_hold:
            yield f"  {ask.no_hold}"
        for remedy in ask.remedies if ask.remedies != said else ():  # stages that start together share them
            yield f"  would start if: {remedy.text}" if remedy.steps else "  it starts in the next cycle"
        said = ask.remedies
