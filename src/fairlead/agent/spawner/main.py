"""The spawner's loop: one socket for the agent, one pipe for signals, a few timers.

A single-user node starts it with `python -I -S -c '…main(DIRECTORY, MARK, LOGS)'`: the directory has the lock, the
socket, the ledger and the id of the spawner. Where tasks run as their users, `root.py` makes one for each of them.
"""

from __future__ import annotations

import _socket
import fcntl
import gc
import os
import resource  # also for os.wait4, which must not look for it later, without descriptors or in the folder of a task
import select
import signal
import sys
from time import monotonic

from fairlead.agent.spawner.frames import Unpacker, pack
from fairlead.agent.spawner.guard import Guard, Lease, end_left_over
from fairlead.agent.spawner.ledger import Ledger, open_files
from fairlead.agent.spawner.limits import Limits
from fairlead.agent.spawner.pace import Pace
from fairlead.agent.spawner.processes import process_of
from fairlead.agent.spawner.records import NEVER
from fairlead.agent.spawner.starting import Starter
from fairlead.agent.spawner.tasks import Tasks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fairlead.agent.spawner.asking import AnyLimits

STARTS = 8
"""So many tasks are started before the spawner looks whether anything else is to be done."""
IDLE = 10.0
"""Seconds after which a spawner without an agent and without tasks ends. The ledger keeps the ends of tasks."""
READ = 1 << 18
MOST_UNSENT = 64 << 20
LEAST_DESCRIPTORS = 64
"""A spawner uses less than 20 itself, whatever runs; a task has the same limit."""
LEASE_PAUSE = 0.5
LOCK_TIME = 10.0
"""Seconds to wait for the guard of an earlier spawner to end what that one started."""
FAULT_PAUSE = 0.1
"""Seconds to wait when the machine is out of something, as descriptors."""


class Spawner:
    def __init__(
        self,
        files: tuple[int, int],
        mark: str,
        lock: int,
        logs: str,
        limits: AnyLimits,
        listener: _socket.socket,
        agent: int,
        home: str = "/",
        person: dict[str, str] | None = None,
    ) -> None:
        """`files` are those of the ledger, `agent` is the uid of the agent.

        `person` has variables for tasks; with it the spawner ends when it is idle.

        The listener is not looked at before all that an earlier spawner left behind is gone.
        """
        ledger = Ledger(files)
        end_left_over(ledger, mark)
        ledger.rewrite()
        self._lease = Lease()
        self._guard = Guard(files, mark, lock, self._lease)
        self._limits = limits
        starter = Starter(limits, mark, logs, home, person or {})
        self._tasks = Tasks(ledger, limits, starter, logs, self._guard.pid)
        self._tasks.note()
        self._uid = agent
        self._for_user = person is not None
        self._poll = select.poll()
        self._signals = _wake_on_signals()
        self._poll.register(self._signals, select.POLLIN)
        self._listener = listener
        self._poll.register(self._listener, select.POLLIN)
        self._agent: Any = None
        self._incoming = Unpacker()
        self._unsent = b""
        self._pace = Pace()
        self._idle_since = monotonic()
        self._quits = False
        self._lease_seen = 0.0
        self._fault = ""
        """The last one that was told, so that one that stays is told once."""

    def run(self) -> bool:
        """Work until the agent ends it or it is idle. True if nothing is left that an agent has to hear of."""
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
                else:
                    self._receive()
            tasks.start(STARTS)
            self._keep_lease()
            self._despite_faults(tasks.tick)
            tasks.note()
            self._tell()
            if self._is_idle():
                break
        self._guard.end()
        self._limits.close()
        return not tasks.known

    def _despite_faults(self, work: Callable[[], None]) -> None:
        """Do something that a later pass can do as well, should the machine be out of descriptors or memory now."""
        try:
            work()
        except OSError as problem:
            if str(problem) != self._fault:
                self._fault = str(problem)
                _say(f"{problem}; it is tried again")
            select.select((), (), (), FAULT_PAUSE)

    def _timeout(self) -> int:
        """How many milliseconds to sleep; poll rounds down, so one more."""
        if self._tasks.starting:
            return 0
        now = monotonic()
        due = min(self._tasks.next_due, self._lease_due)
        if self._agent is None or (self._for_user and not self._tasks.known):
            due = min(due, now + 1.0)
        elif self._tasks.started or self._tasks.ended or self._unsent:
            due = min(due, now + self._pace.wait(now, self._tasks.running, self._tasks.waiting))
        return max(0, min(60_000, int((due - now) * 1000) + 1)) if due != NEVER else 60_000

    def _is_idle(self) -> bool:
        used = self._tasks.known if self._for_user else True
        if (self._agent is not None and used) or self._tasks.at_work:
            self._idle_since = monotonic()
            return False
        return monotonic() - self._idle_since > IDLE

    def _keep_lease(self) -> None:
        """Without an answer from the server tasks are stopped in time, also when the agent is gone."""
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
        """When to look at the lease next: at each of its times, and again and again when it is nearly over."""
        lease, seen = self._lease, self._lease_seen
        times = [each for each in (lease.look_at, lease.ask_at, lease.end_at) if each > seen]
        return min(times) if len(times) == 3 else min([seen + LEASE_PAUSE, *times])

    # -- the agent -----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        fd, _ = self._listener._accept()  # type: ignore[attr-defined]  # what socket.accept is made of
        if _uid_of(fd) not in (self._uid, 0):
            os.close(fd)
            return
        while self._receive():
            pass  # what an agent said before it was killed still counts
        self._drop()
        self._agent = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
        self._agent.setblocking(False)
        self._poll.register(fd, select.POLLIN)
        self._incoming = Unpacker()
        tasks = self._tasks
        tasks.note()  # an end that is told here is not told again as news
        tasks.started.clear()
        tasks.ended.clear()
        known = [(each.meta, each.index, each.chain, each.state, each.result) for each in tasks.known.values()]
        self._unsent = pack(("state", known, self._limits.note, self._limits.kind))
        self._send()

    def _drop(self) -> None:
        if self._agent is not None:
            self._poll.unregister(self._agent.fileno())
            self._agent.close()
            self._agent = None
        self._unsent = b""

    def _receive(self) -> bool:
        """Take what the agent has sent; whether there may be more."""
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
            self._heed(*message)
        if self._unsent:
            self._send()
        return True

    def _heed(self, what: str, *rest: Any) -> None:
        tasks = self._tasks
        if what == "launch":
            tasks.launch(*rest)
        elif what == "stop":
            tasks.stop(*rest)
        elif what == "return":
            tasks.give_back(*rest)
        elif what == "confirm":
            tasks.confirm(*rest)
        elif what == "lease":
            self._lease.set(*rest)
        elif what == "end":
            tasks.stop_all(rest[0], "stop")
            self._quits = True

    def _tell(self) -> None:
        """What is new, at most once in a while."""
        tasks = self._tasks
        if self._agent is None or not (tasks.started or tasks.ended or self._unsent):
            return
        now = monotonic()
        if self._pace.wait(now, tasks.running, tasks.waiting) or len(self._unsent) > MOST_UNSENT:
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


