"""The machines of a trial: each runs the shipped agent with virtual spawners, on a network with faults.

The agent's spawners, connections, disk, key and clock are virtual. An agent can be stopped, killed and started again,
and its machine can lose power or vanish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Protocol

from fairlead.agent.coordinator import Epoch, Joining
from fairlead.agent.launch_data import Surroundings
from fairlead.agent.result_lists import ResultLists
from fairlead.agent.session import Channel, Refused
from fairlead.agent.task_table import TaskTable
from fairlead.wire.agent_messages import (
    VERSION,
    Challenge,
    Hello,
    Knock,
    NewKey,
    Proof,
    Refusal,
    Tasks,
    Work,
    decode_from_server,
    encode,
)
from fairlead.wire.handshake import NONCE_BYTES
from tests.chaos.loop import Process, VirtualLoop
from tests.chaos.network import Line, Wire
from tests.chaos.spawner import Spawner, SpawnerLink, Wires
from tests.chaos.tasks import Live, Task

RESTART = 0.5
"""Seconds until a killed agent is started again."""
OPENING = 10.0
"""Seconds for which an agent waits for a frozen server."""
KEEPALIVE = 40.0
"""Seconds after which the operating system or a ping notices that a connection is dead."""
NO_SPAWNER = 20.0
"""The most seconds that a machine is without a spawner."""


class Around(Wires, Protocol):
    """The trial, as a machine sees it."""

    loop: VirtualLoop
    rng: Random

    servers: str
    """The addresses of the servers, separated by commas."""

    def connect(self, line: Line, agent: Process, turn: int) -> Wire | None:
        """Return a connection to the next server in turn; None if it does not listen."""

    def obeyed(self, node: str, epoch: int, server: str) -> None: ...

    def new_process(self, name: str) -> Process: ...
    def log(self, text: str) -> None: ...


class Machine:
    def __init__(self, world: Around, hello: Hello, boots: int = 0) -> None:
        """`boots` distinguishes successive machines of the same name."""
        self.name = hello.node
        self.until: dict[str, float] = {}
        """Fault → when it ends."""
        self.gone = False
        self._wires: list[Wire] = []
        self.server = world.servers
        self.book: TaskTable
        self.process: Process
        self._world = world
        self._loop = world.loop
        self._hello = hello
        self._boots = boots
        self._epoch = 0
        """The epoch on the machine's disk."""
        self._line = Line()
        self._line.has = self.has
        self._spawners = [
            Spawner(world.loop, world.rng, world, self.name, partial(self.has, "refuse"))
            for _ in range(world.rng.randint(1, 2))
        ]
        self._links: list[SpawnerLink] = []
        self._joining: Joining
        self._turn = 0
        """Number of connection attempts: the agent tries servers in turn."""
        self._boot()

    def has(self, fault: str) -> bool:
        return self.until.get(fault, -1.0) > self._loop.time()

    @property
    def running(self) -> dict[Task, Live]:
        return {live.task: live for spawner in self._spawners for live in spawner.running}

    @property
    def in_touch(self) -> bool:
        """True if the agent has joined and the machine has no fault."""
        return self.process.alive and self._joining.joined.is_set() and not any(map(self.has, self.until))

    @property
    def has_news(self) -> bool:
        """True if reports to the server are unsent or unconfirmed."""
        return not self.book.reporting.is_settled or any(self.book.outbox)

    @property
    def is_quiet(self) -> bool:
        """True if the agent is connected and no message is under way to the server or to a spawner."""
        if not self.process.alive or self.process.frozen or not self._joining.joined.is_set() or self.has_news:
            return False
        spawners = all(spawner.is_quiet for spawner in self._spawners) and not any(
            link.under_way for link in self._links
        )
        return spawners and bool(self._wires) and self._wires[-1].is_quiet

    # -- faults --------------------------------------------------------------------------------------------------

    def inject(self, what: str, seconds: float) -> None:
        now = self._loop.time()
        over = self.until[what] = max(self.until.get(what, 0.0), now + seconds)
        if what == "break":
            self._break(over)
        elif what == "hang":
            self.process.freeze()
            self._loop.world_at(over, self._thaw)
        elif what == "crash":
            self._lose_power()
            self._loop.world_at(over, self._start_again)
        elif what == "restart" and self.process.alive:
            self._kill_agent()
            self._loop.world_at(now + RESTART, self._restart)
        elif what == "spawner":
            spawner = self._world.rng.choice(self._spawners)
            if spawner.up:
                spawner.die()
                self._loop.world_at(now + min(seconds, NO_SPAWNER), self._start_spawner, spawner)

    def vanish(self) -> None:
        """Remove the machine for good. The results of its tasks are never reported."""
        self.gone = True
        self._lose_power()

    def hung_up(self, server: Process) -> None:
        """Close the machine's ends of all connections to a server that died."""
        for wire in self._open_wires():
            if wire.server.owner is server:
                wire.server.hang_up()

    def cut_from(self, server: Process, silently: bool) -> None:
        """Break the connections to a server, with or without notice."""
        for wire in self._open_wires():
            if wire.server.owner is server and silently:
                wire.cut()
                self._loop.world_at(self._loop.time() + KEEPALIVE, wire.agent.arrive, None)
            elif wire.server.owner is server:
                wire.reset()

    @property
    def connected_to(self) -> Process | None:
        """Return the server process at the other end of the last connection; None if it has ended."""
        return self._wires[-1].server.owner if self._wires and not self._wires[-1].is_over else None

    def _break(self, over: float) -> None:
        """Reset the connections, or delay all messages until the fault ends."""
        if self._world.rng.random() < 0.5:
            for wire in self._open_wires():
                wire.reset()
        else:
            self._line.stands_still_until = over

    def _thaw(self) -> None:
        if not self.has("hang"):
            self.process.thaw()

    def _lose_power(self) -> None:
        self.process.kill()
        for spawner in self._spawners:
            spawner.die()
        for wire in self._open_wires():
            wire.cut()

    def _start_again(self) -> None:
        """Start the machine again. To the server, another instance now uses its key."""
        if not self.gone and not self.has("crash") and not self.process.alive:
            self._boots += 1
            for spawner in self._spawners:
                spawner.rise()
            self._boot()

    def _kill_agent(self) -> None:
        self.process.kill()
        for wire in self._open_wires():
            wire.agent.hang_up()

    def _restart(self) -> None:
        if not self.gone and not self.has("crash") and not self.process.alive:
            self._boot()

    def _start_spawner(self, spawner: Spawner) -> None:
        if not self.gone and not self.has("crash"):
            spawner.rise()

    def _open_wires(self) -> list[Wire]:
        self._wires = [wire for wire in self._wires if not wire.is_over]
        return self._wires

    # -- the agent -----------------------------------------------------------------------------------------------

    def _boot(self) -> None:
        world = self._world
        self.process = world.new_process(f"agent {self.name}")
        if self.has("hang"):
            self.process.freeze()
        self.book = WatchedTable(Surroundings(self.name, "/", {}), len(self._spawners), self._loop.time)
        self.book.obeyed = self._obeyed
        self._links = []
        key = Identity(self.name, f"{self.name} {self._boots}")
        epoch = Epoch(self._epoch, self._store_epoch, "its file", self._log)
        self._joining = Joining(self.book, self, key, epoch, self._log, self._loop.time, world.rng.uniform)
        self.process.start(self._serve(self._joining))

    async def _serve(self, joining: Joining) -> None:
        joining.begin()
        await joining.all_found.wait()
        await joining.stay()

    def connect(self) -> Connecting:
        return Connecting(self)

    async def open(self) -> Wire:
        if self.has("break"):
            raise OSError("the network is unreachable")
        self._turn += 1
        wire = self._world.connect(self._line, self.process, self._turn)
        if wire is None:
            raise ConnectionRefusedError("the server does not listen")
        if wire.server.owner.frozen:
            await asyncio.sleep(OPENING)
            wire.agent.hang_up()
            raise TimeoutError("the server does not answer")
        self._open_wires().append(wire)
        return wire

    def describe(self, address: str) -> Hello:
        return self._hello

    def open_link(self, at: int, user: str) -> SpawnerLink:
        link = SpawnerLink(
            self._loop,
            self._world.rng,
            self.process,
            self._spawners[at],
            partial(self._joining.on_message, at),
            partial(self._joining.on_spawner_lost, at),
        )
        self._links.append(link)
        return link

    lists = ResultLists(Path("/nowhere"), lambda event, fields: None)

    def logs_of(self, user: str) -> str:
        raise AssertionError("logs are not read in a trial")

    async def waiting_results(self) -> list[Tasks]:
        return []

    def owner_of(self, user: str) -> str:
        return ""

    def _obeyed(self, epoch: int) -> None:
        self._world.obeyed(self.name, epoch, self._wires[-1].server.owner.name)

    def _store_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def _log(self, event: str, fields: dict[str, Any]) -> None:
        self._world.log(f"{self.name}: {event} {fields.get('problem', '')}".rstrip())


