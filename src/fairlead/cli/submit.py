"""`fairlead submit` and `fairlead run`: submit a job, and wait for it or show its output."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fairlead.cli.interrupts import interrupts
from fairlead.cli.job_options import JobOptions, PodOptions
from fairlead.cli.option_values import wrong
from fairlead.cli.options import Common
from fairlead.cli.output import print_json, print_text

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.wire import api as wire


def submit(
    *,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="File with a job in YAML or JSON; - for standard input.")
    ] = None,
    job: JobOptions,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end of the job and exit with its status. Ctrl-C kills the job.")
    ] = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="Show the output of the job until its end and exit with its status. Ctrl-C kills the job."
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Submit nothing. Show whether and where the job would start now, or why it would wait."
        ),
    ] = False,
    engine: Annotated[
        Literal["agents", "kubernetes"],
        typer.Option(
            help="agents: run tasks on the nodes of Fairlead. kubernetes: create a Job of a Kubernetes cluster, whose "
            "pods Fairlead schedules."
        ),
    ] = "agents",
    pods: PodOptions,
    common: Common,
) -> None:
    """Submit a job and print its id.

    The job is a command with options, or a file:

    fairlead submit --array 100 --cpu 2 ./simulate --fast

    fairlead submit -f train.yaml
    """
    if engine == "kubernetes":
        from fairlead.cli.kubernetes_jobs import submit_pods

        if dry_run:
            raise wrong("--dry-run", "it is not for pods; leave it out")
        submit_pods(job, pods, {"file": file, "wait": wait, "follow": follow, "partition": common.partition}, common)
        return
    for name, value in vars(pods).items():
        if value is not None:
            raise wrong(f"--{name}", "it is for pods; add --engine kubernetes, or leave it out")
    if dry_run:
        for option, given in (("--wait", wait), ("--follow", follow)):
            if given:
                raise wrong(option, "a dry run starts nothing; leave it out")
    with common.client() as client:
        document = job.document(client) if file is None else job.read(file)
        if dry_run:
            _try(client, document, common)
        elif wait or follow:
            _submit_and_wait(client, document, follow, common)
        else:
            submitted = _send(client, document)
            common.show({"job": submitted.job, "warning": submitted.warning}, [submitted.job])
            _warn(submitted)


def run(job: JobOptions, common: Common) -> None:
    """Run a command on the cluster and show its output.

    The exit code is that of the command. Ctrl-C kills the job, and so do SIGTERM and SIGHUP to `fairlead run`; a
    second Ctrl-C leaves at once, without waiting until the job has stopped. The command reads no standard input: input
    from a file or a pipe is refused.
    """
    from fairlead.cli.stdin import REMEDY, has_input

    if has_input():
        common.fail(REMEDY, 2)
    try:
        with common.client() as client:
            _submit_and_wait(client, job.document(client, or_file=""), True, common)
    finally:
        if has_input():  # input that arrived later
            typer.echo(f"fairlead: warning: standard input was ignored: {REMEDY}", err=True)


def _send(client: Client, document: Any) -> wire.Submitted:
    from fairlead.wire import operations as op

    return client.send(op.Submit(document=document))


def _submit_and_wait(client: Client, document: dict[str, Any], follow: bool, common: Common) -> None:
    """Submit a job, wait for its end, and exit with its status. An interrupt kills the job."""
    from fairlead.cli.statusline import wait_for
    from fairlead.cli.task_output import follow_job

    with interrupts() as interrupt:
        submitted = _send(client, document)
        job = submitted.job
        if not (follow or common.as_json):
            typer.echo(job)
        _warn(submitted)
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
    """Show what would happen to a job. Exit with 1 if it can never run as the cluster is now."""
    from fairlead.cli.inspect import waiting_lines

    tried = client.dry_run(document=document, eta=common.as_json)
    lines = [tried.sentence]
    for placed in tried.placements:
        tasks = "task" if placed.tasks == 1 else "tasks"
        lines.append(f"{placed.stage}: {placed.tasks} {tasks} on {placed.node}")
    said = bool(tried.never) and len(tried.waiting) == 1  # the sentence says it all
    common.show(tried, [*lines, *waiting_lines(tried.waiting, said)])
    if not (common.as_json or tried.starts or tried.never):  # the prediction takes longer
        foretold = client.dry_run(document=document, eta=True).eta
        print_text(foretold.text if foretold is not None else "it would start now")
    if tried.never:
        raise typer.Exit(1)


def _warn(submitted: wire.Submitted) -> None:
    """Print the warning that a job can never run as the cluster is now."""
    if submitted.warning:
        print_text(f"fairlead: warning: job {submitted.job}: {submitted.warning}", err=True)


def _kill(client: Client, job: str) -> None:
    """Kill a job and wait until its last process has ended. Another interrupt ends the wait."""
    client.kill(job)
    with suppress(OSError):  # the terminal may be gone
        typer.echo(f"fairlead: killing job {job}; interrupt again to leave it", err=True)
    try:
        client.wait(job)
    except KeyboardInterrupt:
        return
    with suppress(OSError):
        typer.echo(f"fairlead: job {job} was killed", err=True)
