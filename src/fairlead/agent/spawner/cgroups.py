"""Limits the CPU and memory of tasks with cgroups. Without cgroups CPU is not limited, and memory use is polled.

A cgroup for a task is called a room. The next task reuses it, which is cheaper than making one per task. Moving a
process into a cgroup costs as much as starting it. CPU time is limited per 0.1 s, so a task gets its room only after it
has run for that long. A task with a memory limit gets its room at once: memory allocated before the move would not
count.

With cgroups v1, tasks of separate users start in their room, because a process that a task started earlier, and that is
not known as one of the task, would stay outside of it.
"""

from __future__ import annotations

import os
import signal
from time import sleep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PERIOD = 100_000
"""Microseconds of the period over which CPU time is limited."""
LIMITED_AFTER = 0.1
"""Seconds after which a task gets its room, unless it needs it at once."""
WANTED = ("cpu", "memory", "pids")
"""Controllers of cgroups v2."""
MIN_QUOTA = 1_000
"""The smallest quota that the kernel accepts, in microseconds."""


class Room:
    """A cgroup for one task at a time."""

    __slots__ = ("cpu", "gpus", "killed", "limit", "memory", "path")

    def __init__(self, path: str, memory: bool) -> None:
        self.path = path
        """The directory of the cgroup; its number if the keeper made it."""
        self.cpu = 0
        self.limit = 0
        """The memory limit in bytes; 0 for none."""
        self.memory = memory
        """True if the cgroup can limit memory."""
        self.gpus = False
        """True if the task was started with GPUs of its own."""
        self.killed = 0
        """Processes that the kernel had killed here for their memory use, as of the last check."""


