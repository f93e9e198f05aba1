"""The keeper of a user's spawner, and what it does when things around it end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.agent.spawner import keeper_client
from fairlead.agent.spawner.cgroups import Limits, Room
from fairlead.agent.spawner.guard import Lease
from fairlead.agent.spawner.keeper import Keeping
from fairlead.agent.spawner.keeper_client import AskedLimits
from tests.people import needs_root

pytestmark = needs_root
SECONDS = 30.0

KEEP = """
import os, sys, time
from fairlead.agent.spawner import confine, root
from fairlead.agent.spawner.users import Person

class Fails(root.Keeping):
    def begin(self, spawner, processes):
        raise ValueError("no cgroup today")

    def end(self):
        super().end()
        os.write(told, b"cleaned up")

told = os.dup(1)
root.Keeping = Fails
confine.adopt_orphans()
if not os.fork():
    try:
        root.keep(sys.argv[1], Person("some", 23451, 23451, [23451], "/", "/bin/sh"), (0, 0), False, False)
    finally:
        os._exit(1)
left = 2
until = time.monotonic() + 5
while left and time.monotonic() < until:
    try:
        left -= os.waitpid(-1, os.WNOHANG)[0] > 0
    except ChildProcessError:
        break
    time.sleep(0.01)
else:
    for pid in open("/proc/thread-self/children").read().split():
        os.kill(int(pid), 9)
        print("a process is left")
"""


def keeper_that_fails(folder: Path) -> str:
    """Run a keeper that started a spawner and gets no cgroups for it. Returns its output."""
    done = subprocess.run(
        [sys.executable, "-c", KEEP, str(folder)], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.stderr == ""
    return done.stdout


def test_no_spawner_is_left_when_its_keeper_cannot_go_on(tmp_path: Path) -> None:
    assert "a process is left" not in keeper_that_fails(tmp_path)


def test_a_keeper_that_cannot_go_on_cleans_up(tmp_path: Path) -> None:
    assert keeper_that_fails(tmp_path) == "cleaned up"


def test_a_keeper_does_not_end_with_a_spawner_that_was_killed_around_a_question() -> None:
    keeping = Keeping(f"test-{os.getpid()}", 0, (), Lease())
    try:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        its.send(b"leave 1")
        its.close()
        keeping.serve(ours)  # the spawner is gone, so the answer cannot be sent
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.send(b"ok")
        its.close()
        keeping.serve(ours)  # an answer was not taken
    finally:
        keeping.end()


def test_a_keeper_ends_what_is_left_of_one_that_was_killed() -> None:
    name = f"test-{os.getpid()}"
    first = Keeping(name, 0, (), Lease())
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            first.begin(process.pid, 1_000)
            if not first.limits.holds(process.pid) or not first.limits._processes:
                pytest.skip("no cgroups for all processes of a user here, and nodes say so")
            Keeping(name, 0, (), Lease()).end()
            assert process.wait(SECONDS) == -9
        finally:
            process.kill()
            process.wait()
            first.end()


class Groups(Limits):
    """Cgroups of version 2 as they look, in plain folders."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.note, self.kind, self._processes = "", "v2", ""

    def at_once(self, memory: int) -> bool:
        return memory > 0

    outside = ""

    @property
    def tree(self) -> str:
        return str(self._folder)

    def take(self, cpu: int, memory: int) -> Room:
        return Room(f"{self._folder}/1", True)

    def set(self, room: Room, cpu: int, memory: int) -> None: ...

    def put(self, room: Room, pids: Any) -> None: ...


def test_a_task_without_gpus_finds_none_of_the_task_before_it(tmp_path: Path) -> None:
    keeping = Keeping(f"test-{os.getpid()}", 0, ((195, 0), (195, 1)), Lease())
    keeping.end()
    keeping.limits, keeping._tree = Groups(tmp_path), str(tmp_path)
    denied: list[list[Any]] = []
    (tmp_path / "main").mkdir()

    class Guard:
        def deny(self, devices: Any) -> None:
            denied.append([minor for _, minor in devices])

    keeping._guards = dict.fromkeys((f"{tmp_path}/1", f"{tmp_path}/main"), Guard())  # type: ignore[arg-type]
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        server = threading.Thread(target=keeping.serve, args=(ours,))
        server.start()
        asked = AskedLimits(its, keeping.limits, guards=True)
        room = asked.enter(500, 0, "1")
        asked.leave()
        asked.put(room, (1,))
        asked.leave()  # what was asked before is done
        assert denied[-1] == [0], "it keeps its GPU"
        asked.give(room)
        assert asked.take(500, 0) is room
        asked.put(room, (1,))
        asked.leave()
        assert denied[-1] == [0, 1]
        its.shutdown(socket.SHUT_RDWR)
        server.join()


class Ended(BaseException):
    """Raised instead of ending the process."""


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, AskedLimits]]:
    """A keeper that answers after the timeout."""

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(keeper_client, "KEEPER_TIMEOUT", 0.05)
    monkeypatch.setattr(os, "_exit", end)
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        yield ours, AskedLimits(its, Groups(tmp_path), guards=True)


def test_a_late_answer_does_not_count_for_the_next_question(slow: tuple[socket.socket, AskedLimits]) -> None:
    keeper, asked = slow
    room = asked.take(500, 0)
    assert room is not None
    assert not asked.ran_over(room)
    number = keeper.recv(100).split()[1]
    keeper.send(number + b" ok")
    assert not asked.ran_over(room), "it is the answer to the first question"
    keeper.recv(100)
    keeper.send(b"3 ok")
    assert asked.ran_over(room)


def test_a_spawner_ends_if_it_does_not_know_its_cgroup(
    slow: tuple[socket.socket, AskedLimits], capfd: pytest.CaptureFixture[str]
) -> None:
    keeper, asked = slow
    with pytest.raises(Ended, match="5"):
        asked.enter(500, 0, "1")
    assert "entered" in capfd.readouterr().err
    keeper.send(b"2 no such group")
    with pytest.raises(Ended, match="5"):
        asked.leave()
    with pytest.raises(Ended, match="5"):
        asked.leave()
    keeper.send(b"4 no such GPU")
    with pytest.raises(OSError, match="no such GPU"):
        asked.enter(500, 0, "1")
