"""`fairlead logs`: show the output of a task."""

from __future__ import annotations

import typer

from fairlead.cli.options import Common, JobName
from fairlead.cli.typer_commands import option


class LogOptions(Common):
    job: JobName
    index: int | None = option("Index of the task, from 0.", "-i", min=0, show_default="0")
    stage: str = option("Name of the stage, if the job has several.")
    stderr: bool = option("Show standard error instead of standard output.")
    follow: bool = option(
        "Show new output until the task ends, also of its later attempts. Ctrl-C ends the display; the task continues.",
        "-f",
    )
    attempt: int | None = option("Output of attempt N. By default the last attempt.", metavar="N", min=1)
    tail: int | None = option("Only the last N bytes.", metavar="N", min=1)


def logs(options: LogOptions) -> None:
    """Show the output of a task.

    With --json, each line is a document with a piece of the output.
    """
    from fairlead.cli.task_output import TaskOutput, documents, until_started

    with options.client() as client:
        if options.follow:
            until_started(client, options.job)
        if options.index is None:
            options.index = 0
            tasks = sum(entry.count for entry in client.job(options.job).stages if options.stage in ("", entry.name))
            if tasks > 1 and not options.as_json:
                typer.echo(f"fairlead: task 0 of {tasks} tasks; -i shows another", err=True)
        stream = "err" if options.stderr else "out"
        show = documents(stream) if options.as_json else None
        output = TaskOutput(client, options.job, options.stage, options.index, (stream,), show=show)
        if not options.follow or options.attempt is not None:
            output.show(stream, options.follow, options.attempt, offset=-options.tail if options.tail else 0)
        else:
            output.follow(offset=-options.tail if options.tail else 0)
