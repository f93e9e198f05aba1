"""Jobs on the command line: submit, run, ps, show, logs, kill, hold, release, requeue, scale, wait, explain."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fairlead.cli import completion
from fairlead.cli.interrupts import interrupts
from fairlead.cli.listing import Column, Columns, Watch, chosen
from fairlead.cli.listing import show as show_list
from fairlead.cli.options import (
    AsJson,
    JobName,
    LiveJobName,
    Partition,
    QueueFilter,
    Yes,
    check_duration,
    check_memory,
    open_client,
    pairs,
    seconds_of,
)
from fairlead.cli.output import (
    TIME_OVER,
    ago,
    amounts,
    calls_server,
    clock,
    fail,
    first,
    is_unreachable,
    lasted,
    print_json,
    print_table,
    print_text,
    problem_document,
    say_cut,
    state_of,
)

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.wire import api as wire

SHOWN = 1_000
"""Tasks of a job that are shown."""

Command = Annotated[
    list[str] | None,
    typer.Argument(help="The program and its arguments. Options of Fairlead come before it.", metavar="COMMAND…"),
]
Name = Annotated[str | None, typer.Option(help="Name of the job. By default the name of the program.")]
Queue = Annotated[
    str | None,
    typer.Option(
        "--queue",
        "-q",
        help="Queue of the job, such as root.ml. By default the one that the configuration gives to its user.",
        autocompletion=completion.queues,
    ),
]
ArraySize = Annotated[
    int | None,
    typer.Option(
        "--array",
        help="Run N equal tasks, each as soon as there is capacity. FAIRLEAD_INDEX is the number of the task, from 0.",
        metavar="N",
        min=1,
    ),
]
GangSize = Annotated[
    int | None, typer.Option("--gang", help="Run N tasks that start together, or not at all.", metavar="N", min=1)
]
Cpu = Annotated[str | None, typer.Option(help="CPUs of each task, such as 2 or 500m.", show_default="1")]
Memory = Annotated[str | None, typer.Option(help="Memory of each task, such as 512Mi or 8Gi.")]
Gpu = Annotated[str | None, typer.Option(help="GPUs of each task: 2, or a fraction of one, such as 0.5.")]
Resource = Annotated[
    list[str] | None, typer.Option(help="Another resource of each task, as name=amount; may be repeated.")
]
Priority = Annotated[
    int | None,
    typer.Option(
        help="Jobs with a higher number start first, in queues with the order `priority`. The most that you may give "
        "is your max_priority in the queue, 0 unless an administrator has set it."
    ),
]
After = Annotated[
    list[str] | None,
    typer.Option(
        help="Id of a job that must succeed before this one starts; may be repeated.",
        autocompletion=completion.live_jobs,
    ),
]
Env = Annotated[
    list[str] | None, typer.Option("--env", "-e", help="Environment variable, as NAME=value; may be repeated.")
]
Secret = Annotated[
    list[str] | None,
    typer.Option(
        help="Pass a secret in an environment variable, as VARIABLE=secret; may be repeated. `fairlead secret set` "
        "stores secrets."
    ),
]
Label = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        "-l",
        help="Label of the job, as key=value; may be repeated.",
        autocompletion=completion.job_labels,
    ),
]
Selector = Annotated[
    list[str] | None,
    typer.Option(
        help="Run only on nodes with this label, as key=value; may be repeated.",
        autocompletion=completion.node_labels,
    ),
]
Pool = Annotated[str | None, typer.Option(help="Run only on nodes of this pool.", autocompletion=completion.pools)]
Toleration = Annotated[
    list[str] | None,
    typer.Option(help="Run also on nodes with this taint, written as `fairlead node show` does; may be repeated."),
]
Estimate = Annotated[
    str | None,
    typer.Option(
        help="Expected run time of a task, such as 30min. A job with an estimate may start earlier, in a gap; "
        "it is no limit."
    ),
]
TimeLimit = Annotated[str | None, typer.Option(help="Stop a task that runs longer than this, such as 2h or 02:00:00.")]
Tries = Annotated[
    int | None, typer.Option(help="Run a task up to this many times, until it succeeds.", min=1, show_default="1")
]
Policy = Literal["replace", "restart", "fail"]
OnFailure = Annotated[
    Policy | None,
    typer.Option(
        help="When a task fails and has tries left: replace it, restart its gang as one try, or fail the job.",
        show_default="restart for a gang, else replace",
    ),
]
OnLoss = Annotated[
    Policy | None,
    typer.Option(
        help="When a task is lost with its node: replace it, restart its gang, or fail the job. This uses no try.",
        show_default="restart for a gang, else replace",
    ),
]
Directory = Annotated[
    str | None, typer.Option(help="Working directory. By default this one, if the server is on this machine.")
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        help="Write standard output, and standard error unless --error is given, to this file on the node instead of a "
        "log. %j is the number of the job, %s the stage, %a the index of the task, %r the attempt.",
        metavar="PATTERN",
    ),
]
ResultPattern = Annotated[
    list[str] | None,
    typer.Option(
        "--result",
        help="Collect these files when a task ends by itself, such as 'out/*.csv' or 'model/**' below its working "
        "directory; may be repeated. %a is the index of the task, and so on as for --output. `fairlead results` "
        "fetches them.",
        metavar="PATTERN",
    ),
]
Error = Annotated[
    str | None,
    typer.Option("--error", help="Write standard error to this file; named like --output.", metavar="PATTERN"),
]
Shell = Annotated[
    bool, typer.Option("--shell", help="Run the words of COMMAND as one line of the shell, with /bin/sh -c.")
]
Engine = Annotated[
    Literal["agents", "kubernetes"],
    typer.Option(
        help="agents: run tasks on the nodes of Fairlead. kubernetes: create a Job of a Kubernetes cluster, whose pods "
        "Fairlead schedules."
    ),
]
Image = Annotated[str | None, typer.Option(help="With --engine kubernetes: container image of the pods.")]
Namespace = Annotated[
    str | None,
    typer.Option(help="With --engine kubernetes: namespace of the pods. By default that of the current context."),
]
Kubeconfig = Annotated[
    str | None,
    typer.Option(
        help="With --engine kubernetes: kubeconfig file. By default the variable KUBECONFIG, or ~/.kube/config."
    ),
]
File = Annotated[
    Path | None, typer.Option("--file", "-f", help="File with a job in YAML or JSON; - for standard input.")
]


@calls_server
def submit(
    command: Command = None,
    file: File = None,
    name: Name = None,
    queue: Queue = None,
    array: ArraySize = None,
    gang: GangSize = None,
    cpu: Cpu = None,
    memory: Memory = None,
    gpu: Gpu = None,
    resource: Resource = None,
    priority: Priority = None,
    after: After = None,
    env: Env = None,
    secret: Secret = None,
    label: Label = None,
    selector: Selector = None,
    toleration: Toleration = None,
    pool: Pool = None,
    estimate: Estimate = None,
    time_limit: TimeLimit = None,
    tries: Tries = None,
    on_failure: OnFailure = None,
    on_loss: OnLoss = None,
    directory: Directory = None,
    output: Output = None,
    error: Error = None,
    result: ResultPattern = None,
    shell: Shell = False,
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
    engine: Engine = "agents",
    image: Image = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Submit a job and print its id.

    The job is a command with options, or a file:

    fairlead submit --array 100 --cpu 2 ./simulate --fast

    fairlead submit -f train.yaml
    """
    options = {key: value for key, value in locals().items() if key in DOCUMENT_OPTIONS}
    if engine == "kubernetes":
        from fairlead.cli.pods import submit_pods

        if dry_run:
            raise typer.BadParameter("it is not for pods; leave it out", param_hint="--dry-run")
        others = {"file": file, "wait": wait, "follow": follow, "partition": partition}
        submit_pods({**options, **others}, image, namespace, kubeconfig, as_json)
        return
    for option, value in (("--image", image), ("--namespace", namespace), ("--kubeconfig", kubeconfig)):
        if value is not None:
            raise typer.BadParameter("it is for pods; add --engine kubernetes, or leave it out", param_hint=option)
    if dry_run:
        for option, given in (("--wait", wait), ("--follow", follow)):
            if given:
                raise typer.BadParameter("a dry run starts nothing; leave it out", param_hint=option)
        _dry_run(file, options, partition, as_json)
        return
    _submit(file, options, partition, wait, follow, as_json)


