"""`fairlead submit` and `fairlead run`: submit a job, and wait for it or show its output, until a signal ends that."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import typer

from fairlead.cli.input_files import REMEDY, STDIN, has_input, may_have_input
from fairlead.cli.job_options import JobOptions, PodOptions, set_values
from fairlead.cli.job_script import read_script
from fairlead.cli.option_values import wrong
from fairlead.cli.options import Common
from fairlead.cli.output import print_json, print_text
from fairlead.cli.typer_commands import option

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.wire import api as wire


class Interrupt:
    """What signals do to a command that waits for a job: the first one kills the job, and the second one ends the
    command, by `KeyboardInterrupt`."""

    def __init__(self) -> None:
        self.signal = 0
        """The first signal; 0 if there was none."""
        self._kill: Callable[[], None] | None = None

    def kills(self, kill: Callable[[], None]) -> None:
        """Call `kill`, in a thread, at the first signal; at once if it has arrived."""
        self._kill = kill
        if self.signal:
            self._begin()

    def hear(self, number: int, frame: FrameType | None) -> None:
        if self.signal and self._kill is not None:
            raise KeyboardInterrupt
        self.signal = number
        if self._kill is not None:
            self._begin()

    def _begin(self) -> None:
        threading.Thread(target=self._kill, daemon=True).start()


@contextmanager
def interrupts() -> Iterator[Interrupt]:
    """Handle the signals that end a command, except those that are ignored, such as SIGHUP under `nohup`."""
    interrupt = Interrupt()
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, interrupt.hear)
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class SubmitOptions(Common):
    file: Path | None = option(
        "File with a job in YAML or JSON; - for standard input. Other options override what it says.", "-f"
    )
    set: list[str] | None = option(
        "With --file: give a key another value, as KEY=VALUE, such as environment.LR=0.1, or "
        "stages.NAME.resources.cpu=4 for a stage of several; may be repeated.",
        metavar="KEY=VALUE",
    )
    wait: bool = option("Wait for the end of the job and exit with its status. Ctrl-C kills the job.")
    follow: bool = option("Show the output of the job until its end and exit with its status. Ctrl-C kills the job.")
    dry_run: bool = option("Submit nothing. Show where the job would start now, or why it would wait.")
    engine: Literal["agents", "kubernetes"] = option(
        "What runs the tasks. agents: the nodes of Fairlead. kubernetes: pods of a Kubernetes Job, which Fairlead "
        "schedules.",
        default="agents",
    )


def submit(job: JobOptions, pods: PodOptions, options: SubmitOptions, context: typer.Context) -> None:
    """Submit a job and print its id.

    The job is a command with options, a script with options in #FAIRLEAD lines, or a file:

    fairlead submit --array 100 --cpu 2 ./simulate --fast

    fairlead submit job.sh

    fairlead submit -f train.yaml --set environment.LR=0.1
    """
    if options.set and options.file is None:
        raise wrong("--set", "it changes a file; add --file, or use the option of that key")
    if options.engine == "kubernetes":
        from fairlead.cli.kubernetes_jobs import submit_pods

        return submit_pods(job, pods, options)
    for name, value in vars(pods).items():
        if value is not None:
            raise wrong(f"--{name}", "it is for pods; add --engine kubernetes, or leave it out")
    if options.file is None:
        read_script(job, context)
    for flag, given in (("--wait", options.wait), ("--follow", options.follow)):
        if given and options.dry_run:
            raise wrong(flag, "a dry run starts nothing; leave it out")
    with options.client() as client:
        document = job.document(client, options.file, follow=options.follow)
        if "jobs" in document and options.file is not None:
            from fairlead.cli.pipeline import submit_pipeline

            return submit_pipeline(client, document, job, options)
        set_values(document, options.set)
        if options.dry_run:
            _try(client, document, options)
        elif options.wait or options.follow:
            _submit_and_wait(client, document, "logs" if options.follow else "", options)
        else:
            submitted = _send(client, document)
            options.show({"job": submitted.job, "warning": submitted.warning}, [submitted.job])


def run(job: JobOptions, common: Common) -> None:
    """Run a command on the cluster and show its output.

    Standard input goes to the command, unless it has several tasks. With --pty the command has a terminal:

    fairlead run --pty bash

    tar c data | fairlead run -- sort-it | less

    The exit code is that of the command. Ctrl-C, SIGTERM and SIGHUP kill the job, and its output is shown until its
    end. A second Ctrl-C leaves at once. With --pty, Ctrl-C and Ctrl-Z reach the command, and a line that begins with ~.
    leaves and kills the job. While the connection is lost, the job continues; it is opened again for a minute.
    """
    single = not (job.array or job.grid or job.each_line or (job.gang or 1) > 1)
    if job.pty and not single:
        raise wrong("--pty", "the job has several tasks, and one terminal shows one; use submit --pty, and attach")
    streams = single and (job.pty or may_have_input())
    if not streams and has_input():
        common.fail(REMEDY, 2)
    try:
        with common.client() as client:
            document = job.document(client, None, "", follow=True)
            if streams:
                _connect_input(document, job)
            _submit_and_wait(client, document, "streams" if streams else "logs", common)
    finally:
        if not streams and has_input():  # input that arrived later
            typer.echo(f"fairlead: warning: standard input was ignored: {REMEDY}", err=True)


def _connect_input(document: dict[str, Any], job: JobOptions) -> None:
    """Let the only task of a job read standard input. It can be read once, so the task runs once."""
    [stage] = document["stages"]
    if not job.pty:
        if (job.tries or 1) > 1 and not os.isatty(STDIN):
            raise wrong("--tries", "standard input can be read only once; leave it out, or add `< /dev/null`")
        stage["stdin"] = True
        stage.setdefault("on_loss", "fail")


def _send(client: Client, document: Any) -> wire.Submitted:
    """Submit a job. Print the warning if it can never run as the cluster is now."""
    from fairlead.wire import operations as op

    submitted = client.send(op.Submit(document=document))
    if submitted.warning:
        print_text(f"fairlead: warning: job {submitted.job}: {submitted.warning}", err=True)
    return submitted


def _submit_and_wait(
    client: Client, document: dict[str, Any], show: Literal["", "logs", "streams"], common: Common
) -> None:
    """Submit a job, wait for its end, and exit with its status. An interrupt kills the job."""
    from fairlead.cli.statusline import wait_for
    from fairlead.cli.task_output import follow_job
    from fairlead.cli.terminal import converse_with_job

    with interrupts() as interrupt:
        job = _send(client, document).job
        if not (show or common.as_json):
            typer.echo(job)
        interrupt.kills(lambda: _kill(client, job))
        try:
            if show == "logs":
                follow_job(client, job)
            elif show == "streams":
                converse_with_job(client, job, lambda: interrupt.hear(signal.SIGINT, None))
            view = client.wait(job) if common.as_json else wait_for(client, job)
        except KeyboardInterrupt:
            raise typer.Exit(128 + interrupt.signal) from None
    if common.as_json:
        print_json(view)
    elif interrupt.signal:
        with suppress(OSError):  # the terminal may be gone
            print_text(f"fairlead: job {job} was killed", err=True)
    elif view.state != "succeeded":
        print_text(f"fairlead: job {view.id} {view.state}{f': {view.reason}' if view.reason else ''}", err=True)
    code = 128 + interrupt.signal if interrupt.signal else _exit_code(client, view)
    if code:
        raise typer.Exit(code)


def _exit_code(client: Client, view: wire.Job) -> int:
    """Return 0 for a job that succeeded, or the exit code of the first task that has one."""
    if view.state == "succeeded":
        return 0
    code = next((task.exit_code for task in client.tasks(view.id) if task.exit_code), 1)
    return code if 0 < code < 256 else 1


def _try(client: Client, document: dict[str, Any], common: Common) -> None:
    """Show where a job would start, or why it would wait. Exit with 1 if it can never run as the cluster is now."""
    from fairlead.cli.inspect import waiting_lines

    tried = client.dry_run(document=document, eta=common.as_json)
    lines = [tried.sentence]
    for placed in tried.placements:
        tasks = "task" if placed.tasks == 1 else "tasks"
        lines.append(f"{placed.stage}: {placed.tasks} {tasks} on {placed.node}")
    explained = bool(tried.never) and len(tried.waiting) == 1  # the sentence says it all
    common.show(tried, [*lines, *waiting_lines(tried.waiting, explained)])
    if not (common.as_json or tried.starts or tried.never):  # the prediction takes longer
        prediction = client.dry_run(document=document, eta=True).eta
        print_text("it would start now" if prediction is None else prediction.text)
    if tried.never:
        raise typer.Exit(1)


def _kill(client: Client, job: str) -> None:
    """Kill a job."""
    from fairlead.client import Problem

    with suppress(OSError):  # the terminal may be gone
        typer.echo(f"fairlead: killing job {job}; press Ctrl-C again to leave without waiting", err=True)
    try:
        client.kill(job)
    except Problem as problem:
        with suppress(OSError):
            typer.echo(f"fairlead: job {job} was not killed: {problem}", err=True)
