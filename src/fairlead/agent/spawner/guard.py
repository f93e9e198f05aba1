"""The guard of a spawner: a process that ends the tasks if the spawner cannot.

It is forked from the spawner and shares the lease with it. If the spawner dies, or is suspended when the lease of its
tasks ends, the guard kills all processes of the tasks. It keeps the spawner's lock until they are gone, so that no
other spawner starts earlier.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import signal
from time import monotonic, time

from fairlead.agent.spawner.files import close_all_but
from fairlead.agent.spawner.ledger import Ledger
from fairlead.agent.spawner.processes import ignore_termination, left_over, process_of, signal_all
from fairlead.agent.spawner.records import NEVER

LOOK_PAUSE = 0.2
LATE = 0.2
"""Seconds that a running spawner has to end its tasks after the end of the lease."""
SILENT = 2.0
"""Seconds without a heartbeat after which a spawner that /proc hides counts as suspended. A running one sends two per
second after the end of a lease."""


class Lease:
    """The times at which tasks are asked to stop and are killed, in memory shared by the spawner and its guard."""

    def __init__(self) -> None:
        memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._times = memoryview(memory)[:24].cast("d")
        self._seen = memoryview(memory)[24:32].cast("d")
        self._lock = memoryview(memory)[32:]
        self.beat(monotonic())
        self.set(NEVER, NEVER, 0.0, "")

    def set(self, ask_at: float, end_at: float, length: float, lock: str) -> None:
        """Set a new lease. `lock` is the file that a server on this machine keeps locked; empty for a remote server."""
        path = lock.encode()[: len(self._lock) - 1]
        self._lock[: len(path) + 1] = path + b"\0"
        self._times[0], self._times[1], self._times[2] = ask_at, end_at, length

    def beat(self, now: float) -> None:
        self._seen[0] = now

    @property
    def seen(self) -> float:
        """The time of the spawner's last heartbeat."""
        return self._seen[0]

    @property
    def ask_at(self) -> float:
        return self._times[0]

    @property
    def end_at(self) -> float:
        return self._times[1]

    @property
    def look_at(self) -> float:
        """The time at which to check for the server: halfway through the lease; never if it is on another machine."""
        return self._times[1] - self._times[2] / 2 if self._lock[0] else NEVER

    def renew(self, now: float) -> None:
        """Renew the lease if the server of this machine is down.

        Without a server the tasks cannot be started elsewhere. A server that starts later waits for longer than a
        lease before it declares the node lost.
        """
        if now >= self.look_at and _is_free(bytes(self._lock).split(b"\0", 1)[0].decode()):
            ask_at, end_at, length = self._times
            self._times[0], self._times[1] = now + length - (end_at - ask_at), now + length


def end_left_over(ledger: Ledger, mark: str) -> None:
    """Kill all processes of tasks that an earlier spawner started, and wait until they are gone."""
    while pids := left_over(mark, ledger.pids.values(), ledger.written, time()):
        signal_all(pids, signal.SIGKILL)
        select.select((), (), (), 0.01)


class Guard:
    """The spawner's handle on its guard process."""

    def __init__(self, files: tuple[int, int], mark: str, lock: int, lease: Lease) -> None:
        """Fork the guard. It keeps the ledger's `files` and the spawner's `lock` open."""
        self._files = files
        self._mark = mark
        self._lock = lock
        self._lease = lease
        self.pid = 0
        self._pipe = -1
        self.keep()

    def keep(self) -> None:
        """Fork a new guard if the last one has died."""
        if self.pid:
            try:
                os.kill(self.pid, 0)
                return
            except ProcessLookupError:
                os.close(self._pipe)
        reader, self._pipe = os.pipe2(os.O_CLOEXEC)
        spawner = os.getpid()
        self.pid = os.fork()
        if self.pid:
            os.close(reader)  # the other end stays open until this process exits
            return
        try:
            os.setsid()
            os.chdir("/")
            ignore_termination()
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            close_all_but(reader, self._lock, *self._files)
            _watch(reader, spawner, self._lease)
            end_left_over(Ledger(self._files), self._mark)
        finally:
            os._exit(0)

    def end(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            return


def _watch(reader: int, spawner: int, lease: Lease) -> None:
    """Wait until the spawner is gone. Kill it if it is suspended after the end of the lease."""
    poll = select.poll()
    poll.register(reader)
    while not poll.poll(int(LOOK_PAUSE * 1000)):
        lease.renew(monotonic())
        if monotonic() >= lease.end_at + LATE and _is_stopped(spawner, lease):
            os.kill(spawner, signal.SIGKILL)


def _is_stopped(pid: int, lease: Lease) -> bool:
    """True if a spawner is suspended after the end of its lease. If /proc hides it, it is judged by its heartbeats."""
    process = process_of(pid)
    if process is not None:
        return process.stopped
    return monotonic() >= max(lease.seen, lease.end_at) + SILENT


def _is_free(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
