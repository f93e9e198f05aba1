"""The keeper's side of a user's limits: it puts the spawner's tasks into cgroups, and gives them their GPUs.

The spawner sends requests as packets:

- `ROOM MILLI-CPUS BYTES GPUS PID…` moves processes into a room (a cgroup for one task at a time). There is no answer.
  GPUS is 1 if the task was started in the room with GPUs. With 0, the room denies the GPUs of an earlier task.
- `enter NUMBER ROOM MILLI-CPUS BYTES GPU…` moves the spawner itself into a room. The processes that it starts next are
  there, and have these GPUs and no others.
- `leave NUMBER` moves the spawner out again.
- `over NUMBER ROOM` asks if the kernel has killed processes in a room for their memory.

The answer to the last three is the NUMBER of the request, then `ok` or the problem.

The user can stop or impair the spawner and its guard, which have the same uid, but not the keeper. So the keeper ends a
spawner that is stopped, or that leaves tasks alive after their lease. When the spawner has ended, it kills everything
that the spawner left behind: all processes in its cgroups, and all descendants, which become children of the keeper.
"""

from __future__ import annotations

import os
import select
import signal
from time import monotonic, sleep

from fairlead.agent.spawner.cgroups import Limits, Room, end_left_over, unified_group
from fairlead.agent.spawner.devices import Guard, gpus
from fairlead.agent.spawner.processes import all_processes, descendants, process_of, signal_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable

    from fairlead.agent.spawner.devices import Numbers
    from fairlead.agent.spawner.guard import Lease

PACKET = 1 << 16
MAX_ROOMS = 100_000
END = signal.SIGUSR1
"""The signal with which the root helper tells a keeper to end its spawner and all tasks."""
LOOK_PAUSE = 0.5
STOPPED = 6
"""Looks in a row at which a spawner is suspended before it is ended."""
LATE = 0.5
"""Seconds after the end of a lease in which a spawner has to end its tasks."""
END_TIME = 10.0
"""Seconds to try to kill the remaining processes. One that waits for a disk dies later."""


