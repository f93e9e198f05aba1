"""The agent's link to a spawner: finds or starts the spawner, sends it messages, and restarts it when it ends.

On a single-user node the agent starts its spawners itself. Where tasks run as their users, the root helper starts them
(`split.py`).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from fairlead.agent.spawner.frames import VERSION, Unpacker, pack
from fairlead.agent.spawner.processes import MARK
from fairlead.agent.spawner.records import ENDED

SOURCE = str(Path(__file__).parents[2])
# Orphaned processes of tasks become children of the spawner (PR_SET_CHILD_SUBREAPER). A first program requests this and
# then replaces itself with the spawner, so that ctypes takes no memory in the spawner.
BOOT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"
RUN = """
import sys
sys.path.append(sys.argv[1])
__import__(f"fairlead.agent.spawner.{sys.argv[2]}")
sys.exit(sys.modules[f"fairlead.agent.spawner.{sys.argv[2]}"].main(*sys.argv[3:]))
"""
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
END_GRACE = 10.0
LOG = "spawner.log"
SILENT = 15
"""Attempts to connect, within about ten seconds, after which a spawner counts as missing."""


class Forbidden(Exception):
    """Raised if a user may have no spawner here; the text says why."""


class Link(asyncio.Protocol):
    """A connection to the spawner whose socket is in `directory`."""

    def __init__(
        self,
        directory: Path,
        start: Callable[[], Awaitable[str]],
        heard: Callable[..., None],
        failed: Callable[[str, bool, bool], None],
        wanted: Callable[[], bool] = lambda: True,
        forbidden: Callable[[str], None] = lambda problem: None,
    ) -> None:
        """Take the callbacks. `start` starts the spawner, unless a start is in progress, and returns why the last start
        failed.

        `heard` is called with each message of the spawner. `failed` is called with the reason when a spawner ended or
        could not be started; starts are retried without end. Its second argument is True after a failed start, when
        there is no spawner until the next message. Its third is True if the user of the spawner cannot be the cause.
        The link is kept while `wanted` returns True. `forbidden` is called if the user may have no spawner here.
        """
        self._directory = directory
        self._start = start
        self._heard = heard
        self._failed = failed
        self._wanted = wanted
        self._forbidden = forbidden
        self._transport: asyncio.Transport | None = None
        self._spoken = False
        self._settled = False
        """True once a spawner has listed its tasks or is forbidden. Until then the link is kept."""
        self._confused = False
        """True if the spawner said what this agent does not understand. Further messages are ignored."""
        self._said = ""
        self._incoming = Unpacker()
        self._lost = asyncio.Event()
        self._wake = asyncio.Event()

    async def keep(self) -> None:
        """Stay connected while the spawner is wanted, until cancelled."""
        try:
            while True:
                try:
                    await self._connect()
                    await self._lost.wait()
                    if self._confused:
                        await asyncio.sleep(LONGEST_PAUSE)
                except Forbidden as problem:
                    self._settled = True
                    self._forbidden(str(problem))
                while self._settled and not self._wanted():
                    self._wake.clear()
                    await self._wake.wait()
        finally:
            if self._transport is not None:
                self._transport.close()

    def wake(self) -> None:
        self._wake.set()

    def send(self, *frames: tuple[Any, ...]) -> bool:
        """Send messages; return False if they were dropped.

        Messages are dropped while the spawner has not listed its tasks: a launch sent earlier would be missing from the
        list, and its tasks would be placed elsewhere. Even after True, messages may be lost when the spawner ends. In
        both cases the next list shows which tasks the spawner does not have.
        """
        if self._transport is None or not self._spoken:
            return False
        self._transport.writelines([pack(frame) for frame in frames])
        return True

    async def _connect(self) -> None:
        pause = FIRST_PAUSE
        tries, gone, reported = 0, False, ("", False)
        node_fault = False
        while True:
            problem = ""
            try:
                link = _open(self._directory)
                if link is not None:
                    break
                problem = await self._start()
                gone = node_fault = bool(problem) and tries > 0
                tries += 1
                if not problem and tries > SILENT:
                    problem, gone = f"no spawner answers in {self._directory}", True
            except OSError as fault:
                problem = f"no spawner could be started in {self._directory}: {fault.strerror or fault}"
                gone = node_fault = True
            if problem and (problem, gone) != reported:
                reported = (problem, gone)
                self._failed(problem, gone, node_fault)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, 1.5 * pause)
        self._incoming = Unpacker()
        self._lost.clear()
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=link)

    # -- called by the loop --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # transports of other loops do not subclass it
        self._spoken = self._confused = False
        self._transport.write(pack(("version", VERSION)))

    def data_received(self, data: bytes) -> None:
        if self._confused:
            return
        listed = self._spoken
        try:
            for message in self._incoming.feed(data):
                self._spoken = self._settled = True  # the first message lists the spawner's tasks
                if message[0] == "version":
                    self._check(message[1])
                else:
                    self._heard(*message)
                listed = True
        except (TypeError, ValueError, LookupError, EOFError) as problem:
            self._misunderstand(problem, listed)

    def _check(self, version: int) -> None:
        if version > VERSION:
            self._say(
                f"the spawner in {self._directory} speaks version {version}, this agent {VERSION}; update the agent"
            )

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._failed(text, False, False)

    def _misunderstand(self, problem: Exception, listed: bool) -> None:
        """Handle a message that this agent does not understand.

        If it is the list of tasks, the spawner is of a version too far from this one, and is told to end: the agent
        cannot report its tasks, so the server would start them elsewhere while they run here.
        """
        self._confused = True
        if self._transport is None:
            return
        text = f"the spawner in {self._directory} says what this agent does not understand ({problem!r})"
        if listed:
            self._transport.close()  # its next list has all it knows
        else:
            text += "; its version is too old or too new, so its tasks are ended and are tried again"
            self._transport.write(pack(("end", END_GRACE)))
        self._say(text)

    def connection_lost(self, problem: Exception | None) -> None:
        self._transport = None
        self._lost.set()


def _open(directory: Path) -> socket.socket | None:
    """Return a connection to the spawner of a directory; None if no spawner listens.

    The socket is opened through /proc, because its path must be short and the directory's may be long.
    """
    try:
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    except FileNotFoundError:
        return None  # the root helper creates the directory
    try:
        link = socket.socket(socket.AF_UNIX)
        link.setblocking(False)  # connecting would block if a signal has stopped the spawner
        try:
            link.connect(f"/proc/self/fd/{folder}/socket")
        except OSError:
            link.close()
            return None
    finally:
        os.close(folder)
    return link


class OwnSpawner:
    """Starts a spawner as the agent's own user."""

    def __init__(self, directory: Path, logs: Path) -> None:
        self._directory = directory
        self._logs = logs
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> str:
        ended = None if self._process is None else self._process.poll()
        if self._process is None or ended is not None:
            self._process = None
            self._process = start_spawner(self._directory, self._logs)
        return f"a spawner ended with code {ended}; {self._directory / LOG} says why" if ended else ""


