"""Pipelines: several jobs of one file, submitted at once, and `fairlead pipeline`, which shows them as one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli.inspect import JOBS
from fairlead.cli.option_values import wrong
from fairlead.cli.options import Common
from fairlead.cli.output import cells, print_table, print_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlead.cli.job_options import JobOptions
    from fairlead.cli.submit import SubmitOptions
    from fairlead.client import Client
    from fairlead.wire import api as wire

SHOWN = ("job", "name", "state", "tasks", "after", "reason")
OF_ONE = ("command", "after", "array", "grid", "each_line", "throttle", "gang", "min")
"""Options that would mean something else for each job of a file. All others change all jobs."""
NOT_NEEDED = "not needed:"
"""How the reason begins for which a job that follows a failure ends if there was none."""


def _refuse_options_of_one(job: JobOptions, options: SubmitOptions) -> None:
    given = [name for name in OF_ONE if getattr(job, name)]
    given += [name for name in ("set", "follow", "dry_run") if getattr(options, name)]
    if given:
        flag = given[0].upper() if given[0] == "command" else f"--{given[0].replace('_', '-')}"
        raise wrong(flag, "it is for one job, and the file has several; write it there")


def submit_pipeline(client: Client, document: dict[str, Any], job: JobOptions, options: SubmitOptions) -> None:
    """Submit the jobs of a file. Print the name of the pipeline; with --wait, wait for all its jobs."""
    _refuse_options_of_one(job, options)
    jobs = document["jobs"]
    unknown = [key for key in document if key not in ("jobs", "name")]
    if unknown:
        options.fail(f"{options.file}: a file with several jobs has the keys name and jobs, and no {unknown[0]}", 1)
    submitted = client.submit_pipeline(jobs, job.name or str(document.get("name") or ""))
    for name, warning in submitted.warnings.items():
        print_text(f"fairlead: warning: job {submitted.jobs[name]}, {name}: {warning}", err=True)
    if not options.wait:
        options.show(submitted, [submitted.pipeline])
        return
    if not options.as_json:
        print_text(submitted.pipeline)
    views = [client.wait(name) for name in submitted.jobs.values()]
    _show(submitted.pipeline, views, options)
    if state_of(views) != "succeeded":
        raise typer.Exit(1)


def pipeline(
    name: Annotated[str, typer.Argument(help="The name that `fairlead submit` printed.", metavar="PIPELINE")],
    *,
    wait: Annotated[
        bool, typer.Option(help="Wait for the end of all its jobs, and exit with 1 if one failed.")
    ] = False,
    common: Common,
) -> None:
    """Show the jobs of a pipeline as one.

    They also have the label pipeline=NAME, by which other commands select them: fairlead kill --label
    pipeline=nightly-7
    """
    with common.client() as client:
        jobs = sorted(client.jobs(label=f"pipeline={name}", limit=1_000), key=lambda job: (job.submitted, _number(job)))
        if not jobs:
            common.fail(f"there is no pipeline {name}; `fairlead ps --all -o job,name,labels` lists labels", 1)
        if wait:
            jobs = [client.wait(job.id) for job in jobs]
    _show(name, jobs, common)
    if wait and state_of(jobs) != "succeeded":
        raise typer.Exit(1)


def _number(job: wire.Job) -> int:
    return int(job.id) if job.id.isdecimal() else 0


def state_of(jobs: Sequence[wire.Job]) -> str:
    """Return the state of a pipeline: it has failed if a job of it has, or was killed."""
    bad = [job for job in jobs if job.state in ("failed", "killed") and not job.reason.startswith(NOT_NEEDED)]
    if bad:
        return "failed"
    if all(job.over for job in jobs):
        return "succeeded"
    return "running" if any(job.state != "pending" for job in jobs) else "pending"


def _show(name: str, jobs: list[wire.Job], common: Common) -> None:
    state = state_of(jobs)
    over = sum(job.over for job in jobs)
    if common.as_json:
        common.show({"pipeline": name, "state": state, "jobs": jobs}, [])
        return
    begun = min(job.submitted for job in jobs)
    ends = [job.ended for job in jobs if job.ended is not None]
    lasted = (max(ends) if over == len(jobs) and ends else time.time()) - begun
    print_text(f"pipeline {name}: {state}, {over} of {len(jobs)} jobs over, {lasted:.0f}s after its submission")
    columns = [column for column in JOBS if column.name in SHOWN]
    print_table(*cells(sorted(columns, key=lambda column: SHOWN.index(column.name)), jobs))