class Limits:
    def __init__(self, name: str) -> None:
        """Make the parent cgroup for the spawner `name`, and remove cgroups left by an earlier spawner of that name."""
        self.kind = "none"
        """The version of cgroups that limits tasks: `v2`, `v1` or `none`."""
        self.note = "CPU is not limited, since no cgroup can be made here; memory is watched twice a second"
        self.guards = False
        """True if tasks can open only the GPUs assigned to them."""
        self.inside = False
        """True if all tasks start in their room, which the spawner enters for that."""
        self._base = ""
        self._memory = False
        self._free: list[Room] = []
        self._made = 0
        self._name = name
        self._processes = ""
        """The cgroup of the spawner; empty if it has none. With cgroups v1 it is in another tree than the rooms."""
        for kind, path, memory in _candidates():
            if self._prepare(kind, f"{path}/fairlead-{name}", memory):
                watched = "limited by the same" if memory else "watched twice a second"
                self.note = f"CPU is limited by cgroups ({kind}); memory is {watched}"
                break

    def at_once(self, memory: int) -> bool:
        """True if a task with this memory limit needs its room from the start."""
        return self._memory and memory > 0

    def take(self, cpu: int, memory: int) -> Room | None:
        """Take a room with these limits, in milli-CPUs and bytes; 0 is no limit. Return None if no room can be made."""
        if self.kind == "none" or not (cpu or memory):
            return None
        try:
            return self._take(cpu, memory)
        except OSError:
            return None  # the task runs without a cgroup, and its memory use is polled

    def _take(self, cpu: int, memory: int) -> Room:
        room = self._free.pop() if self._free else self._make()
        self.set(room, cpu, memory)
        return room

    def set(self, room: Room, cpu: int, memory: int) -> None:
        if room.cpu != cpu:
            self._set_cpu(room, cpu)
        if self._memory and room.limit != memory:
            _put(room.path + "/memory.max", str(memory) if memory else "max")
            room.limit = memory

    def enter(self, cpu: int, memory: int, gpus: str) -> Room:
        raise OSError("GPUs are not guarded on a single-user node")

    def visit(self, room: Room, gpus: str) -> None:
        """Enter the room of a running task, until `leave`."""
        raise OSError("GPUs are not guarded on a single-user node")

    def leave(self) -> None:
        raise OSError("GPUs are not guarded on a single-user node")

    def put(self, room: Room, pids: Iterable[int]) -> None:
        if room.limit:
            self.ran_over(room)  # reset the count: kills of an earlier task do not matter
        for pid in pids:
            try:
                _put(room.path + "/cgroup.procs", str(pid))
            except OSError:
                continue  # the process has ended

    def ran_over(self, room: Room) -> bool:
        """True if the kernel has killed processes in a room for their memory use since the last call."""
        before = room.killed
        try:
            with open(room.path + "/memory.events") as file:
                room.killed = int(dict(line.split() for line in file)["oom_kill"])
        except (OSError, KeyError, ValueError):
            return False
        return room.killed > before

    def give(self, room: Room) -> None:
        """Make a room free for the next task."""
        self._free.append(room)

    def confine(self, pid: int, processes: int) -> None:
        """Move a spawner and its later children into a cgroup for at most `processes` processes, if possible."""
        if self.kind == "v2":
            self._processes = f"{self._base}/main"
            limit_file = f"{self._base}/pids.max"
        else:
            group = _own_groups().get("pids")
            if group is None:
                return
            self._processes = f"{group}/fairlead-{self._name}"
            limit_file = f"{self._processes}/pids.max"
        try:
            os.makedirs(self._processes, 0o755, exist_ok=True)
            if os.path.exists(limit_file):
                _put(limit_file, str(processes))
            _put(f"{self._processes}/cgroup.procs", str(pid))
        except OSError:
            self._processes = ""

    @property
    def outside(self) -> str:
        """The cgroup v1 above the rooms, where the spawner is; empty if the rooms are v2 or missing."""
        return os.path.dirname(self._base) if self.kind == "v1" else ""

    @property
    def tree(self) -> str:
        """The parent cgroup v2 of `main` and the rooms; empty if they are v1 or missing."""
        return self._base if self.kind == "v2" and self._processes else ""

    def holds(self, pid: int) -> bool:
        """True if a process is in one of these cgroups, or if the spawner has no cgroup of its own."""
        try:
            with open(f"/proc/{pid}/cgroup") as file:
                return not self._processes or f"/fairlead-{self._name}" in file.read()
        except OSError:
            return False

    def kill(self) -> None:
        _kill([folder for folder in (self._base, self._processes) if folder])

    def close(self) -> None:
        """Remove the cgroups. They must be empty."""
        self._free.clear()
        for base in (self._base, self._processes):
            if base:
                _remove(base)

    def _make(self) -> Room:
        self._made += 1
        room = Room(f"{self._base}/{self._made}", self._memory)
        os.mkdir(room.path, 0o755)
        return room

    def _set_cpu(self, room: Room, cpu: int) -> None:
        quota = max(MIN_QUOTA, cpu * PERIOD // 1000) if cpu else 0
        if self.kind == "v2":
            _put(room.path + "/cpu.max", f"{quota or 'max'} {PERIOD}")
        else:
            _put(room.path + "/cpu.cfs_quota_us", str(quota or -1))
        room.cpu = cpu

    def _prepare(self, kind: str, base: str, memory: bool) -> bool:
        """Make the parent cgroup and the first room. Return False if tasks cannot be limited there."""
        self.kind, self._base, self._memory = kind, base, memory
        try:
            _remove(base)
            os.mkdir(base, 0o755)
            if kind == "v2":
                above = os.path.dirname(base)
                with open(above + "/cgroup.controllers") as file:
                    available = file.read().split()
                _put(above + "/cgroup.subtree_control", " ".join(f"+{name}" for name in WANTED if name in available))
                _put(base + "/cgroup.subtree_control", "+cpu +memory" if memory else "+cpu")
            room = self._make()
            self._set_cpu(room, 1000)
        except OSError:
            self.kind, self._base, self._memory = "none", "", False
            _remove(base)
            return False
        self._free.append(room)
        return True


def _candidates() -> Iterator[tuple[str, str, bool]]:
    """Yield where cgroups could be made: the version, the directory, and True if they would also limit memory."""
    groups = _own_groups()
    if "" in groups:
        # If the unit's processes are in a group of their own, its parent may be delegated to us.
        for path in (groups[""], os.path.dirname(groups[""])):
            try:
                with open(path + "/cgroup.controllers") as file:
                    controllers = file.read().split()
            except OSError:
                continue
            if "cpu" in controllers:
                yield "v2", path, "memory" in controllers
    if "cpu" in groups:
        # No memory limits with v1: moving a process between memory groups is slow and error-prone.
        yield "v1", groups["cpu"], False


def end_left_over(name: str) -> None:
    """Kill every process in the cgroups of an earlier spawner of that name, and remove the cgroups."""
    groups = _own_groups()
    above = {path for _, path, _ in _candidates()} | {groups[kind] for kind in ("pids", "") if kind in groups}
    folders = [f"{path}/fairlead-{name}" for path in above]
    _kill(folders)
    for folder in folders:
        _remove(folder)


def _kill(folders: list[str]) -> None:
    for _ in range(1_000):
        if not (pids := _members(folders)):
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        sleep(0.01)


def _members(folders: list[str]) -> list[int]:
    pids: list[int] = []
    for folder in folders:
        for path, _, _ in os.walk(folder):
            try:
                with open(path + "/cgroup.procs") as file:
                    pids += map(int, file.read().split())
            except OSError:
                continue
    return pids


def unified_group() -> str:
    """Return the cgroup v2 of this process; empty if v2 is not mounted."""
    return _own_groups().get("", "")


def _own_groups() -> dict[str, str]:
    """Return the directories of this process's cgroups by controller; "" stands for v2."""
    mounts: dict[str, str] = {}
    with open("/proc/self/mountinfo") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            kind, _, options = right.split(" ", 2)
            if kind == "cgroup2":
                mounts[""] = left.split(" ")[4]
            elif kind == "cgroup":
                mounts.update((name, left.split(" ")[4]) for name in options.strip().split(","))
    groups: dict[str, str] = {}
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, names, path = line.rstrip("\n").split(":", 2)
            groups.update((name, mounts[name] + path.rstrip("/")) for name in names.split(",") if name in mounts)
    return groups


def _put(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _remove(base: str) -> None:
    try:
        for name in os.listdir(base):
            if os.path.isdir(f"{base}/{name}"):
                os.rmdir(f"{base}/{name}")
        os.rmdir(base)
    except OSError:
        return  # it does not exist, or processes are still in it