@calls_server
def run(
    command: Command = None,
    name: Name = None,
    queue: Queue = None,
    array: ArraySize = None,
    gang: GangSize = None,
    cpu: Cpu = None,
    memory: Memory = None,
    gpu: Gpu = None,
    resource: Resource = None,
    priority: Priority = None,
    after: After = None,
    env: Env = None,
    secret: Secret = None,
    label: Label = None,
    selector: Selector = None,
    toleration: Toleration = None,
    pool: Pool = None,
    estimate: Estimate = None,
    time_limit: TimeLimit = None,
    tries: Tries = None,
    on_failure: OnFailure = None,
    on_loss: OnLoss = None,
    directory: Directory = None,
    output: Output = None,
    error: Error = None,
    result: ResultPattern = None,
    shell: Shell = False,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Run a command on the cluster and show its output.

    The exit code is that of the command. Ctrl-C kills the job, and so do SIGTERM and SIGHUP to `fairlead run`; a
    second Ctrl-C leaves at once, without waiting until the job has stopped. The command reads no standard input: input
    from a file or a pipe is refused.
    """
    from fairlead.cli.stdin import REMEDY, has_input

    options = {key: value for key, value in locals().items() if key in DOCUMENT_OPTIONS}
    if has_input():
        fail(REMEDY, as_json and {"ok": False, "problem": REMEDY}, 2)
    try:
        _submit(None, options, partition, False, True, as_json, or_file="")
    finally:
        if has_input():  # input that arrived later
            typer.echo(f"fairlead: warning: standard input was ignored: {REMEDY}", err=True)


DOCUMENT_OPTIONS = frozenset(
    "command name queue array gang cpu memory gpu resource priority after env secret label selector toleration pool "
    "estimate time_limit tries on_failure on_loss directory output error result shell".split()
)


def _submit(
    file: Path | None,
    options: dict[str, Any],
    partition: str,
    wait: bool,
    follow: bool,
    as_json: bool,
    or_file: str = ", or --file",
) -> None:
    from fairlead.cli.following import follow_job
    from fairlead.cli.statusline import wait_for
    from fairlead.client import calls

    with open_client(partition) as client:
        document = _from_file(file, options) if file is not None else _from_options(client, options, or_file)
        if not (wait or follow):
            submitted = client.send(calls.submit(document, client.partition))
            if as_json:
                print_json({"job": submitted.job, "warning": submitted.warning})
            else:
                typer.echo(submitted.job)
            _warn(submitted)
            return
        with interrupts() as interrupt:
            submitted = client.send(calls.submit(document, client.partition))
            job = submitted.job
            if not (follow or as_json):
                typer.echo(job)
            _warn(submitted)
            try:
                interrupt.raises()
                if follow:
                    follow_job(client, job)
                view = client.wait(job) if as_json else wait_for(client, job)
            except KeyboardInterrupt:
                _kill_own(client, job)
                raise typer.Exit(128 + interrupt.signal) from None
        if as_json:
            print_json(view)
        _end_as(client, view, quiet=as_json)


def _dry_run(file: Path | None, options: dict[str, Any], partition: str, as_json: bool) -> None:
    """Show what would happen to a job. Exit with 1 if it can never run as the cluster is now."""
    with open_client(partition) as client:
        document = _from_file(file, options) if file is not None else _from_options(client, options, ", or --file")
        tried = client.dry_run(document=document, eta=as_json)
        if as_json:
            print_json(tried)
        else:
            print_text(tried.sentence)
            for placed in tried.placements:
                tasks = "task" if placed.tasks == 1 else "tasks"
                print_text(f"{placed.stage}: {placed.tasks} {tasks} on {placed.node}")
            _print_waiting(tried.waiting)
            if not tried.starts and not tried.never:  # the prediction takes longer
                foretold = client.dry_run(document=document, eta=True).eta
                print_text(foretold.text if foretold is not None else "it would start now")
    if tried.never:
        raise typer.Exit(1)


def _warn(submitted: wire.Submitted) -> None:
    """Print the warning that a job can never run as the cluster is now."""
    if submitted.warning:
        print_text(f"fairlead: warning: job {submitted.job}: {submitted.warning}", err=True)


def _kill_own(client: Client, job: str) -> None:
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


def _from_file(file: Path, options: dict[str, Any]) -> dict[str, Any]:
    from fairlead.cli.documents import Unreadable, read_document
    from fairlead.cli.output import need_file

    for key, value in options.items():
        if value not in (None, [], False):
            hint = "COMMAND" if key == "command" else f"--{key.replace('_', '-')}"
            raise typer.BadParameter("it would be ignored beside --file; write it in the file", param_hint=hint)
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


def _from_options(client: Client, options: dict[str, Any], or_file: str) -> dict[str, Any]:
    if not options["command"]:
        raise typer.BadParameter(f"give a program and its arguments{or_file}", param_hint="COMMAND")
    if options["array"] and options["gang"]:
        raise typer.BadParameter("the tasks start one by one or together; drop --array or --gang", param_hint="--gang")
    command = ["/bin/sh", "-c", " ".join(options["command"])] if options["shell"] else options["command"]
    resources = pairs(options["resource"], "--resource")
    for key in ("cpu", "memory", "gpu"):
        if options[key] is not None:
            if key in resources:
                raise typer.BadParameter(f"{key} is given twice; drop it, or --{key}", param_hint="--resource")
            resources[key] = options[key]
    if "memory" in resources:
        check_memory(resources["memory"], "--resource" if options["memory"] is None else "--memory")
    for key in ("estimate", "time_limit"):
        check_duration(options[key], f"--{key.replace('_', '-')}")
    resources.setdefault("cpu", "1")
    directory = options["directory"]
    if directory is None and any(host in client.url for host in ("//127.", "//localhost", "//[::1]")):
        directory = os.getcwd()
    stage = {
        "command": command,
        "array": options["array"],
        "count": options["gang"],
        "resources": resources,
        "environment": pairs(options["env"], "--env") or None,
        "secrets": pairs(options["secret"], "--secret") or None,
        "selectors": pairs(options["selector"], "--selector") or None,
        "tolerations": options["toleration"],
        "pool": options["pool"],
        "estimate": options["estimate"],
        "time_limit": options["time_limit"],
        "tries": options["tries"],
        "on_failure": options["on_failure"],
        "on_loss": options["on_loss"],
        "directory": directory,
        "output": options["output"],
        "error": options["error"],
        "results": options["result"],
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
    """Return a job name made from the name of its program, without invalid characters."""
    words = program.split(maxsplit=1)
    last = Path(words[0]).name if words else ""
    kept = "".join(char for char in last if (char.isascii() and char.isalnum()) or char in "._-")
    return kept.lstrip("._-")[:63].replace("..", ".") or "job"


# -- reading -----------------------------------------------------------------------------------------------------


@calls_server
def ps(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also list finished jobs.")] = False,
    user: Annotated[str, typer.Option(help="Only jobs of this user.")] = "",
    queue: QueueFilter = "",
    state: Annotated[
        list[str] | None,
        typer.Option(
            help="Only jobs in this state: pending, running, stopping, succeeded, failed or killed; may be repeated."
        ),
    ] = None,
    label: Annotated[
        str, typer.Option(help="Only jobs with this label, as key=value.", autocompletion=completion.job_labels)
    ] = "",
    limit: Annotated[int, typer.Option(help="Largest number of jobs to list.", min=1)] = 100,
    columns: Columns = "",
    watch: Watch = False,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """List running and waiting jobs, newest first.

    REASON says in short why tasks of a job wait, or why the job ended; `fairlead explain JOB` says it in full.
    """
    shown = chosen(JOB_COLUMNS, columns, as_json)
    states = state or ([] if everything else ["pending", "running", "stopping"])
    with open_client(partition) as client:

        def read() -> list[wire.Job]:
            matching = client.jobs(state=states, user=user, queue=queue, label=label, limit=min(limit + 1, 1000))
            jobs, cut = first(limit, matching)
            if cut and not watch:
                say_cut(limit, "jobs, the newest,")
            return jobs

        show_list(read, shown, as_json, watch)


def _progress(job: wire.Job) -> str:
    ended: dict[str, int] = {}
    for stage in job.stages:
        for outcome, number in stage.ended.items():
            ended[outcome] = ended.get(outcome, 0) + number
    present = {
        "running": sum(stage.running for stage in job.stages),
        "assigned": sum(stage.assigned for stage in job.stages),
        "stopping": sum(stage.stopping for stage in job.stages),
        "waiting": sum(stage.waiting for stage in job.stages),
    }
    parts = [f"{number} {state}" for state, number in present.items() if number]
    return ", ".join(parts + [f"{number} {outcome}" for outcome, number in sorted(ended.items())])


JOB_COLUMNS: tuple[Column[wire.Job], ...] = (
    Column("job", lambda job: job.id),
    Column("name", lambda job: job.name),
    Column("user", lambda job: job.user),
    Column("queue", lambda job: job.queue),
    Column("state", state_of),
    Column("tasks", _progress),
    Column("age", lambda job: ago(job.submitted)),
    Column("reason", lambda job: job.waits_for or job.reason),
    Column("priority", lambda job: job.priority, False),
    Column("labels", lambda job: " ".join(f"{key}={value}" for key, value in sorted(job.labels.items())), False),
    Column("after", lambda job: " ".join(job.after), False),
    Column("submitted", lambda job: clock(job.submitted), False),
    Column("ended", lambda job: clock(job.ended), False),
    Column("held-by", lambda job: job.held_by, False),
    Column("resources", lambda job: "; ".join(dict.fromkeys(amounts(stage.resources) for stage in job.stages)), False),
    Column("command", lambda job: "; ".join(" ".join(stage.command) for stage in job.stages)[:200], False),
)
"""What `ps` can show of a job."""


@calls_server
def show(
    job: JobName,
    limit: Annotated[int, typer.Option(help="Largest number of tasks to list.", min=1)] = SHOWN,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Show a job with its tasks.

    For a job that ended long ago, which only the history still has, the attempts of its tasks are shown.
    """
    with open_client(partition) as client:
        view = client.job(job)
        tasks, cut = ([], False) if view.forgotten else first(limit, client.tasks(job))
        attempts = [] if as_json and not view.forgotten else _attempts(client, job)
    if cut:
        say_cut(limit, f"of {sum(stage.count for stage in view.stages)} tasks")
    if as_json and view.forgotten:
        print_json({"job": view, "attempts": attempts})
        return
    if as_json:
        print_json({"job": view, "tasks": tasks})
        return
    print_text(f"job {view.id} ({view.name}) of {view.user} in {view.queue}: {state_of(view)}", nl=False)
    print_text(f", {view.reason}" if view.reason else "")
    if view.matched is not None:
        print_text(f"in that queue because its user matches {view.matched!r}")
    starts = [task.started for task in tasks] + [attempt.started for attempt in attempts]
    typer.echo(_times(view, starts, [attempt.ended for attempt in attempts]))
    for stage in view.stages:
        asked = amounts(stage.resources)
        print_text(f"stage {stage.name}: {stage.count} tasks (at least {stage.min} at once), {asked}")
        print_text(f"  {' '.join(stage.command)[:200]}")
    if view.forgotten:
        _print_attempts(attempts)
        return
    past = _past(tasks, attempts, limit)
    rows = [
        (
            f"{task.stage}[{task.index}]",
            task.state,
            task.attempt,
            *past.get((task.stage, task.index), (task.node or "", clock(task.started), ago(task.started))),
            _code(task.exit_code),
            task.reason or task.note,
        )
        for task in tasks
    ]
    print_table(("TASK", "STATE", "ATTEMPT", "NODE", "STARTED", "RAN", "EXIT", "NOTE"), rows)


def _attempts(client: Client, job: str) -> list[wire.Attempt]:
    """Return all attempts of a job that have ended."""
    from fairlead.client import calls

    attempts: list[wire.Attempt] = []
    cursor = ""
    while True:
        page = client.send(calls.attempts(job, client.partition, limit=1000, cursor=cursor))
        attempts += page.attempts
        cursor = page.next
        if not cursor:
            return attempts


def _times(job: wire.Job, starts: list[float | None], ends: list[float]) -> str:
    """Return when a job was submitted and started, and how long it ran, up to the end of its last attempt."""
    start = min((moment for moment in starts if moment is not None), default=None)
    end = None if job.ended is None else max([job.ended, *ends])
    ended = f", ended {clock(end)}" if end is not None else ""
    if start is None:
        return f"submitted {clock(job.submitted)}, not started{ended}"
    ran = lasted((end or time.time()) - start)
    waited = lasted(start - job.submitted)
    word = "ran" if job.over else "runs for"
    return f"submitted {clock(job.submitted)}, waited {waited}, started {clock(start)}, {word} {ran}{ended}"


def _print_attempts(attempts: list[wire.Attempt]) -> None:
    rows = [
        (
            f"{attempt.stage}[{_indices(attempt.indices)}]",
            attempt.outcome,
            attempt.attempt,
            attempt.node,
            clock(attempt.started),
            "" if attempt.started is None else lasted(attempt.ended - attempt.started),
            _code(attempt.exit_code),
            attempt.reason,
        )
        for attempt in attempts
    ]
    print_table(("TASKS", "STATE", "ATTEMPT", "NODE", "STARTED", "RAN", "EXIT", "NOTE"), rows)


def _indices(flat: list[int]) -> str:
    """Return ranges of indices as text, such as `0-3,7`."""
    ranges = zip(flat[::2], flat[1::2], strict=True)
    return ",".join(str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in ranges)


Past = dict[tuple[str, int], tuple[str, str, str]]


def _past(tasks: list[wire.Task], attempts: list[wire.Attempt], limit: int) -> Past:
    """Return node, start and run time of finished tasks, as far as the history has them."""
    over = {(task.stage, task.index, task.attempt) for task in tasks if task.node is None and task.attempt}
    past: Past = {}
    for attempt in attempts if over else ():
        ran = "" if attempt.started is None else lasted(attempt.ended - attempt.started)
        for start, stop in zip(attempt.indices[::2], attempt.indices[1::2], strict=True):
            for index in range(start, min(stop, limit)):
                if (attempt.stage, index, attempt.attempt) in over:
                    past[attempt.stage, index] = (attempt.node, clock(attempt.started), ran)
    return past


def _code(exit_code: int | None) -> str:
    return "" if exit_code is None else str(exit_code)


@calls_server
def logs(
    job: JobName,
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
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Show the output of a task.

    With --json, each piece of output is a document on a line of its own.
    """
    from fairlead.cli.following import TaskOutput, documents, until_started

    with open_client(partition) as client:
        if follow:
            until_started(client, job)
        if index is None:
            index = 0
            tasks = sum(entry.count for entry in client.job(job).stages if stage in ("", entry.name))
            if tasks > 1 and not as_json:
                typer.echo(f"fairlead: task 0 of {tasks} tasks; -i shows another", err=True)
        stream = "err" if stderr else "out"
        show = documents(stream) if as_json else None
        output = TaskOutput(client, job, stage, index, (stream,), show=show)
        if not follow or attempt is not None:
            output.show(stream, follow, attempt, offset=-tail if tail else 0)
        else:
            output.follow(offset=-tail if tail else 0)


@calls_server
def explain(job: JobName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Show why a job waits, and what would start it.

    One sentence comes first. For tasks that wait, it is followed by what they lack, what is ahead of them, and
    remedies: when all that one remedy says is done, the tasks start. For running tasks it says why they run where they
    run, and for stopping tasks what they stop for.
    """
    with open_client(partition) as client:
        explanation = client.explain(job)
    if as_json:
        print_json(explanation)
        return
    print_text(explanation.sentence)
    for cause in explanation.causes if explanation.waiting or len(explanation.causes) > 1 else ():
        print_text(cause.text)
    _print_waiting(explanation.waiting)


def _print_waiting(waiting: list[wire.Waiting]) -> None:
    said: list[wire.Remedy] = []
    for ask in waiting:
        print_text(ask.text)
        for coming in ask.comes:
            print_text(f"  comes by itself: {coming}")
        for remedy in ask.remedies if ask.remedies != said else ():  # stages that start together share them
            print_text(f"  would start if: {remedy.text}" if remedy.steps else "  it starts in the next cycle")
        said = ask.remedies


# -- changing ----------------------------------------------------------------------------------------------------


ChosenJobs = Annotated[
    list[str] | None,
    typer.Argument(
        help="Ids of jobs, or none if --user, --queue or --label select them.",
        metavar="JOB…",
        autocompletion=completion.live_jobs,
    ),
]
OfUser = Annotated[str, typer.Option("--user", help="Select all running and waiting jobs of this user.")]
InQueue = Annotated[
    str,
    typer.Option(
        "--queue",
        "-q",
        help="Select all running and waiting jobs in this queue and the queues below it.",
        autocompletion=completion.queues,
    ),
]
WithLabel = Annotated[
    str,
    typer.Option(
        "--label",
        help="Select all running and waiting jobs with this label, as key=value.",
        autocompletion=completion.job_labels,
    ),
]


@calls_server
def kill(
    jobs: ChosenJobs = None,
    user: OfUser = "",
    queue: InQueue = "",
    label: WithLabel = "",
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Kill jobs: cancel waiting tasks and stop running ones.

    The exit code is 1 if a job cannot be killed.
    """
    with open_client(partition) as client:
        _change(client, client.kill, "killed", jobs, {"user": user, "queue": queue, "label": label}, as_json)


@calls_server
def hold(
    jobs: ChosenJobs = None,
    user: OfUser = "",
    queue: InQueue = "",
    label: WithLabel = "",
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Hold jobs back: none of their waiting tasks start.

    Running tasks go on. Held jobs keep their places in their queues until `fairlead release`. Only an operator can
    release a job that an operator holds.
    """
    with open_client(partition) as client:
        _change(client, client.hold, "held", jobs, {"user": user, "queue": queue, "label": label}, as_json)


@calls_server
def release(
    jobs: ChosenJobs = None,
    user: OfUser = "",
    queue: InQueue = "",
    label: WithLabel = "",
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Release jobs that are held back."""
    with open_client(partition) as client:
        _change(client, client.release, "released", jobs, {"user": user, "queue": queue, "label": label}, as_json)


@calls_server
def requeue(
    jobs: ChosenJobs = None,
    user: OfUser = "",
    queue: InQueue = "",
    label: WithLabel = "",
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Stop the running tasks of jobs and let them wait again.

    The tasks get their earlier places in their queues. The stopped run does not count as one of their --tries.
    """
    with open_client(partition) as client:
        _change(client, client.requeue, "requeued", jobs, {"user": user, "queue": queue, "label": label}, as_json)


def _change(
    client: Client,
    act: Callable[[str], str],
    done: str,
    named: list[str] | None,
    select: dict[str, str],
    as_json: bool,
) -> None:
    """Change the named jobs, or those that the filters select, and print the answers."""
    from fairlead.client import Problem

    if bool(named) == any(select.values()):
        raise typer.BadParameter("name jobs, or select them with --user, --queue or --label")
    states = ["pending", "running"]
    jobs = named or [job.id for job in client.jobs(state=states, limit=1000, **select)]
    answers: dict[str, str | dict[str, Any]] = {}
    failed = False
    for job in jobs:
        try:
            note = answers[job] = act(job)
        except Problem as problem:
            if named == [job] or is_unreachable(problem):
                raise
            failed = True
            answers[job] = problem_document(problem)
            if not as_json:
                print_text(f"fairlead: error: {job}: {problem}", err=True)
        else:
            if not as_json:
                print_text(f"{job}: {note or done}")
    if as_json:
        print_json(answers)
    elif not jobs:
        print_text("no job is selected", err=True)
    if failed:
        raise typer.Exit(1)


@calls_server
def scale(
    job: LiveJobName,
    count: Annotated[int, typer.Argument(help="Number of tasks that the stage should have.", metavar="TASKS", min=0)],
    stage: Annotated[str, typer.Option(help="Name of the stage, if the job has several.")] = "",
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Change the number of tasks of a job.

    A job that has no tasks left ends.
    """
    with open_client(partition) as client:
        note = client.scale(job, count, stage)
        if not count and not note and not any(entry.count for entry in client.job(job).stages):
            note = "0 tasks; the job has none left, and ends"
    if as_json:
        print_json({"note": note})
    else:
        print_text(f"{job}: {note or f'{count} tasks'}")


@calls_server
def priority(
    job: LiveJobName,
    number: Annotated[int, typer.Argument(help="The new priority; the highest goes first.", metavar="PRIORITY")],
    yes: Yes = False,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Change the priority of a job.

    Owners may raise it up to their max_priority in the queue, operators further. If running tasks of other jobs would
    be stopped for the job now, they are listed first, and on a terminal a confirmation is asked for.

    A negative number follows --: fairlead priority 17 -- -5
    """
    with open_client(partition) as client:
        stops = client.try_priority(job, number)
        if stops.tasks and not as_json:
            print_text(_stops(job, number, stops), err=True)
            if not yes and sys.stdin.isatty():
                typer.confirm("Change the priority?", abort=True, err=True)
        note = client.set_priority(job, number)
    if as_json:
        print_json({"note": note, "stops": stops})
    else:
        print_text(f"{job}: {note or f'priority {number}'}")


def _stops(job: str, number: int, stops: wire.PriorityStops) -> str:
    """Return in words which tasks stop for a job with another priority."""
    parts = [
        f"{_tasks(entry.tasks)} of job {entry.job} ({entry.name} of {entry.user}) on {entry.node}"
        for entry in stops.stops
    ]
    hidden = stops.tasks - sum(entry.tasks for entry in stops.stops)
    if hidden:
        parts.append(f"{_tasks(hidden)} of jobs of other users")
    return f"fairlead: with priority {number}, running tasks stop for job {job} at once: {', '.join(parts)}"


def _tasks(number: int) -> str:
    return "1 task" if number == 1 else f"{number} tasks"


@calls_server
def wait(
    jobs: Annotated[
        list[str], typer.Argument(help="Ids of jobs.", metavar="JOB…", autocompletion=completion.live_jobs)
    ],
    timeout: Annotated[
        str | None,
        typer.Option(help="Wait at most this long, such as 5m or 30 (seconds); after it the exit code is 124."),
    ] = None,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Wait until jobs have ended.

    The exit code is 0 if all jobs succeeded, 1 otherwise. Ctrl-C ends the wait; the jobs go on. A terminal shows
    the progress.
    """
    from fairlead.cli.statusline import wait_for

    deadline = None if timeout is None else time.monotonic() + _wait_seconds(timeout)
    results: list[wire.Job] = []
    with open_client(partition) as client:
        for at, job in enumerate(jobs):
            try:
                if as_json:
                    left = None if deadline is None else max(0.0, deadline - time.monotonic())
                    results.append(client.wait(job, left))
                else:
                    before = f"{at} of {len(jobs)} jobs over; " if len(jobs) > 1 else ""
                    results.append(wait_for(client, job, deadline, before))
            except TimeoutError as late:
                fail(str(late), as_json and {"ok": False, "problem": str(late)}, TIME_OVER)
    if as_json:
        print_json(results)
    else:
        for result in results:
            print_text(f"{result.id}: {result.state}{f', {result.reason}' if result.reason else ''}")
    if any(result.state != "succeeded" for result in results):
        raise typer.Exit(1)


def _wait_seconds(text: str) -> float:
    seconds = seconds_of(text)
    with suppress(ValueError):
        seconds = float(text) if seconds is None else seconds
    if seconds is None or not 0 <= seconds < inf:
        raise typer.BadParameter(f"{text!r} is not a time to wait; write 5m, or 30 for seconds", param_hint="--timeout")
    return seconds


def _end_as(client: Client, job: wire.Job, quiet: bool) -> None:
    """Exit with the exit code of the first failed task, unless the job succeeded."""
    if job.state == "succeeded":
        return
    if not quiet:
        print_text(f"fairlead: job {job.id} {job.state}{f': {job.reason}' if job.reason else ''}", err=True)
    codes = (task.exit_code for task in client.tasks(job.id) if task.exit_code)
    code = next(codes, 1)
    raise typer.Exit(code if 0 < code < 256 else 1)
