"""`fairlead results`: list the result files of a job, or fetch them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.cli.options import Common, JobName
from fairlead.cli.output import print_json, print_table, print_text
from fairlead.cli.statusline import StatusLine
from fairlead.cli.typer_commands import option

if TYPE_CHECKING:
    from fairlead.wire import api as wire


class ResultOptions(Common):
    job: JobName
    index: list[int] | None = option("Only the task with this index; may be repeated.", "-i", min=0)
    stage: str = option("Only tasks of this stage.")
    attempt: int | None = option(
        "Files of attempt N of a task. By default the last attempt that has files.", metavar="N", min=1
    )
    directory: Path | None = option(
        "Fetch the files into this directory, as STAGE.INDEX/NAME.", "--output", "-o", metavar="DIRECTORY"
    )


def results(options: ResultOptions) -> None:
    """List or fetch the result files of a job.

    Result files are the files that `fairlead submit --result` names. They are collected when each task ends. This
    command waits for files that are still on their way from the nodes. The exit code is 1 if none arrives for a minute.
    """
    tasks: list[wire.TaskResults] = []
    paths: list[Path] = []
    status = StatusLine()

    def told(what: str, done: int, total: int) -> None:
        if what == "fetching":
            status.draw(f"{done:,} of {total:,} files fetched")
        else:
            status.draw(f"the files of {done:,} of {total:,} tasks have arrived from their nodes")

    with options.client() as client:
        try:
            chosen: list[int | None] = [*options.index] if options.index else [None]
            for number in chosen:
                tasks += client.results(options.job, options.stage, number, options.attempt, told=told)
                if options.directory is not None:
                    paths += client.fetch(
                        options.job, options.directory, options.stage, number, options.attempt, told=told
                    )
        except TimeoutError as problem:
            options.fail(f"{problem}; try again later")
        except OSError as problem:
            options.fail(f"{problem.filename or options.directory}: {problem.strerror}")
        finally:
            status.draw("")
    if options.as_json:
        document: dict[str, Any] = {"tasks": tasks}
        print_json(document if options.directory is None else {**document, "written": [str(path) for path in paths]})
    else:
        _print(tasks, None if options.directory is None else paths)


def _print(tasks: list[wire.TaskResults], fetched: list[Path] | None) -> None:
    """Print the paths of fetched files, or else a table of the files. Warn about files that are missing."""
    files = [(task, file) for task in tasks for file in task.files]
    if fetched is not None:
        for path in fetched:
            print_text(str(path))
    elif files:
        rows = [(f"{task.stage}.{task.index}", task.attempt, file.size, file.name) for task, file in files]
        print_table(("TASK", "ATTEMPT", "SIZE", "FILE"), rows)
    if not files:
        print_text("no result files; `fairlead submit --result PATTERN` names files to collect", err=True)
    warned: dict[str, list[str]] = {}
    for task in tasks:
        if task.warning:
            warned.setdefault(task.warning, []).append(f"{task.stage}.{task.index}")
    for warning, names in warned.items():
        which = f"task {names[0]}" if len(names) == 1 else f"{len(names):,} tasks, such as {names[0]}"
        print_text(f"fairlead: warning: {which}: {warning}", err=True)