class Keeping:
    """The cgroups and GPU guards of one user's spawner and tasks."""

    def __init__(self, name: str, uid: int, devices: tuple[Numbers, ...], lease: Lease) -> None:
        """Set up the cgroups `name` of the user with this uid. `lease` is that of the spawner's tasks.

        A task can open only those of the GPUs `devices` that are assigned to it.
        """
        self._lease = lease
        self._stopped = 0
        """Looks in a row at which the spawner was suspended."""
        end_left_over(name)
        self.limits = Limits(name)
        self._name = name
        self._uid = uid
        self._devices = devices
        self._spawner = 0
        self._rooms: dict[int, Room] = {}
        self._guards: dict[str, Guard] = {}
        self._tree = ""
        """The parent cgroup of `main`, where the spawner is, and of a cgroup for each room."""

    def begin(self, spawner: int, processes: int) -> None:
        """Limit the spawner's processes and deny it all GPUs, before it starts its first process."""
        self._spawner = spawner
        signal.signal(END, lambda number, frame: os.kill(spawner, signal.SIGKILL))
        self.limits.confine(spawner, processes)
        if not self._devices:
            return
        self._tree = self.limits.tree
        if not self._tree:
            self._tree = f"{unified_group()}/fairlead-{self._name}"
            os.makedirs(f"{self._tree}/main", 0o755, exist_ok=True)
        self._deny(f"{self._tree}/main", self._devices)
        self._move(f"{self._tree}/main")

    def serve(self, link: _socket.socket) -> None:
        """Serve the spawner's requests until it exits."""
        answered: dict[str, Callable[..., None]] = {"enter": self._enter, "leave": self._leave, "over": self._over}
        poll = select.poll()
        poll.register(link, select.POLLIN)
        look_at = monotonic() + LOOK_PAUSE
        while True:
            if monotonic() >= look_at:
                self._look()
                look_at = monotonic() + LOOK_PAUSE
            if not poll.poll(LOOK_PAUSE * 1000):
                continue
            if not (data := _receive(link)):
                return
            request, *rest = data.decode("ascii", "replace").split() or [""]
            work = answered.get(request)
            try:
                if work is None:
                    self._put(*map(int, (request, *rest)))
                else:
                    work(*map(int, rest[1:]))
                answer = "ok"
            except (OSError, TypeError, ValueError, LookupError) as problem:
                answer = str(problem)
            if work is not None:
                try:
                    link.send(f"{rest[0] if rest else 0} {answer}".encode()[:PACKET])
                except OSError:
                    return  # the spawner was killed meanwhile

    def _look(self) -> None:
        """End the spawner if it is suspended, or if it has not ended its tasks after their lease."""
        process = process_of(self._spawner)
        self._stopped = self._stopped + 1 if process is not None and process.stopped else 0
        late = monotonic() >= self._lease.end_at + LATE
        # Its guard, a child of the spawner, may be alive.
        if self._stopped >= STOPPED or (late and len(descendants(self._spawner, all_processes())) > 1):
            why = "it was suspended" if self._stopped >= STOPPED else "its tasks ran after their lease"
            os.write(2, f"the spawner is ended: {why}\n".encode())
            os.kill(self._spawner, signal.SIGKILL)

    def end(self) -> None:
        self.limits.kill()
        for room in self._rooms.values():
            self.limits.give(room)
        self.limits.close()
        for path, guard in self._guards.items():
            guard.close()
            _remove(path)
        if self._tree:
            _remove(self._tree)

    def _put(self, number: int, cpu: int, memory: int, gpus: int, *pids: int) -> None:
        room = self._room(number, cpu, memory)
        if room is not None:
            if not gpus and room.path in self._guards:
                self._deny(room.path, self._devices)
            self.limits.put(room, [pid for pid in pids if self.limits.holds(pid) and _uid(pid) == self._uid])

    def _enter(self, number: int, cpu: int, memory: int, *gpu_numbers: int) -> None:
        room = self._room(number, cpu, memory)
        if self.limits.outside and room is not None:
            self._move(room.path)
        if not gpu_numbers and self.limits.outside:
            if room is None:
                raise OSError("no cgroup can be made")
            return
        if not self._tree:
            raise OSError("this node cannot keep tasks from the GPUs of other tasks")
        allowed = {self._devices[gpu] for gpu in gpu_numbers}
        path = room.path if room is not None and self.limits.tree else f"{self._tree}/{number}"
        os.makedirs(path, 0o755, exist_ok=True)
        self._deny(path, [device for device in self._devices if device not in allowed])
        self._move(path)

    def _leave(self) -> None:
        for path in filter(None, (self._tree and f"{self._tree}/main", self.limits.outside)):
            self._move(path)

    def _over(self, number: int) -> None:
        if not self.limits.ran_over(self._rooms[number]):
            raise ValueError("no task there was over its limit")

    def _room(self, number: int, cpu: int, memory: int) -> Room | None:
        room = self._rooms.get(number)
        if room is None and len(self._rooms) < MAX_ROOMS:
            room = self.limits.take(cpu, memory)
            if room is not None:
                self._rooms[number] = room
                if self._tree and self.limits.tree:
                    self._deny(room.path, self._devices)
        if room is not None:
            self.limits.set(room, cpu, memory)
        return room

    def _deny(self, path: str, devices: tuple[Numbers, ...] | list[Numbers]) -> None:
        if path not in self._guards:
            self._guards[path] = Guard(path)
        self._guards[path].deny(devices)

    def _move(self, group: str) -> None:
        with open(f"{group}/cgroup.procs", "w") as file:
            file.write(str(self._spawner))


def can_guard() -> bool:
    """True if this machine can deny devices to tasks."""
    tree = unified_group()
    probe = f"{tree}/fairlead-probe-{os.getpid()}"
    try:
        os.mkdir(probe)
    except OSError:
        return False
    try:
        guard = Guard(probe)
        guard.deny(gpus())
        guard.close()
    except OSError:
        return False
    finally:
        _remove(probe)
    return True


def end_descendants() -> None:
    """Kill all processes that the spawner has left behind. They are children of this process now."""
    signal.signal(END, signal.SIG_IGN)  # the pid of the spawner may be reused
    until = monotonic() + END_TIME
    while (pids := descendants(os.getpid(), all_processes())) and monotonic() < until:
        signal_all(pids, signal.SIGKILL)
        sleep(0.01)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def _receive(link: _socket.socket) -> bytes:
    try:
        return link.recv(PACKET)
    except OSError:
        return b""  # the spawner was killed before it received an answer


def _uid(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def _remove(path: str) -> None:
    try:
        os.rmdir(path)
    except OSError:
        return  # `Limits` has removed it
