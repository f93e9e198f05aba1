"""Jobs on the command line: submit, run, ps, show, logs, kill, scale, wait, explain, history."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli.options import AsJson, JobName, Partition, open_client, pairs
from fairlead.cli.output import (
    TIME_OVER,
    ago,
    amounts,
    calls_server,
    fail,
    is_unreachable,
    lasted,
    print_json,
    print_table,
    print_text,
    problem_document,
    progress,
)

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.wire import api as wire

SHOWN = 1_000
"""Tasks of a job that are shown."""

Command = Annotated[list[str] | None, typer.Argument(help="The program and its arguments, after --.")]
Name = Annotated[str | None, typer.Option(help="Name of the job.")]
Queue = Annotated[str | None, typer.Option("--queue", "-q", help="Queue of the job.")]
Tasks = Annotated[int, typer.Option("--count", "-n", help="Number of equal tasks; each starts when it can.", min=1)]
GangSize = Annotated[
    int | None, typer.Option("--gang", help="Gang size: start all N tasks or none.", metavar="N", min=1)
]
Cpu = Annotated[str, typer.Option(help="CPUs of each task, such as 2 or 500m.")]
Memory = Annotated[str | None, typer.Option(help="Memory of each task, such as 512Mi.")]
Gpu = Annotated[str | None, typer.Option(help="GPUs of each task: 2, or a fraction of one, such as 0.5.")]
Resource = Annotated[list[str] | None, typer.Option(help="Another resource, as name=amount; may be repeated.")]
Priority = Annotated[int | None, typer.Option(help="Jobs with a higher priority start first in their queue.")]
After = Annotated[list[str] | None, typer.Option(help="Id of a job that must succeed first; may be repeated.")]
Env = Annotated[
    list[str] | None, typer.Option("--env", "-e", help="Environment variable, as NAME=value; may be repeated.")
]
Secret = Annotated[
    list[str] | None, typer.Option(help="Secret to pass in a variable, as VARIABLE=name; may be repeated.")
]
Label = Annotated[
    list[str] | None, typer.Option("--label", "-l", help="Label of the job, as key=value; may be repeated.")
]
Selector = Annotated[
    list[str] | None, typer.Option(help="Run only on nodes with this label, as key=value; may be repeated.")
]
Pool = Annotated[str | None, typer.Option(help="Run only on nodes of this pool.")]
TimeLimit = Annotated[str | None, typer.Option(help="Longest run time of a task, such as 2h.")]
Tries = Annotated[int | None, typer.Option(help="Number of times a task may be tried.", min=1)]
Directory = Annotated[
    str | None, typer.Option(help="Working directory. By default this one, if the server is on this machine.")
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        help="File for standard output, and for standard error without --error, instead of a log. "
        "%j is the job, %s the stage, %a the index, %r the attempt.",
        metavar="PATTERN",
    ),
]
Error = Annotated[str | None, typer.Option("--error", help="File for standard error.", metavar="PATTERN")]
Shell = Annotated[bool, typer.Option("--shell", help="Run the command with /bin/sh -c.")]
File = Annotated[
    Path | None, typer.Option("--file", "-f", help="File with a job in YAML or JSON; - for standard input.")
]


def submit(
    command: Command = None,
    file: File = None,
    name: Name = None,
    queue: Queue = None,
    count: Tasks = 1,
    gang: GangSize = None,
    cpu: Cpu = "1",
    memory: Memory = None,
    gpu: Gpu = None,
    resource: Resource = None,
    priority: Priority = None,
    after: After = None,
    env: Env = None,
    secret: Secret = None,
    label: Label = None,
    selector: Selector = None,
    pool: Pool = None,
    time_limit: TimeLimit = None,
    tries: Tries = None,
    directory: Directory = None,
    output: Output = None,
    error: Error = None,
    shell: Shell = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the job and exit with its status.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show the output of the job and exit with its status.")
    ] = False,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Submit a job: a command with options, or a file.

    fairlead submit --count 100 --cpu 2 -- ./simulate --fast
    """
    options = {key: value for key, value in locals().items() if key in DOCUMENT_OPTIONS}
    _submit(file, options, partition, wait, follow, as_json)


