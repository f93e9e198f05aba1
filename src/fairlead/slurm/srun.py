"""`srun`: run tasks in the allocation of a job; outside of jobs, allocate, run, and give back."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, NoReturn

from fairlead.slurm.launch import STEPS, step_variables, task_variables
from fairlead.slurm.options import Given, error, fail, from_environment, parse
from fairlead.slurm.server import connect, user_name
from fairlead.slurm.tables import SRUN
from fairlead.slurm.values import parse_duration
from fairlead.wire.hostlist import expand_hosts, fold_hosts

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.slurm.step_lines import Notes
    from fairlead.slurm.steps import Allocation, Place, Step, StepTask

NAME = "srun"
VARIABLES = {"time": "SLURM_TIMELIMIT", "kill-on-bad-exit": "SLURM_KILL_BAD_EXIT", "label": "SLURM_LABELIO",
             "unbuffered": "SLURM_UNBUFFEREDIO", "export": "SLURM_EXPORT_ENV", "ntasks": "SLURM_NTASKS",
             "output": "SLURM_STDOUTMODE", "error": "SLURM_STDERRMODE", "input": "SLURM_STDINMODE",
             "wait": "SLURM_WAIT", "overlap": "SLURM_OVERLAP", "cpus-per-task": "SRUN_CPUS_PER_TASK"}  # fmt: skip
FROM_VARIABLES = {*VARIABLES, "partition", "account", "qos", "exclusive", "constraint"}


def main(words: list[str]) -> int:
    given, rest = parse(SRUN, words)
    known = from_environment(SRUN, os.environ, "SLURM", VARIABLES)
    given = Given({**{name: value for name, value in known.items() if name in FROM_VARIABLES}, **given})
    if not rest:
        print("srun: fatal: No command given to execute.", file=sys.stderr)
        return 1
    if ":" in rest and not given.get("multi-prog"):
        fail(NAME, "steps of several parts with : are not supported; start a srun for each in the background")
    from fairlead.slurm.steps import allocation_here

    here = None if "jobid" in given else allocation_here(os.environ)
    with connect(NAME, given) as client:
        if "jobid" in given:
            return run_step(client, given, rest, _of_job(client, given["jobid"]))
        if here is not None:
            return run_step(client, given, rest, here)
        from fairlead.slurm.salloc import allocated
        from fairlead.slurm.step_lines import OnlyStep

        notes = OnlyStep()
        with allocated(client, given, NAME, os.path.basename(rest[0])) as (allocation, variables, finish):
            os.environ.update(variables)
            code = run_step(client, given, rest, allocation, notes)
            finish(code, notes.text)
            return code


def _of_job(client: Client, job: str) -> Allocation:
    from fairlead.client.calls import Problem
    from fairlead.slurm.steps import allocation_of

    try:
        found = allocation_of(client, job)
    except Problem:
        found = None
    if found is None:
        fail(NAME, f"Unable to confirm allocation for job {job}: Invalid job id specified")
    return found


def run_step(client: Client, given: Given, words: list[str], allocation: Allocation, notes: Notes | None = None) -> int:
    """Run a step in an allocation, and return its exit status."""
    from fairlead.slurm.step_lines import FarSteps, NearSteps
    from fairlead.slurm.steps import Runner, is_here, run_near, run_terminal

    layout, here = layout_of(given, allocation), is_here(allocation, os.environ)
    if notes is None:
        notes = NearSteps(os.environ[STEPS]) if here else FarSteps(client, allocation)
    name = given.get("job-name") or os.path.basename(words[0])
    nodes = [place.node for place in layout.places]
    number = notes.begin(sum(layout.counts), sum(layout.counts) * layout.cpus_per_task, nodes, name)
    step = step_of(given, words, allocation, layout, number)
    code = run_near(step) if here else None
    if code is None:
        code = run_terminal(client, step) if step.terminal else Runner(client, step).run()
        notes.end(number, code, 0.0, 0)
    return code


def _count(given: Given, name: str) -> int | None:
    from fairlead.slurm.request import Wrong, number

    try:
        return number(given, name)
    except Wrong as problem:
        fail(NAME, str(problem))


class Layout(NamedTuple):
    """Where the tasks of a step run: on each place, a number of tasks."""

    places: list[Place]
    counts: list[int]
    cpus_per_task: int


def layout_of(given: Given, allocation: Allocation) -> Layout:
    from fairlead.slurm.steps import spread

    places = _places(given, allocation)
    tasks, per_node = _count(given, "ntasks"), _count(given, "ntasks-per-node")
    each = _count(given, "cpus-per-task") or 1
    nodes = len(places)
    if "nodes" in given:
        nodes = int(given["nodes"].partition("-")[0])
        if nodes > len(places):
            _refuse(allocation, "Requested node configuration is not available")
    part = os.environ.get(f"SLURM_NTASKS_HET_GROUP_{given.get('het-group', '0')}", "0")
    tasks = tasks or (0 if "nodes" in given or per_node else int(part)) or nodes * (per_node or 1)
    nodes = max(1, min(nodes, tasks))
    counts = spread(tasks, nodes)
    if allocation.cpus and max(counts) * each > allocation.cpus and "overcommit" not in given:
        _refuse(allocation, "More processors requested than permitted")
    return Layout(places[:nodes], counts, each)


def _refuse(allocation: Allocation, why: str) -> NoReturn:
    fail(NAME, f"Unable to create step for job {allocation.shown}: {why}")


def step_of(given: Given, words: list[str], allocation: Allocation, layout: Layout, number: int) -> Step:
    from fairlead.slurm.steps import Step, passed_environment

    files = Files(given, allocation)
    tasks = _tasks(given, words, allocation, layout, number)
    return Step(
        job=allocation.job,
        number=number,
        tasks=tasks[:1] if "pty" in given else tasks,
        environment=passed_environment(os.environ, given.get("export", "ALL")),
        directory=os.path.abspath(given.get("chdir") or os.getcwd()),
        label="label" in given,
        kill_on_bad_exit="kill-on-bad-exit" in given and given["kill-on-bad-exit"] != "0",
        wait=float(given.get("wait") or 0),
        stdin=_input(given),
        output=files.opener("output"),
        errors=files.opener("error"),
        gpus_per_task=int(given["gpus-per-task"].rpartition(":")[2]) if "gpus-per-task" in given else 0,
        terminal="pty" in given,
        time_limit=parse_duration(given["time"]) if "time" in given else None,
    )


def _tasks(given: Given, words: list[str], allocation: Allocation, layout: Layout, step: int) -> list[StepTask]:
    from fairlead.slurm.steps import StepTask

    nodes = fold_in_order([place.node for place in layout.places])
    shared = step_variables(allocation.shown, step, nodes, layout.counts)
    if "cpus-per-task" in given:
        shared["SLURM_CPUS_PER_TASK"] = str(layout.cpus_per_task)
    programs = _programs(given, words)
    found: list[StepTask] = []
    for at, (place, count) in enumerate(zip(layout.places, layout.counts, strict=True)):
        ids = range(len(found), len(found) + count)
        for local, number in enumerate(ids):
            variables = {**shared, **task_variables(number, local, at, ids)}
            command = programs(number)
            found.append(
                StepTask(number=number, local=local, node_number=at, place=place, command=command, variables=variables)
            )
    return found


def _places(given: Given, allocation: Allocation) -> list[Place]:
    """Return the nodes of the allocation on which a step may run."""
    stages = list(dict.fromkeys(place.stage for place in allocation.places))
    group = int(given.get("het-group", "0"))
    if group >= len(stages):
        _refuse(allocation, "Requested node configuration is not available")
    places = [place for place in allocation.places if place.stage == stages[group]]
    places = places[int(given.get("relative", "0")) :]
    try:
        if "nodelist" in given:
            order = expand_hosts(given["nodelist"])
            places = sorted(
                [place for place in places if place.node in order], key=lambda place: order.index(place.node)
            )
        if "exclude" in given:
            places = [place for place in places if place.node not in expand_hosts(given["exclude"])]
    except ValueError:
        fail(NAME, "Invalid node name specified")
    if not places:
        _refuse(allocation, "Requested node configuration is not available")
    return places


def _programs(given: Given, words: list[str]) -> Callable[[int], list[str]]:
    if "multi-prog" not in given:
        return lambda number: words
    from fairlead.slurm.steps import program_for, read_programs

    try:
        programs = read_programs(words[0])
    except (OSError, ValueError) as problem:
        fail(NAME, f"Can't open configuration file {words[0]}: {problem}")

    def choose(number: int) -> list[str]:
        found = program_for(programs, number)
        if not found:
            fail(NAME, f"Configuration file {words[0]} has no program for task {number}")
        return found

    return choose


def fold_in_order(names: list[str]) -> str:
    """Return names as a list of Slurm, which keeps their order."""
    folded = fold_hosts(names)
    return folded if expand_hosts(folded) == names else ",".join(names)


def _input(given: Given) -> str:
    """Return which tasks read the input of srun. A file becomes that input."""
    wanted = given.get("input", "all")
    if wanted in ("all", "none") or wanted.isdigit():
        return wanted
    try:
        os.dup2(os.open(wanted, os.O_RDONLY), 0)
    except OSError as problem:
        fail(NAME, f"Could not open stdin file {wanted}: {problem.strerror}")
    return "all"


class Files:
    """The files for the output of tasks, which are opened when the first bytes arrive."""

    def __init__(self, given: Given, allocation: Allocation) -> None:
        self._given = given
        self._allocation = allocation
        self._open: dict[str, BinaryIO] = {}

    def opener(self, name: str) -> Callable[[StepTask], BinaryIO]:
        pattern = self._given.get(name) or (self._given.get("output", "") if name == "error" else "")
        if pattern in ("", "all", "none") or pattern.isdigit():
            stream = (
                sys.stdout.buffer if name == "output" or ("output" in self._given and pattern) else sys.stderr.buffer
            )
            if pattern == "none":
                return lambda task: self._file("/dev/null")
            return lambda task: stream
        return lambda task: self._file(self._path(pattern, task))

    def _path(self, pattern: str, task: StepTask) -> str:
        step = task.variables["SLURM_STEP_ID"]
        array, _, index = self._allocation.shown.partition("_")
        codes = {
            "j": self._allocation.shown, "J": f"{self._allocation.shown}.{step}", "s": step, "t": str(task.number),
            "n": str(task.node_number), "N": task.place.node, "A": array, "a": index, "u": user_name(),
            "x": os.environ.get("SLURM_JOB_NAME", "srun"), "%": "%",
        }  # fmt: skip
        import re

        def value(match: re.Match[str]) -> str:
            text = codes.get(match[2])
            if text is None:
                return match[0]
            return text.rjust(min(10, int(match[1] or 0)), "0") if text.isdigit() else text

        return re.sub(r"%(\d*)(.)", value, pattern)

    def _file(self, path: str) -> BinaryIO:
        if path not in self._open:
            appended = self._given.get("open-mode", os.environ.get("SLURM_OPEN_MODE", "t")).startswith("a")
            try:
                self._open[path] = open(path, "ab" if appended else "wb")  # noqa: SIM115
            except OSError as problem:
                error(NAME, f"Could not open stdout file {path}: {problem.strerror}")
                self._open[path] = open("/dev/null", "wb")  # noqa: SIM115
        return self._open[path]
