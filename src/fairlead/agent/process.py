"""The agent process: its directory, spawners and connections. `coordinator.py` passes messages between them."""

from __future__ import annotations

import asyncio
import fcntl
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidMessage, WebSocketException

from fairlead import __version__
from fairlead.agent.coordinator import Epoch, Joining, Log
from fairlead.agent.launch_data import personal_variables, surroundings
from fairlead.agent.machine import Machine, free_ports, host_name, this_machine
from fairlead.agent.node_key import Identity
from fairlead.agent.probe import Probe
from fairlead.agent.result_lists import ResultLists
from fairlead.agent.session import Channel, Refused
from fairlead.agent.spawner.confine import SHARED
from fairlead.agent.spawner.container import kinds
from fairlead.agent.spawner_link import Link, OwnSpawner, prepare, replace_file
from fairlead.agent.split import Helper
from fairlead.agent.task_logs import remove_old
from fairlead.agent.task_table import TaskTable
from fairlead.agent.tunnel_hop import Tunnels
from fairlead.wire import agent_messages as wire
from fairlead.wire.addresses import is_exposed, servers
from fairlead.wire.agent_messages import MAX_MESSAGE_BYTES, PATH, Hello

SPAWNER_TIMEOUT = 10.0
"""Seconds that users' spawners have to list their tasks when the agent starts."""
SILENT = 20.0
"""Seconds after which the spawner of a user that has not answered a launch is ended. The server's `launch_timeout`
should be longer, because the server pauses the node then."""
OVERDUE = 10.0
"""Seconds after the end of its grace when a task that was stopped is ended by the root helper, with its spawner."""
LOOK = 1.0
"""Seconds between two checks for silent spawners."""
SWEEP = 3600.0
"""Seconds between two removals of old logs."""
MAX_SPAWNERS = 16
"""A spawner starts up to 2,500 quick tasks a second, and takes 5 MB of its own."""
MAX_TUNNELS, USER_TUNNELS = 500, 100
"""Tunnels that are connected to this node at a time, of all users and of one."""
OPEN_TIME = 5.0
"""Seconds to open a connection to a server, before another attempt."""
OUT_OF_TIME = (9, 10)
"""OpenSSL's codes for a certificate that is not valid yet, or has expired."""
OTHER_NAME = (62, 64)
"""OpenSSL's codes for the certificate of another host or address."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an agent. Values that are not given are detected."""

    join: str
    """The URL of the server, with http:// or https://."""
    directory: Path
    """The directory for the agent's state and the logs of its tasks."""
    token: str = ""
    """A join token, for a machine that has not joined yet."""
    name: str = ""
    partition: str = ""
    pool: str = ""
    labels: dict[str, str] = {}
    taints: tuple[str, ...] = ()
    resources: dict[str, int | float | str] = {}
    """Resources that replace the detected ones."""
    address: str = ""
    authority: Path | None = None
    """A file with the certificates to trust instead of the machine's."""
    spawners: int = 0
    checkpoints: Path | None = None
    """A folder for checkpoints of tasks, which the nodes of the site share."""
    users: tuple[str, ...] = ()
    """The users whose tasks this node takes; empty for all, which only a node that separates users may."""


class Taken(Exception):
    """Raised if another agent uses the directory."""


