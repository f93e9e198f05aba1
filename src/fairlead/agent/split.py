"""An agent that was started as root: a root helper that starts spawners, and the agent itself, which is root no more.

From the top: what is configured, the split, and the agent's end of the helper.
"""

from __future__ import annotations

import asyncio

# What asyncio and sockets import when they are first used: the agent's user may be unable to read Python's folder.
import concurrent.futures.thread  # noqa: F401
import ctypes
import encodings.idna  # noqa: F401
import os
import pwd
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from fairlead.agent.link import RUN, SOURCE, Forbidden
from fairlead.agent.spawner.confine import SHARED
from fairlead.agent.spawner.users import NotAllowed, allowed_uids, read_map

NO_NEW_PRIVILEGES = 38


class CannotSplit(Exception):
    """The agent cannot run as it was started; the text says why and what to do."""


class Users(msgspec.Struct, frozen=True, kw_only=True):
    """How users are told apart on a node."""

    agent: str = "fairlead"
    """The system user that the agent runs as."""
    map_file: Path | None = None
    """Lines of `fairlead-user=system-user`; a user that is not in it has the same name on the node."""
    uids: tuple[int, int] | None = None
    """The first and last uid that tasks may run as; else those of people by `login.defs`."""


class Helper:
    """The agent's end of the root helper."""

    def __init__(self, link: socket.socket, users: Path) -> None:
        self._link = link
        self.users = users
        """Where each user that ran tasks here has a folder."""
        self._asking = asyncio.Lock()
        self._said = b""
        self.facts = dict(each.split("=", 1) for each in self._read_line().split()[1:])
        """What separates users here: `cgroup` (v2, v1, none) and `tmp` (private, shared)."""
        link.setblocking(False)

    async def start(self, user: str) -> str:
        """Start the spawner of a user. Returns why it could not be, for now; raises `Forbidden` if it never can."""
        return await self._ask(f"start {user}")

    async def end(self, user: str) -> str:
        """Kill a spawner that does not answer; its tasks end with it. Returns why it could not be, if so."""
        try:
            return await self._ask(f"end {user}")
        except Forbidden as problem:
            return str(problem)

    async def _ask(self, request: str) -> str:
        async with self._asking:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(self._link, f"{request}\n".encode())
            while b"\n" not in self._said:
                data = await loop.sock_recv(self._link, 4096)
                if not data:
                    raise CannotSplit("the root helper ended; start the agent again")
                self._said += data
            line, _, self._said = self._said.partition(b"\n")
        answer, _, problem = line.decode(errors="replace").partition(" ")
        if answer == "no":
            raise Forbidden(problem)
        return problem

    def known(self) -> list[str]:
        """The users of whose tasks there may be something to tell."""
        return [each.name for each in self.folders() if _is_there(each / "socket")]

    def folders(self) -> list[Path]:
        """The folders of all users. The agent can pass through one without a right to list it."""
        return sorted(self.users.iterdir())

    def _read_line(self) -> str:
        while b"\n" not in self._said:
            data = self._link.recv(4096)
            if not data:
                raise CannotSplit("the root helper ended at its start; its message is above")
            self._said += data
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()


def _is_there(path: Path) -> bool:
    """True if a file is there; False also if its folder cannot be entered, which must not end the agent of all users.

    The root helper sets the rights of a folder anew when the user has tasks.
    """
    try:
        return path.exists()
    except OSError:
        return False


def split(directory: Path, users: Users) -> Helper:
    """Start the root helper, and become the agent's user for good. The agent's own folder is `directory`/agent."""
    try:
        person = pwd.getpwnam(users.agent)
    except KeyError:
        raise CannotSplit(
            f"there is no system user {users.agent} for the agent; create it with "
            f"`useradd --system --shell /usr/sbin/nologin {users.agent}`, or name another with --user"
        ) from None
    if person.pw_uid == 0:
        raise CannotSplit("--user: the agent must not be root; name a system user without rights")
    real = os.path.realpath(directory)
    if any(real == each or real.startswith(each + "/") for each in SHARED):
        raise CannotSplit(f"--directory: tasks have their own /tmp, so {directory} must be elsewhere, as in /var/lib")
    map_path = "" if users.map_file is None else str(users.map_file.absolute())
    try:
        read_map(map_path)
    except (OSError, NotAllowed) as problem:
        raise CannotSplit(f"--user-map: {problem}") from None
    gid = person.pw_gid
    for path, owner, mode in (
        (directory, 0, 0o711),
        (directory / "users", 0, 0o751),
        (directory / "agent", person.pw_uid, 0o700),
    ):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chown(path, owner, gid)
        path.chmod(mode)
    ours, its = socket.socketpair()
    first, last = users.uids or allowed_uids()
    about = (str(directory), str(person.pw_uid), str(gid), str(first), str(last), map_path)
    subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", RUN, SOURCE, "root", *about],
        stdin=its.fileno(),
        cwd="/",
        env={},
        start_new_session=True,
    )
    its.close()
    helper = Helper(ours, directory / "users")
    _become(person)
    return helper


def _become(person: pwd.struct_passwd) -> None:
    os.initgroups(person.pw_name, person.pw_gid)
    os.setresgid(person.pw_gid, person.pw_gid, person.pw_gid)
    os.setresuid(person.pw_uid, person.pw_uid, person.pw_uid)
    ctypes.CDLL(None).prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    os.chdir("/")
    os.environ.update(HOME=person.pw_dir, USER=person.pw_name, LOGNAME=person.pw_name)
