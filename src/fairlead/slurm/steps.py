"""Steps: tasks that run in the allocation of a job. Each is a process beside a task of Fairlead, which the agent of its
node starts through a tunnel. The scheduler has no part in it.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO
from uuid import uuid4

import msgspec

from fairlead.client.tunnel import NearEnd, Reader
from fairlead.slurm.launch import GANG_VARIABLES, STEPS, LocalTask, can_inherit, carry, how_ended
from fairlead.wire import operations as op
from fairlead.wire.index_spans import each_index
from fairlead.wire.tunnel_frames import CLOSE, CODE, DATA, END, ERRORS, EXIT, NUMBER, PAIR, SIGNAL, SIZE, STANDARD

if TYPE_CHECKING:
    from fairlead.client import Client

LAUNCH = 'eval "$(head -c "$0")"'
"""Runs the first bytes of its input as a program of the shell. The rest is the input of the task."""
OF_NODES = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "SLURMD_NODENAME",
    "TMPDIR",
    "HOSTNAME",
)
"""Variables that a task has from its own node."""
OF_PARTS = "SLURM_JOB_NUM_NODES_HET_GROUP_"
"""Variables with the number of nodes of each part of a heterogeneous job."""
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGQUIT, signal.SIGALRM)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SECOND = 1.0
"""Seconds in which a second signal that ends the step kills it."""


class Place(msgspec.Struct, frozen=True):
    """A task of Fairlead that stands for a node of the allocation."""

    node: str
    stage: str
    index: int


class StepTask(msgspec.Struct, kw_only=True):
    """A task of a step."""

    number: int
    local: int
    node_number: int
    place: Place
    command: list[str]
    variables: dict[str, str]
    code: int | None = None


class Step(msgspec.Struct, kw_only=True):
    """Tasks that run together, and how."""

    job: str
    number: int
    tasks: list[StepTask]
    environment: dict[str, str]
    directory: str
    label: bool = False
    kill_on_bad_exit: bool = False
    wait: float = 0.0
    """Seconds after the end of the first task when the others are ended; 0 for never."""
    stdin: str = "all"
    """`all`, `none`, or the number of the task that reads the input of srun."""
    output: Callable[[StepTask], BinaryIO]
    errors: Callable[[StepTask], BinaryIO]
    gpus_per_task: int = 0
    terminal: bool = False
    time_limit: float | None = None


def program_of(step: Step, task: StepTask) -> bytes:
    """Return the program that sets up a task and becomes it."""
    variables = {**step.environment, **task.variables}
    lines = [f"unset {' '.join(GANG_VARIABLES)}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    lines.append('export SLURM_TASK_PID=$$ SLURMD_NODENAME="$FAIRLEAD_NODE"')
    if step.gpus_per_task:
        first = task.local * step.gpus_per_task + 1
        chosen = f'$(printf %s "$CUDA_VISIBLE_DEVICES" | cut -d, -f{first}-{first + step.gpus_per_task - 1})'
        lines.append(f'export CUDA_VISIBLE_DEVICES="{chosen}"')
    lines.append(f"cd {shlex.quote(step.directory)} 2>/dev/null || cd /tmp")
    lines.append(f"exec {shlex.join(task.command)}")
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def passed_environment(environment: Mapping[str, str], wanted: str) -> dict[str, str]:
    """Return the variables that tasks get from srun, by `--export`."""
    names = wanted.split(",")
    plain = {
        name: value
        for name, value in environment.items()
        if name.replace("_", "a").isalnum() and not name.startswith("FAIRLEAD_") and name not in OF_NODES
    }
    slurm = {name: value for name, value in plain.items() if name.startswith("SLURM_")}
    found = dict(plain) if "ALL" in names else slurm
    for name in names:
        variable, equals, value = name.partition("=")
        if equals:
            found[variable] = value
        elif variable in plain:
            found[variable] = plain[variable]
    return found


class Runner:
    """Runs one step."""

    def __init__(self, client: Client, step: Step, command: str = "srun") -> None:
        self._client = client
        self._step = step
        self._command = command
        self._ends: dict[int, NearEnd] = {}
        self._waiting: dict[tuple[int, int], bytes] = {}
        """Task and channel → the beginning of a line, with --label."""
        self._interrupted_at = 0.0
        self._killing = False
        self._width = len(str(max(0, len(step.tasks) - 1)))

    def run(self) -> int:
        """Run all tasks, and return the highest exit status."""
        asyncio.run(self._run())
        return max([task.code or 0 for task in self._step.tasks], default=0)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (*PASSED_ON, *ENDING):
            loop.add_signal_handler(number, self._hear, number)
        tasks = [asyncio.create_task(self._carry(task)) for task in self._step.tasks]
        feeding = asyncio.create_task(self._feed())
        limit = None
        if self._step.time_limit is not None:
            limit = loop.call_later(self._step.time_limit, self._time_is_over)
        try:
            await asyncio.gather(*tasks)
        finally:
            feeding.cancel()
            if limit is not None:
                limit.cancel()

    async def _carry(self, task: StepTask) -> None:
        from fairlead.client.calls import Problem

        step, program = self._step, program_of(self._step, task)
        wanted = op.OpenTunnel(
            job=step.job,
            stage=task.place.stage,
            index=task.place.index,
            tunnel=uuid4().hex,
            kind="command",
            command=["/bin/sh", "-c", LAUNCH, str(len(program))],
            terminal=step.terminal,
        )
        near = NearEnd(self._client, wanted, lambda *frame: self._take(task, *frame), self._say)
        self._ends[task.number] = near
        near.send(DATA, STANDARD, program)
        if step.stdin not in ("all", str(task.number)):
            near.send(END, STANDARD)
        try:
            await near.run()
        except Problem as problem:
            self._say(f"error: {task.place.node}: task {task.number}: {problem}")
            task.code = 1
        self._ended(task)

    def _take(self, task: StepTask, kind: int, channel: int, content: bytes) -> None:
        near = self._ends[task.number]
        if kind == DATA and channel in (STANDARD, ERRORS):
            self._write(task, channel, content)
            near.use(channel, len(content))
        elif kind == EXIT:
            task.code = CODE.unpack(content[:4])[0]
            near.end()

    def _write(self, task: StepTask, channel: int, content: bytes) -> None:
        target = (self._step.output if channel == STANDARD else self._step.errors)(task)
        if self._step.label:
            content = self._waiting.pop((task.number, channel), b"") + content
            *lines, rest = content.split(b"\n")
            if rest:
                self._waiting[task.number, channel] = rest
            mark = f"{task.number:>{self._width}}: ".encode()
            content = b"".join([mark + line + b"\n" for line in lines])
        with suppress(OSError):  # the reader has gone
            target.write(content)
            target.flush()

    def _ended(self, task: StepTask) -> None:
        for channel in (STANDARD, ERRORS):
            if (task.number, channel) in self._waiting:
                self._write(task, channel, b"\n")
        code = task.code or 0
        if code < 0:  # a signal
            task.code = code = 128 - code
        if code and not self._killing:
            self._say(f"error: {task.place.node}: task {task.number}: {how_ended(code, signal.strsignal)}")
            if self._step.kill_on_bad_exit:
                self._say(f"Terminating StepId={self._step.job}.{self._step.number}")
                self._kill()
        if self._step.wait and not self._killing:
            asyncio.get_running_loop().call_later(self._step.wait, self._kill)

    def _kill(self) -> None:
        self._killing = True
        self._send_signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(2 * SECOND, self._send_signal, signal.SIGKILL)

    def _send_signal(self, number: int) -> None:
        for task in self._step.tasks:
            if task.code is None and task.number in self._ends:
                self._ends[task.number].send(SIGNAL, STANDARD, NUMBER.pack(number))

    def _hear(self, number: int) -> None:
        now = asyncio.get_running_loop().time()
        if number in ENDING and now - self._interrupted_at < SECOND:
            number = signal.SIGKILL
        if number in ENDING:
            self._interrupted_at = now
            self._say("forcing job termination")
        self._send_signal(number)

    def _time_is_over(self) -> None:
        self._say("error: the time limit of the step is over")
        self._kill()

    def _say(self, text: str) -> None:
        with suppress(OSError):
            print(f"{self._command}: {text}", file=sys.stderr)

    async def _feed(self) -> None:
        """Pass the input of this command on to the tasks that read it."""
        readers = [task for task in self._step.tasks if self._step.stdin in ("all", str(task.number))]
        if not readers:
            return
        reader = Reader(0)
        while True:
            live = [self._ends[task.number] for task in readers if task.code is None and task.number in self._ends]
            rooms = [await near.room(STANDARD) for near in live]
            data = await reader.read(min(rooms, default=1 << 16))
            for near in live:
                near.send(DATA if data else END, STANDARD, data)
            if not data:
                return


def is_here(allocation: Allocation, environment: Mapping[str, str]) -> bool:
    """True if this process runs in the batch script of the allocation, on its first node."""
    return (
        environment.get("FAIRLEAD_JOB") == allocation.job
        and environment.get("FAIRLEAD_NODE") == allocation.places[0].node
        and STEPS in environment
    )


def run_near(step: Step) -> int | None:
    """Run a step as children of this process, and return its exit status. Return None if this cannot be done: some
    tasks are on other nodes, or their input or output has to pass through this process."""
    first = step.tasks[0].place.node
    inherits = step.stdin == "none" or (step.stdin == "all" and can_inherit(len(step.tasks)))
    passes = step.label or step.terminal or step.wait or step.time_limit is not None or not inherits
    if passes or any([task.place.node != first for task in step.tasks]) or os.environ.get("FAIRLEAD_NODE") != first:
        return None
    kept = {name: value for name, value in os.environ.items() if name.startswith("FAIRLEAD_") or name in OF_NODES}
    null = os.open(os.devnull, os.O_RDONLY) if step.stdin == "none" else 0
    tasks = []
    for task in step.tasks:
        variables = {**step.environment, **task.variables, **kept}
        if step.gpus_per_task:
            gpus = variables.get("CUDA_VISIBLE_DEVICES", "").split(",")
            begin = task.local * step.gpus_per_task
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[begin : begin + step.gpus_per_task])
        for name in GANG_VARIABLES:
            variables.pop(name, None)
        files = (null, step.output(task).fileno(), step.errors(task).fileno())
        tasks.append(LocalTask(task.number, task.command, variables, files))
    sys.stdout.flush()
    os.chdir(step.directory)
    shown = step.tasks[0].variables["SLURM_JOB_ID"]
    return carry(tasks, os.environ[STEPS], step.number, shown, first, step.kill_on_bad_exit)


def run_terminal(client: Client, step: Step) -> int:
    """Run the only task of a step with this command's terminal."""
    import termios
    import tty

    [task] = step.tasks
    codes: list[int] = []

    async def carry() -> None:
        program = program_of(step, task)
        wanted = op.OpenTunnel(
            job=step.job,
            stage=task.place.stage,
            index=task.place.index,
            tunnel=uuid4().hex,
            kind="command",
            command=["/bin/sh", "-c", program.decode("utf-8", "surrogateescape")],
            terminal=True,
        )

        def take(kind: int, channel: int, content: bytes) -> None:
            if kind == DATA:
                os.write(1, content)
                near.use(channel, len(content))
            elif kind == EXIT:
                codes.append(CODE.unpack(content[:4])[0])
                near.end()
            elif kind == CLOSE:
                near.end()

        near = NearEnd(client, wanted, take, lambda text: None)

        def resize() -> None:
            with suppress(OSError):
                size = os.get_terminal_size(0)
                near.send(SIZE, STANDARD, PAIR.pack(size.lines, size.columns))

        async def feed() -> None:
            reader = Reader(0)
            while data := await reader.read(await near.room(STANDARD)):
                near.send(DATA, STANDARD, data)
            near.send(END, STANDARD)

        resize()
        asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, resize)
        feeding = asyncio.create_task(feed())
        try:
            await near.run()
        finally:
            feeding.cancel()

    @contextmanager
    def raw() -> Iterator[None]:
        before = termios.tcgetattr(0)
        tty.setraw(0, termios.TCSADRAIN)
        try:
            yield
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, before)

    if os.isatty(0):
        with raw():
            asyncio.run(carry())
    else:
        asyncio.run(carry())
    code = codes[0] if codes else 1
    return 128 - code if code < 0 else code


