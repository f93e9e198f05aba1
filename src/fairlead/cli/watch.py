"""`fairlead watch`: events of jobs, tasks and nodes as they happen."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from fairlead.cli import completion
from fairlead.cli.options import Common
from fairlead.cli.output import clock, print_json, print_text
from fairlead.cli.typer_commands import argument, option

if TYPE_CHECKING:
    from fairlead.wire import api as wire


class _Over(Exception):
    """Raised if the watched job has ended before the stream of events began."""


class WatchOptions(Common):
    job: str = argument(
        "Id of a job. By default all jobs and nodes.", metavar="JOB", autocompletion=completion.live_jobs
    )
    after: int | None = option(
        "Start after the record with this number in the journal of the partition, instead of now.",
        metavar="NUMBER",
        min=0,
    )


def watch(options: WatchOptions) -> None:
    """Print events of jobs, tasks and nodes as they happen, until Ctrl-C.

    With the id of a job, print only events of that job, until it has ended. With --json, each event is one line.
    """
    with options.client() as client, suppress(KeyboardInterrupt, _Over):

        def check() -> None:
            if options.job and client.job(options.job).over:
                raise _Over

        for event in client.watch(options.job, options.after, check):
            if options.as_json:
                print_json(event)
            else:
                print_text(_line(event))
            if options.job and event.what == "state" and event.state in ("succeeded", "failed", "killed"):
                return


def _line(event: wire.Event) -> str:
    """Return an event as one line: time, event, job or node, and reason."""
    from fairlead.wire.index_spans import text_of

    tasks = text_of(event.indices)
    what = [
        event.what,
        f"job {event.job}" if event.job else "",
        f"{event.stage}[{tasks}]" if tasks else event.stage,
        f"attempt {event.attempt}" if event.attempt > 1 else "",
        f"on {event.node}" if event.job and event.node else event.node,
        event.state,
    ]
    reason = f": {event.reason}" if event.reason else ""
    return f"{clock(event.at)}  {' '.join(filter(None, what))}{reason}"
