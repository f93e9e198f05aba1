"""Starts a task with one call of `posix_spawn`. The new process inherits the spawner's working directory and cgroup.

So the spawner, which has one thread, changes them before the call.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import sys
from time import monotonic

from fairlead.agent.spawner.files import LOG_MODE, make_log_folder
from fairlead.agent.spawner.processes import MARK
from fairlead.agent.spawner.records import OWN_FOLDER, PARAMETER, PTY, RUNNING
from fairlead.agent.spawner.shared_logs import path_of
from fairlead.wire.tunnel_frames import ERRORS, STANDARD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fairlead.agent.spawner.cgroups import Limits, Room
    from fairlead.agent.spawner.records import Result, Task
    from fairlead.agent.spawner.shared_logs import SharedLogs

    Files = tuple[int | None, int | None]
    """Descriptors for standard output and error. None stands for a log."""

GPUS = "NVIDIA_VISIBLE_DEVICES"
"""The variable in which the agent passes the GPUs of a task."""
PYTHONS = (sys.executable, "/usr/bin/python3")
"""Interpreters for preludes, the best first. The user of the tasks may not be able to run that of the agent."""
PRELUDE = (
    "-I",
    "-S",
    "-c",
    "import sys; sys.path.append(sys.argv[1]);"
    "from fairlead.agent.spawner.prelude import main; sys.exit(main(*sys.argv[2:]))",
    os.path.abspath(f"{os.path.dirname(__file__)}/../../.."),
)
"""The first arguments of a prelude."""
MAX_WORD = 131_072
"""Characters of a word of a command. The kernel accepts no longer ones."""
OPEN = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
"""Flags to open a log. It is always a new file, so a FIFO or link that another task put there is not opened."""
DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that Python or the spawner ignores, and tasks should not."""
MACHINE_FAULTS = (
    errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO,
    errno.EMFILE, errno.ENFILE, errno.EBADF,
)  # fmt: skip
"""Errors of the machine, not of the task. `posix_spawn` fails with `EBADF` if no descriptor is left for the output."""


class CannotStart(Exception):
    """Raised if a task cannot be started."""

    def __init__(self, kind: str, code: int, why: str) -> None:
        super().__init__(why)
        self.result: Result = (kind, code, why, 0, 0, 0)


class Ends:
    """The descriptors of a process whose standard streams are a tunnel's: its own, and those of the relay.

    -1 stands for none.
    """

    def __init__(self, stdin: int, theirs: int, terminal: str = "") -> None:
        """Take both ends of the standard input, the relay's and the process's, and the path of the terminal, if any."""
        self.stdin = stdin
        self.terminal = terminal
        self.theirs = [theirs, -1, -1]
        """Standard input, output and error of the process."""
        self.outputs: dict[int, tuple[int, int]] = {}
        """Channel → what the relay reads, and the log that gets a copy."""

    def close(self) -> None:
        for fd in {self.stdin, *self.theirs, *(fd for pair in self.outputs.values() for fd in pair)}:
            if fd >= 0:
                os.close(fd)


def open_ends(kind: str) -> Ends:
    """Open a terminal, or pipes for standard input, output and error."""
    if kind == PTY:
        master, slave = os.openpty()
        ends = Ends(master, slave, os.ttyname(slave))
        ends.outputs[STANDARD] = (master, -1)
        return ends
    theirs, ours = os.pipe()
    ends = Ends(ours, theirs)
    for channel in (STANDARD, ERRORS):
        _add_pipe(ends, channel, -1)
    return ends


def _add_pipe(ends: Ends, channel: int, log: int) -> None:
    source, ends.theirs[channel] = os.pipe()
    ends.outputs[channel] = (source, log)


