"""Starts a task with one call of `posix_spawn`. Everything that the new process inherits is set before the call.

The spawner has one thread, so it can switch its own working directory to that of the task.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
from time import monotonic

from fairlead.agent.spawner.processes import MARK
from fairlead.agent.spawner.records import RUNNING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fairlead.agent.spawner.keeper_client import AnyLimits
    from fairlead.agent.spawner.records import Result, Task

GPUS = "NVIDIA_VISIBLE_DEVICES"
"""The variable in which the agent passes the GPUs of a task."""
LOG_MODE = 0o640
"""Mode of logs: the agent reads them as a member of their group."""
OPEN = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
"""Flags to open a log. It is always a new file, so a FIFO or link that another task put there is not opened."""
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
        """Prepare to start tasks. `person` has environment variables of their user; a job may override them."""
        self._limits = limits
        self._mark = mark
        self._logs = logs
        self.home = home
        """Working directory of tasks that name none."""
        self._person = person
        self._directory = ""
        self._paths: dict[tuple[str, str], str] = {}

    def mark_of(self, task: Task) -> str:
        return self._mark + task.name

    def start(self, task: Task) -> Result | None:
        """Start a task. Return its result if it cannot be started, else None."""
        assert task.spec is not None
        command, environment, directory, cpu, memory, output, error, _ = task.spec
        environment = self._person | environment
        directory = directory or self.home
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
            why = problem.strerror if isinstance(problem, OSError) else problem
            return ("failed", 126, f"its working directory {directory}: {why}{own}", 0, 0, 0)
        try:
            files = _open_files(task, output, error) if output or error else (None, None)
        except OSError as problem:
            remedy = "; create its folder first" if isinstance(problem, FileNotFoundError) else ""
            return ("failed", 126, f"its output {problem.filename}: {problem.strerror}{remedy}", 0, 0, 0)
        path = self._path(command[0] if command else "", environment.get("PATH", os.defpath))
        gpus = task.own.get(GPUS, "") if task.own and self._limits.guards else ""
        try:
            if gpus:
                room = self._limits.enter(cpu, memory, gpus)
            else:
                room = self._limits.take(cpu, memory) if self._limits.at_once(memory) else None
        except OSError as problem:
            _close(files)
            return ("refused", 0, f"its GPUs cannot be given to it: {problem}", 0, 0, 0)
        began = monotonic()
        try:
            pid = self._spawn(path, command, environment, f"{self._logs}/{task.folder}", name, files)
        except (OSError, ValueError) as problem:
            if room is not None:
                self._limits.give(room)
            self._paths.clear()
            return _why(problem, command)
        finally:
            _close(files)
            if gpus:
                self._limits.leave()
        if room is not None:
            self._limits.put(room, (pid,))
            task.room = room
        task.state = RUNNING
        task.pid = pid
        task.began = began
        return None

    def _spawn(
        self,
        path: str,
        command: tuple[str, ...],
        environment: dict[str, str],
        logs: str,
        name: str,
        files: tuple[int | None, int | None],
    ) -> int:
        """Start a process. Its output goes to `files`; where an entry is None, to a new log."""
        actions: list[tuple[int, int, int] | tuple[int, int, str, int, int]] = []
        created: list[str] = []
        for number, ending, file in ((1, "out", files[0]), (2, "err", files[1])):
            if file is None:
                created.append(f"{logs}/{name}.{ending}")
                actions.append((os.POSIX_SPAWN_OPEN, number, created[-1], OPEN, LOG_MODE))
            else:
                actions.append((os.POSIX_SPAWN_DUP2, file, number))

        def spawn() -> int:
            return os.posix_spawn(
                path, command, environment, file_actions=actions, setsid=True, setsigmask=(), setsigdef=DEFAULT_SIGNALS
            )

        for _ in range(3):
            try:
                return spawn()
            except FileNotFoundError:
                if not created or os.path.lexists(created[0]):
                    raise  # the log exists, so it is the program that is missing
                # The folder of the logs may be missing, or another spawner may be creating it. The agent removes old
                # logs as a member of the folder's group, which is inherited from the parent folder.
                mask = os.umask(0o007)
                try:
                    os.makedirs(logs, 0o770, exist_ok=True)
                finally:
                    os.umask(mask)
            except FileExistsError:
                for log in created:
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


def _open_files(task: Task, output: str, error: str) -> tuple[int | None, int | None]:
    """Open the files that a stage names for its output. This process has the rights of the task's user.

    Standard error goes to the file of standard output if it has none of its own.
    """
    files: list[int | None] = [None, None]
    try:
        for at, pattern in enumerate((output, error)):
            if pattern:
                files[at] = _open_file(name_of(pattern, task))
    except OSError:
        _close((files[0], files[1]))
        raise
    return files[0], files[1] if error else files[0]


def _open_file(name: str) -> int:
    # Not blocking, because opening a FIFO without a reader would block the spawner.
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(fd).st_mode) and name != os.devnull:
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a plain file", name)
    os.set_blocking(fd, True)
    return fd


def name_of(pattern: str, task: Task) -> str:
    """Return a file name from a pattern: %j is the job's id, %s the stage, %a the index, %r the attempt."""
    job, _, stage, attempt = task.meta
    values = {"j": job, "s": stage, "a": str(task.index), "r": str(attempt), "%": "%"}
    name, at = "", 0
    while at < len(pattern):
        is_code = pattern[at] == "%" and at + 1 < len(pattern)
        name += values.get(pattern[at + 1], "") if is_code else pattern[at]
        at += 1 + is_code
    return name


def _close(files: tuple[int | None, int | None]) -> None:
    for fd in {fd for fd in files if fd is not None}:
        os.close(fd)


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
