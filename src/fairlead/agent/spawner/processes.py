"""Finds the processes of a task: those of its session, their children, and processes with its mark or in its cgroup.

The mark is an environment variable of every task, which its children inherit.
"""

from __future__ import annotations

import errno
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MARK = "FAIRLEAD_TASK"
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
SLACK = 0.1
"""Seconds by which the wall clock and the boot clock may differ."""


class Process:
    """A process, as `/proc/PID/stat` describes it."""

    __slots__ = ("alive", "parent", "pid", "resident", "session", "started", "stopped")

    def __init__(self, pid: int, stat: bytes) -> None:
        # The name in parentheses may contain any character, including parentheses.
        fields = stat[stat.rindex(b")") + 2 :].split()
        self.pid = pid
        self.alive = fields[0] not in (b"Z", b"X")
        self.stopped = fields[0] in (b"T", b"t")
        self.parent = int(fields[1])
        self.session = int(fields[3])
        self.started = int(fields[19]) / TICKS
        """Seconds from boot to the start of the process."""
        self.resident = int(fields[21]) * PAGE


def process_of(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", 0) as file:
            process = Process(pid, file.read(2048))
    except OSError:
        return None
    return process if process.alive else None


def all_processes() -> dict[int, Process]:
    """Return all processes of the machine by pid. Raise `OSError` if there are too few descriptors to read them."""
    processes: dict[int, Process] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb", 0) as file:
                    processes[int(name)] = Process(int(name), file.read(2048))
            except OSError as problem:
                if problem.errno in NO_DESCRIPTOR:
                    raise  # the process may be alive
                continue  # the process has exited meanwhile
    return processes


def mark_of(pid: int) -> str:
    """Return the mark in the environment of a process; empty if it has none."""
    try:
        with open(f"/proc/{pid}/environ", "rb", 0) as file:
            data = file.read()
    except OSError as problem:
        if problem.errno in NO_DESCRIPTOR:
            raise
        return ""
    wanted = MARK.encode() + b"="
    for entry in data.split(b"\0"):
        if entry.startswith(wanted):
            return entry[len(wanted) :].decode("utf-8", "replace")
    return ""


def with_children(pid: int) -> list[int]:
    """Return a process and its descendants, except orphaned ones."""
    pids = [pid]
    for parent in pids:
        try:
            with open(f"/proc/{parent}/task/{parent}/children", "rb", 0) as file:
                pids += map(int, file.read().split())
        except OSError:
            continue
    return pids


def descendants(root: int, processes: dict[int, Process]) -> list[int]:
    """Return the living processes below `root`."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found, stack = [], [root]
    while stack:
        below = children.get(stack.pop(), ())
        found += [pid for pid in below if processes[pid].alive]
        stack += below
    return found


def owners(tasks: dict[int, str], processes: dict[int, Process], root: int) -> dict[int, int]:
    """Return a map from each descendant of `root` to the first process of its task.

    `tasks` maps the first process of each task to the task's mark. It may include ended tasks, because a session number
    is not reused while a process is in the session.
    """
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    by_mark = {mark: pid for pid, mark in tasks.items()}
    by_group: dict[str, int] | None = None
    owners: dict[int, int] = {}
    stack = [(pid, 0) for pid in children.get(root, ())]
    while stack:
        pid, above = stack.pop()
        session = processes[pid].session
        owner = session if session in tasks else above or by_mark.get(mark_of(pid), 0)
        if not owner:
            if by_group is None:
                # The cgroups of tasks that have one of their own.
                by_group = {_groups_of(first): first for first in tasks}
                for shared in ("", _groups_of(root)):
                    by_group.pop(shared, None)
            owner = by_group.get(_groups_of(pid), 0)
        if owner:
            owners[pid] = owner
        stack += [(child, owner) for child in children.get(pid, ())]
    return owners


def _groups_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            return file.read()
    except OSError:
        return ""


def left_over(mark: str, sessions: Iterable[int], written: float, now: float) -> list[int]:
    """Return the processes that an earlier spawner left behind: those with its mark, and those of its `sessions`.

    If all processes of a session are younger than `written`, the time of the last write to the ledger, the number of
    the session was reused, and they are not returned. Spawners themselves are not returned.
    """
    processes = all_processes()
    del processes[os.getpid()]
    with open("/proc/uptime", "rb") as file:
        booted = now - float(file.read().split()[0])
    recorded = set(sessions)
    ours = {
        process.session
        for process in processes.values()
        if process.session in recorded and booted + process.started <= written + SLACK
    }
    return [
        process.pid
        for process in processes.values()
        if process.alive and (process.session in ours or _is_marked(process, mark))
    ]


def _is_marked(process: Process, prefix: str) -> bool:
    mark = mark_of(process.pid)
    return mark.startswith(prefix) and not (mark == prefix and _is_spawner(process.pid))


def _is_spawner(pid: int) -> bool:
    """True if a process with the mark of a spawner leads a session now, or has exited.

    A spawner starts its session before it has its mark. The list of processes may be older than both.
    """
    process = process_of(pid)
    return process is None or process.session == pid


def signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue  # the process has ended, or runs as another user and may not be signalled


def ignore_termination() -> None:
    """Ignore the signals that end a process: one that is meant for the agent must not end its tasks."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
