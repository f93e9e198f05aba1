"""`fairlead logs`: show the output of a task."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.options import Common, JobName


def logs(
    job: JobName,
    *,
    index: Annotated[
        int | None, typer.Option("--index", "-i", help="Index of the task, from 0.", min=0, show_default="0")
    ] = None,
    stage: Annotated[str, typer.Option(help="Name of the stage, if the job has several.")] = "",
    stderr: Annotated[bool, typer.Option("--stderr", help="Show standard error instead of standard output.")] = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Go on with new output until the task ends, also if it is tried again. Ctrl-C ends the display; the "
            "task goes on.",
        ),
    ] = False,
    attempt: Annotated[
        int | None, typer.Option(help="Number of the attempt. By default the last one.", metavar="N", min=1)
    ] = None,
    tail: Annotated[int | None, typer.Option(help="Only the last N bytes.", metavar="N", min=1)] = None,
    common: Common,
) -> None:
    """Show the output of a task.

    With --json, each piece of output is a document on a line of its own.
    """
    from fairlead.cli.task_output import TaskOutput, documents, until_started

    with common.client() as client:
        if follow:
            until_started(client, job)
        if index is None:
            index = 0
            tasks = sum(entry.count for entry in client.job(job).stages if stage in ("", entry.name))
            if tasks > 1 and not common.as_json:
                typer.echo(f"fairlead: task 0 of {tasks} tasks; -i shows another", err=True)
        stream = "err" if stderr else "out"
        show = documents(stream) if common.as_json else None
        output = TaskOutput(client, job, stage, index, (stream,), show=show)
        if not follow or attempt is not None:
            output.show(stream, follow, attempt, offset=-tail if tail else 0)
        else:
            output.follow(offset=-tail if tail else 0)
