"""The agent without I/O: connects its task table with the spawners and the server, and reconnects when needed.

`Joining` is given the links to its spawners, the connections to the server and the clock.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from fairlead.agent.session import Channel, KeyRenewed, Refused, Session
from fairlead.agent.task_table import Frame, TaskTable
from fairlead.wire import agent_messages as wire
from fairlead.wire.agent_messages import Hello, Tasks

if TYPE_CHECKING:
    from fairlead.agent.node_key import Identity
    from fairlead.agent.result_lists import ResultLists
    from fairlead.agent.spawner_link import Link

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
SHORT_PAUSE = 1.0
"""The longest pause with several servers, because another one will lead soon."""
REPEATED = 300.0
"""Seconds after which the same cause of a lost connection is logged again."""
PATIENCE = 600.0
"""Seconds for which an agent that has joined retries after a refusal that may be temporary."""

Log = Callable[[str, dict[str, Any]], None]


class Outside(Protocol):
    """The agent's environment: server, spawners and logs."""

    server: str
    """The address of the server, or the addresses of several, separated by commas."""

    def connect(self) -> AbstractAsyncContextManager[tuple[Channel, str]]:
        """Open a connection to the server; return it and the local address.

        Raises `OSError` if that fails, and later if the connection breaks.
        """

    def describe(self, address: str) -> Hello:
        """Return the description of the node, without its tasks."""

    def open_link(self, at: int, user: str) -> Link:
        """Open a link to the spawner with this number. The link passes its messages to `Joining.on_message`."""

    lists: ResultLists
    """The lists of result files that the server has not stored yet."""

    def logs_of(self, user: str) -> str:
        """Return the folder with the logs of a user."""

    async def waiting_results(self) -> list[Tasks]:
        """Return the tasks whose result files the server has not stored yet."""

    def open_tunnel(self, request: wire.OpenTunnel) -> None:
        """Connect a tunnel between the server and a spawner."""

    def owner_of(self, user: str) -> str:
        """Return the user of the spawner that runs the tasks of a user; empty if all users share spawners."""


class Epoch:
    """The highest epoch that the agent has seen. Orders of an earlier epoch are refused, even after a restart."""

    def __init__(self, seen: int, store: Callable[[int], None], place: str, log: Log) -> None:
        """Start from the stored epoch `seen`. `store` writes a new one to the file `place`, and may raise `OSError`."""
        self.seen = self._stored = seen
        self._store = store
        self._place = place
        self._log = log

    def check(self, epoch: int) -> None:
        if epoch < self.seen:
            raise Refused(
                f"the server's epoch {epoch} is over, since {self.seen} was seen; if the server was set up again, "
                f"remove {self._place} and start the agent again",
                False,
            )
        self.seen = epoch
        if epoch > self._stored:
            try:
                self._store(epoch)
                self._stored = epoch
            except OSError as problem:  # a full disk must not stop the agent; storing is retried with the next order
                self._log("epoch not stored", {"file": self._place, "problem": str(problem)})


