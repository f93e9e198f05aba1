"""The spawner's loop: it waits for the agent's socket, for signals and for timers, and lets `tasks.py` act on them.

The agent of a single-user node starts it with `python -I -S -c '…main(DIRECTORY, MARK, LOGS)'`. The directory has the
lock, the socket, the ledger and the id of the spawner. Where tasks run as their users, `root.py` starts one spawner per
user.
"""

from __future__ import annotations

import _socket
import fcntl
import gc
import os
import resource  # os.wait4 imports it on first use, which could fail later or load a file from a task's folder
import select
import signal
import sys
from time import monotonic

from fairlead.agent.spawner.cgroups import Limits
from fairlead.agent.spawner.frames import VERSION, Unpacker, pack
from fairlead.agent.spawner.guard import Guard, Lease, end_left_over
from fairlead.agent.spawner.ledger import Ledger, open_files
from fairlead.agent.spawner.pace import Pace
from fairlead.agent.spawner.processes import ignore_termination, process_of
from fairlead.agent.spawner.records import NEVER
from fairlead.agent.spawner.shared_logs import SharedLogs
from fairlead.agent.spawner.task_start import Starter
from fairlead.agent.spawner.tasks import Tasks
from fairlead.agent.spawner.tunnel_relays import Tunnels

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TUNNELS = "tunnels"
"""The name of the socket for tunnels, in the directory of the spawner."""
STARTS = 8
"""Tasks to start per pass of the loop, before the spawner handles other events."""
IDLE = 10.0
"""Seconds after which a spawner without an agent and without tasks exits. The ledger keeps the results of tasks."""
READ = 1 << 18
MAX_UNSENT = 64 << 20
MIN_DESCRIPTORS = 64
"""Lowest usable limit on descriptors. A spawner uses fewer than 20, however many tasks run."""
LEASE_PAUSE = 0.5
LOCK_TIME = 10.0
"""Seconds to wait for the guard of an earlier spawner to end that spawner's tasks."""
FAULT_PAUSE = 0.1
"""Seconds to wait when the machine is out of descriptors or memory."""


