"""Devices that only the tasks they were given to can open. Plain device files stand for GPUs."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator

import pytest

from fairlead.agent.spawner.guard import Lease
from fairlead.agent.spawner.keeper import Keeping, can_guard
from fairlead.agent.spawner.keeper_client import AskedLimits
from tests.people import needs_root

pytestmark = needs_root
DEVICES = ("/dev/zero", "/dev/full")


class Shell:
    """A process that says which of the devices it can open."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(["/bin/sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def opens(self) -> list[str]:
        assert self.process.stdin is not None and self.process.stdout is not None
        found = []
        for device in DEVICES:
            self.process.stdin.write(f"(: < {device}) 2>/dev/null && echo yes || echo no\n")
            self.process.stdin.flush()
            found.append(self.process.stdout.readline().strip())
        return found


@pytest.fixture
def shell() -> Iterator[Shell]:
    if not can_guard():
        pytest.skip("no cgroups of version 2 with programs here, and nodes say so")
    one = Shell()
    yield one
    one.process.kill()
    one.process.wait()


def test_a_spawner_has_no_device_but_while_it_starts_a_task_that_was_given_it(shell: Shell) -> None:
    numbers = tuple((os.major(os.stat(each).st_rdev), os.minor(os.stat(each).st_rdev)) for each in DEVICES)
    keeping = Keeping(f"test-{os.getpid()}", 0, numbers, Lease())
    assert shell.opens() == ["yes", "yes"]
    keeping.begin(shell.process.pid, 1_000)
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = threading.Thread(target=keeping.serve, args=(ours,))
    server.start()
    asked = AskedLimits(its, keeping.limits, guards=True)
    try:
        assert shell.opens() == ["no", "no"]
        room = asked.enter(500, 0, "1")
        assert shell.opens() == ["no", "yes"]
        asked.leave()
        assert shell.opens() == ["no", "no"]
        asked.give(room)
        asked.enter(500, 0, "0,1")
        assert shell.opens() == ["yes", "yes"]
        asked.leave()
        with pytest.raises(OSError, match="out of range"):
            asked.enter(500, 0, "7")
        with pytest.raises(OSError, match="invalid literal"):
            asked.enter(500, 0, "GPU-1")
        assert shell.opens() == ["no", "no"]
    finally:
        its.close()
        server.join()
        shell.process.kill()
        shell.process.wait()
        keeping.end()
    assert not os.path.exists(keeping._tree)