class Joining:
    def __init__(
        self,
        table: TaskTable,
        outside: Outside,
        identity: Identity,
        epoch: Epoch,
        log: Log,
        steady: Callable[[], float] = monotonic,
        spread: Callable[[float, float], float] = random.uniform,
        cores: int = 1,
    ) -> None:
        """Take the parts. `spread` draws a random number between two bounds, so that not all agents connect at once.

        `cores` are those of the machine, on which the pace of reports depends.
        """
        self.table = table
        self.outside = outside
        self.identity = identity
        self.epoch = epoch
        self.steady = steady
        self.cores = cores
        self.links: list[Link] = []
        self.heard: dict[int, float] = {}
        """Spawner → when its last message arrived."""
        self.all_found = asyncio.Event()
        """Set when all spawners that existed at the start have listed their tasks; the agent joins only then."""
        self.cgroup = "none"
        self.joined = asyncio.Event()
        """Set while this agent is joined to the server."""
        self._log = log
        self._spread = spread
        self._first = 0
        """Number of spawners that have to list their tasks before the agent joins."""
        self._found: set[int] = set()
        """Spawners that have listed their tasks."""
        self._notes: dict[int, str] = {}
        self._unknown: set[str] = set()
        """Messages of the server that were not understood, and logged."""
        self._session: Session | None = None
        self._last_joined = float("-inf")
        """When the last accepted connection ended."""
        self._logged = ("", "", 0.0)
        """The last logged cause of a lost connection, and when it was logged."""
        self._lease_of_tasks: Frame | None = None
        """The last lease from the server. Until there is one, spawners use the lease of an earlier agent."""

    def begin(self) -> None:
        self._follow_users()
        self._first = len(self.links)
        if not self._first:
            self.all_found.set()

    @property
    def silent(self) -> list[int]:
        return [at for at in range(self._first) if at not in self._found]

    # -- the server ----------------------------------------------------------------------------------------------

    async def stay(self) -> None:
        """Stay joined, reconnecting as needed. Raise if the server refuses this agent for good."""
        server = self.outside.server
        pause = FIRST_PAUSE
        while True:
            try:
                async with self.outside.connect() as (channel, address):
                    await self._talk(channel, address)
            except Refused as refused:
                if refused.final and not (refused.may_pass and self.steady() < self._last_joined + PATIENCE):
                    raise
                self._log_once("refused", str(refused))
            except KeyRenewed:
                self._log("key renewed", {"server": server, "node": self.outside.describe("").node})
            except (OSError, msgspec.DecodeError) as problem:
                self._log_once("disconnected", str(problem))
            finally:
                was_joined = self.joined.is_set()
                if was_joined:
                    self._last_joined = self.steady()
                self.joined.clear()
                self._session = None
            longest = SHORT_PAUSE if "," in server else LONGEST_PAUSE
            pause = FIRST_PAUSE if was_joined else min(longest, 2 * pause)
            # Spread the reconnections of many agents when a server returns.
            await asyncio.sleep(pause * self._spread(0.5, 1.5))

    def _log_once(self, event: str, problem: str) -> None:
        """Log why there is no connection: at once, and from time to time while the cause stays the same."""
        now = self.steady()
        if (event, problem) == self._logged[:2] and now < self._logged[2] + REPEATED:
            return
        self._logged = (event, problem, now)
        self._log(event, {"server": self.outside.server, "problem": problem})

    async def _talk(self, channel: Channel, address: str) -> None:
        await self.identity.prove(channel)
        self.table.reconnected()
        running = self.table.started("running")
        hello = msgspec.structs.replace(
            self.outside.describe(address),
            running=running,
            run_times=self.table.run_times(running),
            ended=self.table.started("ended"),
            notes=tuple(sorted(set(self._notes.values()))),
            epoch=self.epoch.seen,
            meetings=tuple(self.table.meetings.values()),
        )
        await Session(self, channel).run(hello)

    def on_joined(self, session: Session, hello: Hello) -> None:
        self._session = session
        self._logged = ("", "", 0.0)
        self.identity.joined()
        self.joined.set()
        self._log("joined", {"server": self.outside.server, "node": hello.node, "running": len(self.table)})
        session.poke()

    def say_unknown(self, problem: str) -> None:
        """Log a message of the server that this agent does not understand, each kind once."""
        if problem not in self._unknown:
            self._unknown.add(problem)
            self._log("message not understood", {"problem": f"{problem}; update this agent"})

    def lease(self, ask_at: float, end_at: float, length: float, lock: str) -> None:
        """Tell the spawners when to ask and to force their tasks to end.

        `length` is that of a lease. `lock` is the server's lock file if it runs on this machine, else empty.
        """
        self._lease_of_tasks = ("lease", ask_at, end_at, length, lock)
        for link in self.links:
            link.send(self._lease_of_tasks)

    # -- spawners ------------------------------------------------------------------------------------------------

    def on_message(self, at: int, kind: str, *rest: Any) -> None:
        self.heard[at] = self.steady()
        if kind == "state":
            tasks, self._notes[at], self.cgroup = rest
            if self._lease_of_tasks is not None:
                self.links[at].send(self._lease_of_tasks)
            self.table.find(at, tasks)
            self._find(at)
        else:
            self.table.record(*rest)
        self._tell()

    def on_spawner_lost(self, at: int, problem: str, gone: bool, node_fault: bool = False) -> None:
        """Handle a spawner that ended or could not be started. `gone` is True if there is no spawner for now.

        `node_fault` is True if the user of the spawner cannot be the cause.
        """
        self._log("spawner", {"problem": problem})
        if gone:
            self.table.mark_missing(at, problem, node_fault)
            self._tell()

    def refuse(self, at: int, problem: str) -> None:
        """End the tasks of a user that may not run tasks here."""
        self._log("user refused", {"problem": problem})
        self.table.refuse(at, problem)
        self._find(at)
        self._tell()

    def deliver(self) -> None:
        self._follow_users()
        for at, outbox in enumerate(self.table.outbox):
            if outbox:
                frames, self.table.outbox[at] = outbox, []
                if not self.links[at].send(*frames):
                    self.table.not_sent(at, frames)
                self.links[at].wake()

    def _follow_users(self) -> None:
        for at in range(len(self.links), len(self.table.users)):
            self.links.append(self.outside.open_link(at, self.table.users[at]))

    def _find(self, at: int) -> None:
        self._found.add(at)
        if len(self._found) >= self._first:
            self.all_found.set()

    def _tell(self) -> None:
        self.deliver()
        if self._session is not None:
            self._session.poke()