class Spawner:
    def __init__(
        self,
        files: tuple[int, int],
        mark: str,
        lock: int,
        shared: SharedLogs,
        limits: Limits,
        listener: _socket.socket,
        streams: _socket.socket,
        agent: int,
        lease: Lease,
        home: str = "/",
        person: dict[str, str] | None = None,
    ) -> None:
        """Take over from an earlier spawner: end the processes that it left behind, then start the guard.

        `files` are those of the ledger, `streams` is the socket for tunnels, `agent` is the uid of the agent, `lease`
        that of the tasks, `home` the default working directory of tasks. `person` has environment variables for tasks.
        If it is given, the spawner serves one user, and exits when it is idle even if the agent is connected.
        """
        ledger = Ledger(files)
        end_left_over(ledger, mark)
        ledger.rewrite()
        self._lease = lease
        self._guard = Guard(files, mark, lock, self._lease)
        self._limits = limits
        starter = Starter(limits, mark, shared, home, person or {})
        self._tasks = Tasks(ledger, limits, starter, self._guard.pid)
        self._tunnels = self._tasks.tunnels = Tunnels(self._tasks, streams, agent)
        self._tasks.record()
        self._orders: dict[str, Callable[..., None]] = {
            "launch": self._tasks.launch,
            "stop": self._tasks.stop,
            "why": self._tasks.tell,
            "return": self._tasks.give_back,
            "confirm": self._tasks.confirm,
            "lease": self._lease.set,
            "end": self._end,
            "version": self._tell_version,
        }
        """Message of the agent → what to do."""
        self._uid = agent
        self._for_user = person is not None
        self._poll = select.poll()
        self._signals = _wake_on_signals()
        self._poll.register(self._signals, select.POLLIN)
        self._listener = listener
        self._poll.register(self._listener, select.POLLIN)
        self._poll.register(streams, select.POLLIN)
        self._agent: Any = None
        self._incoming = Unpacker()
        self._unsent = b""
        self._pace = Pace(os.cpu_count() or 1)
        self._idle_since = monotonic()
        self._quits = False
        self._lease_seen = 0.0
        self._fault = ""
        """The last logged fault; a lasting fault is logged once."""

    def run(self) -> bool:
        """Run until the agent ends the spawner or the spawner is idle. Return True if no results wait for an agent."""
        tasks = self._tasks
        while not self._quits or tasks.at_work:
            for fd, _ in self._poll.poll(self._timeout()):
                if fd == self._signals:
                    os.read(fd, 4096)
                    tasks.reap()
                    self._guard.keep()
                    tasks.guard = self._guard.pid
                elif fd == self._listener.fileno():
                    self._despite_faults(self._accept)
                elif fd == self._tunnels.listener.fileno():
                    self._despite_faults(self._accept_tunnel)
                elif self._tunnels.has(fd):
                    self._tunnels.receive(self._poll, fd)
                else:
                    self._receive()
            tasks.start(STARTS)
            if self._tunnels.arriving:
                self._tunnels.drop_late(self._poll)
            self._keep_lease()
            self._despite_faults(tasks.tick)
            tasks.record()
            self._send_events()
            if self._is_idle():
                break
        self._guard.end()
        self._limits.close()
        return not tasks.by_key

    def _despite_faults(self, work: Callable[[], None]) -> None:
        """Do `work`. If the machine is out of descriptors or memory, log it; a later pass of the loop tries again."""
        try:
            work()
        except OSError as problem:
            if str(problem) != self._fault:
                self._fault = str(problem)
                _log(f"{problem}; it is tried again")
            select.select((), (), (), FAULT_PAUSE)

    def _timeout(self) -> int:
        """Return the milliseconds until the next timer, rounded up."""
        if self._tasks.starting:
            return 0
        now = monotonic()
        due = min(self._tasks.next_due, self._lease_due)
        if self._agent is None or (self._for_user and not self._tasks.by_key):
            due = min(due, now + 1.0)
        elif self._tasks.started or self._tasks.ended or self._unsent:
            due = min(due, now + self._pace.wait(now, self._tasks.running, self._tasks.waiting))
        return max(0, min(60_000, int((due - now) * 1000) + 1)) if due != NEVER else 60_000

    def _is_idle(self) -> bool:
        used = self._tasks.by_key if self._for_user else True
        if (self._agent is not None and used) or self._tasks.at_work or self._tunnels.open:
            self._idle_since = monotonic()
            return False
        return monotonic() - self._idle_since > IDLE

    def _keep_lease(self) -> None:
        """Stop all tasks in time if the lease is not renewed, even if the agent is gone."""
        now = monotonic()
        lease = self._lease
        lease.beat(now)
        if now < self._lease_due:
            return
        lease.renew(now)
        self._lease_seen = now
        if now >= lease.end_at:
            self._tasks.stop_all(0.0, "lease")
        elif now >= lease.ask_at:
            self._tasks.stop_all(lease.end_at - now, "lease")

    @property
    def _lease_due(self) -> float:
        """Return when to check the lease next: at `look_at`, then every `LEASE_PAUSE`, and at `ask_at` and `end_at`."""
        lease, seen = self._lease, self._lease_seen
        times = [time for time in (lease.look_at, lease.ask_at, lease.end_at) if time > seen]
        return min(times) if len(times) == 3 else min([seen + LEASE_PAUSE, *times])

    # -- the agent -----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        fd, _ = self._listener._accept()  # type: ignore[attr-defined]  # used by socket.accept
        if _uid_of(fd) not in (self._uid, 0):
            os.close(fd)
            return
        while self._receive():
            pass  # handle messages that the earlier agent sent before it was killed
        self._drop()
        self._agent = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
        self._agent.setblocking(False)
        self._poll.register(fd, select.POLLIN)
        self._incoming = Unpacker()
        tasks = self._tasks
        tasks.record()  # this state includes all results, so none is sent again as an event
        tasks.started.clear()
        tasks.ended.clear()
        state = [
            (task.meta, task.index, task.chain, task.state, task.result, task.began) for task in tasks.by_key.values()
        ]
        self._unsent = pack(("state", state, self._limits.note, self._limits.kind))
        self._send()

    def _accept_tunnel(self) -> None:
        fd, _ = self._tunnels.listener._accept()  # type: ignore[attr-defined]  # used by socket.accept
        self._tunnels.accept(self._poll, _uid_of(fd), fd)

    def _drop(self) -> None:
        if self._agent is not None:
            self._poll.unregister(self._agent.fileno())
            self._agent.close()
            self._agent = None
        self._unsent = b""

    def _receive(self) -> bool:
        """Receive and handle messages of the agent. Return True if there may be more."""
        agent = self._agent
        if agent is None:
            return False
        try:
            data = agent.recv(READ)
        except BlockingIOError:
            if self._unsent:
                self._send()
            return False
        except OSError:
            data = b""
        if not data:
            self._drop()
            return False
        for message in self._incoming.feed(data):
            if message[0] in self._orders:  # a newer agent may send others
                self._orders[message[0]](*message[1:])
        if self._unsent:
            self._send()
        return True

    def _tell_version(self, version: int) -> None:
        self._unsent += pack(("version", VERSION))

    def _end(self, grace: float) -> None:
        self._tasks.stop_all(grace, "stop")
        self._quits = True

    def _send_events(self) -> None:
        """Send new events to the agent, as often as `Pace` allows."""
        tasks = self._tasks
        if self._agent is None or not (tasks.started or tasks.ended or self._unsent):
            return
        now = monotonic()
        if self._pace.wait(now, tasks.running, tasks.waiting) or len(self._unsent) > MAX_UNSENT:
            return
        self._pace.sent(now)
        if tasks.started or tasks.ended:
            self._unsent += pack(("events", tasks.started, tasks.ended))
            tasks.started.clear()
            tasks.ended.clear()
        self._send()

    def _send(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._agent.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._drop()


def _log(text: str) -> None:
    try:
        os.write(2, text.encode() + b"\n")
    except OSError:
        return  # the disk with the log is full


def _wake_on_signals() -> int:
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    ignore_termination()
    return reader


def _uid_of(fd: int) -> int:
    """Return the uid of the process at the other end of a local socket."""
    peer = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
    credentials = peer.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    peer.detach()
    return int.from_bytes(credentials[4:8], sys.byteorder)


def listen(directory: str, name: str = "socket") -> _socket.socket:
    """Return a socket that listens at `directory`/`name`, and to which only its owner can connect."""
    path = f"{directory}/{name}"
    if os.path.lexists(path):
        os.unlink(path)
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    # The path of a socket is limited to about 100 bytes, and the directory's path may be longer.
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    before = os.umask(0o177)
    listener.bind(f"/proc/self/fd/{folder}/{name}")
    os.umask(before)
    os.close(folder)
    listener.listen(4)
    listener.setblocking(False)
    return listener


def enough_descriptors() -> bool:
    """True if the limit on open files is high enough for a spawner. If it is not, write to the log what to do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < MIN_DESCRIPTORS <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (MIN_DESCRIPTORS, hard))
    if hard < MIN_DESCRIPTORS:
        least = f"the limit on open files must be {MIN_DESCRIPTORS} or more"
        _log(f"{least}; raise it with `ulimit -n` or LimitNOFILE= of the agent's unit")
    return hard >= MIN_DESCRIPTORS


def take_lock(directory: str, seconds: float) -> int | None:
    """Lock the directory for this process and its children, until all of them have exited.

    Returns None if another spawner is alive. The guard of a dead spawner keeps the lock until it has ended the tasks;
    if that takes longer than `seconds`, None is returned too.
    """
    lock = os.open(directory + "/lock", os.O_RDWR | os.O_CREAT, 0o600)
    until = monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            owner = os.pread(lock, 20, 0)
            alive = owner.isdigit() and process_of(int(owner)) is not None
            if alive or monotonic() >= until:
                os.close(lock)
                return None
            select.select((), (), (), 0.01)
    os.ftruncate(lock, 0)
    try:
        os.pwrite(lock, b"%d" % os.getpid(), 0)
    except OSError:
        return lock  # the disk is full; without the pid another spawner waits `seconds` before it gives up
    return lock


def main(directory: str, mark: str, logs: str) -> int:
    if not enough_descriptors():
        return 4
    lock = take_lock(directory, LOCK_TIME)
    if lock is None:
        _log(f"another spawner has {directory}")
        return 3
    gc.disable()
    os.umask(0o022)
    files = open_files(directory + "/ledger")
    shared = SharedLogs(logs, os.path.basename(directory))
    limits = Limits(mark.rstrip(":"))
    Spawner(
        files, mark, lock, shared, limits, listen(directory), listen(directory, TUNNELS), os.getuid(), Lease()
    ).run()
    for name in ("socket", TUNNELS):
        os.unlink(f"{directory}/{name}")
    os._exit(0)  # release lock and sockets together, so that the next spawner sees either both or neither
