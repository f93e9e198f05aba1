"""The local provider: runs agents as processes of this machine.

A directory stands for a machine, which exists while its agent holds the lock in the directory. Agents outlive the
server: the next server finds them by their directories. When an agent has ended by itself, its spawners and their tasks
are ended too, so that no process of an unlisted machine keeps running.
"""

from __future__ import annotations

import asyncio
import fcntl
import getpass
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from fairlead.core.resources import CPU, MEMORY, format_quantity
from fairlead.pools.provider import Log, Machine, PoolKind, ProviderError

PROGRAM = "from fairlead.cli import main; main()"
MARK = b"FAIRLEAD_TASK="
"""Variable of spawners and their tasks. Its value starts with the content of the spawner's file `id`."""
GRACE = 5.0
"""Seconds between TERM and KILL for an agent and its tasks. Spawners react only to KILL."""
KILLED = 10.0
"""Seconds to wait for killed processes to end."""
LOCK, LOG, JOINED, TOKEN = "machine.lock", "agent.log", "joined", "join-token"
LAST_OUTPUT = 500


class LocalProvider:
    def __init__(self, kind: PoolKind, folder: Path, log: Log) -> None:
        """Manage machines in `folder`, which has a directory for each machine of this pool and nothing else."""
        self._kind = kind
        self._folder = folder
        self._log = log
        self._started: dict[str, int] = {}
        """Machine → the process of its agent, if this process started it."""

    async def create(self, names: Sequence[str]) -> None:
        await asyncio.to_thread(self._for_all, self._create, names)

    async def destroy(self, names: Sequence[str]) -> None:
        await asyncio.to_thread(self._for_all, self._destroy, names)

    async def list(self) -> Sequence[Machine]:
        return await asyncio.to_thread(self._list)

    async def close(self) -> None:
        pass

    # -- in a thread ---------------------------------------------------------------------------------------------

    def _for_all(self, work: Callable[[str], None], names: Sequence[str]) -> None:
        problems: dict[str, str] = {}
        for name in names:
            try:
                work(name)
            except (OSError, ProviderError) as problem:
                problems[name] = str(problem)
        if problems:
            raise ProviderError(next(iter(problems.values())), tuple(problems))

    def _create(self, name: str) -> None:
        directory = self._folder / name
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = _take(directory)
        if lock is None:
            return  # the machine exists
        try:
            kind = self._kind
            [token] = kind.join.invite(kind.partition, kind.pool, (name,)).values()
            with open(os.open(directory / TOKEN, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(token)
            self._start(name, directory, lock)
        finally:
            os.close(lock)

    def _start(self, name: str, directory: Path, lock: int) -> None:
        """Start the agent, which inherits the open lock."""
        log = str(directory / LOG)
        environment = {
            key: value for key, value in os.environ.items() if key == "FAIRLEAD_CA" or not key.startswith("FAIRLEAD_")
        }
        self._started[name] = os.posix_spawn(
            sys.executable,
            self._arguments(name, directory),
            environment,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, lock, 3),
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        (directory / JOINED).write_text(self._kind.join.url())

    def _arguments(self, name: str, directory: Path) -> tuple[str, ...]:
        """Return the command line of an agent. Its node has the pool's resources, not all of this machine."""
        kind, settings = self._kind, self._kind.settings
        amounts = {CPU: 0, MEMORY: 0, **dict(settings.node)}
        return (
            *(sys.executable, "-P", "-c", PROGRAM, "agent", f"--directory={directory}"),
            f"--for={getpass.getuser()}",
            *["--user=root"] * (os.geteuid() == 0),
            *(f"--join={kind.join.url()}", f"--token-file={directory / TOKEN}"),
            *(f"--name={name}", f"--partition={kind.partition}", f"--pool={kind.pool}"),
            *(f"--resource={key}={format_quantity(key, amount)}" for key, amount in sorted(amounts.items())),
            *(f"--label={key}={value}" for key, value in settings.labels),
            *(f"--taint={taint}" for taint in settings.taints),
        )

    def _destroy(self, name: str) -> None:
        _remove(self._folder / name)
        self._reap()

    def _list(self) -> Sequence[Machine]:
        machines = []
        try:
            self._reap()
            for directory in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
                lock = _take(directory)
                if lock is None:
                    self._rejoin(directory)
                    machines.append(Machine(directory.name, str(directory)))
                    continue
                try:
                    where = {"partition": self._kind.partition, "pool": self._kind.pool, "node": directory.name}
                    self._log("warning", "local agent ended", {**where, "said": _last_output(directory)})
                    _end(directory)
                    shutil.rmtree(directory)
                finally:
                    os.close(lock)
        except OSError as problem:
            raise ProviderError(f"{self._folder}: {problem}") from problem
        return machines

    def _rejoin(self, directory: Path) -> None:
        """Restart an agent if the server has another address now. Its tasks keep running meanwhile."""
        try:
            joined = (directory / JOINED).read_text()
        except FileNotFoundError:
            joined = self._kind.join.url()  # the agent has just been started
        if joined == self._kind.join.url():
            return
        lock = _end_and_take(directory, agent_only=True)
        try:
            self._start(directory.name, directory, lock)
        finally:
            os.close(lock)

    def _reap(self) -> None:
        for name, pid in tuple(self._started.items()):
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                ended = pid
            if ended:
                del self._started[name]


def end_machines(folder: Path) -> int:
    """End all machines of all pools in `folder` with their tasks; return the number of machines."""
    ended = 0
    for directory in sorted(folder.glob("*/*/*")):
        ended += directory.is_dir()
        _remove(directory)
    return ended


def _remove(directory: Path) -> None:
    if directory.is_dir():
        lock = _end_and_take(directory)
        try:
            shutil.rmtree(directory)
        finally:
            os.close(lock)


def _take(directory: Path) -> int | None:
    """Take the lock of a machine; return None while its agent holds it."""
    lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _last_output(directory: Path) -> str:
    try:
        return (directory / LOG).read_bytes()[-LAST_OUTPUT:].decode(errors="replace")
    except OSError:
        return ""


# -- processes ---------------------------------------------------------------------------------------------------


def _end_and_take(directory: Path, agent_only: bool = False) -> int:
    """End the processes of a machine and take its lock. Retries while a starting or ending process holds the lock."""
    deadline = time.monotonic() + KILLED
    while True:
        _end(directory, agent_only)
        lock = _take(directory)
        if lock is not None:
            return lock
        if time.monotonic() > deadline:
            raise ProviderError(f"another process holds the lock {directory / LOCK}")
        time.sleep(0.01)


def _end(directory: Path, agent_only: bool = False) -> None:
    """End the agent of a machine, its spawners and their tasks: TERM first, then KILL, until no process is left."""
    began = time.monotonic()
    for pid, _ in _processes(directory, agent_only):
        _signal(directory, pid, signal.SIGTERM, agent_only)
    while any(not spawner for _, spawner in _processes(directory, agent_only)):
        if time.monotonic() > began + GRACE:
            break
        time.sleep(0.02)
    deadline = time.monotonic() + KILLED
    while left := _processes(directory, agent_only):
        if time.monotonic() > deadline:
            raise ProviderError(f"processes {', '.join(str(pid) for pid, _ in left)} of {directory} do not end")
        for pid, _ in left:
            _signal(directory, pid, signal.SIGKILL, agent_only)
        time.sleep(0.02)


def _processes(directory: Path, agent_only: bool) -> list[tuple[int, bool]]:
    """Return the processes of a machine, each with True if it is a spawner."""
    marks = () if agent_only else tuple(_marks(directory))
    processes: list[tuple[int, bool]] = []
    for name in os.listdir("/proc"):
        if name.isdigit() and (role := _role(int(name), directory, marks)):
            processes.append((int(name), role == "spawner"))
    return processes


def _role(pid: int, directory: Path, marks: tuple[bytes, ...]) -> str:
    """Return "agent", "spawner" or "task" for a process of a machine; empty for zombies and foreign processes."""
    with suppress(OSError):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if os.fsencode(f"--directory={directory}") in arguments:
            return "agent"
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if marks and arguments != [b""] else ():
            if entry.startswith(marks):
                return "spawner" if entry in marks else "task"
    return ""


def _marks(directory: Path) -> Iterator[bytes]:
    for file in sorted(directory.glob("spawner-*/id")):
        mark = file.read_bytes()
        if len(mark) > 1 and mark.endswith(b":"):  # an incomplete mark would match foreign processes
            yield MARK + mark


def _signal(directory: Path, pid: int, number: int, agent_only: bool) -> None:
    """Send a signal to a process of a machine through a pidfd, so that a process with a reused pid never gets it."""
    with suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if _role(pid, directory, () if agent_only else tuple(_marks(directory))):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)