class Starter:
    """Starts tasks, with their environment, logs and limits."""

    def __init__(self, limits: Limits, mark: str, shared: SharedLogs, home: str, person: dict[str, str]) -> None:
        """Take the settings. `person` has environment variables of the tasks' user; a job may override them."""
        self._limits = limits
        self._mark = mark
        self.shared = shared
        self.home = home
        """Working directory of tasks that name none."""
        self._cache = f"{os.path.dirname(shared.logs)}/cache"
        """What the node keeps of snapshots and images of the user."""
        self._python = next((path for path in PYTHONS if os.access(path, os.X_OK)), sys.executable)
        self._person = person
        self._directory = ""
        self._paths: dict[tuple[str, str], str] = {}

    def mark_of(self, task: Task) -> str:
        return self._mark + task.name

    def start(self, task: Task) -> Result | None:
        """Start a task. Return its result if it cannot be started, else None."""
        try:
            self._enter_directory(task)
            files = _open_files(task)
            try:
                if task.stdin:
                    self._open_ends(task, files)
                self._start(task, files)
            finally:
                _close(files)
        except CannotStart as problem:
            return problem.result
        return None

    def _start(self, task: Task, files: Files) -> None:
        assert task.spec is not None
        command, _, _, cpu, memory, *_ = task.spec
        if task.own:
            command = _filled(command, task.own)
        command = self._wrapped(task, command, task.snapshot)
        environment = self._environment(task)
        if environment.get("FAIRLEAD_CHECKPOINT", "").endswith(OWN_FOLDER):
            environment["FAIRLEAD_CHECKPOINT"] = _checkpoint_folder(task)
        path = self._path(command[0] if command else "", environment.get("PATH", os.defpath))
        gpus = task.own.get(GPUS, "") if task.own and self._limits.guards else ""
        room = self._room(cpu, memory, gpus)
        task.began = monotonic()
        try:
            task.pid = self._spawn(task, path, command, environment, files)
        except (OSError, ValueError) as problem:
            if room is not None:
                self._limits.give(room)
            self._paths.clear()
            raise _cause(problem, command) from None
        finally:
            if gpus or (room is not None and self._limits.inside):
                self._limits.leave()
        if room is not None:
            task.room = room
            if not self._limits.inside:
                self._limits.put(room, (task.pid,))
        task.state = RUNNING

    def _open_ends(self, task: Task, files: Files) -> None:
        """Open the descriptors of a task that has a tunnel. Output that has no file goes there and to the log."""
        try:
            if task.stdin == PTY:
                task.ends = open_ends(PTY)
                task.ends.outputs[STANDARD] = (task.ends.stdin, self._open_log(task, "out"))
                os.close(self._open_log(task, "err"))  # it stays empty: a terminal has one stream
                return
            theirs, ours = os.pipe()
            task.ends = Ends(ours, theirs)
            for channel, file, name in zip((STANDARD, ERRORS), files, ("out", "err"), strict=True):
                if file is None:
                    _add_pipe(task.ends, channel, self._open_log(task, name))
        except OSError as problem:
            kind = "refused" if problem.errno in MACHINE_FAULTS else "failed"
            raise CannotStart(kind, 126, f"its standard input could not be opened: {problem.strerror}") from None

    def _open_log(self, task: Task, name: str) -> int:
        log = f"{self.shared.logs}/{task.folder}/{task.name}.{name}"
        make_log_folder(os.path.dirname(log))
        if os.path.lexists(log):
            os.unlink(log)
        return os.open(log, OPEN | os.O_CLOEXEC, LOG_MODE)

    def start_beside(
        self, task: Task, command: tuple[str, ...], extra: dict[str, str], directory: str, ends: Ends
    ) -> int:
        """Start a process in the environment, the cgroup and the devices of a running task, and return its pid.

        `extra` has more variables. Without a command it is the shell of the task's user.
        """
        environment = self._environment(task) | extra | {MARK: self.mark_of(task)}
        if directory:
            self._change_directory(directory)
        else:
            self._enter_directory(task)
        command = command or ("/bin/sh" if task.image else environment.get("SHELL") or "/bin/sh",)
        command = self._wrapped(task, command)
        path = self._path(command[0], environment.get("PATH", os.defpath))
        room = task.room
        gpus = task.own.get(GPUS, "") if task.own and self._limits.guards else ""
        inside = room is not None and (gpus or self._limits.inside)
        try:
            if room is not None and inside:
                self._limits.visit(room, gpus)
            try:
                pid = _spawn_with(ends, path, command, environment)
            finally:
                if inside:
                    self._limits.leave()
        except (OSError, ValueError) as problem:
            self._paths.clear()
            raise _cause(problem, command) from None
        if room is not None and not inside:
            self._limits.put(room, (pid,))
        return pid

    def _wrapped(self, task: Task, command: tuple[str, ...], snapshot: str = "") -> tuple[str, ...]:
        """Return the command of a task, behind a prelude if it has an image or a snapshot to unpack."""
        if not (task.image or snapshot):
            return command
        return (
            self._python,
            *PRELUDE,
            self._cache,
            snapshot,
            task.image,
            str(len(task.mounts)),
            *task.mounts,
            *command,
        )

    def directory_of(self, task: Task) -> str:
        """Return the working directory of a task."""
        assert task.spec is not None
        if task.snapshot:
            return f"{self._cache}/work/{task.key[0]}-{task.snapshot[:16]}"
        return task.spec[2] or self.home

    def _environment(self, task: Task) -> dict[str, str]:
        assert task.spec is not None
        return {
            **self._person,
            **task.spec[1],
            **(task.own or {}),
            "FAIRLEAD_JOB": task.meta[0],
            "FAIRLEAD_STAGE": task.meta[2],
            "FAIRLEAD_ATTEMPT": str(task.meta[3]),
            "FAIRLEAD_STOP_FILE": self.stop_file(task),
            "FAIRLEAD_INDEX": str(task.index),
            MARK: self.mark_of(task),
        }

    def stop_file(self, task: Task) -> str:
        """Return the file in which a task finds why it is being stopped."""
        return f"{self.shared.logs}/{task.folder}/{task.name}.stop"

    def write_stop_file(self, task: Task, why: str, until: float) -> None:
        """Tell a task why it stops, and until when it may run. It has no such file if the disk is full."""
        path = self.stop_file(task)
        try:
            make_log_folder(os.path.dirname(path))
            fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, LOG_MODE)
            os.write(fd, f'{{"reason": "{why}", "until": {until:.3f}}}\n'.encode())
            os.close(fd)
            os.rename(path + ".new", path)
        except OSError:
            return

    def _enter_directory(self, task: Task) -> None:
        directory = self.directory_of(task)
        if task.snapshot:
            try:
                os.makedirs(directory, 0o700, exist_ok=True)
            except OSError as problem:
                raise CannotStart("failed", 126, f"its working directory {directory}: {problem.strerror}") from None
        self._change_directory(directory)

    def _change_directory(self, directory: str) -> None:
        try:
            if directory != self._directory:
                os.chdir(directory)
                self._directory = directory
        except (OSError, ValueError) as problem:
            shared = self._person and directory.startswith(("/tmp/", "/var/tmp/"))
            own = "; every user has a /tmp of its own on this node" if shared else ""
            why = problem.strerror if isinstance(problem, OSError) else problem
            raise CannotStart("failed", 126, f"its working directory {directory}: {why}{own}") from None

    def _room(self, cpu: int, memory: int, gpus: str) -> Room | None:
        """Return the cgroup in which a task has to start, if it needs one from the start."""
        if not gpus and not self._limits.inside:
            return self._limits.take(cpu, memory) if self._limits.at_once(memory) else None
        if not (gpus or cpu or memory):
            return None
        try:
            return self._limits.enter(cpu, memory, gpus)
        except OSError as problem:
            if not gpus:
                return None  # the task runs without a cgroup, and its memory use is polled
            raise CannotStart("refused", 0, f"its GPUs cannot be given to it: {problem}") from None

    def _spawn(self, task: Task, path: str, command: tuple[str, ...], environment: dict[str, str], files: Files) -> int:
        """Start a process and return its pid. Its output goes to `files`, and where an entry is None, to a log."""
        if task.ends is not None:
            for channel, file in zip((STANDARD, ERRORS), files, strict=True):
                if file is not None and task.ends.theirs[channel] < 0:
                    task.ends.theirs[channel] = os.dup(file)
            return _spawn_with(task.ends, path, command, environment)

        def spawn(logs: list[str], flags: int) -> int:
            actions: list[tuple[int, int, int] | tuple[int, int, str, int, int]] = [
                (os.POSIX_SPAWN_OPEN, number, log, flags, LOG_MODE)
                if file is None
                else (os.POSIX_SPAWN_DUP2, file, number)
                for number, log, file in zip((1, 2), logs, files, strict=True)
            ]
            return os.posix_spawn(
                path, command, environment, file_actions=actions, setsid=True, setsigmask=(), setsigdef=DEFAULT_SIGNALS
            )

        pair = self.shared.take(task) if None in files else None
        if pair is not None:
            try:
                return spawn([path_of(fd) for fd in pair.files], os.O_WRONLY | os.O_APPEND)
            except OSError:
                self.shared.give_back(task)  # if it is not the pair, it fails again
        log = f"{self.shared.logs}/{task.folder}/{task.name}"
        logs = [f"{log}.out", f"{log}.err"]
        created = [name for name, file in zip(logs, files, strict=True) if file is None]
        return _with_new_logs(lambda: spawn(logs, OPEN), created)

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


