"""Jobs on the command line: submit, run, ps, show, logs, kill, scale, wait, explain, history."""

from __future__ import annotations

import os
import sys
import threading
import time
from codecs import getincrementaldecoder
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli.options import AsJson, JobName, Partition, ask_as, pairs
from fairlead.cli.output import (
    TIME_OVER,
    ago,
    amounts,
    asking,
    fail,
    is_unreachable,
    lasted,
    print_json,
    print_table,
    problem_document,
    progress,
    say,
)

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.wire import api as wire

FOLLOWED = 32
LOG_TIMEOUT = 5.0
"""Seconds after which a command that waits for a job says why it waits."""
"""So many tasks of a job are followed at once."""
SHOWN = 1_000
"""So many of its tasks are shown."""

Command = Annotated[list[str] | None, typer.Argument(help="The program and its arguments, after --.")]
Name = Annotated[str | None, typer.Option(help="A name for the job.")]
Queue = Annotated[str | None, typer.Option("--queue", "-q", help="The queue to wait in.")]
Tasks = Annotated[int, typer.Option("--count", "-n", help="How many equal tasks; each starts when it can.", min=1)]
GangSize = Annotated[
    int | None, typer.Option("--gang", help="So many tasks that start together, or not at all.", min=1)
]
Cpu = Annotated[str, typer.Option(help="CPUs of each task, such as 2 or 500m.")]
Memory = Annotated[str | None, typer.Option(help="Memory of each task, such as 512Mi.")]
Gpu = Annotated[str | None, typer.Option(help="GPUs of each task: 2, or a part of one, such as 0.5.")]
Resource = Annotated[list[str] | None, typer.Option(help="Another resource, as name=amount; may be repeated.")]
Priority = Annotated[int | None, typer.Option(help="Higher goes first in its queue.")]
After = Annotated[list[str] | None, typer.Option(help="A job that must succeed before; may be repeated.")]
Env = Annotated[list[str] | None, typer.Option("--env", "-e", help="A variable, as NAME=value; may be repeated.")]
Secret = Annotated[list[str] | None, typer.Option(help="A secret, as VARIABLE=name; may be repeated.")]
Label = Annotated[list[str] | None, typer.Option("--label", "-l", help="A label, as key=value; may be repeated.")]
Selector = Annotated[list[str] | None, typer.Option(help="Only nodes with this label, as key=value.")]
Pool = Annotated[str | None, typer.Option(help="Only nodes of this pool.")]
TimeLimit = Annotated[str | None, typer.Option(help="How long a task may run, such as 2h.")]
Tries = Annotated[int | None, typer.Option(help="How often a task may be tried.", min=1)]
Directory = Annotated[str | None, typer.Option(help="Where tasks run; else here, if the server is on this machine.")]
Shell = Annotated[bool, typer.Option("--shell", help="Give the command, as one text, to /bin/sh.")]
File = Annotated[Path | None, typer.Option("--file", "-f", help="A job as YAML or JSON; - reads standard input.")]


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
    shell: Shell = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end, and end as it did.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Show what it prints, and end as it did.")] = False,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Submit a job: a command with options, or a file.

    fairlead submit --count 100 --cpu 2 -- ./simulate --fast
    """
    given = {key: value for key, value in locals().items() if key in DOCUMENT_OPTIONS}
    _submit(file, given, partition, wait, follow, as_json)


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
    shell: Shell = False,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Run a command on the fleet, show what it prints, and end with its exit code. Ctrl-C kills it."""
    given = {key: value for key, value in locals().items() if key in DOCUMENT_OPTIONS}
    _submit(None, given, partition, False, True, as_json)


DOCUMENT_OPTIONS = frozenset(
    "command name queue count gang cpu memory gpu resource priority after env secret label selector pool time_limit "
    "tries directory shell".split()
)


@asking
def _submit(file: Path | None, given: dict[str, Any], partition: str, wait: bool, follow: bool, as_json: bool) -> None:
    with ask_as(partition) as client:
        document = _from_file(file, given) if file is not None else _from_options(client, given)
        job = client.submit(document=document)
        if not (wait or follow):
            if as_json:
                print_json({"job": job})
            else:
                typer.echo(job)
            return
        try:
            if follow:
                _follow(client, job)
            found = client.wait(job)
        except KeyboardInterrupt:
            client.kill(job)
            typer.echo(f"fairlead: job {job} was killed", err=True)
            raise typer.Exit(130) from None
        if as_json:
            print_json(found)
        _end_as(client, found, quiet=as_json)


