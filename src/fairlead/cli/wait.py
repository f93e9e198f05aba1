"""`fairlead wait`: wait until jobs have ended."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

import typer

from fairlead.cli.option_values import seconds_of, wrong
from fairlead.cli.options import Common, LiveJobNames
from fairlead.cli.output import TIME_OVER, print_text
from fairlead.cli.typer_commands import option

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.wire import api as wire


LOOK = 2.0
"""Seconds in which each of the jobs of `--any` is looked at once."""


class WaitOptions(Common):
    jobs: LiveJobNames
    timeout: str | None = option("Longest wait, such as 5m or 30 (seconds). When it is over, the exit code is 124.")
    any: bool = option("Wait until one of the jobs has ended, and print only that one.")
    then: str | None = option(
        "Run this command line here afterwards, with FAIRLEAD_JOB, FAIRLEAD_STATE and FAIRLEAD_REASON of each job that "
        "ended, such as 'notify-send \"job $FAIRLEAD_JOB $FAIRLEAD_STATE\"'.",
        metavar="COMMAND",
    )


def wait(options: WaitOptions) -> None:
    """Wait until jobs have ended.

    The exit code is 0 if all jobs succeeded, 1 otherwise. Ctrl-C ends the wait; the jobs continue. On a terminal, the
    progress is shown.
    """
    from fairlead.cli.statusline import wait_for

    deadline = None if options.timeout is None else time.monotonic() + _wait_seconds(options.timeout)
    results: list[wire.Job] = []
    with options.client() as client:
        if options.any:
            results.append(_first_over(client, options, deadline))
        for at, job in enumerate([] if options.any else options.jobs):
            try:
                if options.as_json:
                    left = None if deadline is None else max(0.0, deadline - time.monotonic())
                    results.append(client.wait(job, left))
                else:
                    before = f"{at} of {len(options.jobs)} jobs over; " if len(options.jobs) > 1 else ""
                    results.append(wait_for(client, job, deadline, before))
            except TimeoutError as late:
                options.fail(str(late), TIME_OVER)
    lines = (f"{result.id}: {result.state}{f', {result.reason}' if result.reason else ''}" for result in results)
    options.show(results, lines)
    for result in results if options.then else ():
        _run_here(str(options.then), result)
    if any(result.state != "succeeded" for result in results):
        raise typer.Exit(1)


def _first_over(client: Client, options: WaitOptions, deadline: float | None) -> wire.Job:
    """Return the first of the jobs that is over, in the order of the command if several are."""
    jobs = list(dict.fromkeys(options.jobs))
    for job in jobs:
        view = client.job(job)
        if view.over:
            return view
    asked = 0
    while deadline is None or time.monotonic() < deadline:
        # One long poll at a time: the jobs take turns, so that an end is seen soon.
        left = LOOK / len(jobs) if deadline is None else min(LOOK / len(jobs), max(0.0, deadline - time.monotonic()))
        view = client.job(jobs[asked % len(jobs)], left)
        if view.over:
            return view
        asked += 1
    options.fail(f"none of {len(jobs)} jobs has ended", TIME_OVER)


def _run_here(command: str, job: wire.Job) -> None:
    """Run a command line on this machine, with what is told about a job in its environment."""
    told = {"FAIRLEAD_JOB": job.id, "FAIRLEAD_STATE": job.state, "FAIRLEAD_REASON": job.reason}
    code = subprocess.run(["/bin/sh", "-c", command], env={**os.environ, **told}, check=False).returncode
    if code:
        print_text(f"fairlead: warning: the command of --then ended with {code}", err=True)


def _wait_seconds(text: str) -> float:
    seconds = seconds_of(text)
    with suppress(ValueError):
        seconds = float(text) if seconds is None else seconds
    if seconds is None or not 0 <= seconds < inf:
        raise wrong("--timeout", f"{text!r} is not a time to wait; write 5m, or 30 for seconds")
    return seconds