def start_spawner(directory: Path, logs: Path) -> subprocess.Popen[bytes]:
    """Start a spawner. If one runs already, the new one exits."""
    mark = _mark(directory)
    python = [sys.executable, "-I", "-S", "-c"]
    with open(directory / LOG, "ab") as log:
        return subprocess.Popen(
            [*python, BOOT, *python, RUN, SOURCE, "spawner", str(directory), mark, str(logs)],
            env={MARK: mark},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _mark(directory: Path) -> str:
    """Return the mark that this directory's spawners and all processes of their tasks have in their environment."""
    file = directory / "id"
    mark = file.read_text() if file.exists() else ""
    if not mark:
        mark = f"{secrets.token_hex(8)}:"
        replace_file(file, mark)
    return mark


def replace_file(file: Path, text: str) -> None:
    fresh = file.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(file)


def prepare(directory: Path) -> Path:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    return directory


def end_all(directory: Path, grace: float) -> int:
    """End all tasks of an agent's directory and their spawners; return the number of tasks.

    The results of the tasks are kept for the next agent.
    """
    folders = sorted((*directory.glob("spawner-*"), *directory.glob("users/*")))
    links = {folder: link for folder in folders if (link := _open(folder)) is not None}
    ended = 0
    for link in links.values():
        link.setblocking(True)
        with suppress(ConnectionError):  # the spawner was killed just now
            link.sendall(pack(("end", grace)))
    for folder, link in links.items():
        incoming = Unpacker()
        with suppress(ConnectionError):
            while data := link.recv(1 << 16):
                for kind, *rest in incoming.feed(data):
                    if kind == "state":  # the first message lists the tasks
                        ended += sum(state != ENDED for _, _, _, state, *_ in rest[0])
        link.close()
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)  # locked until the spawner has ended
    return ended


def is_used(directory: Path) -> bool:
    """True if an agent uses a directory now."""
    if not (directory / "lock").exists():
        return False
    with (directory / "lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
