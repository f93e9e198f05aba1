"""The agent at work: its spawners, its book, and a connection to the server that is made again and again."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from fairlead.agent.identity import Identity
from fairlead.agent.launching import surroundings
from fairlead.agent.link import Link, OwnSpawner, prepare
from fairlead.agent.logs import remove_old
from fairlead.agent.machine import Machine, host_name, this_machine
from fairlead.agent.session import KeyRenewed, Refused, Session
from fairlead.agent.split import Helper
from fairlead.agent.task_table import TaskTable
from fairlead.wire import agent as wire
from fairlead.wire.agent import MOST_BYTES, PATH, Hello

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
SPAWNER_TIMEOUT = 10.0
"""Seconds for the spawners of users to say what they know, when the agent starts."""
SWEEP = 3600.0
"""Seconds between two looks for old logs."""

Log = Callable[[str, dict[str, Any]], None]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent was started. What is left out is found out."""

    join: str
    """The server, as http:// or https://."""
    directory: Path
    """Where its state and its tasks' logs are."""
    token: str = ""
    """A join token, for a machine that has not joined yet."""
    name: str = ""
    partition: str = ""
    pool: str = ""
    labels: dict[str, str] = {}
    taints: tuple[str, ...] = ()
    resources: dict[str, int | float | str] = {}
    """Instead of what was found on the machine."""
    address: str = ""
    authority: Path | None = None
    """A file with the certificates to trust, instead of the machine's."""
    spawners: int = 0
    users: tuple[str, ...] = ()
    """The users whose tasks this node takes; empty: all. Only a node that separates users may take all."""


class Taken(Exception):
    """Another agent uses the directory."""


