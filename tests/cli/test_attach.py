"""Terminals in tasks, standard input, commands beside tasks and forwarded ports, with a real terminal."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pty
import re
import select
import shlex
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import fairlead
from tests.live import PROGRAM, SECONDS, Up
from tests.until import until

SHELL = ("--env", "PS1=> ", "--", "bash", "--norc", "--noprofile")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    site = Up(tmp_path_factory.mktemp("attach") / "data")
    site.until("node", "list", said="box")
    yield site
    site.close()


class Screen:
    """A command of ours on a terminal."""

    def __init__(self, up: Up, *arguments: str) -> None:
        self.pid, self.fd = pty.fork()
        if not self.pid:
            environment = {**up.environment, "TERM": "dumb"}
            os.chdir(up.folder.parent)
            os.execve(PROGRAM, [PROGRAM, *arguments], environment)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
        self.said = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def until(self, text: str) -> str:
        """Wait until the screen shows a text, and return what it showed before. Later calls see what follows."""
        deadline = time.monotonic() + SECONDS
        while text not in self.said:
            assert time.monotonic() < deadline, self.said
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    data = os.read(self.fd, 1 << 16)
                except OSError:
                    data = b""
                assert data, self.said
                self.said += data.decode("utf-8", "replace")
        before, _, self.said = self.said.partition(text)
        return before

    def _readable(self) -> bool:
        assert select.select([self.fd], [], [], SECONDS)[0], self.said
        return True

    def code(self) -> int:
        """Wait for the end and return the exit code."""
        with suppress(OSError):
            while self._readable() and (data := os.read(self.fd, 1 << 16)):
                self.said += data.decode("utf-8", "replace")
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


@contextmanager
def job(up: Up, *command: str) -> Iterator[str]:
    number = up.run("submit", "--cpu", "100m", *command).strip()
    up.until("show", number, said=" running ")
    try:
        yield number
    finally:
        up.ask("kill", number)


def test_a_terminal_has_its_size_and_its_keys(up: Up) -> None:
    screen = Screen(up, "run", "--pty", "--cpu", "100m", *SHELL)
    screen.until("> ")
    screen.type("stty size; tty\n")
    screen.until("33 77")
    screen.until("/dev/pts/")
    fcntl.ioctl(screen.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 99, 0, 0))
    screen.type("until stty size | grep '40 99'; do :; done; echo done\n")
    screen.until("40 99\r\n")
    screen.type("sh -c 'echo g\"\"o; exec sleep 1000'\n")
    screen.until("go\r\n")
    screen.type("\x03")
    screen.until("> ")
    screen.type("echo code=$?\n")
    screen.until("code=130")
    screen.type("sh -c 'echo g\"\"o; exec sleep 1000'\n")
    screen.until("go\r\n")
    screen.type("\x1a")
    screen.until("Stopped")
    screen.type("exec sh -c 'exit 5'\n")
    assert screen.code() == 5
    said = re.findall(r"job (\d+) failed", screen.said)
    assert said and "code=130" in up.run("logs", said[0])


def test_leaving_a_terminal_kills_the_job_of_run(up: Up) -> None:
    screen = Screen(up, "run", "--pty", "--cpu", "100m", *SHELL)
    screen.until("> ")
    screen.type("echo it~.\n")  # in the middle of a line it means nothing
    screen.until("it~.\r\n")
    screen.until("> ")
    screen.type("\r~.")
    assert screen.code() == 130
    assert "was killed" in screen.said


def test_a_terminal_is_entered_again(up: Up) -> None:
    with job(up, "--pty", *SHELL) as number:
        one = Screen(up, "attach", number)
        one.type("X=1234; echo got $X\n")
        one.until("got 1234")
        two = Screen(up, "attach", number)
        two.until("got 1234")  # what the screen showed last
        assert one.code() == 1 and "taken this terminal over" in one.said
        two.type("echo again $X\n")
        two.until("again 1234")
        two.type("\r~.")
        assert two.code() == 0 and "the task continues" in two.said
        assert " running " in up.run("show", number)


def test_a_command_beside_a_task(up: Up) -> None:
    with job(up, "--env", "COLOUR=blue", "--", "sleep", "1000") as number:
        said = up.run(
            "attach", number, "sh", "-c", "echo $COLOUR $FAIRLEAD_JOB; cat; echo no >&2; exit 3", code=3, text="in"
        )
        assert said == f"blue {number}\nin"
        assert up.run("attach", number, "0", "--", "echo", "hi") == "hi\n"
        assert "command not found: nosuch" in up.ask("attach", number, "nosuch").stderr
        assert "has 1 tasks" in up.ask("attach", number, "7", "true").stderr
        screen = Screen(up, "attach", number)
        screen.type("echo $((40 + 2))-$COLOUR; exit 4\n")
        screen.until("42-blue")
        assert screen.code() == 4
        with fairlead.Client(up.url, up.token) as client:
            done = client.attach(number, ["sh", "-c", "cat; echo err >&2; exit 2"], input=b"a" * 3_000_000)
            assert (done.returncode, len(done.stdout), done.stderr) == (2, 3_000_000, b"err\n")
        beside = subprocess.Popen(
            [PROGRAM, "attach", number, "sleep", "1000"], env=up.environment, stdin=subprocess.DEVNULL
        )
        until(lambda: up.ask("attach", number, "sh", "-c", "ps -e -o args= | grep -c '^sleep 100[0]'").stdout == "2\n")
    assert beside.wait(SECONDS) != 0, "it ends with its task"
    assert "does not run" in up.ask("attach", number, "true").stderr
    assert 'no job "none"' in up.ask("attach", "none").stderr


def test_only_the_user_of_a_job_enters_it(up: Up) -> None:
    with job(up, "--", "sleep", "1000") as number:
        other = up.run("token", "create", "--role", "operator", "--user", "bob", "--json")
        secret = re.findall(r'"secret": ?"([^"]+)"', other)[0]
        with (
            fairlead.Client(up.url, secret) as client,
            pytest.raises(fairlead.Problem, match="belongs to ann") as found,
        ):
            client.attach(number, ["true"])
        assert found.value.status == 403
        with fairlead.Client(up.url, "fl_wrong") as client, pytest.raises(fairlead.Problem) as found:
            client.attach(number, ["true"])
        assert found.value.status == 401


def test_much_goes_through_a_pipe(up: Up, tmp_path: Path) -> None:
    data = os.urandom(1 << 20) * 24
    (tmp_path / "in").write_bytes(data)
    with (tmp_path / "in").open("rb") as file, (tmp_path / "out").open("wb") as out:
        subprocess.run([PROGRAM, "run", "cat"], env=up.environment, stdin=file, stdout=out, check=True, timeout=SECONDS)
    assert hashlib.sha256((tmp_path / "out").read_bytes()).digest() == hashlib.sha256(data).digest()
    head = subprocess.run(
        f"{shlex.quote(PROGRAM)} run cat < {tmp_path}/in | head -c 10 | wc -c",
        shell=True,
        env=up.environment,
        capture_output=True,
        check=True,
    )
    assert head.stdout == b"10\n"
    # A task that reads nothing ends the command, although there is more input.
    assert up.run("run", "true", text="x" * 5_000_000) == ""


def test_an_interrupt_loses_no_output(up: Up) -> None:
    for extra in ((), ("--array", "2")):
        script = "trap 'echo last words; exit 0' TERM; echo begun; while :; do sleep 0.01; done"
        process = subprocess.Popen(
            [PROGRAM, "run", *extra, "--cpu", "100m", "--shell", script],
            env=up.environment,
            stdin=subprocess.DEVNULL if extra else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for _ in range(len(extra) or 1):
            assert "begun" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=SECONDS)
        assert out.count("last words") == (len(extra) or 1), (out, errors)
        assert process.returncode == 130 and "Traceback" not in errors and "was killed" in errors


def test_ports_and_terminals_outlast_a_restart(tmp_path: Path) -> None:
    up = Up(tmp_path / "data")
    try:
        up.until("node", "list", said="box")
        with socket.create_server(("127.0.0.1", 0)) as listener, job(up, "--", "sleep", "1000") as number:
            port = listener.getsockname()[1]
            process = subprocess.Popen(
                [PROGRAM, "forward", number, str(port)], env=up.environment, stdout=subprocess.PIPE, text=True
            )
            assert process.stdout is not None
            local = int(re.findall(r"127.0.0.1:(\d+)", process.stdout.readline())[0])
            screen = Screen(up, "run", "--pty", "--cpu", "100m", *SHELL)
            screen.until("> ")
            screen.type("X=77; echo ready\n")
            screen.until("ready\r\n")
            with socket.create_connection(("127.0.0.1", local), SECONDS) as near:
                far, _ = listener.accept()
                near.sendall(b"before")
                assert far.recv(100) == b"before"
                options = up._options
                up.interrupt()
                near.sendall(b"meanwhile")
                screen.type("echo X is $X\n")
                up._options = (*options, "--port", up.url.rpartition(":")[2])
                up.start()
                far.settimeout(SECONDS)
                assert far.recv(100) == b"meanwhile"
                far.sendall(b"after")
                near.settimeout(SECONDS)
                assert near.recv(100) == b"after"
                far.close()
                assert near.recv(100) == b""
            screen.until("X is 77")
            screen.type("exit\n")
            assert screen.code() == 0
            with socket.create_connection(("127.0.0.1", local), SECONDS) as near:
                listener.close()
                near.settimeout(SECONDS)
            with (
                fairlead.Client(up.url, up.token) as client,
                client.forward(number, 1) as closed,
                socket.create_connection(("127.0.0.1", closed), SECONDS) as near,
            ):
                near.settimeout(SECONDS)
                assert near.recv(1) == b"", "nothing listens at port 1"
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS) == 0
    finally:
        up.close()
