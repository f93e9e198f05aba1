"""`fairlead logs`, and the output of tasks on the terminal: of one attempt, or of all attempts until the task ends."""

from __future__ import annotations

import re
import sys
import threading
import time
from codecs import getincrementaldecoder
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import typer

from fairlead.cli.option_values import wrong
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


def follow_job(client: Client, job: str, wanted: str = "", form: Form | None = None) -> None:
    """Show the output of the tasks of a job, or of its stage `wanted`, until they end."""
    view = until_started(client, job)
    tasks = [(stage.name, index) for stage in view.stages if wanted in ("", stage.name) for index in range(stage.count)]
    if len(tasks) > FOLLOWED:
        typer.echo(f"fairlead: only the first {FOLLOWED} of {len(tasks)} tasks are shown", err=True)
    status = StatusLine() if len(tasks) > 1 else None
    form = form or Form(("out", "err"))
    threads = [
        threading.Thread(target=_follow_task, args=(client, job, stage, index, status, form), daemon=True)
        for stage, index in tasks[:FOLLOWED]
    ]
    for thread in threads:
        thread.start()
    with nullcontext() if status is None else following(client, job, status):
        for thread in threads:
            while thread.is_alive():
                thread.join(0.1)  # short waits, so that Ctrl-C gets through


class Form(NamedTuple):
    """How output is shown."""

    streams: tuple[str, ...]
    pattern: re.Pattern[bytes] | None = None
    """Only lines in which this occurs."""
    merged: bool = False
    """Print standard error to standard output too."""
    as_json: bool = False