def _say(text: str) -> None:
    try:
        os.write(2, text.encode() + b"\n")
    except OSError:
        return  # the disk of the log is full


def _wake_on_signals() -> int:
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # tasks go on; what ends the agent does not end them
    return reader


def _uid_of(fd: int) -> int:
    """The user at the other end of a local socket."""
    peer = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
    found = peer.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    peer.detach()
    return int.from_bytes(found[4:8], sys.byteorder)


def listen(directory: str) -> _socket.socket:
    """Listen on `socket` in a directory, for the owner only."""
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    # The path of a socket must be short, and that of a directory may be long.
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    before = os.umask(0o177)
    listener.bind(f"/proc/self/fd/{folder}/socket")
    os.umask(before)
    os.close(folder)
    listener.listen(4)
    listener.setblocking(False)
    return listener


def enough_descriptors() -> bool:
    """True if a spawner can work within the limit on open files; otherwise its log says what to do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < LEAST_DESCRIPTORS <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (LEAST_DESCRIPTORS, hard))
    if hard < LEAST_DESCRIPTORS:
        least = f"the limit on open files must be {LEAST_DESCRIPTORS} or more"
        _say(f"{least}; raise it with `ulimit -n` or LimitNOFILE= of the agent's unit")
    return hard >= LEAST_DESCRIPTORS


def take_lock(directory: str, seconds: float) -> int | None:
    """Have the directory for this process and its children, until all of them have ended.

    None if another spawner lives, or others have it for that many seconds. The guard of a spawner that is gone has the
    lock until it has ended the tasks. That is waited for.
    """
    lock = os.open(directory + "/lock", os.O_RDWR | os.O_CREAT, 0o600)
    until = monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            owner = os.pread(lock, 20, 0)
            lives = owner.isdigit() and process_of(int(owner)) is not None
            if lives or monotonic() >= until:
                os.close(lock)
                return None
            select.select((), (), (), 0.01)
    os.ftruncate(lock, 0)
    try:
        os.pwrite(lock, b"%d" % os.getpid(), 0)
    except OSError:
        return lock  # the disk is full: another spawner waits for a while before it gives up
    return lock


def main(directory: str, mark: str, logs: str) -> int:
    if not enough_descriptors():
        return 4
    lock = take_lock(directory, LOCK_TIME)
    if lock is None:
        _say(f"another spawner has {directory}")
        return 3
    gc.disable()
    os.umask(0o022)
    ended = directory + "/socket"
    if os.path.lexists(ended):
        os.unlink(ended)
    files = open_files(directory + "/ledger")
    spawner = Spawner(files, mark, lock, logs, Limits(mark.rstrip(":")), listen(directory), os.getuid())
    spawner.run()
    os.unlink(ended)
    os._exit(0)  # lock and sockets go at one time, so that who sees the one gone may take the other
