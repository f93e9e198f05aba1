"""`fairlead submit` and `fairlead run`: submit a job, and wait for it or show its output, until a signal ends that."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import typer

from fairlead.cli.input_files import REMEDY, has_input
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
    """The signal that interrupts a command. It raises `KeyboardInterrupt` only after `raises` was called."""

    def __init__(self) -> None:
        self.signal: int = signal.SIGINT
        self._heard = False
        self._raising = False

    def raises(self) -> None:
        """Raise on signals from now on, because the job can now be killed. Raise at once if one has arrived."""
        self._raising = True
        if self._heard:
            raise KeyboardInterrupt

    def hear(self, number: int, frame: FrameType | None) -> None:
        self.signal, self._heard = number, True
        if self._raising:
            raise KeyboardInterrupt


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
        document = job.document(client, options.file)
        set_values(document, options.set)
        if options.dry_run:
            _try(client, document, options)
        elif options.wait or options.follow:
            _submit_and_wait(client, document, options.follow, options)
        else:
            submitted = _send(client, document)
            options.show({"job": submitted.job, "warning": submitted.warning}, [submitted.job])


def run(job: JobOptions, common: Common) -> None:
    """Run a command on the cluster and show its output.

    The exit code is that of the command. Ctrl-C, SIGTERM and SIGHUP kill the job. A second Ctrl-C leaves at once,
    without waiting until the job has stopped. The command on the cluster has no standard input: `fairlead run` refuses
    input from a file or a pipe.
    """
    if has_input():
        common.fail(REMEDY, 2)
    try:
        with common.client() as client:
            _submit_and_wait(client, job.document(client, None, ""), True, common)
    finally:
        if has_input():  # input that arrived later
            typer.echo(f"fairlead: warning: standard input was ignored: {REMEDY}", err=True)


def _send(client: Client, document: Any) -> wire.Submitted:
    """Submit a job. Print the warning if it can never run as the cluster is now."""
    from fairlead.wire import operations as op

    submitted = client.send(op.Submit(document=document))
    if submitted.warning:
        print_text(f"fairlead: warning: job {submitted.job}: {submitted.warning}", err=True)
    return submitted


def _submit_and_wait(client: Client, document: dict[str, Any], follow: bool, common: Common) -> None:
    """Submit a job, wait for its end, and exit with its status. An interrupt kills the job."""
    from fairlead.cli.statusline import wait_for
    from fairlead.cli.task_output import follow_job

    with interrupts() as interrupt:
        job = _send(client, document).job
        if not (follow or common.as_json):
            typer.echo(job)
        try:
            interrupt.raises()
            if follow:
                follow_job(client, job)
            view = client.wait(job) if common.as_json else wait_for(client, job)
        except KeyboardInterrupt:
            _kill(client, job)
            raise typer.Exit(128 + interrupt.signal) from None
    if common.as_json:
        print_json(view)
    elif view.state != "succeeded":
        print_text(f"fairlead: job {view.id} {view.state}{f': {view.reason}' if view.reason else ''}", err=True)
    if view.state != "succeeded":
        code = next((task.exit_code for task in client.tasks(job) if task.exit_code), 1)
        raise typer.Exit(code if 0 < code < 256 else 1)


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
    """Kill a job and wait until its last process has ended. A second interrupt ends the wait."""
    client.kill(job)
    with suppress(OSError):  # the terminal may be gone
        typer.echo(f"fairlead: killing job {job}; press Ctrl-C again to leave without waiting", err=True)
    try:
        client.wait(job)
    except KeyboardInterrupt:
        return
    with suppress(OSError):
        typer.echo(f"fairlead: job {job} was killed", err=True)
