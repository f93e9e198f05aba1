"""Checks whether the machine can start processes and write files, when a user's spawner reports that it cannot.

Users can lower the limits of their own spawner, or use up their own quota. That must not pause the node for others.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

VALID = 1.0
"""Seconds for which a result is reused."""


class Probe:
    def __init__(self, directory: Path, steady: Callable[[], float] = monotonic) -> None:
        """Use the agent's own directory, which is on the disk of the logs."""
        self._file = directory / "probe"
        self._program = shutil.which("true") or sys.executable
        self._steady = steady
        self._fails = False
        self._until = 0.0

    def fails(self) -> bool:
        """True if the agent itself cannot start a process or write a file. No user can limit the agent."""
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
