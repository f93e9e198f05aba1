"""System users for tests: made with `useradd`, removed with `userdel`. Only root can do that."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("useradd") is None, reason="needs root and useradd: tasks run as system users"
)
LOCKED = 10
"""The exit code of `useradd` and `userdel` while another process changes the users."""
IN_USE = 8
"""The exit code of `userdel` while a process of the user runs; a stopped one may take a moment to end."""


class People:
    """The system user of an agent, those of tasks, and the map from Fairlead's user names."""

    def __init__(self, folder: Path, *users: str) -> None:
        self.folder = folder
        self.agent = f"flagent{os.getpid()}"
        self.names = {user: f"fl{user}{os.getpid()}" for user in users}
        self.map_file = folder / "users.map"

    @property
    def options(self) -> tuple[str, str]:
        return f"--user={self.agent}", f"--user-map={self.map_file}"


@contextmanager
def people(*users: str) -> Iterator[People]:
    # Not below /tmp, which is private to each task; every user can pass through this folder.
    folder = Path(tempfile.mkdtemp(prefix="fairlead-test-", dir="/var/lib"))
    folder.chmod(0o711)
    found = People(folder, *users)
    try:
        _do("useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", found.agent)
        for name in found.names.values():
            _do("useradd", "--no-create-home", "--home-dir", str(folder / name), "--shell", "/bin/sh", name)
            (folder / name).mkdir(mode=0o700)
            shutil.chown(folder / name, name, name)
        found.map_file.write_text("".join(f"{user}={name}\n" for user, name in found.names.items()))
        found.map_file.chmod(0o644)
        yield found
    finally:
        for name in (found.agent, *found.names.values()):
            _do("userdel", name)
        shutil.rmtree(folder)


def _do(*command: str) -> None:
    for _ in range(600):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in (1, IN_USE, LOCKED):
            break
        time.sleep(0.1)
    assert done.returncode in (0, 6), done.stderr