class WatchedTable(TaskTable):
    """A task table that reports which epochs it follows."""

    obeyed: Callable[[int], None]

    def handle(self, work: Work) -> None:
        self.obeyed(work.epoch)
        super().handle(work)


class Connecting:
    """Context manager of an agent's connection to the server."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._wire: Wire | None = None

    async def __aenter__(self) -> tuple[Channel, str]:
        self._wire = await self._machine.open()
        return self._wire.agent, self._machine.name

    async def __aexit__(self, *problem: object) -> None:
        assert self._wire is not None
        self._wire.agent.hang_up()


class Identity:
    """A node key that is always accepted; `instance` names the machine that uses it."""

    def __init__(self, node: str, instance: str) -> None:
        self._node = node
        self._instance = instance

    async def prove(self, channel: Channel) -> None:
        await channel.send(encode(Knock(VERSION, self._node, bytes(NONCE_BYTES))))
        challenge = decode_from_server(await channel.recv())
        if isinstance(challenge, Refusal):
            raise Refused(challenge.problem, challenge.final)
        assert isinstance(challenge, Challenge)
        await channel.send(encode(Proof(b"", b"", self._instance)))

    def joined(self) -> None:
        """Do nothing: the key is not stored."""

    def new_key(self) -> NewKey:
        raise AssertionError("keys do not expire in a trial")

    def renewed(self) -> None:
        raise AssertionError("keys do not expire in a trial")
