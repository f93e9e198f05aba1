"""Confining a process before it becomes a user's spawner: its own /tmp, no new privileges, limits, and the user's ids.

What is set here holds for every task of the user, since tasks inherit it.
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
SUBREAPER, NO_NEW_PRIVILEGES, DUMPABLE, END_WITH_PARENT = 36, 38, 4, 1
SHARED = ("/tmp", "/var/tmp")
"""The folders that every user can write to, and that a user's tasks have for themselves."""
OPEN_FILES = 65536
KEY_CALL = {"x86_64": 250, "aarch64": 219}.get(platform.machine(), -1)
"""The number of the call for the kernel's keys; with -1 the kernel says that it has none."""
JOIN_SESSION = 1

_libc = ctypes.CDLL(None, use_errno=True)


def own_tmp(folder: str) -> None:
    """Put a folder in the place of /tmp and /var/tmp, for this process and what it starts."""
    _check(_libc.unshare(NEW_MOUNTS), "unshare")
    # Mounts of the machine still arrive here; those made here stay here.
    _check(_libc.mount(b"none", b"/", None, RECURSIVE | SLAVE, None), "mount /")
    for place in SHARED:
        if os.path.isdir(place):
            _check(_libc.mount(os.fsencode(folder), os.fsencode(place), None, BIND, None), f"mount {place}")


def limit(processes: int) -> None:
    """Limit the processes of the user and the open files of each of them."""
    for which, most in ((resource.RLIMIT_NPROC, processes), (resource.RLIMIT_NOFILE, OPEN_FILES)):
        soft, hard = (most if each == resource.RLIM_INFINITY else min(each, most) for each in resource.getrlimit(which))
        resource.setrlimit(which, (soft, hard))


def become(person: Person) -> None:
    """Take the ids and groups of a user for good, with no way to gain privileges and no way for the user to look in."""
    adopt_orphans()
    _check(_libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no new privileges")
    os.setgroups(person.groups)
    os.setresgid(person.gid, person.gid, person.gid)
    os.setresuid(person.uid, person.uid, person.uid)
    # The user's own tasks have the same uid: they may not trace this process or take its sockets.
    _check(_libc.prctl(DUMPABLE, 0, 0, 0, 0), "not dumpable")
    # The agent's session has keys of the kernel that all its processes share. Where there are no keys, none leak.
    _libc.syscall(ctypes.c_long(KEY_CALL), ctypes.c_long(JOIN_SESSION), None)


def adopt_orphans() -> None:
    """Become the parent of what children leave behind."""
    _check(_libc.prctl(SUBREAPER, 1, 0, 0, 0), "adopt orphans")


def most_processes() -> int:
    """Half of the processes that the machine can have: no user can take all of them."""
    found = []
    for path in ("/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"):
        with open(path) as file:
            found.append(int(file.read()))
    return max(64, min(found) // 2)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
