"""`fairlead kill`, `hold`, `release`, `requeue`, `replace`, `scale` and `priority`: change jobs and their tasks."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import completion
from fairlead.cli.option_values import wrong
from fairlead.cli.options import Common, LiveJobName, Yes
from fairlead.cli.output import is_unreachable, print_json, print_text, problem_document

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.wire import api as wire


TASKS = re.compile(r"(?P<job>.+)\[(?P<tasks>[^]]*)\]")
"""A job with some of its tasks, as in `7[1-3,5]`."""
MAX_STOPPED = 10_000
"""The most tasks that one request may stop."""


StageOfTasks = Annotated[str, typer.Option("--stage", help="Name of the stage of the tasks, if the job has several.")]


class JobSelection(Common):
    """The options that name or select jobs."""

    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Ids of jobs, or none if --user, --queue or --label select them.",
            metavar="JOB…",
            autocompletion=completion.live_jobs,
        ),
    ] = None
    user: Annotated[str, typer.Option("--user", help="Select all running and waiting jobs of this user.")] = ""
    queue: Annotated[
        str,
        typer.Option(
            "--queue",
            "-q",
            help="Select all running and waiting jobs in this queue and the queues below it.",
            autocompletion=completion.queues,
        ),
    ] = ""
    label: Annotated[
        str,
        typer.Option(
            "--label",
            help="Select all running and waiting jobs with this label, as key=value.",
            autocompletion=completion.job_labels,
        ),
    ] = ""

    def each(self, action: Callable[[Client, str], str], done: str) -> None:
        """Change the jobs and print the answers, by default `done`. Exit with 1 if a job cannot be changed."""
        from fairlead.client import Problem

        select = {"user": self.user, "queue": self.queue, "label": self.label}
        if bool(self.jobs) == any(select.values()):
            raise typer.BadParameter("name jobs, or select them with --user, --queue or --label")
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
            print_text("no job is selected", err=True)
        if failed:
            raise typer.Exit(1)


class TaskSelection(JobSelection):
    """The options that name or select jobs, or name tasks of jobs."""

    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Ids of jobs, or tasks such as '7[3]' or '7[1-3,5]'; none if --user, --queue or --label select jobs.",
            metavar="JOB…",
            autocompletion=completion.live_jobs,
        ),
    ] = None
    stage: StageOfTasks = ""

    def each_of(self, tasks: wire.TaskAction, action: Callable[[Client, str], str], done: str) -> None:
        """Change the jobs by `action`, and the tasks that are named by the action `tasks`."""
        act_on_tasks = _on_tasks(tasks, self.jobs, self.stage)
        self.each(lambda client, name: act_on_tasks(client, name, action), done)


def _on_tasks(
    tasks: wire.TaskAction, named: list[str] | None, stage: str
) -> Callable[[Client, str, Callable[[Client, str], str]], str]:
    """Return a function that acts on some tasks of a job, or else on the job, by what was named."""
    parts = {name: found for name in named or () if (found := TASKS.fullmatch(name))}
    indices = {name: _read_tasks(found["tasks"], name) for name, found in parts.items()}
    if stage and not parts:
        raise wrong("--stage", "it is about tasks such as '7[3]', and none is named")

    def act(client: Client, name: str, on_job: Callable[[Client, str], str]) -> str:
        if name not in parts:
            return on_job(client, name)
        return client.stop_tasks(parts[name]["job"], tasks, indices[name], stage)

    return act


def _read_tasks(text: str, name: str) -> list[int]:
    """Read indices such as `1-3,5`."""
    indices: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        bounds = [first, last if dash else first]
        if not all(bound.isascii() and bound.isdigit() and len(bound) < 9 for bound in bounds):
            raise typer.BadParameter(f"{name}: {part or 'nothing'} is no index of a task; write such as [3] or [1-3,5]")
        start, end = map(int, bounds)
        if end < start or end - start + len(indices) >= MAX_STOPPED:
            problem = "ends before it begins" if end < start else f"makes more than {MAX_STOPPED} tasks"
            raise typer.BadParameter(f"{name}: {part} {problem}; write such as [3] or [1-3,5]")
        indices += range(start, end + 1)
    return indices


def kill(selected: TaskSelection) -> None:
    """Kill jobs: cancel waiting tasks and stop running ones.

    The exit code is 1 if a job cannot be killed.
    """
    selected.each_of("kill", lambda client, job: client.kill(job), "killed")


def hold(selected: JobSelection) -> None:
    """Hold jobs back: none of their waiting tasks start.

    Running tasks go on. Held jobs keep their places in their queues until `fairlead release`. Only an operator can
    release a job that an operator holds.
    """
    selected.each(lambda client, job: client.hold(job), "held")


def release(selected: JobSelection) -> None:
    """Release jobs that are held back."""
    selected.each(lambda client, job: client.release(job), "released")


def requeue(selected: TaskSelection) -> None:
    """Stop the running tasks of jobs and let them wait again.

    The tasks get their earlier places in their queues. The stopped run does not count as one of their --tries.
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
    """Stop tasks where they run and start them anew, before new work.

    This does not count as one of their --tries. A gang without a minimum starts again whole.
    """
    for named in tasks:
        if not TASKS.fullmatch(named):
            raise typer.BadParameter(f"{named} names no tasks; write such as '{named}[3]', or use requeue for a job")
    act_on_tasks = _on_tasks("replace", tasks, stage)
    selected = JobSelection(jobs=tasks, partition=common.partition, as_json=common.as_json)
    selected.each(lambda client, name: act_on_tasks(client, name, lambda client, job: client.requeue(job)), "replaced")


def scale(
    job: LiveJobName,
    count: Annotated[int, typer.Argument(help="Number of tasks that the stage should have.", metavar="TASKS", min=0)],
    *,
    stage: Annotated[str, typer.Option(help="Name of the stage, if the job has several.")] = "",
    common: Common,
) -> None:
    """Change the number of tasks of a job.

    A job that has no tasks left ends.
    """
    with common.client() as client:
        note = client.scale(job, count, stage)
        if not count and not note and not any(entry.count for entry in client.job(job).stages):
            note = "0 tasks; the job has none left, and ends"
    common.show({"note": note}, [f"{job}: {note or f'{count} tasks'}"])


def priority(
    job: LiveJobName,
    number: Annotated[int, typer.Argument(help="The new priority; the highest goes first.", metavar="PRIORITY")],
    *,
    yes: Yes = False,
    common: Common,
) -> None:
    """Change the priority of a job.

    Owners may raise it up to their max_priority in the queue, operators further. If running tasks of other jobs would
    be stopped for the job now, they are listed first, and on a terminal a confirmation is asked for.

    A negative number follows --: fairlead priority 17 -- -5
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
    """Return in words which tasks stop for a job with another priority."""
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
