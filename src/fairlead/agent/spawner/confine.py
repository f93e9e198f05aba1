"""Confines a process before it becomes a user's spawner: its own /tmp, no new privileges, limits, and the user's ids.

All tasks of the user inherit these settings.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fairlead.agent.spawner.users import Person

NEW_MOUNTS = 0x00020000
BIND, RECURSIVE, SLAVE, NO_SUID, NO_DEVICES = 0x1000, 0x4000, 0x80000, 0x2, 0x4
SUBREAPER, NO_NEW_PRIVILEGES, DUMPABLE = 36, 38, 4
SHARED = ("/tmp", "/var/tmp")
"""Folders that every user can write to. Each user's tasks get private ones."""
OPEN_FILES = 65536
KEY_CALL = {"x86_64": 250, "aarch64": 219}.get(platform.machine(), -1)
"""The number of the `keyctl` system call. With -1 the kernel reports an error, which is ignored."""
JOIN_SESSION = 1

libc = ctypes.CDLL(None, use_errno=True)


def own_tmp(folder: str) -> None:
    """Mount a folder on /tmp and /var/tmp, for this process and its children."""
    check(libc.unshare(NEW_MOUNTS), "unshare")
    # Later mounts of the machine still appear here; mounts made here do not appear elsewhere.
    check(libc.mount(b"none", b"/", None, RECURSIVE | SLAVE, None), "mount /")
    for place in SHARED:
        if os.path.isdir(place):
            check(libc.mount(os.fsencode(folder), os.fsencode(place), None, BIND, None), f"mount {place}")


def limit(processes: int) -> None:
    for kind, most in ((resource.RLIMIT_NPROC, processes), (resource.RLIMIT_NOFILE, OPEN_FILES)):
        soft, hard = (
            most if current == resource.RLIM_INFINITY else min(current, most) for current in resource.getrlimit(kind)
        )
        resource.setrlimit(kind, (soft, hard))


def become(person: Person) -> None:
    """Take the ids and groups of a user for good. The process cannot gain privileges, and the user cannot trace it."""
    adopt_orphans()
    check(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no new privileges")
    os.setgroups(person.groups)
    os.setresgid(person.gid, person.gid, person.gid)
    os.setresuid(person.uid, person.uid, person.uid)
    # The user's own tasks have the same uid. They must not trace this process or take its sockets.
    check(libc.prctl(DUMPABLE, 0, 0, 0, 0), "not dumpable")
    # All processes of the agent's session share its kernel keyring. If this fails, the kernel has no keyrings.
    libc.syscall(ctypes.c_long(KEY_CALL), ctypes.c_long(JOIN_SESSION), None)


def adopt_orphans() -> None:
    """Make this process the parent of orphaned descendants."""
    check(libc.prctl(SUBREAPER, 1, 0, 0, 0), "adopt orphans")


def most_processes() -> int:
    """Return half of the machine's limit on processes, so that no single user can take all."""
    limits = []
    for path in ("/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"):
        with open(path) as file:
            limits.append(int(file.read()))
    return max(64, min(limits) // 2)


def check(result: int, action: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{action}: {os.strerror(number)}")