def _from_file(file: Path, given: dict[str, Any]) -> dict[str, Any]:
    from fairlead.cli.documents import Unreadable, read_document
    from fairlead.cli.output import need_file

    if given["command"]:
        raise typer.BadParameter("a file has the command already", param_hint="COMMAND")
    if str(file) == "-":
        file = Path("/dev/stdin")
    else:
        need_file(file)
    try:
        document = read_document(file)
    except Unreadable as wrong:
        fail(f"{file}{f':{wrong.line}' if wrong.line else ''}: {wrong.problem}")
    if not isinstance(document, dict):
        fail(f"{file}: a job is written as key: value pairs")
    if "stages" not in document and "command" in document:
        # A job of one stage may be written without naming it.
        stage_keys = _stage_keys()
        stage = {key: document.pop(key) for key in list(document) if key in stage_keys}
        document["stages"] = [stage]
    return document


def _from_options(client: Client, given: dict[str, Any]) -> dict[str, Any]:
    if not given["command"]:
        raise typer.BadParameter("give a command after --, or --file", param_hint="COMMAND")
    command = ["/bin/sh", "-c", " ".join(given["command"])] if given["shell"] else given["command"]
    resources: dict[str, Any] = {"cpu": given["cpu"], **pairs(given["resource"], "--resource")}
    for key in ("memory", "gpu"):
        if given[key] is not None:
            resources[key] = given[key]
    directory = given["directory"]
    if directory is None and any(host in client.url for host in ("//127.", "//localhost", "//[::1]")):
        directory = os.getcwd()
    size = given["gang"]
    stage = {
        "command": command,
        "count": size or given["count"],
        "min": None if size else 1,
        "resources": resources,
        "environment": pairs(given["env"], "--env") or None,
        "secrets": pairs(given["secret"], "--secret") or None,
        "selectors": pairs(given["selector"], "--selector") or None,
        "pool": given["pool"],
        "time_limit": given["time_limit"],
        "tries": given["tries"],
        "directory": directory,
    }
    job = {
        "name": given["name"] or _name_of(given["command"][0]),
        "queue": given["queue"],
        "priority": given["priority"],
        "after": given["after"],
        "labels": pairs(given["label"], "--label") or None,
        "stages": [{key: value for key, value in stage.items() if value is not None}],
    }
    return {key: value for key, value in job.items() if value is not None}


def _stage_keys() -> set[str]:
    from fairlead.wire.api import StageDocument

    return set(StageDocument.__struct_fields__) - {"name"}


def _name_of(program: str) -> str:
    """A name for a job that got none: that of its program, as far as it is one."""
    words = program.split(maxsplit=1)
    last = Path(words[0]).name if words else ""
    kept = "".join(each for each in last if (each.isascii() and each.isalnum()) or each in "._-")
    return kept.lstrip("._-")[:63].replace("..", ".") or "job"


# -- looking -----------------------------------------------------------------------------------------------------