class Agent:
    def __init__(
        self, settings: Settings, log: Log, machine: Machine | None = None, helper: Helper | None = None
    ) -> None:
        """Take the settings. With the root helper, tasks run as their users; without it, as the user of the agent."""
        self._settings = settings
        self._log = log
        self._machine = machine or this_machine()
        self._name = settings.name or host_name()
        self._directory = prepare(settings.directory)
        self._lock = _lock(self._directory)
        self._identity = Identity(self._directory, self._name, settings.token)
        self._helper = helper
        self._images = {} if self._is_hidden() else {f"image.{kind}": runtime for kind, runtime in kinds().items()}
        inherited = {**personal_variables(), **os.environ}
        server = server_variables(settings)
        around = surroundings(self._name, self._machine.gpus, inherited, helper is not None, server)
        if settings.checkpoints is not None:
            around = msgspec.structs.replace(around, checkpoints=str(settings.checkpoints))
        self.lists = ResultLists(self._directory / "results", log)
        if helper is None:
            number = settings.spawners or spawners_for(os.cpu_count() or 1)
            self.table = TaskTable(around, number, keep_list=self.lists.add, choose_ports=free_ports)
        else:
            fails = Probe(self._directory).fails
            self.table = TaskTable(around, 0, machine_fails=fails, keep_list=self.lists.add, choose_ports=free_ports)
            for user in helper.known():
                self.table.spawners_of(user)
        self._parts: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[None] | None = None
        """Resolved when a part of the agent has ended."""
        file = self._directory / f"epoch-{settings.partition or 'default'}"
        self.epoch = Epoch(_number_in(file), lambda epoch: replace_file(file, str(epoch)), str(file), log)
        self.server = settings.join
        self._servers = servers(settings.join)
        """The URLs of the servers, the next one first."""
        self._now_at = self._servers[0]
        """The URL of the server that it is connected to."""
        self._tunnels = Tunnels(MAX_TUNNELS, USER_TUNNELS)
        self._joining = Joining(self.table, self, self._identity, self.epoch, log, cores=os.cpu_count() or 1)
        self.joined = self._joining.joined
        """Set while the agent is joined to a server."""

    def _is_hidden(self) -> bool:
        """True if tasks do not see this package: it lies in a folder in whose place each user has a private one."""
        private = self._helper is not None and self._helper.facts.get("tmp") == "private"
        return private and os.path.abspath(__file__).startswith(tuple(f"{folder}/" for folder in SHARED))

    async def run(self) -> None:
        """Run until cancelled. The tasks keep running under their spawners."""
        self._over = asyncio.get_running_loop().create_future()
        self._joining.begin()
        self._keep(self._serve())
        self._keep(self._sweep())
        if self._helper is not None:
            self._keep(self._helper.listen())
            self._keep(self._end_unresponsive(self._helper))
        try:
            await self._over  # a part that fails ends the whole agent
        finally:
            self.table.send_confirmed_ends()
            self._joining.deliver()
            for task in self._parts:
                task.cancel()
            await asyncio.gather(*self._parts, return_exceptions=True)
            os.close(self._lock)

    # -- the server ----------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        all_found = self._joining.all_found
        while not all_found.is_set():
            try:
                async with asyncio.timeout(SPAWNER_TIMEOUT):
                    await all_found.wait()
            except TimeoutError:
                # A user who suspends their own spawner must not keep the node from joining.
                if self._helper is not None:
                    for at in self._joining.silent:
                        await self._end_spawner(self._helper, at, "the spawner did not answer")
        await self._joining.stay()

    async def _end_unresponsive(self, helper: Helper) -> None:
        """End spawners that do not answer launches or do not end their tasks in time, until cancelled.

        Otherwise a user who suspends their own spawner would get the node paused for all users, and a task that impairs
        its spawner could not be stopped.
        """
        since: dict[int, float] = {}
        while True:
            await asyncio.sleep(LOOK)
            now, awaited = monotonic(), self.table.awaited()
            since = {at: since.get(at, now) for at in awaited}
            for at, first in list(since.items()):
                if now - max(first, self._joining.heard.get(at, 0.0)) > SILENT:
                    del since[at]
                    await self._end_spawner(helper, at, "the spawner did not answer")
            for at in self.table.overdue(OVERDUE):
                await self._end_spawner(helper, at, "a task did not end when it was stopped")

    async def _end_spawner(self, helper: Helper, at: int, why: str) -> None:
        user = self.table.users[at]
        problem = await helper.end(user)
        self._log("spawner ended", {"user": user, "problem": problem or why})

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[Channel, str]]:
        settings = self._settings
        # Try one server after the other: only the one that leads accepts an agent.
        url = self._now_at = self._servers[0]
        self._servers.append(self._servers.pop(0))
        try:
            async with connect(
                _address(url, settings.partition),
                compression=None,
                max_size=MAX_MESSAGE_BYTES,
                ssl=_trust(url, settings.authority),
                proxy=None,
                open_timeout=OPEN_TIME,
            ) as connection:
                try:
                    yield _Channel(connection), settings.address or str(connection.local_address[0])
                finally:
                    # No closing handshake: on a dead link it takes longer than a short lease.
                    connection.transport.abort()
        except ssl.SSLCertVerificationError as problem:
            raise _untrusted(settings, problem) from problem
        except ssl.SSLError as problem:
            remedy = "check that the server has a certificate (--certificate) and that no proxy is in between"
            raise ConnectionError(f"TLS with {settings.join} failed ({problem.reason}); {remedy}") from problem
        except InvalidMessage as problem:
            remedy = "check the address, and write https:// if the server has a certificate"
            raise ConnectionError(f"{settings.join} does not answer as a Fairlead server does; {remedy}") from problem
        except WebSocketException as problem:
            raise ConnectionError(str(problem)) from problem

    def open_tunnel(self, request: wire.OpenTunnel) -> None:
        # The spawner of a running task is known; after its end it may be any of the user's.
        folders = [self._folder_of(at) for at in self.table.spawners_of(request.user)]
        url = f"{_address(self._now_at, '')}/{request.ticket}"

        async def serve() -> None:
            connections: list[ClientConnection] = []

            async def dial() -> _Channel:
                trust = _trust(url, self._settings.authority)
                connections.append(
                    await connect(url, compression=None, max_size=None, max_queue=4, ssl=trust, proxy=None)
                )
                return _Channel(connections[0])

            try:
                await self._tunnels.serve(request, folders, dial)
            except (OSError, WebSocketException) as problem:
                self._log("tunnel not opened", {"user": request.user, "problem": str(problem)})
            finally:
                for connection in connections:
                    await connection.close()

        task = asyncio.create_task(serve())
        self._parts.add(task)
        task.add_done_callback(self._parts.discard)

    def _folder_of(self, at: int) -> Path:
        if self._helper is None:
            return self._directory / f"spawner-{at}"
        return self._helper.users / self.table.users[at]

    def describe(self, address: str) -> Hello:
        settings = self._settings
        return Hello(
            self._name,
            self._machine.resources | settings.resources,
            dict(self._machine.labels) | self._facts() | settings.labels,
            settings.taints,
            settings.pool,
            address,
            wire.this_machine(),
            users=settings.users,
            speaks=wire.SPEAKS,
        )

    # -- spawners ------------------------------------------------------------------------------------------------

    def open_link(self, at: int, user: str) -> Link:
        helper = self._helper
        if helper is None:
            folder = prepare(self._folder_of(at))
            start: Callable[[], Awaitable[str]] = OwnSpawner(folder, prepare(self._directory / "logs")).start
        else:
            folder, start = self._folder_of(at), partial(helper.start, user)
        link = Link(
            folder,
            start,
            partial(self._joining.on_message, at),
            partial(self._joining.on_spawner_lost, at),
            partial(self._is_wanted, at),
            partial(self._joining.refuse, at),
        )
        self._keep(link.keep())
        return link

    def _is_wanted(self, at: int) -> bool:
        """True if a spawner should run: always on a single-user node, otherwise only while its user has tasks."""
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

    def logs_of(self, user: str) -> str:
        return str(self._directory / "logs" if self._helper is None else self._helper.users / user / "logs")

    async def waiting_results(self) -> list[wire.Tasks]:
        return await asyncio.to_thread(self.lists.all)

    def owner_of(self, user: str) -> str:
        return "" if self._helper is None else user

    def users_with_logs(self) -> list[str]:
        """Return the users that may have logs here; only an empty name if all users share one folder."""
        return [""] if self._helper is None else [folder.name for folder in self._helper.folders()]

    def _facts(self) -> dict[str, str]:
        own = {"node": self._name, "version": __version__, **self._images}
        if self._helper is not None:
            return {**own, "users": "separate", **self._helper.facts}
        return {**own, "users": "one", "cgroup": self._joining.cgroup, "tmp": "shared"}

    async def _sweep(self) -> None:
        while True:
            for user in self.users_with_logs():
                try:
                    await asyncio.to_thread(remove_old, self.logs_of(user))
                except FileNotFoundError:
                    continue  # there are no logs yet
                except Exception as problem:  # files of one user must not stop the agent for all users
                    self._log("old logs not removed", {"folder": self.logs_of(user), "problem": str(problem)})
            await asyncio.sleep(SWEEP)


