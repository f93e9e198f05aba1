"""Programs of Debian packages that tests need. In CI, as root on Debian, missing packages are installed."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")

SECONDS = 400
NO_TORCH = "tests of torch left out: as root, `apt-get install python3-torch` installs it, or `uv pip install torch`"
AGAIN = 3600
"""Seconds after which a failed installation is tried again."""


def installed(find: Callable[[], Found], *packages: str) -> Found:
    """Return what `find` finds; if it finds nothing, install packages where that is possible, and look again."""
    found = find()
    if found or os.environ.get("CI") != "true" or os.geteuid() or not shutil.which("apt-get"):
        return found
    with Path(tempfile.gettempdir(), f"fairlead-{packages[0]}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes run tests
        status = os.fstat(lock.fileno())
        was_tried = status.st_size > 0 and time.time() < status.st_mtime + AGAIN
        if not was_tried and not find():
            lock.write("tried\n")
            _install(packages)
    return find()


def _install(packages: tuple[str, ...]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", *packages]):
        subprocess.run(["apt-get", *command], env=environment, capture_output=True, timeout=SECONDS, check=False)


@cache
def torch_python() -> str:
    """Return a Python that has torch: this one or that of the system; "" without one."""
    if find_spec("torch") is not None:
        return sys.executable
    system = shutil.which("python3", path="/usr/bin")
    find = "import sys, importlib.util; sys.exit(importlib.util.find_spec('torch') is None)"
    return system if system and not subprocess.run([system, "-c", find], check=False).returncode else ""
