"""A small plant for tests: a real writer on a real journal, the hub, and a WebSocket server on 127.0.0.1."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from fairlead.agent.node_key import prove
from fairlead.agent.session import Channel
from fairlead.core.commands import Accepted, Command, Configure, Kill, Rejected, Submit
from fairlead.core.config import parse_config
from fairlead.core.documents import parse_job
from fairlead.core.effects import ForNode
from fairlead.core.model import Job
from fairlead.core.state import Partition
from fairlead.engines.agents import Agents
from fairlead.engines.engine import Closed, Ended
from fairlead.identity.node_keys import Identities
from fairlead.identity.tokens import Tokens
from fairlead.journal import SqliteJournal
from fairlead.wire.agent_messages import MAX_MESSAGE_BYTES
from fairlead.wire.handshake import Exchange, Key, split_token
from fairlead.writer.inbox import Inbox
from fairlead.writer.loop import LiveWriter, WriterThread
from fairlead.writer.writer import Writer

Result = TypeVar("Result")
PARTITION = "default"
JOIN_TOKEN = "join-token"
SECONDS = 60.0  # the longest wait of a test; no result depends on it


class Socket:
    """A server's WebSocket as the hub sees one."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def send(self, data: bytes) -> None:
        try:
            await self._connection.send(data)
        except ConnectionClosed:
            raise Closed from None

    async def recv(self) -> bytes:
        try:
            data = await self._connection.recv()
        except ConnectionClosed:
            raise Closed from None
        return data if isinstance(data, bytes) else data.encode()

    def trust(self) -> None:
        pass

    async def close(self, code: int, reason: str) -> None:
        await self._connection.close(code, reason)


class Plant:
    def __init__(self, path: Path, settings: dict[str, Any], port: int = 0, **hub: Any) -> None:
        self.ended: list[Ended] = []
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.identities = Identities(path.parent, Tokens(path.parent / "tokens"))
        [(self.token, _)] = self.identities.invite(uses=1_000)
        (path.parent / JOIN_TOKEN).write_text(self.token)
        self.hub = Agents(
            self.identities, log=lambda event, fields: self.log.append((event, fields)), ended=self.ended.extend, **hub
        )
        self.keys: dict[str, Key] = {}
        """Node → the key of its puppet."""
        self.url = ""
        self._journal = SqliteJournal(path, synchronous="off")
        self._writer = Writer(self._journal, PARTITION)
        self.thread = WriterThread()
        self.inbox = Inbox()
        self._live = LiveWriter(self._writer, self.inbox, self._dispatch, lambda cycle: None, self.thread)
        self._settings = settings
        self._port = port

    # -- as a desk -----------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self._writer.epoch

    @property
    def skipped_epochs(self) -> range:
        return range(0)

    @property
    def leads(self) -> bool:
        return not self._writer.stopped

    @property
    def partition(self) -> Partition:
        return self._writer.partition

    def offer(self, command: Command) -> Awaitable[object]:
        return self._live.inbox.offer(command)

    async def read(self, look: Callable[[Partition], Result]) -> Result:
        async with self.thread.lock:
            return look(self.partition)

    def _dispatch(self, effects: Any) -> None:
        self.hub.dispatch(PARTITION, [effect for effect in effects if isinstance(effect, ForNode)])

    # -- for tests -----------------------------------------------------------------------------------------------

    async def ask(self, command: Command) -> Accepted:
        answer = await self.offer(command)
        assert isinstance(answer, Accepted), answer
        return answer

    async def submit(self, command: list[str], user: str = "ann", **stage: Any) -> str:
        job = {"user": user, "stages": [{"command": command, "resources": {"cpu": 0.001}, **stage}]}
        return (await self.ask(Submit(spec=parse_job(job), user=user))).job

    async def prove(self, channel: Channel, node: str, instance: str = "") -> Exchange:
        """Join as a node with its key, as an agent does."""
        joined = node in self.keys
        secret, server = split_token(self.token)
        key = self.keys.setdefault(node, Key())
        return await prove(channel, node, key, server, instance, "" if joined else secret)

    async def kill(self, job: str) -> None:
        await self.ask(Kill(job=job, user="ann"))

    async def job(self, job: str, look: Callable[[Job], Result]) -> Result:
        return await self.read(lambda partition: look(partition.jobs[job]))

    async def until(self, true: Callable[[Partition], Any], what: str = "") -> None:
        """Wait until a condition on the partition is true."""
        async with asyncio.timeout(SECONDS):
            while not await self.read(true):
                await asyncio.sleep(0.01)

    async def over(self, job: str) -> str:
        await self.until(
            lambda partition: partition.jobs[job].over and not partition.jobs[job].allocations, f"{job} is over"
        )
        return await self.job(job, lambda each: each.state)

    async def ends(self, many: int, state: str = "succeeded") -> list[int]:
        """Wait until `many` tasks ended in a state, and return their indices. Ends are seen once they are durable."""
        while len(found := [each.index for each in self.ended if each.state == state]) < many:
            await asyncio.sleep(0.01)
        return sorted(found)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[Plant]:
        config = parse_config({"partitions": {PARTITION: self._settings}})[PARTITION]
        running = asyncio.create_task(self._live.run())
        if self.partition.config_version == 0:
            await self.ask(Configure(config=config, version=1, operator=True))
        self.hub.begin(PARTITION, self)

        async def handle(connection: ServerConnection) -> None:
            await self.hub.serve(PARTITION, Socket(connection))

        async with serve(handle, "127.0.0.1", self._port, compression=None, max_size=MAX_MESSAGE_BYTES) as server:
            self.url = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
            try:
                yield self
            finally:
                self.hub.end(PARTITION)
                await self._live.close()
                await running
                await self.thread.alone(self._journal.close)
                self.thread.close()