class _Channel:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def send(self, data: bytes) -> None:
        with suppress(ConnectionClosed):  # the next `recv` returns the last message of the server, or raises
            await self._connection.send(data)

    async def recv(self) -> bytes:
        data = await self._connection.recv()
        return data if isinstance(data, bytes) else data.encode()


def spawners_for(cores: int) -> int:
    """Return the number of spawners that a node without separate users needs to keep its cores busy."""
    return max(min(2, cores), min(MAX_SPAWNERS, cores // 2))


def server_variables(settings: Settings) -> dict[str, str]:
    """Return the variables with which tasks find the server of this agent, as the agent does."""
    variables = {"FAIRLEAD_URL": settings.join}
    if settings.authority is not None:
        variables["FAIRLEAD_CA"] = str(settings.authority.absolute())
    if any(map(is_exposed, servers(settings.join))):
        variables["FAIRLEAD_INSECURE"] = "1"  # the agent was told that the network is trusted
    return variables


def _address(url: str, partition: str) -> str:
    parts = urlsplit(url)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    query = urlencode({"partition": partition}) if partition else ""
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}{PATH}{'?' + query if query else ''}"


def _trust(url: str, authority: Path | None) -> ssl.SSLContext | None:
    if urlsplit(url).scheme not in ("https", "wss"):
        return None
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as problem:
        cause = problem.strerror or problem
        remedy = "name a PEM file that the agent's user can read, with --ca or FAIRLEAD_CA"
        raise Refused(f"{authority} has no certificates to trust ({cause}); {remedy}", True) from None


def _untrusted(settings: Settings, problem: ssl.SSLCertVerificationError) -> Refused:
    if problem.verify_code in OUT_OF_TIME:
        final, remedy = False, "renew it on the server, or set the clock of this machine"
    elif problem.verify_code in OTHER_NAME:
        final, remedy = True, "join by a name that the certificate has, or add this one to the certificate"
    else:
        final, remedy = True, "name the file with the certificate of its authority, with --ca or FAIRLEAD_CA"
    cause = f"the certificate of {settings.join} is not trusted ({problem.verify_message})"
    return Refused(f"{cause}; {remedy}", final, may_pass=True)


def _number_in(file: Path) -> int:
    """Return the number in a file; 0 if the file is missing, or if a crash of the machine has left it empty."""
    text = file.read_text() if file.exists() else ""
    return int(text) if text.isdigit() else 0


def _lock(directory: Path) -> int:
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise Taken(f"another agent uses {directory}; stop it, or give this one a directory of its own") from None
    return lock
