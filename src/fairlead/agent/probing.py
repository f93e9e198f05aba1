"""Checks if the machine can start processes and write files, when a user's spawner reports that it cannot.

A user can lower the limits of its own spawner, or use up its own quota. That must not pause the node for other users.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

VALID = 1.0
"""Seconds for which an answer is used again."""


class Probe:
    def __init__(self, directory: Path, steady: Callable[[], float] = monotonic) -> None:
        """`directory` is the agent's own, on the disk of the logs."""
        self._file = directory / "probe"
        self._program = shutil.which("true") or sys.executable
        self._steady = steady
        self._fails = False
        self._until = 0.0

    def fails(self) -> bool:
        """True if this process, which no user can limit, cannot start a process or write a file either."""
        now = self._steady()
        if now >= self._until:
            self._fails, self._until = not self._works(), now + VALID
        return self._fails

    def _works(self) -> bool:
        try:
            self._file.write_bytes(bytes(4096))
            self._file.unlink()
            os.waitpid(os.posix_spawn(self._program, [self._program, "--version"], {}, file_actions=_SILENT), 0)
        except OSError:
            return False
        return True


_SILENT = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
