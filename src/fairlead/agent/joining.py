"""An agent without I/O of its own: its book between spawners and a server, which it joins again and again.

`Joining` is given the links to its spawners, the connections to the server and the clock.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from time import monotonic
from typing import Any, Protocol

import msgspec

from fairlead.agent.entries import Frame
from fairlead.agent.session import Channel, KeyRenewed, Keys, Refused, Session
from fairlead.agent.task_table import TaskTable
from fairlead.wire.agent import Hello

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0

Log = Callable[[str, dict[str, Any]], None]


class Spawner(Protocol):
    """A link to a spawner."""

    def send(self, *frames: Frame) -> bool:
        """Send messages; False if there is no link."""

    def wake(self) -> None:
        """Look again whether the spawner is wanted."""


class Identity(Keys, Protocol):
    """What the node proves itself with."""

    async def prove(self, channel: Channel) -> None:
        """Open a connection for the node."""

    def joined(self) -> None:
        """The server has taken the node."""


class Outside(Protocol):
    """What an agent reaches."""

    server: str
    """Where the server is, for the log."""

    def connect(self) -> AbstractAsyncContextManager[tuple[Channel, str]]:
        """A connection to the server, and the address of this end. Raises `OSError`, also later when it breaks."""

    def describe(self, address: str) -> Hello:
        """What the node has; the book knows what runs there."""

    def open_link(self, at: int, user: str) -> Spawner:
        """Link the spawner of that number, which tells `Joining` what it says."""

    def logs_of(self, user: str) -> str:
        """Where the logs of a user are."""


class Epoch:
    """The highest epoch that was seen. Orders of a reign that is over are not taken, also after a restart."""

    def __init__(self, seen: int, store: Callable[[int], None], place: str, log: Log) -> None:
        """`store` may raise `OSError`. `place` is where it keeps the number, for a person."""
        self._seen = self._stored = seen
        self._store = store
        self._place = place
        self._log = log

    def check(self, epoch: int) -> None:
        if epoch < self._seen:
            raise Refused(
                f"the server's epoch {epoch} is over, since {self._seen} was seen; if the server was set up anew, "
                f"remove {self._place} and start the agent again",
                False,
            )
        self._seen = epoch
        if epoch > self._stored:
            try:
                self._store(epoch)
                self._stored = epoch
            except OSError as problem:  # a full disk must not keep it from its server; it is tried with the next order
                self._log("epoch not stored", {"file": self._place, "problem": str(problem)})


class Joining:
    def __init__(
        self,
        book: TaskTable,
        outside: Outside,
        identity: Identity,
        epoch: Epoch,
        log: Log,
        steady: Callable[[], float] = monotonic,
        spread: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`spread` draws a number between two, so that not all agents connect at once."""
        self.links: list[Spawner] = []
        self.found: set[int] = set()
        """The spawners that have said what they know."""
        self.all_found = asyncio.Event()
        """Set when those have that the server is not to hear of this node without."""
        self.notes: dict[int, str] = {}
        self.cgroup = "none"
        self.joined = asyncio.Event()
        """Set while the server knows this agent."""
        self._book = book
        self._outside = outside
        self._identity = identity
        self._epoch = epoch
        self._log = log
        self._steady = steady
        self._spread = spread
        self._first = 0
        """Spawners that are waited for before the server hears of this node."""
        self._session: Session | None = None
        self._lease_of_tasks: Frame | None = None
        """What a session has told last. Until one has, spawners go by what an earlier agent has told them."""

    def begin(self) -> None:
        """Link the spawners that there are."""
        self._follow_users()
        self._first = len(self.links)
        if not self._first:
            self.all_found.set()

    @property
    def silent(self) -> list[int]:
        """The spawners that are waited for."""
        return [at for at in range(self._first) if at not in self.found]

    # -- the server ----------------------------------------------------------------------------------------------

    async def stay(self) -> None:
        """Stay joined, until the server refuses this agent for good, which raises."""
        server = self._outside.server
        pause = FIRST_PAUSE
        while True:
            try:
                async with self._outside.connect() as (channel, address):
                    await self._talk(channel, address)
            except Refused as refused:
                self._log("refused", {"server": server, "problem": str(refused)})
                if refused.final:
                    raise
            except KeyRenewed:
                self._log("key renewed", {"server": server, "node": self._outside.describe("").node})
            except (OSError, msgspec.DecodeError) as problem:
                self._log("disconnected", {"server": server, "problem": str(problem)})
            finally:
                was_joined = self.joined.is_set()
                self.joined.clear()
                self._session = None
            pause = FIRST_PAUSE if was_joined else min(LONGEST_PAUSE, 2 * pause)
            # Not all at once, when a server comes back that many wait for.
            await asyncio.sleep(pause * self._spread(0.5, 1.5))

    async def _talk(self, channel: Channel, address: str) -> None:
        await self._identity.prove(channel)
        book = self._book
        book.reconnected()
        hello = msgspec.structs.replace(
            self._outside.describe(address),
            running=book.started("running"),
            ended=book.started("ended"),
            notes=tuple(sorted(set(self.notes.values()))),
        )
        session = Session(
            channel,
            book,
            self._outside.logs_of,
            self._lease,
            self.deliver,
            self._epoch.check,
            self._identity,
            self._steady,
        )

        def joined() -> None:
            self._session = session
            self._identity.joined()
            self.joined.set()
            self._log("joined", {"server": self._outside.server, "node": hello.node, "running": len(book)})
            session.poke()

        await session.run(hello, joined)

    # -- spawners ------------------------------------------------------------------------------------------------

    def hear(self, at: int, what: str, *rest: Any) -> None:
        """A spawner has said something."""
        if what == "state":
            known, self.notes[at], self.cgroup = rest
            if self._lease_of_tasks is not None:
                self.links[at].send(self._lease_of_tasks)
            self._book.find(at, known)
            self._find(at)
        else:
            self._book.hear(*rest)
        self._tell()

    def miss(self, at: int, problem: str, gone: bool) -> None:
        """A spawner ended, or could not be started; `gone`: there is none for now."""
        self._log("spawner", {"problem": problem})
        if gone:
            self._book.miss(at, problem)
            self._tell()

    def refuse(self, at: int, problem: str) -> None:
        """A user may not run tasks here."""
        self._log("user refused", {"problem": problem})
        self._book.refuse(at, problem)
        self._find(at)
        self._tell()

    def deliver(self) -> None:
        """Hand the book's outbox to spawners."""
        self._follow_users()
        for at, outbox in enumerate(self._book.outbox):
            if outbox:
                frames, self._book.outbox[at] = outbox, []
                if not self.links[at].send(*frames):
                    self._book.not_sent(at, frames)
                self.links[at].wake()

    def _follow_users(self) -> None:
        """Have a link for every spawner that the book has."""
        for at in range(len(self.links), len(self._book.users)):
            self.links.append(self._outside.open_link(at, self._book.users[at]))

    def _find(self, at: int) -> None:
        self.found.add(at)
        if len(self.found) >= self._first:
            self.all_found.set()

    def _tell(self) -> None:
        self.deliver()
        if self._session is not None:
            self._session.poke()

    def _lease(self, ask_at: float, end_at: float, length: float, lock: str) -> None:
        self._lease_of_tasks = ("lease", ask_at, end_at, length, lock)
        for link in self.links:
            link.send(self._lease_of_tasks)
