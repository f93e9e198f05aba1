"""Which processes belong to a task: those of its session, their children, and whoever carries its mark.

Every task is started with its name in the environment, which its children inherit, wherever they go.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MARK = "FAIRLEAD_TASK"
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
SLACK = 0.1
"""Seconds by which two of the clocks of a machine may differ."""


class Process:
    __slots__ = ("alive", "parent", "pid", "resident", "session", "started", "stopped")

    def __init__(self, pid: int, stat: bytes) -> None:
        # The name in parentheses may hold anything, parentheses too.
        fields = stat[stat.rindex(b")") + 2 :].split()
        self.pid = pid
        self.alive = fields[0] not in (b"Z", b"X")
        self.stopped = fields[0] in (b"T", b"t")
        self.parent = int(fields[1])
        self.session = int(fields[3])
        self.started = int(fields[19]) / TICKS
        """In seconds since the machine started."""
        self.resident = int(fields[21]) * PAGE


def process_of(pid: int) -> Process | None:
    """A process that lives, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb", 0) as file:
            found = Process(pid, file.read(2048))
    except OSError:
        return None
    return found if found.alive else None


def all_processes() -> dict[int, Process]:
    """The processes of the machine by number. Raises `OSError` where they cannot all be seen."""
    found: dict[int, Process] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb", 0) as file:
                    found[int(name)] = Process(int(name), file.read(2048))
            except OSError as problem:
                if problem.errno in NO_DESCRIPTOR:
                    raise  # it may live
                continue  # it has ended meanwhile
    return found


def mark_of(pid: int) -> str:
    """The task that a process says it belongs to, or nothing."""
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
    """A process and all that it and its children have started, as far as they still hang on it."""
    found = [pid]
    for each in found:
        try:
            with open(f"/proc/{each}/task/{each}/children", "rb", 0) as file:
                found += map(int, file.read().split())
        except OSError:
            continue
    return found


def owners(tasks: dict[int, str], processes: dict[int, Process], root: int) -> dict[int, int]:
    """Process → the task it belongs to, for all below `root`; tasks are given as their first process → their mark.

    A task that has ended may be among them: the number of its session is taken as long as a process is in it.
    """
    children: dict[int, list[int]] = {}
    for each in processes.values():
        children.setdefault(each.parent, []).append(each.pid)
    by_mark = {mark: pid for pid, mark in tasks.items()}
    found: dict[int, int] = {}
    stack = [(pid, 0) for pid in children.get(root, ())]
    while stack:
        pid, above = stack.pop()
        session = processes[pid].session
        owner = session if session in tasks else above or by_mark.get(mark_of(pid), 0)
        if owner:
            found[pid] = owner
        stack += [(child, owner) for child in children.get(pid, ())]
    return found


def left_over(mark: str, sessions: Iterable[int], written: float, now: float) -> list[int]:
    """The processes that an earlier spawner left behind: those with its mark, and those of the sessions that it made.

    The number of a session may have been given to another one since `written`, when the spawner noted it last: then
    none of its processes is older than that. A spawner itself, with the mark and a session of its own, is not meant.
    """
    processes = all_processes()
    del processes[os.getpid()]
    with open("/proc/uptime", "rb") as file:
        booted = now - float(file.read().split()[0])
    known = set(sessions)
    ours = {
        each.session
        for each in processes.values()
        if each.session in known and booted + each.started <= written + SLACK
    }
    found = [each.pid for each in processes.values() if each.alive and (each.session in ours or _is_marked(each, mark))]
    return found


def _is_marked(process: Process, mark: str) -> bool:
    found = mark_of(process.pid)
    return found.startswith(mark) and not (found == mark and _is_spawner(process.pid))


def _is_spawner(pid: int) -> bool:
    """True if a process that has the mark of a spawner leads a session, or is gone.

    It has its session before its mark. The list of processes may be older than both.
    """
    process = process_of(pid)
    return process is None or process.session == pid


def signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
        except PermissionError:
            continue  # it took another identity; only its own user or root may end it
