"""Watches running tasks: the size of their logs, their memory, and the processes that they leave behind."""

from __future__ import annotations

import os
import signal

from fairlead.agent.spawner.files import rotate
from fairlead.agent.spawner.processes import all_processes, owners, signal_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairlead.agent.spawner.records import Task

SETTLED = 0.5
"""Seconds after its start from which a task is watched."""

Marks = dict[int, str]
"""The first process of a task → the task's mark."""


def members(tasks: Iterable[int], marks: Marks) -> dict[int, list[int]]:
    """Return the living processes of each task, by its first process. `marks` has all tasks of the spawner."""
    processes = all_processes()
    processes_of: dict[int, list[int]] = {pid: [] for pid in tasks}
    for pid, owner in owners(marks, processes, os.getpid()).items():
        if owner in processes_of and processes[pid].alive:
            processes_of[owner].append(pid)
    return processes_of


def cut_logs(tasks: Iterable[Task], logs: str, now: float) -> None:
    for task in tasks:
        if now - task.began >= SETTLED and task.spec is not None:
            rotate(f"{logs}/{task.folder}/{task.name}.out")
            rotate(f"{logs}/{task.folder}/{task.name}.err")


def too_large(tasks: Iterable[Task], marks: Marks, now: float) -> Iterator[tuple[Task, str]]:
    """Yield the tasks without a memory cgroup that use more memory than they asked for, each with the reason to stop
    it.
    """
    limits = {
        task.pid: task
        for task in tasks
        if now - task.began >= SETTLED and task.spec and task.spec[4] and not (task.room and task.room.memory)
    }
    if not limits:
        return
    processes = all_processes()
    used = dict.fromkeys(limits, 0)
    for pid, owner in owners(marks, processes, os.getpid()).items():
        if owner in used:
            used[owner] += processes[pid].resident
    for pid, task in limits.items():
        assert task.spec is not None
        if used[pid] > task.spec[4] and not task.cause:
            limit = task.spec[4]
            text = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit} bytes"
            yield task, f"it used {used[pid] >> 20} MiB of memory; its limit is {text}"


def orphans(marks: Marks, own: set[int]) -> list[int]:
    """Return the orphans: children of the spawner that are not the first process of a task.

    `own` are children of the spawner that belong to no task: its guard and its relays.
    """
    with open("/proc/thread-self/children", "rb") as file:
        return [pid for pid in map(int, file.read().split()) if pid not in marks and pid not in own]


def end_orphans(marks: Marks, own: set[int]) -> bool:
    """Kill the orphans that belong to ended tasks. Return True if there are orphans of any task."""
    pids = orphans(marks, own)
    if not pids:
        return False
    processes = all_processes()
    owned = owners(marks, processes, os.getpid())
    signal_all([pid for pid in pids if pid not in owned], signal.SIGKILL)
    return True