def _checkpoint_folder(task: Task) -> str:
    """Make the folder for the checkpoints of a task, which its later attempts find again."""
    assert task.spec is not None
    number, stage, _, index = task.key
    folder = f"{task.spec[1]['FAIRLEAD_CHECKPOINT'].removesuffix(OWN_FOLDER)}{number}.{stage}.{index}"
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
    except OSError as problem:
        raise CannotStart("failed", 126, f"its folder for checkpoints {folder}: {problem.strerror}") from None
    return folder


def _with_new_logs(spawn: Callable[[], int], logs: list[str]) -> int:
    """Call a function that creates logs and starts a process. Make their folder, and replace files that are there."""
    for _ in range(3):
        try:
            return spawn()
        except FileNotFoundError:
            if not logs or os.path.lexists(logs[0]):
                raise  # the log exists, so it is the program that is missing
            make_log_folder(os.path.dirname(logs[0]))  # it is missing, or another spawner is creating it
        except FileExistsError:
            for log in logs:
                if os.path.lexists(log):
                    os.unlink(log)
    return spawn()


def _spawn_with(ends: Ends, path: str, command: tuple[str, ...], environment: dict[str, str]) -> int:
    """Start a process whose standard streams lead to a tunnel. A terminal becomes its controlling terminal."""
    if ends.terminal:
        actions: list[Any] = [
            (os.POSIX_SPAWN_OPEN, 0, ends.terminal, os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, 0, 1),
            (os.POSIX_SPAWN_DUP2, 0, 2),
        ]
    else:
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(ends.theirs)]
    return os.posix_spawn(
        path, command, environment, file_actions=actions, setsid=True, setsigmask=(), setsigdef=DEFAULT_SIGNALS
    )


