"""`fairlead attach` and `fairlead forward`, and the terminal of a task on the user's terminal."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import typer

from fairlead.cli.option_values import wrong
from fairlead.cli.options import Common, LiveJobName
from fairlead.cli.output import print_text
from fairlead.cli.typer_commands import argument, option

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.client.tunnel import Streams
    from fairlead.wire import operations as op

PAUSE = 0.1
"""Seconds between two looks for the next attempt of a task."""
TASK = re.compile(r"\d+")


class Escape:
    """Finds `~.` at the beginning of a line of input, with which users leave a terminal that does not answer."""

    def __init__(self) -> None:
        self._state = "start"

    def __call__(self, data: bytes) -> bytes | None:
        """Return what is to be sent; None if the user leaves."""
        sent = bytearray()
        for byte in data:
            if self._state == "tilde":
                if byte == ord("."):
                    return None
                if byte != ord("~"):
                    sent.append(ord("~"))
                self._state = "middle"
            elif self._state == "start" and byte == ord("~"):
                self._state = "tilde"
                continue
            sent.append(byte)
            self._state = "start" if byte in b"\r\n" else "middle"
        return bytes(sent)


def is_terminal() -> bool:
    """True if input and output of this command are a terminal."""
    return os.isatty(0) and os.isatty(1)


@contextmanager
def raw_terminal() -> Iterator[None]:
    """Let the terminal pass every key on, also Ctrl-C and Ctrl-Z, which then reach the task."""
    import termios
    import tty

    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead is kept
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def converse(client: Client, wanted: op.OpenTunnel, terminal: bool, stdin: bool = True) -> Streams:
    """Carry the standard streams of this command to and from a task until it ends. Return these streams.

    With `terminal`, the task has a terminal, and this command's terminal is passed on to it.
    """
    import asyncio

    from fairlead.client.tunnel import Streams

    raw = terminal and os.isatty(0)

    def told(text: str) -> None:
        ending = "\r\n" if raw else "\n"
        with suppress(OSError):
            os.write(2, f"{ending if raw else ''}fairlead: {text}{ending}".encode())

    async def carry() -> Streams:
        loop = asyncio.get_running_loop()
        changed: Any = Escape() if raw else lambda data: data
        streams = Streams(client, wanted, 0 if stdin else None, (1, 2), told, changed)

        def resize() -> None:
            with suppress(OSError):
                size = os.get_terminal_size(0 if os.isatty(0) else 1)
                streams.resize(size.lines, size.columns)

        if terminal:
            resize()
            loop.add_signal_handler(signal.SIGWINCH, resize)
        await streams.run()
        return streams

    with raw_terminal() if raw else nullcontext():
        return asyncio.run(carry())


def converse_with_job(client: Client, job: str, leave: Callable[[], None]) -> None:
    """Carry the standard streams of this command to and from the only task of a job, and of its later attempts.

    `leave` is called if the user leaves the terminal.
    """
    from fairlead.cli.task_output import until_started
    from fairlead.client import Problem
    from fairlead.wire import operations as op

    attempt = 0
    while True:
        view = until_started(client, job)
        [task] = client.tasks(job)
        if task.attempt <= attempt:
            if view.over:
                return
            time.sleep(PAUSE)
            continue
        [stage] = view.stages
        if attempt and not stage.pty:
            client.kill(job)
            text = f"task 0 was started again (attempt {task.attempt}), but its input was read; job {job} is killed"
            print_text(f"fairlead: {text}", err=True)
            return
        if attempt:
            print_text(f"fairlead: attempt {task.attempt} of task 0", err=True)
        wanted = op.OpenTunnel(job=job, attempt=task.attempt, tunnel=uuid4().hex, kind="task")
        attempt = task.attempt
        try:
            streams = converse(client, wanted, stage.pty)
        except Problem as problem:
            if problem.code not in ("conflict", "gone", "missing"):
                raise
            print_text(f"fairlead: {problem}", err=True)
            if problem.code == "gone" and stage.pty:
                attempt -= 1  # enter the terminal again, as a new client
            elif problem.code == "gone":
                client.kill(job)
            time.sleep(PAUSE)
            continue
        if streams.left:
            leave()


class AttachOptions(Common):
    job: LiveJobName
    words: list[str] | None = argument(
        "Index of the task, by default 0; then the program and its arguments, by default the shell of its user.",
        metavar="[TASK] [COMMAND…]",
    )
    stage: str = option("Name of the stage, if the job has several.")


def attach(options: AttachOptions) -> None:
    """Enter a running task: a shell, or a command, in its environment.

    The process runs as the task's user, with its variables, limits and GPUs, and ends with it at the latest. If the
    task has a terminal of its own (--pty) and no command is given, this is that terminal, and it can be entered again
    later.

    fairlead attach 12

    fairlead attach 12 3 nvidia-smi

    On a terminal, Ctrl-C and Ctrl-Z reach the process, and a line that begins with ~. leaves it; otherwise Ctrl-C ends
    the process. The exit code is that of the process.
    """
    from fairlead.wire import operations as op

    words = list(options.words or ())
    index = int(words.pop(0)) if words and TASK.fullmatch(words[0]) else 0
    if words[:1] == ["--"]:
        del words[0]
    with options.client() as client:
        stages = [stage for stage in client.job(options.job).stages if options.stage in ("", stage.name)]
        own = not words and len(stages) == 1 and stages[0].pty
        new_terminal = not own and is_terminal()
        variables = [f"TERM={os.environ['TERM']}"] if new_terminal and os.environ.get("TERM") else []
        wanted = op.OpenTunnel(
            job=options.job,
            stage=options.stage,
            index=index,
            tunnel=uuid4().hex,
            kind="task" if own else "command",
            command=words,
            environment=variables,
            terminal=new_terminal,
        )
        try:
            streams = converse(client, wanted, own or new_terminal)
        except KeyboardInterrupt:
            raise typer.Exit(128 + signal.SIGINT) from None
    raise _exit_as(streams)


def _exit_as(streams: Streams) -> typer.Exit:
    """Print why streams ended, and return the exit of this command."""
    if streams.left:
        print_text("fairlead: left; the task continues", err=True)
        return typer.Exit(0)
    if streams.why:
        print_text(f"fairlead: {streams.why}", err=True)
    return typer.Exit(streams.code if streams.code is not None and 0 <= streams.code < 256 else 1)


class ForwardOptions(Common):
    job: LiveJobName
    ports: list[str] = argument(
        "Port of the task, such as 8888; or LOCAL:PORT to choose the local port. The local port is by default the "
        "same, or a free one if it is taken.",
        metavar="PORT…",
        required=True,
    )
    index: int = option("Index of the task, from 0.", "-i", min=0, default=0)
    stage: str = option("Name of the stage, if the job has several.")


def forward(options: ForwardOptions) -> None:
    """Bring ports of a running task to this machine, such as those of a notebook or of TensorBoard.

    The ports are those of the task's node at its own address, 127.0.0.1, and only this machine can connect to the local
    ports. Connections go on when the server or the network is away for less than a minute. Ctrl-C ends them; the task
    continues.

    fairlead forward 12 8888
    """
    import asyncio

    from fairlead.client.tunnel import Ports
    from fairlead.wire import operations as op

    pairs = [_port_pair(text) for text in options.ports]
    with options.client() as client:
        wanted = op.OpenTunnel(
            job=options.job, stage=options.stage, index=options.index, tunnel=uuid4().hex, kind="ports"
        )

        async def carry() -> None:
            ports = Ports(client, wanted, lambda text: print_text(f"fairlead: {text}", err=True))
            for local, port in pairs:
                try:
                    number = await ports.listen("127.0.0.1", port if local is None else local, port)
                except OSError as problem:
                    if local is not None:
                        raise wrong(
                            "PORT", f"port {local} of this machine cannot be used: {problem.strerror}"
                        ) from None
                    number = await ports.listen("127.0.0.1", 0, port)
                print_text(f"http://127.0.0.1:{number} is port {port} of task {options.index} of job {options.job}")
            sys.stdout.flush()
            await ports.run()

        with suppress(KeyboardInterrupt):
            asyncio.run(carry())


def _port_pair(text: str) -> tuple[int | None, int]:
    local, sign, port = text.rpartition(":")
    numbers = [int(part) if part.isdigit() and len(part) < 6 else 0 for part in ((local, port) if sign else (port,))]
    if not all(0 < number < 65536 for number in numbers):
        raise wrong("PORT", f"{text!r} is not a port; write 8888, or 9000:8888 for port 9000 of this machine")
    return (numbers[0] if sign else None), numbers[-1]