@asking
def ps(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also jobs that are over.")] = False,
    user: Annotated[str, typer.Option(help="Only jobs of this user.")] = "",
    queue: Annotated[str, typer.Option("--queue", "-q", help="Only jobs of this queue, and below it.")] = "",
    state: Annotated[list[str] | None, typer.Option(help="Only jobs in this state; may be repeated.")] = None,
    label: Annotated[str, typer.Option(help="Only jobs with this label, as key=value.")] = "",
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 100,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """List jobs that run or wait, the newest first."""
    states = state or ([] if everything else ["pending", "running"])
    found: list[wire.Job] = []
    with ask_as(partition) as client:
        for job in client.jobs(state=states, user=user, queue=queue, label=label, limit=min(limit, 1000)):
            found.append(job)
            if len(found) == limit:
                break
    if as_json:
        print_json(found)
        return
    rows = [(job.id, job.name, job.user, job.queue, job.state, _progress(job), ago(job.submitted)) for job in found]
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


@asking
def show(job: JobName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Show a job with its tasks."""
    with ask_as(partition) as client:
        found = client.job(job)
        tasks = []
        for task in client.tasks(job):
            tasks.append(task)
            if len(tasks) == SHOWN:
                break
        past = {} if as_json else _past(client, job, tasks)
    if as_json:
        print_json({"job": found, "tasks": tasks})
        return
    say(f"job {found.id} ({found.name}) of {found.user} in {found.queue}: {found.state}", nl=False)
    say(f", {found.reason}" if found.reason else "")
    lasted_for = (found.ended or time.time()) - found.submitted
    if found.matched is not None:
        say(f"in that queue because its user matches {found.matched!r}")
    typer.echo(f"submitted {ago(found.submitted)} ago, {'lasted' if found.over else 'for'} {lasted(lasted_for)}")
    for stage in found.stages:
        asked = amounts(stage.resources)
        say(f"stage {stage.name}: {stage.count} tasks (at least {stage.min} at once), {asked}")
        say(f"  {' '.join(stage.command)[:200]}")
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
    """Of tasks that are over, where they ran and for how long, as far as the history has it."""
    over = {(task.stage, task.index, task.attempt) for task in tasks if task.node is None and task.attempt}
    past: dict[tuple[str, int], tuple[str, str]] = {}
    for each in client.attempts(job).attempts if over else ():
        ran = "" if each.started is None else lasted(each.ended - each.started)
        for start, stop in zip(each.indices[::2], each.indices[1::2], strict=True):
            for index in range(start, min(stop, SHOWN)):
                if (each.stage, index, each.attempt) in over:
                    past[each.stage, index] = (each.node, ran)
    return past


def _code(task: wire.Task) -> str:
    return "" if task.exit_code is None else str(task.exit_code)


@asking
def logs(
    job: JobName,
    index: Annotated[int, typer.Option("--index", "-i", help="Which task.", min=0)] = 0,
    stage: Annotated[str, typer.Option(help="Which stage, if there are several.")] = "",
    stderr: Annotated[bool, typer.Option("--stderr", help="Standard error instead of standard output.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the task ends.")] = False,
    tail: Annotated[int | None, typer.Option(help="Only the last so many bytes.", min=1)] = None,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Show what a task wrote. As JSON it is a document for each piece that comes, on a line of its own."""
    text = getincrementaldecoder("utf-8")("replace")
    with ask_as(partition) as client:
        stream = "err" if stderr else "out"
        if follow:
            _until_started(client, job)
        for part in client.log(job, stage, index, stream, follow, -tail if tail else 0):
            if as_json:
                print_json({"stream": stream, "text": text.decode(part)})
            else:
                sys.stdout.buffer.write(part)
                sys.stdout.buffer.flush()


@asking
def explain(job: JobName, partition: Partition = "", as_json: AsJson = False) -> None:
    """Say why a job waits: what is missing, and where it stands."""
    with ask_as(partition) as client:
        found = client.explain(job)
    if as_json:
        print_json(found)
        return
    if not found.waiting:
        say(f"job {found.job} is {found.state}; nothing of it waits")
    for each in found.waiting:
        place = "" if each.position is None else f", number {each.position + 1} in its lane"
        reason = f": {each.reason}" if each.reason else ""
        say(f"{each.stage}: {each.count} {each.kind} waiting{place}{reason}")


@asking
def history(
    user: Annotated[str, typer.Option(help="Only jobs of this user.")] = "",
    state: Annotated[str, typer.Option(help="succeeded, failed or killed.")] = "",
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 50,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """List jobs that are over, also those that are not known otherwise any more."""
    found: list[wire.PastJob] = []
    with ask_as(partition) as client:
        for job in client.history(user=user, state=state, limit=min(limit, 1000)):
            found.append(job)
            if len(found) == limit:
                break
    if as_json:
        print_json(found)
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
        for job in found
    ]
    print_table(("JOB", "NAME", "USER", "QUEUE", "STATE", "TASKS", "LASTED", "ENDED"), rows)


# -- touching ----------------------------------------------------------------------------------------------------


@asking
def kill(
    jobs: Annotated[list[str], typer.Argument(help="Ids of jobs.", metavar="JOB…")],
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Kill jobs: what waits is given up, what runs is told to stop. The exit code is 1 if one of them cannot be."""
    from fairlead.client import Problem

    told: dict[str, str | dict[str, Any]] = {}
    failed = False
    with ask_as(partition) as client:
        for job in jobs:
            try:
                note = told[job] = client.kill(job)
            except Problem as problem:
                if len(jobs) == 1 or is_unreachable(problem):
                    raise
                failed = True
                told[job] = problem_document(problem)
                if not as_json:
                    say(f"fairlead: error: {job}: {problem}", err=True)
            else:
                if not as_json:
                    say(f"{job}: {note or 'killed'}")
    if as_json:
        print_json(told)
    if failed:
        raise typer.Exit(1)


@asking
def scale(
    job: JobName,
    count: Annotated[int, typer.Argument(help="How many tasks it should have.", min=0)],
    stage: Annotated[str, typer.Option(help="Which stage, if there are several.")] = "",
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Give a stage of a job another number of tasks."""
    with ask_as(partition) as client:
        note = client.scale(job, count, stage)
    if as_json:
        print_json({"note": note})
    else:
        say(f"{job}: {note or f'{count} tasks'}")


@asking
def wait(
    jobs: Annotated[list[str], typer.Argument(help="Ids of jobs.", metavar="JOB…")],
    timeout: Annotated[
        float | None, typer.Option(help="Seconds to wait at most; then the exit code is 124.", min=0)
    ] = None,
    partition: Partition = "",
    as_json: AsJson = False,
) -> None:
    """Wait until jobs are over. The exit code is 0 if all succeeded, 1 otherwise."""
    deadline = None if timeout is None else time.monotonic() + timeout
    found: list[wire.Job] = []
    with ask_as(partition) as client, progress("jobs", jobs, as_json) as waiting:
        for job in waiting:
            try:
                found.append(client.wait(job, None if deadline is None else max(0.0, deadline - time.monotonic())))
            except TimeoutError as late:
                fail(str(late), as_json and {"ok": False, "problem": str(late)}, TIME_OVER)
    if as_json:
        print_json(found)
    else:
        for each in found:
            say(f"{each.id}: {each.state}{f', {each.reason}' if each.reason else ''}")
    if any(each.state != "succeeded" for each in found):
        raise typer.Exit(1)


# -- following ---------------------------------------------------------------------------------------------------


def _until_started(client: Client, job: str) -> wire.Job:
    """Wait until a task of it runs, or the job is over. Say why, if that takes long."""
    pause = 0.01
    due = time.monotonic() + LOG_TIMEOUT
    while True:
        found = client.job(job)
        if found.over or any(stage.running or stage.ended for stage in found.stages):
            return found
        if time.monotonic() > due:
            due = time.monotonic() + 10 * LOG_TIMEOUT
            for each in client.explain(job).waiting[:1]:
                typer.echo(f"fairlead: job {job} waits: {each.reason or each.code}", err=True)
        time.sleep(pause)
        pause = min(0.5, 1.5 * pause)


def _follow(client: Client, job: str) -> None:
    """Show what the tasks of a job print until they end."""
    found = _until_started(client, job)
    tasks = [(stage.name, index) for stage in found.stages for index in range(stage.count)]
    if len(tasks) > FOLLOWED:
        typer.echo(f"fairlead: only the first {FOLLOWED} of {len(tasks)} tasks are shown", err=True)
    prefixed = len(tasks) > 1
    threads = [
        threading.Thread(target=_copy, args=(client, job, stage, index, stream, prefixed), daemon=True)
        for stage, index in tasks[:FOLLOWED]
        for stream in ("out", "err")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.1)  # so that Ctrl-C is heard


def _copy(client: Client, job: str, stage: str, index: int, stream: str, prefixed: bool) -> None:
    from fairlead.client import Problem

    target = sys.stdout.buffer if stream == "out" else sys.stderr.buffer
    offset = 0
    pause = 0.01
    over = False
    while True:
        try:
            waiting = b""
            for part in client.log(job, stage, index, stream, True, offset):
                offset += len(part)
                if not prefixed:
                    target.write(part)
                    target.flush()
                    continue
                *lines, waiting = (waiting + part).split(b"\n")
                for line in lines:
                    target.write(f"{stage}[{index}] ".encode() + line + b"\n")
                target.flush()
            return
        except Problem as problem:
            if problem.status not in (404, 409) or over:
                return
            # It may have started and ended since: then one more look will do.
            over = client.job(job).over
        time.sleep(pause)
        pause = min(0.5, 1.5 * pause)


def _end_as(client: Client, job: wire.Job, quiet: bool) -> None:
    """End as a job did: with the exit code of the first task that failed."""
    if job.state == "succeeded":
        return
    if not quiet:
        say(f"fairlead: job {job.id} {job.state}{f': {job.reason}' if job.reason else ''}", err=True)
    codes = (task.exit_code for task in client.tasks(job.id) if task.exit_code)
    code = next(codes, 1)
    raise typer.Exit(code if 0 < code < 256 else 1)
