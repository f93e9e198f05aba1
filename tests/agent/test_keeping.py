"""The keeper of a user's spawner, and what it does when things around it end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
    """What there is to tell of a keeper that has made a spawner and can have no cgroups for it."""
    done = subprocess.run(
        [sys.executable, "-c", KEEP, str(folder)], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.stderr == ""
    return done.stdout


def test_no_spawner_is_left_when_its_keeper_cannot_go_on(tmp_path: Path) -> None:
    assert "a process is left" not in keeper_that_fails(tmp_path)
