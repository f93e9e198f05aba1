"""Runs the tasks of a step that are all on this node: as children of `srun`, without the server or the agent.

Most steps are so, and scripts start many of them. So this module imports little, and `run_here` reads the options that
such steps have by itself; it leaves all others to `srun`, which knows every option.

A step is known by two lines in the log of its job's first task, which `step_lines` reads: it keeps no other state. The
number of a step is one more than that of the last line.
"""

from __future__ import annotations

import _signal as signals  # type: ignore[import-not-found]  # the module `signal` takes 5 ms to load
import fcntl
import os
import sys
from time import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

STEPS = "FAIRLEAD_STEPS"
"""The variable with the path of the log, which the script of a job has."""
MARK = "srun: step "
TAIL = 1 << 16
"""Bytes at the end of the log that have the last line of a step."""
VALUED = {
    "n": "ntasks", "N": "nodes", "c": "cpus-per-task", "J": "job-name", "ntasks": "ntasks", "nodes": "nodes",
    "cpus-per-task": "cpus-per-task", "job-name": "job-name", "mem": "", "mem-per-cpu": "", "cpu-bind": "",
}  # fmt: skip
"""Options with a value that `run_here` knows → what they set; nothing for those that have no effect on a step."""
FLAGS = {"u", "s", "K", "overlap", "exact", "exclusive", "unbuffered", "kill-on-bad-exit", "oversubscribe"}
LEFT = ("SLURM_LABELIO", "SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_STDINMODE", "SLURM_WAIT", "SLURM_TIMELIMIT",
        "SLURM_EXPORT_ENV", "SLURM_KILL_BAD_EXIT")  # fmt: skip
"""Variables of options that `run_here` does not know."""
PASSED_ON = (signals.SIGUSR1, signals.SIGUSR2, signals.SIGCONT, signals.SIGQUIT)
ENDING = (signals.SIGINT, signals.SIGTERM, signals.SIGHUP)
KILL_AFTER = 2
"""Seconds between the two signals that end the other tasks of a failed step."""
GANG_VARIABLES = (
    "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK MASTER_ADDR MASTER_PORT OMPI_COMM_WORLD_RANK "
    "OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE"
).split()
"""Variables of the members of a gang, which tasks of a step do not have."""


class LocalTask:
    """A task of a step on this node: its number, its words, its variables, and its descriptors."""

    __slots__ = ("code", "files", "number", "variables", "words")

    def __init__(
        self, number: int, words: list[str], variables: Mapping[str, str], files: tuple[int, int, int] = (0, 1, 2)
    ) -> None:
        self.number = number
        self.words = words
        self.variables = variables
        self.files = files
        self.code = 0


# -- the lines of steps ------------------------------------------------------------------------------------------


def begin_step(path: str, tasks: int, cpus: int, nodes: Sequence[str], name: str) -> int:
    """Write the line of a new step, and return its number."""
    log = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    try:
        fcntl.flock(log, fcntl.LOCK_EX)
        size = os.fstat(log).st_size
        tail = os.pread(log, TAIL, max(0, size - TAIL)).decode("utf-8", "replace")
        numbers = [int(line.split(" ", 1)[0]) for line in tail.split(MARK)[1:] if line[:1].isdigit()]
        number = max(numbers, default=-1) + 1
        os.write(log, begin_line(number, tasks, cpus, nodes, name))
        return number
    finally:
        os.close(log)


def begin_line(number: int, tasks: int, cpus: int, nodes: Sequence[str], name: str) -> bytes:
    shown = name.replace("\n", " ")[:200]
    return f"{MARK}{number} began {time():.3f} {tasks} {cpus} {','.join(nodes)} {shown}\n".encode()


def end_line(number: int, code: int, cpu: float, memory: int) -> bytes:
    return f"{MARK}{number} ended {time():.3f} {code} {cpu:.3f} {memory}\n".encode()


def end_step(path: str, number: int, code: int, cpu: float, memory: int) -> None:
    """Write the line of a step that has ended, with what its tasks used."""
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    os.write(log, end_line(number, code, cpu, memory))
    os.close(log)


# -- variables ---------------------------------------------------------------------------------------------------


def step_variables(job: str, step: int, nodes: str, counts: Sequence[int]) -> dict[str, str]:
    """Return the variables that all tasks of a step have. `counts` has the tasks of each node."""
    tasks, number, spread = str(sum(counts)), str(step), folded(counts)
    return {
        "SLURM_JOB_ID": job,
        "SLURM_JOBID": job,
        "SLURM_STEP_ID": number,
        "SLURM_STEPID": number,
        "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks,
        "SLURM_STEP_NUM_TASKS": tasks,
        "SLURM_STEP_NUM_NODES": str(len(counts)),
        "SLURM_NNODES": str(len(counts)),
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": spread,
        "SLURM_TASKS_PER_NODE": spread,
        "SLURM_STEP_LAUNCHER_PORT": "0",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
    }


def task_variables(number: int, local: int, node: int, ids: Sequence[int]) -> dict[str, str]:
    """Return the variables of one task. `ids` are the tasks of its node."""
    return {
        "SLURM_PROCID": str(number),
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node),
        "SLURM_GTIDS": ",".join([str(each) for each in ids]),
    }


def folded(counts: Sequence[int]) -> str:
    """Return numbers of tasks as Slurm writes them: `2(x3),1`."""
    parts: list[list[int]] = []
    for count in counts:
        if parts and parts[-1][0] == count:
            parts[-1][1] += 1
        else:
            parts.append([count, 1])
    return ",".join([f"{count}(x{times})" if times > 1 else str(count) for count, times in parts])