class Agent:
    def __init__(
        self, settings: Settings, log: Log, machine: Machine | None = None, helper: Helper | None = None
    ) -> None:
        """With the root helper tasks run as their users, else as the user of the agent."""
        self._settings = settings
        self._log = log
        self._machine = machine or this_machine()
        self._name = settings.name or host_name()
        self._directory = prepare(settings.directory)
        self._lock = _lock(self._directory)
        self._identity = Identity(self._directory, self._name, settings.token)
        self._helper = helper
        around = surroundings(self._name, self._machine.gpus, os.environ, helper is not None)
        self.table = TaskTable(around, 0 if helper else settings.spawners or min(2, os.cpu_count() or 1))
        for user in helper.known() if helper else ():
            self.table.spawners_of(user)
        self._links: list[Link] = []
        self._parts: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[None] | None = None
        """Done when a part of the agent has ended."""
        self._epoch_file = self._directory / f"epoch-{settings.partition or 'default'}"
        self._epoch = self._stored_epoch = _number_in(self._epoch_file)
        self._first = 0
        """Spawners that are waited for before the server hears of this node."""
        self._found: set[int] = set()
        """The spawners that have said what they know."""
        self._all_found = asyncio.Event()
        self._session: Session | None = None
        self._lease_of_tasks = (float("inf"), float("inf"), 0.0, "")
        self._notes: dict[int, str] = {}
        self._cgroup = "none"
        self.joined = asyncio.Event()
        """Set while the server knows this agent."""

    async def run(self) -> None:
        """Work until cancelled. The tasks go on under their spawners."""
        self._over = asyncio.get_running_loop().create_future()
        self._follow_users()
        self._first = len(self._links)
        if not self._first:
            self._all_found.set()
        self._keep(self._serve())
        self._keep(self._sweep())
        try:
            await self._over  # a part that failed ends the agent, never silently only itself
        finally:
            self.table.tell_confirmed()
            self._deliver()
            for task in self._parts:
                task.cancel()
            await asyncio.gather(*self._parts, return_exceptions=True)
            os.close(self._lock)

    # -- the server ----------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        while not self._all_found.is_set():
            try:
                async with asyncio.timeout(SPAWNER_TIMEOUT):
                    await self._all_found.wait()
            except TimeoutError:
                await self._end_silent()
        await self._stay_joined()

    async def _end_silent(self) -> None:
        """End spawners of users that do not answer: a user that stops its own must not keep the node from joining."""
        silent = [at for at in range(self._first) if at not in self._found]
        for user in [self.table.users[at] for at in silent] if self._helper else ():
            assert self._helper is not None
            problem = await self._helper.end(user)
            self._log("spawner ended", {"user": user, "problem": problem or "it did not answer"})

    async def _stay_joined(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._join()
            except Refused as refused:
                self._log("refused", {"server": self._settings.join, "problem": str(refused)})
                if refused.final:
                    raise
            except KeyRenewed:
                self._log("key renewed", {"server": self._settings.join, "node": self._name})
            except (OSError, WebSocketException, msgspec.DecodeError) as problem:
                self._log("disconnected", {"server": self._settings.join, "problem": str(problem)})
            finally:
                was_joined = self.joined.is_set()
                self.joined.clear()
                self._session = None
            pause = FIRST_PAUSE if was_joined else min(LONGEST_PAUSE, 2 * pause)
            # Not all at once, when a server comes back that many wait for.
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))

    async def _join(self) -> None:
        settings = self._settings
        async with connect(
            _address(settings),
            compression=None,
            max_size=MOST_BYTES,
            ssl=_trust(settings),
            proxy=None,
        ) as connection:
            address = settings.address or str(connection.local_address[0])
            await self._talk(connection, address)

    async def _talk(self, connection: ClientConnection, address: str) -> None:
        channel = _Channel(connection)
        await self._identity.prove(channel)
        table = self.table
        table.reconnected()
        hello = Hello(
            self._name,
            self._machine.resources | self._settings.resources,
            dict(self._machine.labels) | self._facts() | self._settings.labels,
            self._settings.taints,
            self._settings.pool,
            address,
            wire.this_machine(),
            table.started("running"),
            table.started("ended"),
            tuple(sorted(set(self._notes.values()))),
            self._settings.users,
        )
        session = Session(channel, table, self._logs_of, self._lease, self._deliver, self._check_epoch, self._identity)

        def joined() -> None:
            self._session = session
            self._identity.joined()
            self.joined.set()
            self._log("joined", {"server": self._settings.join, "node": self._name, "running": len(table)})
            session.poke()

        await session.run(hello, joined)

    def _check_epoch(self, epoch: int) -> None:
        """Orders of a reign that is over are not taken, also after a restart of the agent."""
        if epoch < self._epoch:
            raise Refused(
                f"the server's epoch {epoch} is over, since {self._epoch} was seen; if the server was set up anew, "
                f"remove {self._epoch_file} and start the agent again",
                False,
            )
        self._epoch = epoch
        if epoch > self._stored_epoch:
            try:
                fresh = self._epoch_file.with_suffix(".new")
                fresh.write_text(str(epoch))
                fresh.replace(self._epoch_file)
                self._stored_epoch = epoch
            except OSError as problem:  # a full disk must not keep it from its server; it is tried with the next order
                self._log("epoch not stored", {"file": str(self._epoch_file), "problem": str(problem)})

    # -- spawners ------------------------------------------------------------------------------------------------

    def _follow_users(self) -> None:
        """Have a link for every spawner that the book has."""
        for at in range(len(self._links), len(self.table.users)):
            user, helper = self.table.users[at], self._helper
            if helper is None:
                folder = prepare(self._directory / f"spawner-{at}")
                start: Callable[[], Awaitable[str]] = OwnSpawner(folder, prepare(self._directory / "logs")).start
            else:
                folder, start = helper.users / user, partial(helper.start, user)
            link = Link(
                folder,
                start,
                partial(self._hear, at),
                partial(self._miss, at),
                partial(self._is_wanted, at),
                partial(self._refuse, at),
            )
            self._links.append(link)
            self._keep(link.keep())

    def _is_wanted(self, at: int) -> bool:
        """True if a spawner is to run: that of a user only while the user has tasks."""
        return self._helper is None or self.table.has_tasks_at(at)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        part = asyncio.create_task(work)
        self._parts.add(part)
        part.add_done_callback(self._end_with)

    def _end_with(self, part: asyncio.Task[None]) -> None:
        if self._over is None or self._over.done() or part.cancelled():
            return
        problem = part.exception()
        if problem is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(problem)

    def _hear(self, at: int, what: str, *rest: Any) -> None:
        if what == "state":
            known, self._notes[at], self._cgroup = rest
            self._links[at].send(("lease", *self._lease_of_tasks))
            self.table.find(at, known)
            self._find(at)
        else:
            self.table.hear(*rest)
        self._tell()

    def _refuse(self, at: int, problem: str) -> None:
        """A user may not run tasks here."""
        self._log("user refused", {"problem": problem})
        self.table.refuse(at, problem)
        self._find(at)
        self._tell()

    def _find(self, at: int) -> None:
        self._found.add(at)
        if len(self._found) >= self._first:
            self._all_found.set()

    def _tell(self) -> None:
        self._deliver()
        if self._session is not None:
            self._session.poke()

    def _miss(self, at: int, problem: str, gone: bool) -> None:
        self._log("spawner", {"problem": problem})
        if gone:
            self.table.miss(at, problem)
            self._tell()

    def _deliver(self) -> None:
        self._follow_users()
        for at, outbox in enumerate(self.table.outbox):
            if outbox:
                frames, self.table.outbox[at] = outbox, []
                if not self._links[at].send(*frames):
                    self.table.not_sent(at, frames)
                self._links[at].wake()

    def _logs_of(self, user: str) -> str:
        return str(self._directory / "logs" if self._helper is None else self._helper.users / user / "logs")

    def _facts(self) -> dict[str, str]:
        """What separates users here, as labels."""
        if self._helper is not None:
            return {"users": "separate", **self._helper.facts}
        return {"users": "one", "cgroup": self._cgroup, "tmp": "shared"}

    def _lease(self, ask_at: float, end_at: float, length: float, lock: str) -> None:
        self._lease_of_tasks = (ask_at, end_at, length, lock)
        for link in self._links:
            link.send(("lease", *self._lease_of_tasks))

    async def _sweep(self) -> None:
        while True:
            users = [""] if self._helper is None else [each.name for each in self._helper.folders()]
            for user in users:
                try:
                    await asyncio.to_thread(remove_old, self._logs_of(user))
                except FileNotFoundError:
                    continue  # there are no logs yet
                except Exception as problem:  # what one user has put there must not end the agent of all
                    self._log("old logs not removed", {"folder": self._logs_of(user), "problem": str(problem)})
            await asyncio.sleep(SWEEP)


class _Channel:
    """A client's WebSocket as a session sees it."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.send = connection.send

    async def recv(self) -> bytes:
        data = await self._connection.recv()
        return data if isinstance(data, bytes) else data.encode()


def _address(settings: Settings) -> str:
    parts = urlsplit(settings.join)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    query = urlencode({"partition": settings.partition}) if settings.partition else ""
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}{PATH}{'?' + query if query else ''}"


def _trust(settings: Settings) -> ssl.SSLContext | None:
    if urlsplit(settings.join).scheme not in ("https", "wss"):
        return None
    return ssl.create_default_context(cafile=settings.authority)


def _number_in(file: Path) -> int:
    """The number that a file has; 0 if there is none, or none was written before the machine went down."""
    text = file.read_text() if file.exists() else ""
    return int(text) if text.isdigit() else 0


def _lock(directory: Path) -> int:
    """Two agents would take the spawners from each other again and again."""
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise Taken(f"another agent uses {directory}; stop it, or give this one a directory of its own") from None
    return lock