def run(
    command: Command = None,
    name: Name = None,
    queue: Queue = None,
    count: Tasks = 1,
    gang: GangSize = None,
    cpu: Cpu = "1",
    memory: Memory = None,
    gpu: Gpu = None,
    resource: Resource = None,
    priority: Priority = None,
    after: After = None,
    env: Env = None,
    secret: Secret = None,
    label: Label = None,
    selector: Selector = None,
    pool: Pool = None,
    time_limit: TimeLimit = None,
    tries: Tries = None,
    directory: Directory = None,
    output: Output = None,
    error: Error = None,
    shell: Shell = False,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Run a command on the cluster, show its output, and exit with its exit code. Ctrl-C kills the job."""
    options = {key: value for key, value in locals().items() if key in DOCUMENT_OPTIONS}
    _submit(None, options, partition, False, True, as_json)


DOCUMENT_OPTIONS = frozenset(
    "command name queue count gang cpu memory gpu resource priority after env secret label selector pool time_limit "
    "tries directory output error shell".split()
)


@calls_server
def _submit(
    file: Path | None, options: dict[str, Any], partition: str, wait: bool, follow: bool, as_json: bool
) -> None:
    from fairlead.cli.following import follow_job

    with open_client(partition) as client:
        document = _from_file(file, options) if file is not None else _from_options(client, options)
        job = client.submit(document=document)
        if not (wait or follow):
            if as_json:
                print_json({"job": job})
            else:
                typer.echo(job)
            return
        try:
            if follow:
                follow_job(client, job)
            view = client.wait(job)
        except KeyboardInterrupt:
            client.kill(job)
            typer.echo(f"fairlead: job {job} was killed", err=True)
            raise typer.Exit(130) from None
        if as_json:
            print_json(view)
        _end_as(client, view, quiet=as_json)


def _from_file(file: Path, options: dict[str, Any]) -> dict[str, Any]:
    from fairlead.cli.documents import Unreadable, read_document
    from fairlead.cli.output import need_file

    if options["command"]:
        raise typer.BadParameter("a file has the command already", param_hint="COMMAND")
    if str(file) == "-":
        file = Path("/dev/stdin")
    else:
        need_file(file)
    try:
        document = read_document(file)
    except Unreadable as problem:
        fail(f"{file}{f':{problem.line}' if problem.line else ''}: {problem.problem}")
    if not isinstance(document, dict):
        fail(f"{file}: a job is written as key: value pairs")
    if "stages" not in document and "command" in document:
        # A job with one stage may be written without a list of stages.
        stage_keys = _stage_keys()
        stage = {key: document.pop(key) for key in list(document) if key in stage_keys}
        document["stages"] = [stage]
    return document


def _from_options(client: Client, options: dict[str, Any]) -> dict[str, Any]:
    if not options["command"]:
        raise typer.BadParameter("give a command after --, or --file", param_hint="COMMAND")
    command = ["/bin/sh", "-c", " ".join(options["command"])] if options["shell"] else options["command"]
    resources: dict[str, Any] = {"cpu": options["cpu"], **pairs(options["resource"], "--resource")}
    for key in ("memory", "gpu"):
        if options[key] is not None:
            resources[key] = options[key]
    directory = options["directory"]
    if directory is None and any(host in client.url for host in ("//127.", "//localhost", "//[::1]")):
        directory = os.getcwd()
    size = options["gang"]
    stage = {
        "command": command,
        "count": size or options["count"],
        "min": None if size else 1,
        "resources": resources,
        "environment": pairs(options["env"], "--env") or None,
        "secrets": pairs(options["secret"], "--secret") or None,
        "selectors": pairs(options["selector"], "--selector") or None,
        "pool": options["pool"],
        "time_limit": options["time_limit"],
        "tries": options["tries"],
        "directory": directory,
        "output": options["output"],
        "error": options["error"],
    }
    job = {
        "name": options["name"] or _name_of(options["command"][0]),
        "queue": options["queue"],
        "priority": options["priority"],
        "after": options["after"],
        "labels": pairs(options["label"], "--label") or None,
        "stages": [{key: value for key, value in stage.items() if value is not None}],
    }
    return {key: value for key, value in job.items() if value is not None}


def _stage_keys() -> set[str]:
    from fairlead.wire.api import StageDocument

    return set(StageDocument.__struct_fields__) - {"name"}


def _name_of(program: str) -> str:
    """Return a job name made from the name of its program, without characters that a name cannot have."""
    words = program.split(maxsplit=1)
    last = Path(words[0]).name if words else ""
    kept = "".join(char for char in last if (char.isascii() and char.isalnum()) or char in "._-")
    return kept.lstrip("._-")[:63].replace("..", ".") or "job"


# -- reading -----------------------------------------------------------------------------------------------------


@calls_server
def ps(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also list finished jobs.")] = False,
    user: Annotated[str, typer.Option(help="Only jobs of this user.")] = "",
    queue: Annotated[str, typer.Option("--queue", "-q", help="Only jobs in this queue and the queues below it.")] = "",
    state: Annotated[list[str] | None, typer.Option(help="Only jobs in this state; may be repeated.")] = None,
    label: Annotated[str, typer.Option(help="Only jobs with this label, as key=value.")] = "",
    limit: Annotated[int, typer.Option(help="Largest number of jobs to list.", min=1)] = 100,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """List running and waiting jobs, newest first."""
    states = state or ([] if everything else ["pending", "running"])
    jobs: list[wire.Job] = []
    with open_client(partition) as client:
        for job in client.jobs(state=states, user=user, queue=queue, label=label, limit=min(limit, 1000)):
            jobs.append(job)
            if len(jobs) == limit:
                break
    if as_json:
        print_json(jobs)
        return
    rows = [(job.id, job.name, job.user, job.queue, job.state, _progress(job), ago(job.submitted)) for job in jobs]
    print_table(("JOB", "NAME", "USER", "QUEUE", "STATE", "TASKS", "AGE"), rows)


def _progress(job: wire.Job) -> str:
    running = sum(stage.running for stage in job.stages)
    waiting = sum(stage.waiting for stage in job.stages)
    ended: dict[str, int] = {}
    for stage in job.stages:
        for outcome, number in stage.ended.items():
            ended[outcome] = ended.get(outcome, 0) + number
    parts = [f"{running} running"] * bool(running) + [f"{waiting} waiting"] * bool(waiting)
    return ", ".join(parts + [f"{number} {outcome}" for outcome, number in sorted(ended.items())])


@calls_server
def show(job: JobName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Show a job with its tasks."""
    with open_client(partition) as client:
        view = client.job(job)
        tasks = []
        for task in client.tasks(job):
            tasks.append(task)
            if len(tasks) == SHOWN:
                break
        past = {} if as_json else _past(client, job, tasks)
    if as_json:
        print_json({"job": view, "tasks": tasks})
        return
    print_text(f"job {view.id} ({view.name}) of {view.user} in {view.queue}: {view.state}", nl=False)
    print_text(f", {view.reason}" if view.reason else "")
    lasted_for = (view.ended or time.time()) - view.submitted
    if view.matched is not None:
        print_text(f"in that queue because its user matches {view.matched!r}")
    typer.echo(f"submitted {ago(view.submitted)} ago, {'lasted' if view.over else 'for'} {lasted(lasted_for)}")
    for stage in view.stages:
        asked = amounts(stage.resources)
        print_text(f"stage {stage.name}: {stage.count} tasks (at least {stage.min} at once), {asked}")
        print_text(f"  {' '.join(stage.command)[:200]}")
    rows = [
        (
            f"{task.stage}[{task.index}]",
            task.state,
            task.attempt,
            *past.get((task.stage, task.index), (task.node or "", "")),
            _code(task),
            task.reason or task.note,
        )
        for task in tasks
    ]
    print_table(("TASK", "STATE", "ATTEMPT", "NODE", "RAN", "EXIT", "NOTE"), rows)


def _past(client: Client, job: str, tasks: list[wire.Task]) -> dict[tuple[str, int], tuple[str, str]]:
    """Return node and run time of finished tasks, as far as the history knows them."""
    over = {(task.stage, task.index, task.attempt) for task in tasks if task.node is None and task.attempt}
    past: dict[tuple[str, int], tuple[str, str]] = {}
    for attempt in client.attempts(job).attempts if over else ():
        ran = "" if attempt.started is None else lasted(attempt.ended - attempt.started)
        for start, stop in zip(attempt.indices[::2], attempt.indices[1::2], strict=True):
            for index in range(start, min(stop, SHOWN)):
                if (attempt.stage, index, attempt.attempt) in over:
                    past[attempt.stage, index] = (attempt.node, ran)
    return past


def _code(task: wire.Task) -> str:
    return "" if task.exit_code is None else str(task.exit_code)


@calls_server
def logs(
    job: JobName,
    index: Annotated[int, typer.Option("--index", "-i", help="Index of the task.", min=0)] = 0,
    stage: Annotated[str, typer.Option(help="Name of the stage, if the job has several.")] = "",
    stderr: Annotated[bool, typer.Option("--stderr", help="Show standard error instead of standard output.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new output until the task ends, also of its later attempts.")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option(help="Number of the attempt. By default the last one.", metavar="N", min=1)
    ] = None,
    tail: Annotated[int | None, typer.Option(help="Only the last N bytes.", metavar="N", min=1)] = None,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Show the output of a task. With --json, print one document per piece of output, each on its own line."""
    from fairlead.cli.following import TaskOutput, documents, until_started

    with open_client(partition) as client:
        if follow:
            until_started(client, job)
        stream = "err" if stderr else "out"
        show = documents(stream) if as_json else None
        output = TaskOutput(client, job, stage, index, (stream,), show=show)
        if not follow or attempt is not None:
            output.show(stream, follow, attempt, offset=-tail if tail else 0)
        else:
            output.follow(offset=-tail if tail else 0)


@calls_server
def explain(job: JobName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Show why a job waits: what is missing, and its position in the lane."""
    with open_client(partition) as client:
        explanation = client.explain(job)
    if as_json:
        print_json(explanation)
        return
    if not explanation.waiting:
        print_text(f"job {explanation.job} is {explanation.state}; none of its tasks wait")
    for ask in explanation.waiting:
        place = "" if ask.position is None else f", number {ask.position + 1} in its lane"
        reason = f": {ask.reason}" if ask.reason else ""
        print_text(f"{ask.stage}: {ask.count} {ask.kind} waiting{place}{reason}")


@calls_server
def history(
    user: Annotated[str, typer.Option(help="Only jobs of this user.")] = "",
    state: Annotated[str, typer.Option(help="Only jobs in this state: succeeded, failed or killed.")] = "",
    limit: Annotated[int, typer.Option(help="Largest number of jobs to list.", min=1)] = 50,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """List finished jobs, including those already forgotten by the scheduler."""
    jobs: list[wire.PastJob] = []
    with open_client(partition) as client:
        for job in client.history(user=user, state=state, limit=min(limit, 1000)):
            jobs.append(job)
            if len(jobs) == limit:
                break
    if as_json:
        print_json(jobs)
        return
    rows = [
        (
            job.id,
            job.name,
            job.user,
            job.queue,
            job.state,
            ", ".join(f"{number} {outcome}" for outcome, number in sorted(job.tasks.items())),
            lasted(job.ended - job.submitted),
            ago(job.ended),
        )
        for job in jobs
    ]
    print_table(("JOB", "NAME", "USER", "QUEUE", "STATE", "TASKS", "LASTED", "ENDED"), rows)


# -- changing ----------------------------------------------------------------------------------------------------


@calls_server
def kill(
    jobs: Annotated[list[str], typer.Argument(help="Ids of jobs.", metavar="JOB…")],
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Kill jobs: cancel their waiting tasks and stop their running tasks. Exit code 1 if a job cannot be killed."""
    from fairlead.client import Problem

    answers: dict[str, str | dict[str, Any]] = {}
    failed = False
    with open_client(partition) as client:
        for job in jobs:
            try:
                note = answers[job] = client.kill(job)
            except Problem as problem:
                if len(jobs) == 1 or is_unreachable(problem):
                    raise
                failed = True
                answers[job] = problem_document(problem)
                if not as_json:
                    print_text(f"fairlead: error: {job}: {problem}", err=True)
            else:
                if not as_json:
                    print_text(f"{job}: {note or 'killed'}")
    if as_json:
        print_json(answers)
    if failed:
        raise typer.Exit(1)


@calls_server
def scale(
    job: JobName,
    count: Annotated[int, typer.Argument(help="Number of tasks that the stage should have.", min=0)],
    stage: Annotated[str, typer.Option(help="Name of the stage, if the job has several.")] = "",
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Change the number of tasks of a stage."""
    with open_client(partition) as client:
        note = client.scale(job, count, stage)
    if as_json:
        print_json({"note": note})
    else:
        print_text(f"{job}: {note or f'{count} tasks'}")


@calls_server
def wait(
    jobs: Annotated[list[str], typer.Argument(help="Ids of jobs.", metavar="JOB…")],
    timeout: Annotated[
        float | None, typer.Option(help="Longest wait in seconds; after it the exit code is 124.", min=0)
    ] = None,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Wait until jobs have finished. The exit code is 0 if all succeeded, 1 otherwise."""
    deadline = None if timeout is None else time.monotonic() + timeout
    results: list[wire.Job] = []
    with open_client(partition) as client, progress("jobs", jobs, as_json) as waiting:
        for job in waiting:
            try:
                results.append(client.wait(job, None if deadline is None else max(0.0, deadline - time.monotonic())))
            except TimeoutError as late:
                fail(str(late), as_json and {"ok": False, "problem": str(late)}, TIME_OVER)
    if as_json:
        print_json(results)
    else:
        for result in results:
            print_text(f"{result.id}: {result.state}{f', {result.reason}' if result.reason else ''}")
    if any(result.state != "succeeded" for result in results):
        raise typer.Exit(1)


def _end_as(client: Client, job: wire.Job, quiet: bool) -> None:
    """Exit with the exit code of the first failed task, unless the job succeeded."""
    if job.state == "succeeded":
        return
    if not quiet:
        print_text(f"fairlead: job {job.id} {job.state}{f': {job.reason}' if job.reason else ''}", err=True)
    codes = (task.exit_code for task in client.tasks(job.id) if task.exit_code)
    code = next(codes, 1)
    raise typer.Exit(code if 0 < code < 256 else 1)