class Allocation(msgspec.Struct, frozen=True):
    """The allocation of a job: its nodes in the order of their numbers."""

    job: str
    shown: str
    """The id that users see: `7` or `7_3`."""
    places: list[Place]
    cpus: float = 0.0
    """CPUs on each node; 0 if not known."""


def allocation_here(environment: Mapping[str, str]) -> Allocation | None:
    """Return the allocation in which this process runs; None outside of jobs."""
    shown = environment.get("SLURM_JOB_ID", "")
    nodes = environment.get("FAIRLEAD_NODES", environment.get("FAIRLEAD_NODE", ""))
    if not shown or not nodes:
        return None
    stage, names = environment.get("FAIRLEAD_STAGE", "main"), nodes.split(",")
    sizes = [int(environment[f"{OF_PARTS}{at}"]) for at in range(int(environment.get("SLURM_HET_SIZE", "0")))]
    if sizes:
        members = [(f"het{part}", at) for part, size in enumerate(sizes) for at in range(size)]
        places = [Place(name, *member) for name, member in zip(names, members, strict=True)]
        return Allocation(shown, shown, places)
    first = int(environment.get("FAIRLEAD_INDEX", "0")) if len(names) == 1 else 0
    places = [Place(name, stage, first + at) for at, name in enumerate(names)]
    cpus = environment.get("SLURM_CPUS_ON_NODE", "0")
    return Allocation(shown.partition("_")[0], shown, places, float(cpus))


