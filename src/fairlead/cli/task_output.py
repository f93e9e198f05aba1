"""`fairlead logs`, and the output of tasks on the terminal: of one attempt, or of all attempts until the task ends."""

from __future__ import annotations

import sys
import threading
import time
from codecs import getincrementaldecoder
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TextIO

import typer

from fairlead.cli.options import Common, JobName
from fairlead.cli.output import is_unreachable, print_json, print_text
from fairlead.cli.statusline import StatusLine, following
from fairlead.cli.typer_commands import option

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.wire import api as wire

FOLLOWED = 32
"""Largest number of tasks of a job whose output is shown at once."""
LOG_TIMEOUT = 5.0
"""Seconds after which a command prints why the job that it shows still waits."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5
"""Shortest and longest time in seconds before a broken stream is opened again."""

Show = Callable[[int, bytes], None]
"""Prints a part of the output of an attempt, which is given by its number."""


def until_started(client: Client, job: str) -> wire.Job:
    """Wait until a task of the job runs or the job has ended. If that takes long, print why the job waits."""
    pause = 0.01
    due = time.monotonic() + LOG_TIMEOUT
    while True:
        view = client.job(job)
        if view.over or any(stage.running or stage.ended for stage in view.stages):
            return view
        if time.monotonic() > due:
            due = time.monotonic() + 10 * LOG_TIMEOUT
            for ask in client.explain(job, remedies=False).waiting[:1]:
                typer.echo(f"fairlead: job {job} waits: {ask.reason or ask.text}", err=True)
        time.sleep(pause)
        pause = min(0.5, 1.5 * pause)


def follow_job(client: Client, job: str) -> None:
    """Show the output of the tasks of a job until they end."""
    view = until_started(client, job)
    tasks = [(stage.name, index) for stage in view.stages for index in range(stage.count)]
    if len(tasks) > FOLLOWED:
        typer.echo(f"fairlead: only the first {FOLLOWED} of {len(tasks)} tasks are shown", err=True)
    status = StatusLine() if len(tasks) > 1 else None
    threads = [
        threading.Thread(target=_follow_task, args=(client, job, stage, index, status), daemon=True)
        for stage, index in tasks[:FOLLOWED]
    ]
    for thread in threads:
        thread.start()
    with nullcontext() if status is None else following(client, job, status):
        for thread in threads:
            while thread.is_alive():
                thread.join(0.1)  # short waits, so that Ctrl-C gets through


def _follow_task(client: Client, job: str, stage: str, index: int, status: StatusLine | None) -> None:
    from fairlead.client import Problem

    try:
        TaskOutput(client, job, stage, index, ("out", "err"), status).follow(after=0)
    except Problem:
        return  # the command then waits for the job, and prints what is wrong with the server


class TaskOutput:
    """Shows streams of a task: standard output, standard error or both."""

    def __init__(
        self,
        client: Client,
        job: str,
        stage: str,
        index: int,
        streams: tuple[str, ...],
        status: StatusLine | None = None,
        show: Show | None = None,
    ) -> None:
        """With `status`, the line that shows the progress of several tasks, each line of output begins with the name of
        its task. `show`, if given, prints all output instead."""
        self._client = client
        self._job = job
        self._stage = stage
        self._index = index
        self._streams = streams
        self._prefix = b"" if status is None else f"{stage}[{index}] ".encode()
        self._status = status
        self._show = show
        self._name = f"{stage}[{index}]" if stage else str(index)
        self._lock = threading.Lock()
        self._attempt: int | None = None
        """The attempt that is shown."""

    def follow(self, after: int | None = None, offset: int = 0) -> None:
        """Show the output of one attempt after another, with a line between them, until the task ends.

        The first attempt shown is the first one above `after`, by default the last one so far.
        """
        from fairlead.client import Problem

        problems: list[Problem] = []

        def show(stream: str, after: int | None, offset: int) -> None:
            try:
                self.show(stream, True, None, after, offset)
            except Problem as problem:
                problems.append(problem)

        while not problems:
            first, *others = [
                threading.Thread(target=show, args=(stream, after, offset), daemon=True) for stream in self._streams
            ]
            for thread in others:
                thread.start()
            first.run()
            for thread in others:
                thread.join()
            after, offset = self._attempt, 0
        if problems[0].code != "gone" or self._attempt is None:
            raise problems[0]

    def show(
        self, stream: str, follow: bool, attempt: int | None = None, after: int | None = None, offset: int = 0
    ) -> None:
        """Show the output of one attempt. If the stream breaks, for example by a restart of the server, resume it."""
        from fairlead.client import Problem

        printer = self._show or _Lines(
            sys.stdout if stream in ("out", *self._streams[:1]) else sys.stderr, self._prefix, self._status
        )
        begun: list[int] = []
        pause = FIRST_PAUSE

        def began(number: int) -> None:
            begun.append(number)
            self._announce(number)

        while True:
            number = begun[-1] if begun else attempt
            log = self._client.log(
                self._job, self._stage, self._index, stream, follow, offset, number, None if begun else after, began
            )
            try:
                for part in log:
                    offset += len(part)
                    printer(begun[-1], part)
                break
            except Problem as problem:
                if not (begun and is_unreachable(problem)) or offset < 0:
                    raise
                self._client.job(self._job)  # this waits for the server, and raises if that takes too long
            time.sleep(pause)
            pause = min(LONGEST_PAUSE, 1.5 * pause)
        if isinstance(printer, _Lines):
            printer.end()

    def _announce(self, attempt: int) -> None:
        """Print a line before the output of another attempt."""
        with self._lock:
            before, self._attempt = self._attempt, attempt
        if before not in (None, attempt) and self._show is None:
            with nullcontext() if self._status is None else self._status.hidden():
                print_text(f"fairlead: attempt {attempt} of task {self._name}", err=True)


class _Lines:
    """Prints output as it is, or line by line if the lines have a prefix."""

    def __init__(self, target: TextIO, prefix: bytes, status: StatusLine | None) -> None:
        self._target = target.buffer
        self._prefix = prefix
        self._status = status
        self._unfinished = b""

    def __call__(self, attempt: int, part: bytes) -> None:
        if self._prefix:
            *lines, self._unfinished = (self._unfinished + part).split(b"\n")
            part = b"".join(self._prefix + line + b"\n" for line in lines)
        with nullcontext() if self._status is None else self._status.hidden():
            self._target.write(part)
            self._target.flush()

    def end(self) -> None:
        """Print an unfinished last line."""
        if self._unfinished:
            self(0, b"\n")


def documents(stream: str) -> Show:
    """Return a function that prints output as JSON documents."""
    decoders: dict[int, Any] = {}

    def show(attempt: int, part: bytes) -> None:
        text = decoders.setdefault(attempt, getincrementaldecoder("utf-8")("replace"))
        print_json({"stream": stream, "attempt": attempt, "text": text.decode(part)})

    return show


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
