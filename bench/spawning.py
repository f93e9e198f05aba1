"""Processes per second through an agent and its spawners alone, compared with a plain process for each core.

A stand-in for the server sends tasks ahead, as chains do, and confirms all reports. Every task has a session, two log
files, a limit and a ledger, as always.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

from websockets.asyncio.server import ServerConnection, serve

from bench.harness import CORES, Row, floor
from fairlead.agent.spawner_link import end_all
from fairlead.identity.node_keys import Identities
from fairlead.identity.tokens import Tokens
from fairlead.wire.agent_messages import (
    Beat,
    Beaten,
    Confirmed,
    FromAgent,
    FromServer,
    Knock,
    Launch,
    Proof,
    Reports,
    Spec,
    Tasks,
    Welcome,
    Work,
    decode_from_agent,
    encode,
)

TASKS = 4_000
LONE = 100
ROUNDS = 3
AHEAD = 300
"""Number of tasks to send ahead: enough for about a tenth of a second."""
USER, AGENT_AS, TASKS_AS = "bench", "daemon", "nobody"
"""The user of the tasks, and the system users of the agent and of the tasks."""
OWN = (f"--for={USER}", *["--user=root"] * (os.geteuid() == 0))
"""A single-user node."""


class Times(NamedTuple):
    """Seconds for the first task, for an array, and for each lone task."""

    first: float
    flood: float
    lone: list[float]


class Stand:
    """A stand-in for the server, for one agent."""

    def __init__(self, connection: ServerConnection, identities: Identities) -> None:
        self._connection = connection
        self._identities = identities
        self.agent_seconds = 0.0

    async def greet(self) -> None:
        knock = await self._read()
        assert isinstance(knock, Knock)
        exchange, challenge = self._identities.challenge("default", knock)
        await self._send(challenge)
        proof = await self._read()
        assert isinstance(proof, Proof)
        await self._identities.admit(exchange, proof)
        await self._read()
        await self._send(Welcome(1, 1_000_000, 0, 1_000_000))
        await self._send(Work(1, standing=True))

    async def array(self, number: int, tasks: int, rooms: int) -> float:
        """Run an array in a chain. Returns the seconds it took."""
        began = perf_counter()
        sent = ended = 0
        while ended < tasks:
            if sent < tasks and sent - ended <= AHEAD // 2:
                more = min(tasks, ended + AHEAD)
                await self._launch(number, (sent, more), number, rooms)
                sent = more
            ended += await self._receive()
        return perf_counter() - began

    async def lone(self, number: int) -> float:
        """Run one task on an idle agent. Return the seconds until it is reported as running or ended."""
        began = perf_counter()
        await self._launch(number, (0, 1), 0, 0)
        ended = await self._receive()
        seconds = perf_counter() - began
        while not ended:
            ended = await self._receive()
        return seconds

    async def _launch(self, number: int, indices: tuple[int, int], chain: int, rooms: int) -> None:
        tasks = Tasks(f"job{number}", number, "main", 1, indices)
        await self._send(
            Work(1, (Spec(("/bin/true",), cpu=1000, directory="/", user=USER),), (Launch(tasks, 0, (), chain, rooms),))
        )

    async def _receive(self) -> int:
        message = await self._read()
        if isinstance(message, Beat):
            await self._send(Beaten(message.number))
        if not isinstance(message, Reports):
            return 0
        await self._send(Confirmed(message.number))
        assert all(report.state in ("running", "succeeded") for report in message.reports), message.reports
        return sum(len(report.ran) for report in message.reports)

    async def _read(self) -> FromAgent:
        data = await self._connection.recv()
        assert isinstance(data, bytes)
        return decode_from_agent(data)

    async def _send(self, message: FromServer) -> None:
        await self._connection.send(encode(message))


async def _measure(folder: Path, tasks: int, rooms: int, lone: int, options: tuple[str, ...] = OWN) -> Times:
    arrived: asyncio.Future[ServerConnection] = asyncio.get_running_loop().create_future()

    async def handle(connection: ServerConnection) -> None:
        arrived.set_result(connection)
        await connection.wait_closed()

    with tempfile.TemporaryDirectory() as keys:
        identities = Identities(Path(keys), Tokens(Path(keys) / "tokens"))
        [(token, _)] = identities.invite()
        async with serve(handle, "127.0.0.1", 0, compression=None) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            agent = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-c",
                "from fairlead.cli import main; main()",
                "agent",
                f"--join=http://127.0.0.1:{port}",
                f"--directory={folder}",
                *options,
                env={**os.environ, "FAIRLEAD_TOKEN": token},
                stderr=subprocess.DEVNULL,
            )
            try:
                stand = Stand(await arrived, identities)
                await stand.greet()
                first = await stand.lone(1)
                await stand.array(2, 2 * rooms, rooms)
                seconds = await stand.array(3, tasks, rooms)
                return Times(first, seconds, [await stand.lone(4 + at) for at in range(lone)])
            finally:
                agent.kill()
                await agent.wait()
                await asyncio.to_thread(end_all, folder, 0.0)


def spawning(scale: float) -> Iterator[Row]:
    tasks, lone = max(2, int(TASKS * scale)), max(2, int(LONE * scale))
    plain = floor(tasks)
    yield Row(f"processes started and awaited by {CORES} plain loops", plain, "/s")
    rooms = 2 * (os.cpu_count() or 1)
    busy = process_time()
    own = _own(tasks, rooms, lone)
    busy = process_time() - busy
    yield Row(
        "tasks through agent and spawners",
        tasks / own.flood,
        "/s",
        goal=0.7 * plain,
        more=True,
        ratio=tasks / own.flood / plain,
        against=f"{CORES} plain loops",
        note=f"{tasks:,} × /bin/true in {rooms} rooms; {busy / tasks * 1e6:.0f} µs a task here in the stand-in",
    )
    yield Row(
        "one task on an idle agent, until it is known to run",
        median(own.lone) * 1000,
        "ms",
        note=f"median of {lone}; the slowest of 100 {sorted(own.lone)[int(0.99 * len(own.lone))] * 1000:.1f} ms",
    )
    if os.geteuid() == 0:
        yield from _as_another(tasks, rooms, lone, own)


def _as_another(tasks: int, rooms: int, lone: int, own: Times) -> Iterator[Row]:
    """Measure a root agent with tasks that run as another system user: one spawner instead of two.

    Both agents are measured in turn, and the best run of each counts, because noise makes neither faster.
    """
    as_other = [_other(tasks, rooms, lone)]
    as_own = [own]
    for _ in range(ROUNDS - 1):
        as_own.append(_own(tasks, rooms, lone))
        as_other.append(_other(tasks, rooms, lone))
    flood, own_flood = min(times.flood for times in as_other), min(times.flood for times in as_own)
    more = min(median(times.lone) for times in as_other) - min(median(times.lone) for times in as_own)
    yield Row(
        "tasks as another user through agent and its spawner",
        tasks / flood,
        "/s",
        ratio=own_flood / flood,
        against="tasks as the agent's user",
        note=f"the first task of a user {as_other[0].first * 1000:.0f} ms, with the start of its spawner",
    )
    yield Row(
        "cost of another user a task",
        (flood - own_flood) / tasks * 1000,
        "ms",
        goal=1.0,
        note=f"in a flood, best of {ROUNDS} each in turn; of a lone task {more * 1000:.3f} ms",
    )


def _own(tasks: int, rooms: int, lone: int) -> Times:
    """Measure an agent with tasks that run as its own user."""
    return asyncio.run(_measure(_folder(), tasks, rooms, lone))


def _other(tasks: int, rooms: int, lone: int) -> Times:
    """Measure a root agent."""
    folder = _folder("/var/lib")
    folder.chmod(0o711)
    names = folder / "map"
    names.write_text(f"{USER}={TASKS_AS}\n")
    uid = str(pwd.getpwnam(TASKS_AS).pw_uid)
    options = (f"--user={AGENT_AS}", f"--user-map={names}", f"--uids={uid}-{uid}")
    return asyncio.run(_measure(folder / "agent", tasks, rooms, lone, options))


def _folder(within: str | None = None) -> Path:
    """Return a new folder. It is deleted when the process ends.

    ext4 does not reuse the inode of a deleted file for 35 seconds, and checks all such inodes for every new file:
    agents in a folder beside a deleted one started 850 tasks a second instead of 1,600.
    """
    folder = tempfile.mkdtemp(dir=within, prefix="fairlead-bench-")
    atexit.register(shutil.rmtree, folder)
    return Path(folder)