FOR_ANN = ("--for=ann", *["--user=root"] * (os.geteuid() == 0))
"""A single-user node, for tasks of ann."""


class Machine:
    """An agent as a process of its own, with its spawners, which can be killed."""

    def __init__(self, directory: Path, url: str, *options: str) -> None:
        self.directory = directory
        self.url = url
        self.options = (
            options if any(option.startswith(("--user=", "--for=")) for option in options) else (*options, *FOR_ANN)
        )
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-c",
            "from fairlead.cli import main; main()",
            "agent",
            f"--join={self.url}",
            f"--directory={self.directory}",
            "--name=n1",
            f"--token-file={self.directory.parent / JOIN_TOKEN}",
            *self.options,
            stderr=open(self.directory.parent / "agent.log", "ab"),  # noqa: SIM115
        )

    async def kill(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)
            await self.process.wait()
            self.process = None

    def spawners(self) -> list[int]:
        """Return the processes of the spawners, without their guards and tasks."""
        found = self._with_guards()
        return [pid for pid, parent in found.items() if parent not in found]

    def guards(self) -> list[int]:
        """Return the guards: processes below spawners that closed the sockets. A task that is just starting has not."""
        found = self._with_guards()
        return [pid for pid, parent in found.items() if parent in found and not _has_sockets(pid)]

    def _with_guards(self) -> dict[int, int]:
        """Spawners and their guards → the parent of each."""
        found = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                command = " ".join(process.cmdline())
                if str(self.directory) in command and "fairlead.agent.spawner" in command:
                    found[process.pid] = process.ppid()
        return found

    def kill_spawners(self, which: slice = slice(None), guards: bool = False) -> None:
        """Kill spawners; with `guards`, kill their guards first, so that only the next spawner ends the tasks.

        The spawners are stopped before: a task that is just starting can look like a guard, and none reports its end.
        """
        spawners = sorted(self.spawners())[which]
        _send(spawners, signal.SIGSTOP)
        _send(self.guards() if guards else [], signal.SIGKILL)
        _send(spawners, signal.SIGKILL)

    async def clear(self) -> None:
        """End the agent, its tasks and its spawners."""
        from fairlead.agent.spawner_link import end_all

        await self.kill()
        await asyncio.to_thread(end_all, self.directory, 0.0)


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _has_sockets(pid: int) -> bool:
    try:
        files = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return True  # it is starting or ending
    return any(file.startswith("socket:") for file in files)


@asynccontextmanager
async def machine(directory: Path, url: str, *options: str) -> AsyncIterator[Machine]:
    one = Machine(directory, url, *options)
    await one.start()
    try:
        yield one
    finally:
        await one.clear()


def rejected(answer: object) -> Rejected:
    assert isinstance(answer, Rejected), answer
    return answer
