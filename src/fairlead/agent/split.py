"""Splits an agent that was started as root: a root helper starts spawners, and the agent itself drops root."""

from __future__ import annotations

import asyncio

# asyncio and sockets import these on first use, when the agent's user may be unable to read Python's folder.
import concurrent.futures.thread  # noqa: F401
import ctypes
import encodings.idna  # noqa: F401
import os
import pwd
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import msgspec

from fairlead.agent.spawner.confine import SHARED
from fairlead.agent.spawner.users import NotAllowed, allowed_uids, read_map
from fairlead.agent.spawner_link import RUN, SOURCE, Forbidden

NO_NEW_PRIVILEGES = 38
ENDED = "the root helper ended, so tasks cannot be started; start the agent again. Running tasks keep running"


class CannotSplit(Exception):
    """Raised if the agent cannot split; the text says why and what to do."""


class Users(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that separate the users of a node."""

    agent: str = "fairlead"
    """The system user that the agent runs as."""
    map_file: Path | None = None
    """Lines of `fairlead-user=system-user`. A user without a line has the same name on the node."""
    uids: tuple[int, int] | None = None
    """The first and last uid that tasks may run as. Default: `UID_MIN` and `UID_MAX` of `login.defs`."""


class Helper:
    """The agent's connection to the root helper."""

    def __init__(self, link: socket.socket, users: Path) -> None:
        self._link = link
        self.users = users
        """The directory with a folder for each user that has run tasks here."""
        self._asking = asyncio.Lock()
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self._received = b""
        while b"\n" not in self._received:
            data = self._link.recv(4096)
            if not data:
                raise CannotSplit("the root helper ended at its start; its message is above")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        self.facts = dict(fact.split("=", 1) for fact in line.decode().split()[1:])
        """How users are separated here: `cgroup` (v2, v1, none), `tmp` (private, shared), `gpus` (separate, shared)."""
        link.setblocking(False)

    async def listen(self) -> NoReturn:
        """Receive the helper's answers. Raises `CannotSplit` when the helper ends, because no spawner could start."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                data = await loop.sock_recv(self._link, 4096)
            except OSError:
                data = b""
            if not data:
                raise CannotSplit(ENDED)
            *lines, self._received = (self._received + data).split(b"\n")
            for line in lines:
                self._answers.put_nowait(line)

    async def start(self, user: str) -> str:
        """Start the spawner of a user. Return an empty text, or the problem if another attempt may succeed.

        Raises `Forbidden` if the user may not run tasks here.
        """
        return await self._ask(f"start {user}")

    async def end(self, user: str) -> str:
        """Kill a spawner that does not answer, with its tasks. Return the problem, or an empty text."""
        try:
            return await self._ask(f"end {user}")
        except Forbidden as problem:
            return str(problem)

    async def _ask(self, request: str) -> str:
        async with self._asking:
            try:
                await asyncio.get_running_loop().sock_sendall(self._link, f"{request}\n".encode())
            except OSError:
                raise CannotSplit(ENDED) from None
            line = await self._answers.get()
        answer, _, problem = line.decode(errors="replace").partition(" ")
        if answer == "no":
            raise Forbidden(problem)
        return problem

    def known(self) -> list[str]:
        """Return the users that have a spawner, or had one with unconfirmed results."""
        return [folder.name for folder in self.folders() if _is_there(folder / "socket")]

    def folders(self) -> list[Path]:
        """Return the folders of all users. The agent may enter a folder but not list it."""
        return sorted(self.users.iterdir())


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False  # the permissions of a user's folder are wrong; the root helper corrects them at the next start


def split(directory: Path, users: Users) -> Helper:
    """Start the root helper, then become the agent's user for good. The agent's own folder is `directory`/agent."""
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
    if any(real == path or real.startswith(path + "/") for path in SHARED):
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
