"""Starting a task: one call, with everything that the new process inherits set before it.

The spawner has one thread, so that its own working directory can be that of the task for a moment.
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
"""The variable by which the agent says which GPUs a task was given."""
LOG_MODE = 0o640
"""The agent reads logs as a member of their group; in a folder that only one user can enter that changes nothing."""
OPEN = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
"""Logs are made anew. A FIFO or link that another task has put there is not opened."""
DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What Python or the spawner ignores, and tasks should not."""
MACHINE_FAULTS = (
    errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO,
    errno.EMFILE, errno.ENFILE, errno.EBADF,
)  # fmt: skip
"""Without a descriptor for the output of a task, `posix_spawn` says `EBADF`."""


class Starter:
    def __init__(self, limits: AnyLimits, mark: str, logs: str, home: str, person: dict[str, str]) -> None:
        """`person` has variables of the user that tasks run as, which a job may set otherwise."""
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
        """Start it, or say why that cannot be."""
        assert task.spec is not None
        command, environment, directory, folder, cpu, memory = task.spec
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
        given = task.own.get(GPUS, "") if task.own and self._limits.guards else ""
        try:
            if given:
                room = self._limits.enter(cpu, memory, given)
            else:
                room = self._limits.take(cpu, memory) if self._limits.at_once(memory) else None
        except OSError as problem:
            return ("refused", 0, f"its GPUs cannot be given to it: {problem}", 0, 0, 0)
        began = monotonic()
        try:
            pid = self._spawn(path, command, environment, f"{self._logs}/{folder}", name)
        except (OSError, ValueError) as problem:
            if room is not None:
                self._limits.give(room)
            self._paths.clear()
            return _why(problem, command)
        finally:
            if given:
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
                    raise  # its log was made, so it is the program that is missing
                # It may be the folder of the logs that is missing, and another spawner may be making it.
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
        found = self._paths.get((name, search))
        if found is None:
            found = name
            for folder in search.split(os.pathsep):
                candidate = f"{folder or '.'}/{name}"
                if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
                    found = candidate
                    break
            if found.startswith("/"):
                self._paths[name, search] = found
        return found


def _why(problem: OSError | ValueError, command: tuple[str, ...]) -> Result:
    """A command that cannot be started is its own fault, unless the machine is out of something."""
    if isinstance(problem, ValueError):
        return ("failed", 126, f"it cannot be started: {problem}", 0, 0, 0)
    if problem.errno in MACHINE_FAULTS:
        return ("refused", 0, f"no process could be started: {problem.strerror}", 0, 0, 0)
    name = command[0] if command else ""
    if problem.errno == errno.ENOENT:
        return ("failed", 127, f"command not found: {name}", 0, 0, 0)
    return ("failed", 126, f"{name}: {problem.strerror}", 0, 0, 0)