def _filled(command: tuple[str, ...], variables: dict[str, str]) -> tuple[str, ...]:
    """Return a command with the values of parameters in place of their names in braces, such as `{lr}`."""
    values = {name[len(PARAMETER) :]: value for name, value in variables.items() if name.startswith(PARAMETER)}
    if not values:
        return command
    return tuple([_fill(word, values) if "{" in word else word for word in command])


def _fill(word: str, values: dict[str, str]) -> str:
    first, *others = word.split("{")
    for other in others:
        name, brace, rest = other.partition("}")
        first += values[name] + rest if brace and name in values else "{" + other
        if len(first) > MAX_WORD:
            problem = f"a word of its command has more than {MAX_WORD:,} characters with the values of its parameters"
            raise CannotStart("failed", 126, problem)
    return first


def _open_files(task: Task) -> Files:
    """Open the files that a stage names for its output, with the rights of the task's user.

    Standard error goes to the file of standard output if it has none of its own.
    """
    assert task.spec is not None
    output, error = task.spec[5:7]
    files: list[int | None] = [None, None]
    try:
        for at, pattern in enumerate((output, error)):
            if pattern:
                files[at] = _open_file(name_of(pattern, task))
    except OSError as problem:
        _close((files[0], files[1]))
        remedy = "; create its folder first" if isinstance(problem, FileNotFoundError) else ""
        raise CannotStart("failed", 126, f"its output {problem.filename}: {problem.strerror}{remedy}") from None
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
    """Return a file name from a pattern, in which %j is the job's id, %s the stage, %a the index, %r the attempt."""
    job, _, stage, attempt = task.meta
    values = {"j": job, "s": stage, "a": str(task.index), "r": str(attempt), "%": "%"}
    name, at = "", 0
    while at < len(pattern):
        is_code = pattern[at] == "%" and at + 1 < len(pattern)
        name += values.get(pattern[at + 1], "") if is_code else pattern[at]
        at += 1 + is_code
    return name


def _close(files: Files) -> None:
    for fd in {fd for fd in files if fd is not None}:
        os.close(fd)


def _cause(problem: OSError | ValueError, command: tuple[str, ...]) -> CannotStart:
    """Return why no process could be started. An error of the machine is a refusal, any other a failure of the task."""
    if isinstance(problem, ValueError):
        return CannotStart("failed", 126, f"it cannot be started: {problem}")
    if problem.errno in MACHINE_FAULTS:
        return CannotStart("refused", 0, f"no process could be started: {problem.strerror}")
    name = command[0] if command else ""
    if problem.errno == errno.ENOENT:
        return CannotStart("failed", 127, f"command not found: {name}")
    return CannotStart("failed", 126, f"{name}: {problem.strerror}")
