"""`srun`: run tasks in the allocation of a job; outside of jobs, allocate, run, and give back."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

from fairlead.slurm.options import Given, error, fail, from_environment, parse
from fairlead.slurm.server import connect, user_name
from fairlead.slurm.tables import SRUN
from fairlead.slurm.values import parse_duration
from fairlead.wire.hostlist import expand_hosts, fold_hosts

if TYPE_CHECKING:
    from fairlead.client import Client
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

        with allocated(client, given, NAME, os.path.basename(rest[0])) as (allocation, variables, finish):
            os.environ.update(variables)
            code = run_step(client, given, rest, allocation)
            finish(code)
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


def run_step(client: Client, given: Given, words: list[str], allocation: Allocation) -> int:
    """Run a step in an allocation, and return its exit status."""
    from fairlead.slurm.steps import Runner, run_terminal

    step = step_of(given, words, allocation)
    return run_terminal(client, step) if step.terminal else Runner(client, step).run()


def _count(given: Given, name: str) -> int | None:
    from fairlead.slurm.request import Wrong, number

    try:
        return number(given, name)
    except Wrong as problem:
        fail(NAME, str(problem))


def step_of(given: Given, words: list[str], allocation: Allocation) -> Step:
    from fairlead.slurm.steps import Step, StepTask, passed_environment, spread

    places = _places(given, allocation)
    tasks, per_node, each = (
        _count(given, "ntasks"),
        _count(given, "ntasks-per-node"),
        _count(given, "cpus-per-task") or 1,
    )
    nodes = len(places)
    if "nodes" in given:
        nodes = int(given["nodes"].partition("-")[0])
        if nodes > len(places):
            fail(
                NAME, f"Unable to create step for job {allocation.shown}: Requested node configuration is not available"
            )
    tasks = tasks or nodes * (per_node or 1)
    nodes = max(1, min(nodes, tasks))
    places = places[:nodes]
    counts = spread(tasks, nodes)
    if allocation.cpus and max(counts) * each > allocation.cpus and "overcommit" not in given:
        fail(NAME, f"Unable to create step for job {allocation.shown}: More processors requested than permitted")
    gpus = int(given["gpus-per-task"].rpartition(":")[2]) if "gpus-per-task" in given else 0
    number_of = os.environ.get("SLURM_STEP_ID", "0")
    shared = {
        "SLURM_JOB_ID": allocation.shown,
        "SLURM_JOBID": allocation.shown,
        "SLURM_STEP_ID": number_of,
        "SLURM_STEPID": number_of,
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_NNODES": str(nodes),
        "SLURM_STEP_NODELIST": fold_in_order([place.node for place in places]),
        "SLURM_STEP_TASKS_PER_NODE": _per_node(counts),
        "SLURM_TASKS_PER_NODE": _per_node(counts),
        "SLURM_STEP_LAUNCHER_PORT": "0",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
    }
    if "cpus-per-task" in given:
        shared["SLURM_CPUS_PER_TASK"] = str(each)
    found: list[StepTask] = []
    programs = _programs(given, words)
    for at, (place, count) in enumerate(zip(places, counts, strict=True)):
        first = len(found)
        ids = ",".join(str(first + local) for local in range(count))
        for local in range(count):
            number = first + local
            own = {
                "SLURM_PROCID": str(number),
                "SLURM_LOCALID": str(local),
                "SLURM_NODEID": str(at),
                "SLURM_GTIDS": ids,
            }
            task = StepTask(
                number=number,
                local=local,
                node_number=at,
                place=place,
                command=programs(number),
                variables={**shared, **own},
            )
            found.append(task)
    files = Files(given, allocation)
    terminal = "pty" in given
    return Step(
        job=allocation.job,
        tasks=found[:1] if terminal else found,
        environment=passed_environment(os.environ, given.get("export", "ALL")),
        directory=os.path.abspath(given.get("chdir") or os.getcwd()),
        label="label" in given,
        kill_on_bad_exit="kill-on-bad-exit" in given and given["kill-on-bad-exit"] != "0",
        wait=float(given.get("wait") or 0),
        stdin=_input(given),
        output=files.opener("output"),
        errors=files.opener("error"),
        gpus_per_task=gpus,
        terminal=terminal,
        time_limit=parse_duration(given["time"]) if "time" in given else None,
    )


def _places(given: Given, allocation: Allocation) -> list[Place]:
    """Return the nodes of the allocation on which a step may run."""
    places = allocation.places[int(given.get("relative", "0")) :]
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
    if "het-group" in given:
        stages = list(dict.fromkeys(place.stage for place in places))
        places = [place for place in places if stages.index(place.stage) == int(given["het-group"])]
    if not places:
        fail(NAME, f"Unable to create step for job {allocation.shown}: Requested node configuration is not available")
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


def _per_node(counts: list[int]) -> str:
    parts: list[list[int]] = []
    for count in counts:
        if parts and parts[-1][0] == count:
            parts[-1][1] += 1
        else:
            parts.append([count, 1])
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in parts)


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
