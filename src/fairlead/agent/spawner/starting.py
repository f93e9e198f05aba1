"""Starts a task with one call of `posix_spawn`. Everything that the new process inherits is set before the call.

The spawner has one thread, so it can change its own working directory to that of the task.
"""

from __future__ import annotations

import errno
import os
import signal
from time import monotonic

from fairlead.agent.spawner.processes import MARK
from fairlead.agent.spawner.records import RUNNING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fairlead.agent.spawner.asking import AnyLimits
    from fairlead.agent.spawner.records import Result, Task

GPUS = "NVIDIA_VISIBLE_DEVICES"
"""The variable in which the agent passes the GPUs of a task."""
LOG_MODE = 0o640
"""The agent reads logs as a member of their group. On a single-user node no other user can enter the folder."""
OPEN = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
"""Logs are new files. A FIFO or link that another task has put there is not opened."""
DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that Python or the spawner ignores, and tasks should not."""
MACHINE_FAULTS = (
    errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO,
    errno.EMFILE, errno.ENFILE, errno.EBADF,
)  # fmt: skip
"""Errors of the machine, not of the task. `posix_spawn` fails with `EBADF` if no descriptor is left for the output."""


class Starter:
    """Starts tasks, with their environment, logs and limits."""

    def __init__(self, limits: AnyLimits, mark: str, logs: str, home: str, person: dict[str, str]) -> None:
        """`person` has environment variables of the user that tasks run as; a job may override them."""
        self._limits = limits
        self._mark = mark
        self._logs = logs
        self._home = home
        self._person = person
        self._directory = ""
        self._paths: dict[tuple[str, str], str] = {}

    def mark_of(self, task: Task) -> str:
        return self._mark + task.name

    def start(self, task: Task) -> Result | None:
        """Start a task. Returns its result if it cannot be started, else None."""
        assert task.spec is not None
        command, environment, directory, cpu, memory = task.spec
        environment = self._person | environment
        directory = directory or self._home
        if task.own:
            environment.update(task.own)
        name = task.name
        environment["FAIRLEAD_JOB"] = task.meta[0]
        environment["FAIRLEAD_STAGE"] = task.meta[2]
        environment["FAIRLEAD_ATTEMPT"] = str(task.meta[3])
        environment["FAIRLEAD_INDEX"] = str(task.index)
        environment[MARK] = self._mark + name
        try:
            if directory != self._directory:
                os.chdir(directory)
                self._directory = directory
        except (OSError, ValueError) as problem:
            shared = self._person and directory.startswith(("/tmp/", "/var/tmp/"))
            own = "; every user has a /tmp of its own on this node" if shared else ""
            return ("failed", 126, f"its working directory {directory}: {problem}{own}", 0, 0, 0)
        path = self._path(command[0] if command else "", environment.get("PATH", os.defpath))
        gpus = task.own.get(GPUS, "") if task.own and self._limits.guards else ""
        try:
            if gpus:
                room = self._limits.enter(cpu, memory, gpus)
            else:
                room = self._limits.take(cpu, memory) if self._limits.at_once(memory) else None
        except OSError as problem:
            return ("refused", 0, f"its GPUs cannot be given to it: {problem}", 0, 0, 0)
        began = monotonic()
        try:
            pid = self._spawn(path, command, environment, f"{self._logs}/{task.folder}", name)
        except (OSError, ValueError) as problem:
            if room is not None:
                self._limits.give(room)
            self._paths.clear()
            return _why(problem, command)
        finally:
            if gpus:
                self._limits.leave()
        if room is not None:
            self._limits.put(room, (pid,))
            task.room = room
        task.state = RUNNING
        task.pid = pid
        task.began = began
        return None

    def _spawn(self, path: str, command: tuple[str, ...], environment: dict[str, str], logs: str, name: str) -> int:
        actions = (
            (os.POSIX_SPAWN_OPEN, 1, f"{logs}/{name}.out", OPEN, LOG_MODE),
            (os.POSIX_SPAWN_OPEN, 2, f"{logs}/{name}.err", OPEN, LOG_MODE),
        )

        def spawn() -> int:
            return os.posix_spawn(
                path, command, environment, file_actions=actions, setsid=True, setsigmask=(), setsigdef=DEFAULT_SIGNALS
            )

        for _ in range(3):
            try:
                return spawn()
            except FileNotFoundError:
                if os.path.lexists(actions[0][2]):
                    raise  # the log was created, so the program is missing
                # The folder of the logs may be missing, and another spawner may be making it.
                # The agent removes old logs as a member of the folder's group, which is that of the folder above.
                mask = os.umask(0o007)
                try:
                    os.makedirs(logs, 0o770, exist_ok=True)
                finally:
                    os.umask(mask)
            except FileExistsError:
                for _, _, log, _, _ in actions:
                    if os.path.lexists(log):
                        os.unlink(log)
        return spawn()

    def _path(self, name: str, search: str) -> str:
        if "/" in name or not name:
            return name
        path = self._paths.get((name, search))
        if path is None:
            path = name
            for folder in search.split(os.pathsep):
                candidate = f"{folder or '.'}/{name}"
                if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
                    path = candidate
                    break
            if path.startswith("/"):
                self._paths[name, search] = path
        return path


def _why(problem: OSError | ValueError, command: tuple[str, ...]) -> Result:
    """Return the result of a task that cannot be started: `refused` for a machine error, otherwise `failed`."""
    if isinstance(problem, ValueError):
        return ("failed", 126, f"it cannot be started: {problem}", 0, 0, 0)
    if problem.errno in MACHINE_FAULTS:
        return ("refused", 0, f"no process could be started: {problem.strerror}", 0, 0, 0)
    name = command[0] if command else ""
    if problem.errno == errno.ENOENT:
        return ("failed", 127, f"command not found: {name}", 0, 0, 0)
    return ("failed", 126, f"{name}: {problem.strerror}", 0, 0, 0)