def allocation_of(client: Client, shown: str) -> Allocation | None:
    """Return the allocation of a running job; None if it does not run."""
    job, _, index = shown.partition("_")
    view = client.send(op.Job(job=job, tasks=True))
    places = [
        Place(group.node, stage.name, at)
        for stage in view.stages
        for group in stage.tasks
        if group.state == "running"
        for at in each_index(group.indices)
        if not index or at == int(index)
    ]
    wanted = 1 if index or not view.stages or view.stages[0].min == 1 else sum(stage.count for stage in view.stages)
    if len(places) < wanted or not places:
        return None
    places.sort(key=lambda place: (place.stage, place.index))
    return Allocation(job, shown, places[:wanted], view.stages[0].resources.get("cpu", 0))


def spread(tasks: int, nodes: int) -> list[int]:
    """Return the number of tasks on each node."""
    return [tasks // nodes + (at < tasks % nodes) for at in range(nodes)]


def read_programs(path: str) -> list[tuple[set[int], list[str]]]:
    """Return the programs of a file for `--multi-prog`: the tasks, and their words. `*` stands for all other tasks."""
    from fairlead.slurm.rows import each_of

    programs: list[tuple[set[int], list[str]]] = []
    with open(path) as file:
        for line in file:
            words = shlex.split(line, comments=True)
            if words:
                programs.append((set() if words[0] == "*" else set(each_of(words[0])), words[1:]))
    return programs


def program_for(programs: Sequence[tuple[set[int], list[str]]], number: int) -> list[str] | None:
    for tasks, words in programs:
        if number in tasks or not tasks:
            offset = sorted(tasks).index(number) if tasks else number
            return [word.replace("%t", str(number)).replace("%o", str(offset)) for word in words]
    return None
