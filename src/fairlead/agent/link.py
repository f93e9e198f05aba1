"""The agent's end of a spawner: it is found or started, told what to do, and started again should it end.

A single-user node starts its spawners itself. Where tasks run as their users, the root helper does (`split.py`).
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

from fairlead.agent.spawner.frames import Unpacker, pack
from fairlead.agent.spawner.processes import MARK
from fairlead.agent.spawner.records import ENDED

SOURCE = str(Path(__file__).parents[2])
# What a task leaves behind becomes a child of the spawner. That is asked for by a first program, which is then
# replaced by the spawner itself: it would only make it larger.
BOOT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"
RUN = """
import sys
sys.path.append(sys.argv[1])
__import__(f"fairlead.agent.spawner.{sys.argv[2]}")
sys.exit(sys.modules[f"fairlead.agent.spawner.{sys.argv[2]}"].main(*sys.argv[3:]))
"""
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
LOG = "spawner.log"
SILENT = 15
"""Tries to connect, in about ten seconds, after which a spawner counts as missing."""


class Forbidden(Exception):
    """A user may have no spawner here; the text says why."""


class Link(asyncio.Protocol):
    """A connection to one spawner, whose socket is in `directory`. `heard` is called with each of its messages."""

    def __init__(
        self,
        directory: Path,
        start: Callable[[], Awaitable[str]],
        heard: Callable[..., None],
        failed: Callable[[str, bool], None],
        wanted: Callable[[], bool] = lambda: True,
        forbidden: Callable[[str], None] = lambda problem: None,
    ) -> None:
        """`start` starts the spawner, unless it is being started, and returns why the last start failed, if it did.

        `failed` hears why a spawner ended or could not be started; a new one is tried without end. Its second argument
        is True once a start has failed: until a spawner speaks again there is none. The link is kept while it is
        `wanted`. `forbidden` hears that there can be none.
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
        """True once a spawner has said what it knows, or cannot be had: until then one is wanted."""
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
        """Look again whether the spawner is wanted."""
        self._wake.set()

    def send(self, *frames: tuple[Any, ...]) -> bool:
        """Send messages. Without a spawner, or before it has said what it knows, they are lost: that settles them.

        A launch that it took before would not be in what it says, and its tasks would be given to others. False if the
        messages are lost here; if True, they may have been lost on the way to a spawner that ended.
        """
        if self._transport is None or not self._spoken:
            return False
        self._transport.writelines([pack(frame) for frame in frames])
        return True

    async def _connect(self) -> None:
        pause = FIRST_PAUSE
        tries, gone, said = 0, False, ("", False)
        while True:
            problem = ""
            try:
                link = _open(self._directory)
                if link is not None:
                    break
                problem = await self._start()
                gone = bool(problem) and tries > 0
                tries += 1
                if not problem and tries > SILENT:
                    problem, gone = f"no spawner answers in {self._directory}", True
            except OSError as fault:
                problem, gone = f"no spawner could be started in {self._directory}: {fault.strerror or fault}", True
            if problem and (problem, gone) != said:
                said = (problem, gone)
                self._failed(problem, gone)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, 1.5 * pause)
        self._incoming = Unpacker()
        self._lost.clear()
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=link)

    # -- called by the loop --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # that of another loop is none by its type
        self._spoken = False

    def data_received(self, data: bytes) -> None:
        for message in self._incoming.feed(data):
            self._spoken = self._settled = True  # its first message is what it knows
            self._heard(*message)

    def connection_lost(self, problem: Exception | None) -> None:
        self._transport = None
        self._lost.set()


def _open(directory: Path) -> socket.socket | None:
    """Connect, if a spawner listens. The path of a socket must be short, and that of a directory may be long."""
    try:
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    except FileNotFoundError:
        return None  # the root helper makes it
    try:
        link = socket.socket(socket.AF_UNIX)
        link.setblocking(False)  # a spawner that is stopped accepts no link, and connecting would wait for it
        try:
            link.connect(f"/proc/self/fd/{folder}/socket")
        except OSError:
            link.close()
            return None
    finally:
        os.close(folder)
    return link


class OwnSpawner:
    """A spawner that the agent starts itself, as its own user."""

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
    """Start a spawner. If there is one after all, the new one ends by itself."""
    mark = _mark(directory)
    python = [sys.executable, "-I", "-S", "-c"]
    with open(directory / LOG, "ab") as log:
        return subprocess.Popen(
            [*python, BOOT, *python, RUN, SOURCE, "main", str(directory), mark, str(logs)],
            env={MARK: mark},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _mark(directory: Path) -> str:
    """What every process below this spawner, and below any later one of this directory, is known by."""
    file = directory / "id"
    mark = file.read_text() if file.exists() else ""
    if not mark:
        mark = f"{secrets.token_hex(8)}:"
        fresh = file.with_suffix(".new")
        fresh.write_text(mark)
        fresh.replace(file)
    return mark


def prepare(directory: Path) -> Path:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    return directory


def end_all(directory: Path, grace: float) -> int:
    """End all tasks of an agent's directory, and their spawners too; returns how many tasks there were.

    What became of them is kept for the next agent.
    """
    folders = sorted((*directory.glob("spawner-*"), *directory.glob("users/*")))
    links = {each: link for each in folders if (link := _open(each)) is not None}
    ended = 0
    for link in links.values():
        link.setblocking(True)
        with suppress(ConnectionError):  # it was killed just now
            link.sendall(pack(("end", grace)))
    for folder, link in links.items():
        incoming = Unpacker()
        with suppress(ConnectionError):
            while data := link.recv(1 << 16):
                for what, *rest in incoming.feed(data):
                    if what == "state":  # what it knew when we came
                        ended += sum(state != ENDED for _, _, _, state, _ in rest[0])
        link.close()
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)  # the spawner holds it until it has ended
    return ended


def is_used(directory: Path) -> bool:
    """Whether an agent uses a directory now."""
    if not (directory / "lock").exists():
        return False
    with (directory / "lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