# -- steps on this node ------------------------------------------------------------------------------------------


def run_here(words: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """Run a step that is wholly on this node, and return its exit status; None if it has to be left to `srun`."""
    path, node = environment.get(STEPS, ""), environment.get("FAIRLEAD_NODE", "")
    nodes = environment.get("FAIRLEAD_NODES", node).split(",")
    read = _read(words)
    if not path or not node or nodes[0] != node or read is None or any([environment.get(name) for name in LEFT]):
        return None
    given, rest = read
    try:
        wanted = int(given.get("nodes", str(len(nodes))).partition("-")[0])
        tasks = int(given.get("ntasks") or environment.get("SLURM_NTASKS") or wanted)
        each = int(given.get("cpus-per-task") or environment.get("SRUN_CPUS_PER_TASK") or 1)
        room = float(environment.get("SLURM_CPUS_ON_NODE") or 0)
    except ValueError:
        return None
    if min(wanted, tasks) != 1 and len(nodes) > 1:
        return None
    if min(tasks, each) < 1 or wanted > len(nodes) or tasks * each > room or not can_inherit(tasks):
        return None
    try:
        step = begin_step(path, tasks, tasks * each, nodes[:1], given.get("job-name") or os.path.basename(rest[0]))
    except OSError:
        return None
    shared = {name: value for name, value in environment.items() if name not in GANG_VARIABLES}
    shared |= step_variables(environment.get("SLURM_JOB_ID", ""), step, node, [tasks])
    if "cpus-per-task" in given:
        shared["SLURM_CPUS_PER_TASK"] = str(each)
    ids = range(tasks)
    started = [LocalTask(number, rest, {**shared, **task_variables(number, number, 0, ids)}) for number in ids]
    return carry(started, path, step, environment.get("SLURM_JOB_ID", ""), node, "kill-on-bad-exit" in given)


def can_inherit(tasks: int) -> bool:
    """True if tasks can have the input of this process: one task reads it all, and several read nothing."""
    with_input = os.fstat(0).st_rdev != os.stat(os.devnull).st_rdev
    return not with_input or (tasks == 1 and not os.isatty(0))


def _read(words: Sequence[str]) -> tuple[dict[str, str], list[str]] | None:
    """Return the options and the command; None if there are options that `run_here` does not know, or no command."""
    given: dict[str, str] = {}
    left = list(words)
    while left and left[0].startswith("-"):
        word = left.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
        else:
            name, equals, value = word[1:2], word[2:], word[2:]
        if name in FLAGS and not equals:
            given["kill-on-bad-exit" if name == "K" else name] = ""
        elif name in VALUED and (equals or left):
            given[VALUED[name]] = value if equals else left.pop(0)
        else:
            return None
    return (given, left) if left and ":" not in left else None


def carry(tasks: Sequence[LocalTask], path: str, step: int, job: str, node: str, kill: bool) -> int:
    """Run tasks as children of this process until all have ended, and return the highest exit status.

    With `kill`, a task that fails ends the others.
    """
    left: dict[int, LocalTask] = {}
    cpu, memory, killing = 0.0, 0, False

    def pass_on(number: int, frame: object = None) -> None:
        for pid in left:
            try:
                os.killpg(pid, number)
            except OSError:
                continue

    for number in (*PASSED_ON, *ENDING):
        signals.signal(number, pass_on)
    signals.signal(signals.SIGALRM, lambda number, frame: pass_on(signals.SIGKILL if killing else number))
    for task in tasks:
        try:
            left[_spawn(task)] = task
        except OSError as problem:
            print(f"slurmstepd: error: execve(): {task.words[0]}: {problem.strerror}", file=sys.stderr)
            task.code = 13 if isinstance(problem, PermissionError) else 2
            _tell(task, node)
    while left:
        pid, status, usage = os.wait4(-1, 0)
        ended = left.pop(pid, None)
        cpu += usage.ru_utime + usage.ru_stime
        memory = max(memory, usage.ru_maxrss * 1024)
        if ended is None:
            continue
        code = os.waitstatus_to_exitcode(status)
        ended.code = code if code >= 0 else 128 - code
        if ended.code and not killing:
            _tell(ended, node)
            if kill and left:
                print(f"srun: Terminating StepId={job}.{step}", file=sys.stderr)
                killing = True
                pass_on(signals.SIGTERM)
                signals.alarm(KILL_AFTER)
    code = max([task.code for task in tasks])
    end_step(path, step, code, cpu, memory)
    return code


def _spawn(task: LocalTask) -> int:
    actions = [(os.POSIX_SPAWN_DUP2, fd, at) for at, fd in enumerate(task.files) if fd != at]
    return os.posix_spawnp(
        task.words[0],
        task.words,
        task.variables,
        file_actions=actions,
        setpgroup=0,
        setsigdef=(signals.SIGPIPE, signals.SIGXFSZ),
    )


def _tell(task: LocalTask, node: str) -> None:
    print(f"srun: error: {node}: task {task.number}: {how_ended(task.code, signals.strsignal)}", file=sys.stderr)


def how_ended(code: int, name_of: Callable[[int], str | None]) -> str:
    return name_of(code - 128) or f"signal {code - 128}" if 128 < code < 193 else f"Exited with exit code {code}"