def _follow_task(client: Client, job: str, stage: str, index: int, status: StatusLine | None, form: Form) -> None:
    from fairlead.client import Problem

    try:
        TaskOutput(client, job, stage, index, form, status, f"{stage}[{index}]" if status else "").follow(after=0)
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
        form: Form,
        status: StatusLine | None = None,
        prefix: str = "",
    ) -> None:
        """Each line of output begins with the `prefix`. `status` is the line that shows the progress of several
        tasks."""
        self._client = client
        self._job = job
        self._stage = stage
        self._index = index
        self._form = form
        self._prefix = f"{prefix} ".encode() if prefix else b""
        self._status = status
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
                threading.Thread(target=show, args=(stream, after, offset), daemon=True)
                for stream in self._form.streams
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

        form = self._form
        target = sys.stdout if form.merged or stream in ("out", *form.streams[:1]) else sys.stderr
        printer: Show = (
            documents(stream, self._stage, self._index)
            if form.as_json
            else _Lines(target, self._prefix, self._status, form.pattern)
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

    def show_all(self, follow: bool, attempt: int | None, offset: int = 0) -> None:
        """Show one attempt: one stream after the other, or both as they are written, with `follow`."""
        first, *others = self._form.streams
        if not (follow and others):
            for stream in self._form.streams:
                self.show(stream, follow, attempt, offset=offset)
            return
        threads = [
            threading.Thread(target=self._show_quietly, args=(stream, attempt, offset), daemon=True)
            for stream in others
        ]
        for thread in threads:
            thread.start()
        self.show(first, follow, attempt, offset=offset)
        for thread in threads:
            thread.join()

    def _show_quietly(self, stream: str, attempt: int | None, offset: int) -> None:
        from fairlead.client import Problem

        with suppress(Problem):  # the other stream has the same one
            self.show(stream, True, attempt, offset=offset)

    def _announce(self, attempt: int) -> None:
        """Print a line before the output of another attempt."""
        with self._lock:
            before, self._attempt = self._attempt, attempt
        if before not in (None, attempt) and not self._form.as_json:
            with nullcontext() if self._status is None else self._status.hidden():
                print_text(f"fairlead: attempt {attempt} of task {self._name}", err=True)


class _Lines:
    """Prints output as it is, or line by line if the lines have a prefix or a pattern."""

    def __init__(
        self, target: TextIO, prefix: bytes, status: StatusLine | None, pattern: re.Pattern[bytes] | None = None
    ) -> None:
        self._target = target.buffer
        self._pattern = pattern
        self._prefix = prefix
        self._status = status
        self._unfinished = b""

    def __call__(self, attempt: int, part: bytes) -> None:
        if self._prefix or self._pattern is not None:
            *lines, self._unfinished = (self._unfinished + part).split(b"\n")
            wanted = [line for line in lines if self._pattern is None or self._pattern.search(line)]
            part = b"".join(self._prefix + line + b"\n" for line in wanted)
            if not part:
                return
        with nullcontext() if self._status is None else self._status.hidden():
            self._target.write(part)
            self._target.flush()

    def end(self) -> None:
        """Print an unfinished last line."""
        if self._unfinished:
            self(0, b"\n")


def documents(stream: str, stage: str, index: int) -> Show:
    """Return a function that prints output of a task as JSON documents."""
    decoders: dict[int, Any] = {}

    def show(attempt: int, part: bytes) -> None:
        text = decoders.setdefault(attempt, getincrementaldecoder("utf-8")("replace"))
        print_json({"stage": stage, "index": index, "stream": stream, "attempt": attempt, "text": text.decode(part)})

    return show


class LogOptions(Common):
    job: JobName
    index: int | None = option("Index of the task, from 0.", "-i", min=0, show_default="0")
    stage: str = option("Name of the stage, if the job has several.")
    everything: bool = option("All tasks of the job, or of --stage. Each line begins with its task.", "--all", "-a")
    failed: bool = option("Only the tasks that have failed. Each line begins with its task.")
    stdout: bool = option("Only standard output.")
    stderr: bool = option("Only standard error.")
    grep: str | None = option("Only lines in which this regular expression occurs.", metavar="PATTERN")
    follow: bool = option(
        "Show new output until the task ends, also of its later attempts. Ctrl-C ends the display; the task continues.",
        "-f",
    )
    attempt: int | None = option("Output of attempt N. By default the last attempt.", metavar="N", min=1)
    tail: int | None = option("Only the last N bytes of each stream.", metavar="N", min=1)

    def form(self) -> Form:
        """Return how the output is shown."""
        streams = ("out",) if self.stdout else ("err",) if self.stderr else ("out", "err")
        try:
            pattern = None if self.grep is None else re.compile(self.grep.encode())
        except re.error as problem:
            raise wrong("--grep", f"{self.grep!r} is not a regular expression: {problem}") from None
        return Form(streams, pattern, True, self.as_json)


def logs(options: LogOptions) -> None:
    """Show the output of a task: what it wrote to standard output, then to standard error.

    With -f both are shown as they are written. fairlead logs 12 --failed --grep Error looks for the cause of failures.
    With --json, each line is a document with a piece of the output.
    """
    form = options.form()
    several = options.everything or options.failed
    for flag, given in (("--index", options.index is not None), ("--attempt", options.attempt is not None)):
        if several and given:
            raise wrong(flag, "it chooses one task or attempt; drop it, or --all and --failed")
    if options.follow and options.failed:
        raise wrong("--follow", "failed tasks write no more; drop it, or --failed")
    with options.client() as client:
        if options.everything and options.follow:
            return follow_job(client, options.job, options.stage, form)
        if several:
            return _show_several(client, options, form)
        _show_one(client, options, form)


def _show_one(client: Client, options: LogOptions, form: Form) -> None:
    if options.follow:
        until_started(client, options.job)
    if options.index is None:
        tasks = sum(entry.count for entry in client.job(options.job).stages if options.stage in ("", entry.name))
        if tasks > 1 and not options.as_json:
            typer.echo(f"fairlead: task 0 of {tasks} tasks; -i shows another, --all shows all", err=True)
    output = TaskOutput(client, options.job, options.stage, options.index or 0, form)
    offset = -options.tail if options.tail else 0
    if options.follow and options.attempt is None:
        output.follow(offset=offset)
    else:
        output.show_all(options.follow, options.attempt, offset)


def _show_several(client: Client, options: LogOptions, form: Form) -> None:
    """Show the output of all tasks of a job that have run, or of those that failed."""
    from fairlead.client import Problem

    shown = 0
    for task in client.tasks(options.job):
        if options.stage not in ("", task.stage) or not task.attempt:
            continue
        if options.failed and task.state != "failed":
            continue
        shown += 1
        name = f"{task.stage}[{task.index}]"
        try:
            output = TaskOutput(client, options.job, task.stage, task.index, form, None, name)
            output.show_all(False, None, -options.tail if options.tail else 0)
        except Problem as problem:
            if is_unreachable(problem):
                raise
            print_text(f"fairlead: {name}: {problem}", err=True)
    if not shown:
        print_text(f"no task of job {options.job} has {'failed' if options.failed else 'run'}", err=True)
