"""`fairlead wait`: wait until jobs have ended."""

from __future__ import annotations

import time
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

import typer

from fairlead.cli.option_values import seconds_of, wrong
from fairlead.cli.options import Common, LiveJobNames
from fairlead.cli.output import TIME_OVER
from fairlead.cli.typer_commands import option

if TYPE_CHECKING:
    from fairlead.wire import api as wire


class WaitOptions(Common):
    jobs: LiveJobNames
    timeout: str | None = option("Longest wait, such as 5m or 30 (seconds). When it is over, the exit code is 124.")


def wait(options: WaitOptions) -> None:
    """Wait until jobs have ended.

    The exit code is 0 if all jobs succeeded, 1 otherwise. Ctrl-C ends the wait; the jobs continue. On a terminal, the
    progress is shown.
    """
    from fairlead.cli.statusline import wait_for

    deadline = None if options.timeout is None else time.monotonic() + _wait_seconds(options.timeout)
    results: list[wire.Job] = []
    with options.client() as client:
        for at, job in enumerate(options.jobs):
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
    if any(result.state != "succeeded" for result in results):
        raise typer.Exit(1)


def _wait_seconds(text: str) -> float:
    seconds = seconds_of(text)
    with suppress(ValueError):
        seconds = float(text) if seconds is None else seconds
    if seconds is None or not 0 <= seconds < inf:
        raise wrong("--timeout", f"{text!r} is not a time to wait; write 5m, or 30 for seconds")
    return seconds
