"""Programs of Debian packages that tests need. In CI, as root on Debian, missing packages are installed."""

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")

SECONDS = 400
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
