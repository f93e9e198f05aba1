"""The tunnels of a spawner: it takes connections of the agent on a second socket, starts what they ask for, and forks a
relay for each tunnel, which gets the connection.

A request names a task and the tunnel, and says what is wanted: the standard streams of the task itself (`task`), a new
process beside it (`command`), or ports of this node (`ports`). A process that is started so has the environment, the
cgroup, the GPUs and the mark of the task, and ends with it. The answer is one line: `+`, or a problem with its status.
"""

from __future__ import annotations

import _socket
import array
import contextlib
import marshal
import os
import select
from time import monotonic

from fairlead.agent.spawner.frames import HEAD
from fairlead.agent.spawner.records import PIPE, PTY, RUNNING
from fairlead.agent.spawner.relay import run_relay
from fairlead.agent.spawner.task_start import CannotStart, open_ends

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fairlead.agent.spawner.records import Key, Task
    from fairlead.agent.spawner.task_start import Ends
    from fairlead.agent.spawner.tasks import Tasks

LARGEST = 1 << 20
"""Bytes of a request."""
MAX_TUNNELS = 100
"""Tunnels of one spawner."""
REQUEST_TIME = 5.0
"""Seconds in which a request has to arrive."""
TASK, COMMAND, PORTS = "task", "command", "ports"


class Tunnels:
    def __init__(self, tasks: Tasks, listener: _socket.socket, agent: int) -> None:
        """Take the socket on which connections arrive. `agent` is the uid of the agent."""
        self._tasks = tasks
        self.listener = listener
        self._agent = agent
        self._arriving: dict[int, tuple[Any, bytearray, float]] = {}
        """Descriptor → connection whose request has not arrived yet, what has arrived, and since when."""
        self._relays: dict[tuple[Key, str], tuple[int, Any]] = {}
        """Task and tunnel → the pid of the relay, and its control socket."""
        self._processes: dict[int, tuple[Key, str]] = {}
        """Process that was started for a tunnel."""

    @property
    def open(self) -> bool:
        return bool(self._relays)

    @property
    def arriving(self) -> bool:
        return bool(self._arriving)

    @property
    def pids(self) -> set[int]:
        """The relays, which belong to no task."""
        return {pid for pid, _ in self._relays.values()}

    # -- connections ---------------------------------------------------------------------------------------------

    def accept(self, poll: select.poll, uid: int, fd: int) -> None:
        """Take a connection of the process `uid`."""
        if uid not in (self._agent, 0) or len(self._arriving) >= MAX_TUNNELS:
            os.close(fd)
            return
        link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
        link.setblocking(False)
        self._arriving[fd] = (link, bytearray(), monotonic())
        poll.register(fd, select.POLLIN)

    def receive(self, poll: select.poll, fd: int) -> None:
        """Receive a request, and act when it is complete. What follows it is left for the relay."""
        link, data, _ = self._arriving[fd]
        try:
            while (left := _missing(data)) > 0:
                part = link.recv(left)
                if not part:
                    raise ConnectionError
                data += part
        except BlockingIOError:
            return
        except OSError:
            self._end_arrival(poll, fd)
            link.close()
            return
        self._end_arrival(poll, fd)
        answer = self._serve(link, marshal.loads(bytes(data[HEAD:]))) if left == 0 else "413 the request is too large"
        if answer:
            with contextlib.suppress(OSError):
                link.send(f"{answer}\n".encode())
        link.close()

    def drop_late(self, poll: select.poll) -> None:
        """Close connections whose request does not arrive."""
        now = monotonic()
        for fd, (link, _, since) in list(self._arriving.items()):
            if now - since > REQUEST_TIME:
                self._end_arrival(poll, fd)
                link.close()

    def _end_arrival(self, poll: select.poll, fd: int) -> None:
        poll.unregister(fd)
        del self._arriving[fd]

    def has(self, fd: int) -> bool:
        return fd in self._arriving

    def _serve(self, link: _socket.socket, request: dict[str, Any]) -> str:
        """Give a connection to the relay of its tunnel. Return what is wrong; empty if nothing is."""
        key: Key = tuple(request["task"])
        name = (key, TASK if request["kind"] == TASK else request["tunnel"])
        task = self._tasks.by_key.get(key)
        if name not in self._relays:
            if request["kind"] == TASK and task is not None and task.state == RUNNING:
                return "409 the task has no terminal and no standard input; attach a command instead"
            if not request["new"]:
                return "404 the tunnel has ended"
            if task is None or task.state != RUNNING or request["kind"] == TASK:
                return "409 the task does not run here"
            if len(self._relays) >= MAX_TUNNELS:
                return f"429 {MAX_TUNNELS} tunnels are open to tasks here; close some"
            try:
                if request["kind"] == PORTS:
                    self._fork(name, 0, None, False)
                else:
                    self._start(name, task, request)
            except CannotStart as problem:
                return f"409 {problem}"
            except OSError as problem:
                return f"409 it could not be started: {problem.strerror}"
        try:
            link.send(b"+\n")
            control = self._relays[name][1]
            rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", [link.fileno()]))]
            control.sendmsg([request["tunnel"].encode()], rights)
        except OSError:
            return ""  # the relay has just ended, or the agent has gone; the agent comes back or asks no more
        return ""

    # -- starting ------------------------------------------------------------------------------------------------

    def _start(self, name: tuple[Key, str], task: Task, request: dict[str, Any]) -> None:
        """Start a process beside a task."""
        ends = open_ends(PTY if request["terminal"] else PIPE)
        try:
            environment = dict(request["environment"])
            pid = self._tasks.start_beside(task, tuple(request["command"]), environment, request["directory"], ends)
            self._processes[pid] = name
            self._fork(name, pid, ends, False)
        finally:
            ends.close()

    def relay_task(self, task: Task) -> None:
        """Fork the relay of a task that has just been started with descriptors of a tunnel."""
        name = (task.key, TASK)
        self._processes[task.pid] = name
        self._fork(name, task.pid, task.ends, True)

    def _fork(self, name: tuple[Key, str], pid: int, ends: Ends | None, own: bool) -> None:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        relay = os.fork()
        if not relay:
            run_relay(theirs, pid, own, ends)
        theirs.close()
        ours.setblocking(False)
        self._relays[name] = (relay, ours)

    # -- ending --------------------------------------------------------------------------------------------------

    def reaped(self, pid: int, code: int, why: str = "") -> None:
        """Handle the end of a process: tell the relay the exit code, or forget the relay."""
        name = self._processes.pop(pid, None)
        if name is not None:
            relay = self._relays.get(name)
            if relay is not None:
                with contextlib.suppress(OSError):
                    relay[1].send(f"{code} {why}".encode())
            return
        for name, (relay_pid, control) in list(self._relays.items()):
            if relay_pid == pid:
                control.close()
                del self._relays[name]


def _missing(data: bytearray) -> int:
    """Return the number of bytes that a request still needs; below 0 if it is too large."""
    if len(data) < HEAD:
        return HEAD - len(data)
    size = int.from_bytes(data[:HEAD], "little")
    return size + HEAD - len(data) if size <= LARGEST else -1
