"""`fairlead kill`, `hold`, `release`, `requeue`, `replace`, `scale` and `priority`: change jobs and their tasks."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import completion
from fairlead.cli.option_values import amounts_of, check_duration, pairs, wrong
from fairlead.cli.options import Common, JobName, LiveJobName, Yes
from fairlead.cli.output import is_unreachable, print_json, print_text, problem_document
from fairlead.cli.typer_commands import argument, option

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.wire import api as wire


TASKS = re.compile(r"(?P<job>.+)\[(?P<tasks>[^]]*)\]")
"""Some tasks of a job, as in `7[1-3,5]`."""
MAX_STOPPED = 10_000
"""The most tasks that one request may stop."""


StageOfTasks = Annotated[str, typer.Option("--stage", help="Stage of the named tasks, if the job has several stages.")]


class JobSelection(Common):
    """The arguments and options that select jobs."""

    jobs: list[str] | None = argument(
        "Ids of jobs, or none if --user, --queue or --label select them.",
        metavar="JOB…",
        autocompletion=completion.live_jobs,
    )
    user: str = option("Select all running and waiting jobs of this user.")
    queue: str = option(
        "Select all running and waiting jobs in this queue and the queues below it.",
        "-q",
        autocompletion=completion.queues,
    )
    label: str = option(
        "Select all running and waiting jobs with this label, as key=value.", autocompletion=completion.job_labels
    )

    def each(self, action: Callable[[Client, str], str], done: str) -> None:
        """Act on each job and print the answers, by default `done`. Exit with 1 if an action on a job is refused."""
        from fairlead.client import Problem

        select: dict[str, Any] = {"user": self.user, "queue": self.queue, "label": self.label}
        if bool(self.jobs) == any(select.values()):
            raise typer.BadParameter("name jobs, or select them with --user, --queue or --label, but not both")
        answers: dict[str, str | dict[str, Any]] = {}
        failed = False
        with self.client() as client:
            jobs = self.jobs or [job.id for job in client.jobs(state=["pending", "running"], limit=1000, **select)]
            for job in jobs:
                try:
                    note = answers[job] = action(client, job)
                except Problem as problem:
                    if self.jobs == [job] or is_unreachable(problem):
                        raise
                    failed = True
                    answers[job] = problem_document(problem)
                    if not self.as_json:
                        print_text(f"fairlead: error: {job}: {problem}", err=True)
                else:
                    if not self.as_json:
                        print_text(f"{job}: {note or done}")
        if self.as_json:
            print_json(answers)
        elif not jobs:
            print_text("no running or waiting job matches", err=True)
        if failed:
            raise typer.Exit(1)


class TaskSelection(JobSelection):
    """The options that select jobs, or name some tasks of jobs."""

    jobs: list[str] | None = argument(
        "Ids of jobs, or tasks such as '7[3]' or '7[1-3,5]'; none if --user, --queue or --label select jobs.",
        metavar="JOB…",
        autocompletion=completion.live_jobs,
    )
    stage: StageOfTasks = ""

    def each_of(self, action: wire.TaskAction, on_job: Callable[[Client, str], str], done: str) -> None:
        """Act on each job with `on_job`, and on named tasks with `action`. Print the answers, by default `done`."""
        parts = {name: found for name in self.jobs or () if (found := TASKS.fullmatch(name))}
        indices = {name: _read_tasks(found["tasks"], name) for name, found in parts.items()}
        if self.stage and not parts:
            raise wrong("--stage", "it needs tasks such as '7[3]'; name tasks, or leave it out")

        def act(client: Client, name: str) -> str:
            if name not in parts:
                return on_job(client, name)
            return client.stop_tasks(parts[name]["job"], action, indices[name], self.stage)

        self.each(act, done)


def _read_tasks(text: str, name: str) -> list[int]:
    """Return the indices in a text such as `1-3,5`."""
    indices: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        bounds = [first, last if dash else first]
        if not all(bound.isascii() and bound.isdigit() and len(bound) < 9 for bound in bounds):
            raise typer.BadParameter(
                f"{name}: {part or 'nothing'} is not an index of a task; write indices such as [3] or [1-3,5]"
            )
        start, end = map(int, bounds)
        if end < start or end - start + len(indices) >= MAX_STOPPED:
            problem = "ends before it begins" if end < start else f"makes more than {MAX_STOPPED} tasks"
            raise typer.BadParameter(f"{name}: {part} {problem}; write indices such as [3] or [1-3,5]")
        indices += range(start, end + 1)
    return indices


def kill(selected: TaskSelection) -> None:
    """Kill jobs: cancel their waiting tasks and stop their running tasks.

    The exit code is 1 if a job cannot be killed.
    """
    selected.each_of("kill", lambda client, job: client.kill(job), "killed")


def hold(selected: JobSelection) -> None:
    """Hold jobs: their waiting tasks do not start until `fairlead release`.

    Running tasks continue. Held jobs keep their places in their queues. If an operator holds a job, only an operator
    can release it.
    """
    selected.each(lambda client, job: client.hold(job), "held")


def release(selected: JobSelection) -> None:
    """Release held jobs: their waiting tasks may start again."""
    selected.each(lambda client, job: client.release(job), "released")


def requeue(selected: TaskSelection) -> None:
    """Stop the running tasks of jobs and put them back into their queues.

    The tasks get their earlier places there. The stopped run does not count as one of their --tries.
    """
    selected.each_of("requeue", lambda client, job: client.requeue(job), "requeued")


def replace(
    tasks: Annotated[
        list[str],
        typer.Argument(
            help="Tasks of jobs, such as '7[3]' or '7[1-3,5]'.",
            metavar="JOB[TASKS]…",
            autocompletion=completion.live_jobs,
        ),
    ],
    *,
    stage: StageOfTasks = "",
    common: Common,
) -> None:
    """Stop tasks where they run and start them again, ahead of new tasks.

    This does not count as one of their --tries. A gang that needs all of its tasks starts again whole.
    """
    for named in tasks:
        if not TASKS.fullmatch(named):
            raise typer.BadParameter(
                f"{named} names no tasks; write indices such as '{named}[3]', or use `fairlead requeue` for a whole job"
            )
    selected = TaskSelection(jobs=tasks, stage=stage, partition=common.partition, as_json=common.as_json)
    selected.each_of("replace", lambda client, job: client.requeue(job), "replaced")


def scale(
    job: LiveJobName,
    count: Annotated[int, typer.Argument(help="Number of tasks that the stage should have.", metavar="TASKS", min=0)],
    *,
    stage: Annotated[str, typer.Option(help="Name of the stage, if the job has several.")] = "",
    common: Common,
) -> None:
    """Change the number of tasks of a job. A job with 0 tasks ends."""
    with common.client() as client:
        note = client.scale(job, count, stage)
        if not count and not note and not any(entry.count for entry in client.job(job).stages):
            note = "0 tasks, so the job ends"
    common.show({"note": note}, [f"{job}: {note or _tasks(count)}"])


class Changes(Common):
    """The options of `update`."""

    job: LiveJobName
    queue: str | None = option("Another queue.", "-q", autocompletion=completion.queues)
    priority: int | None = option("Another priority, at most your max_priority in the queue.")
    after: list[str] | None = option(
        "Wait for these jobs instead of the earlier ones, as for `fairlead submit`; may be repeated. Nothing between "
        "quotes, as in --after '', for no job.",
        metavar="JOB[:ok|any|failed|started]",
        autocompletion=completion.live_jobs,
    )
    label: list[str] | None = option(
        "Add or change a label, as key=value; may be repeated.", "-l", autocompletion=completion.job_labels
    )
    unlabel: list[str] | None = option("Remove a label; may be repeated.", metavar="KEY")
    stage: str = option("Stage of the following values, if the job has several.")
    cpu: str | None = option("CPUs of each task.")
    memory: str | None = option("Memory of each task, such as 512Mi or 8Gi.")
    gpu: str | None = option("GPUs of each task.")
    resource: list[str] | None = option("Another resource of each task, as name=amount; 0 for none; may be repeated.")
    time_limit: str | None = option("Time limit of each task, such as 2h; none for no limit.")
    estimate: str | None = option("Expected run time of a task; none for no estimate.")
    throttle: str | None = option("Run at most N tasks of the array at a time; none for no limit.", metavar="N|none")

    def document(self) -> dict[str, Any]:
        """Return the changes that the options describe."""
        labels: dict[str, str | None] = {**pairs(self.label, "--label"), **dict.fromkeys(self.unlabel or ())}
        for name in ("time_limit", "estimate"):
            if getattr(self, name) != "none":
                check_duration(getattr(self, name), f"--{name.replace('_', '-')}")
        changes = {
            "queue": self.queue,
            "priority": self.priority,
            "after": None if self.after is None else [job for job in self.after if job],
            "labels": labels or None,
            "resources": amounts_of(self.resource, self.cpu, self.memory, self.gpu, none=True) or None,
            "time_limit": self.time_limit,
            "estimate": self.estimate,
            "throttle": self._throttle(),
        }
        given = {name: value for name, value in changes.items() if value is not None}
        if not given:
            raise typer.BadParameter("name what should change, such as --queue root.ml or --throttle 8")
        return {**given, **({"stage": self.stage} if self.stage else {})}

    def _throttle(self) -> int | str | None:
        if self.throttle in (None, "none"):
            return self.throttle
        if not re.fullmatch("0*[1-9][0-9]*", self.throttle):
            raise wrong("--throttle", f"{self.throttle!r} is not a number of tasks; write one above 0, or none")
        return int(self.throttle)


def update(changes: Changes) -> None:
    """Change a waiting job: its queue, resources, limits, priority, dependencies, throttle or labels.

    The job keeps its place. You need the rights that submitting the changed job would need. Priority, throttle and
    labels can be changed while tasks of the job run; the other values only while none runs.

    fairlead update 7 --throttle 20

    fairlead update 7 --queue root.night --gpu 2 --after 5:any
    """
    from fairlead.wire import operations as op

    document: Any = changes.document()
    with changes.client() as client:
        note = client.send(op.UpdateJob(job=changes.job, document=document)).note
    changes.show({"note": note}, [f"{changes.job}: {note}"])


def rerun(
    job: JobName,
    *,
    failed: Annotated[
        bool, typer.Option(help="Run only the tasks that have not succeeded. A gang runs whole.")
    ] = False,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", help="Add or change an environment variable, as NAME=value; may be repeated."),
    ] = None,
    name: Annotated[str, typer.Option(help="Another name.")] = "",
    queue: Annotated[str, typer.Option("--queue", "-q", help="Another queue.", autocompletion=completion.queues)] = "",
    common: Common,
) -> None:
    """Submit a job that is over again, and print the id of the new job.

    It runs as it was submitted and updated, but waits for no other jobs.

    fairlead rerun 7 --failed

    fairlead rerun 7 -e LR=0.1
    """
    with common.client() as client:
        submitted = client.rerun(job, failed or None, pairs(env, "--env") or None, name, queue)
    if submitted.warning:
        print_text(f"fairlead: warning: job {submitted.job}: {submitted.warning}", err=True)
    common.show({"job": submitted.job, "warning": submitted.warning}, [submitted.job])


def priority(
    job: LiveJobName,
    number: Annotated[
        int,
        typer.Argument(
            help="The new priority. In a queue with the order `priority`, jobs with a higher number start first.",
            metavar="PRIORITY",
        ),
    ],
    *,
    yes: Yes = False,
    common: Common,
) -> None:
    """Change the priority of a job.

    The owner of a job may raise its priority up to the owner's max_priority in the queue, an operator above it. If the
    change would stop running tasks of other jobs at once, the command lists them first and, on a terminal, asks for
    a confirmation.

    Write -- before a negative number: fairlead priority 17 -- -5
    """
    with common.client() as client:
        stops = client.try_priority(job, number)
        if stops.tasks and not common.as_json:
            print_text(_stops(job, number, stops), err=True)
            if not yes and sys.stdin.isatty():
                typer.confirm("Change the priority?", abort=True, err=True)
        note = client.set_priority(job, number)
    common.show({"note": note, "stops": stops}, [f"{job}: {note or f'priority {number}'}"])


def _stops(job: str, number: int, stops: wire.PriorityStops) -> str:
    """Return the text that names the tasks that stop for a job if it gets this priority."""
    sums: dict[str, int] = {}
    for entry in stops.stops:
        place = f"of job {entry.job} ({entry.name} of {entry.user}) on {entry.node}"
        sums[place] = sums.get(place, 0) + entry.tasks
    parts = [f"{_tasks(tasks)} {place}" for place, tasks in sums.items()]
    hidden = stops.tasks - sum(entry.tasks for entry in stops.stops)
    if hidden:
        parts.append(f"{_tasks(hidden)} of jobs of other users")
    return f"fairlead: with priority {number}, running tasks stop for job {job} at once: {', '.join(parts)}"


def _tasks(number: int) -> str:
    return "1 task" if number == 1 else f"{number} tasks"


CHANGES = (kill, hold, release, requeue, replace, scale, update, priority)
"""The commands that change jobs, in the order of `fairlead --help`."""
