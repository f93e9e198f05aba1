"""Several servers of a trial that share a journal: each stream has a lease, and one server at a time leads it.

Only the database is virtual (`shared_journal.py`). The clocks of the servers differ, and each can be paused beyond its
lease, suspended with its clock, cut off from the database or from agents, drained, restarted and killed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Literal

from fairlead.core.commands import Command, Configure, RemoveNode
from fairlead.core.dump import dump
from fairlead.core.resources import SECOND
from fairlead.core.settings import PartitionConfig
from fairlead.core.state import Partition
from fairlead.journal.codec import stream_of
from fairlead.journal.journal import Journal, JournalError, UnknownOutcome
from fairlead.journal.roster import Roster
from fairlead.pools.provider import MakeProvider
from fairlead.wire.unserved import Unserved
from fairlead.writer.loop import Given, LiveWriter
from fairlead.writer.writer import Observer, Stopped
from tests.chaos.agents import Machine
from tests.chaos.checkers import need
from tests.chaos.faults import LeaderFault, ServerFault
from tests.chaos.leader_checker import LeaderChecker
from tests.chaos.loop import Process
from tests.chaos.network import End
from tests.chaos.server import PARTITION, TURN, Keys, Outside, Reply, Server, Truth
from tests.chaos.shared_journal import Link, SharedJournal, SharedRoster, SharedStore

LEASE, EVERY = 10.0, 1.0
"""Seconds of a lease, and seconds between two heartbeats."""
PATIENCE = 10.0
"""The most seconds for which an append waits for an unreachable database."""
RESTART = 1.0
"""Seconds until a server that failed to start or was closed is started again."""
STALE = 10.0
"""Seconds after which a request to remove a machine is dropped, because the machine may be back."""
CUT_OFF = "the database is cut off"


class ServerLink(Link):
    """The connection of a process to the database."""

    def __init__(self, server: SharedServer, process: Process) -> None:
        self._server = server
        self._process = process

    def steady(self) -> float:
        return self._server.steady()

    def check(self) -> None:
        if self._server.is_cut_off:
            raise JournalError(CUT_OFF)

    def loses(self) -> Literal["", "before", "after"]:
        return self._server.lose_connection()

    def repeat(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        loop, over = self._server.loop, False

        def tick() -> None:
            if not over:
                call()
                loop.call_later(seconds, tick)

        def end() -> None:
            nonlocal over
            over = True

        self._process.post(lambda: loop.call_later(seconds, tick))
        return end

    def wake(self, woken: Callable[[], None]) -> None:
        self._process.post(woken)


class SharedServer(Server):
    """One of several servers. Its process gets a new name at each start, under which it holds leases."""

    _expected = (*Server._expected, JournalError)
    _expected_notes = (
        *Server._expected_notes,
        CUT_OFF,
        "is fenced",
        "the lease of this server ended",
        "is given to another server",
        "does not answer this server",
        "refused after a write of unknown outcome",
        "the server is closing",
    )

    def __init__(
        self,
        at: int,
        group: Servers,
        outside: Outside,
        config: PartitionConfig,
        observer: Observer,
        providers: MakeProvider,
    ) -> None:
        super().__init__(outside, config, observer, providers)
        self.at = at
        self.loop = outside.loop
        self.truth = group.truth
        self.journal = group.store.records
        self._credentials = group.keys
        self._group = group
        self._starts = 0
        self._link: ServerLink
        self._opened: list[SharedJournal] = []
        self._cut_off_until = 0.0
        self._unreachable_until = 0.0
        """Agents cannot reach it before this time."""
        self._closing: Process | None = None
        """The process that is being restarted."""
        self._losing: tuple[Literal["", "before", "after"], float] = ("", 0.0)
        """Where the next append loses its connection, and for how many seconds the database is then unreachable."""
        self._pause_in_turn = 0.0
        self._thawed = 0.0
        """When the process last continued after being frozen."""
        self._suspended = 0.0
        """Seconds for which the steady clock of the machine stood still."""
        self._suspended_since: float | None = None
        self._clock_stood_still = False
        """True if the steady clock stood still since the process started."""

    # -- the process ---------------------------------------------------------------------------------------------

    @property
    def process(self) -> Process | None:
        return self._process

    def start(self) -> None:
        self._starts += 1
        self.name = f"server {self.at}.{self._starts}"
        self._hub_name = f"hub {self.at}"
        self._opened = []
        self._clock_stood_still = False
        super().start()

    def steady(self) -> float:
        now = self.loop.time() if self._suspended_since is None else self._suspended_since
        return now - self._suspended

    def _new_roster(self) -> Roster:
        assert self._process is not None
        self._link = ServerLink(self, self._process)
        return SharedRoster(self._group.store, self.name, self.name, LEASE, self._link, EVERY)

    def _open_journal(self) -> Journal:
        super()._open_journal()
        journal = SharedJournal(self._group.store, self.name, self.name, LEASE, self._link)
        self._opened.append(journal)
        return journal

    async def _run(self) -> None:
        try:
            await self._control.start()
        except (JournalError, OSError, Stopped) as problem:
            self._outside.log(f"{self.name} does not start: {problem}")
            self._end_process(RESTART)

    def _end_process(self, down: float) -> None:
        process = self._process
        assert process is not None
        process.kill()
        self._process = None
        self._group.store.listeners.pop(self.name, None)
        self._outside.hung_up(process)
        self.loop.world_at(self.loop.time() + down, self.start)

    # -- leading -------------------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """True if this server leads and knows it."""
        process = self._process
        if process is None or process.frozen or PARTITION not in self._control.led():
            return False
        if any(journal.leads_until() < self.steady() for journal in self._opened):
            return False
        try:
            service = self._control.find(PARTITION)
        except Unserved:
            return False
        return service.leads and self._is_true(service.partition)

    def serve(self, end: End) -> None:
        assert self._process is not None
        self._process.start(self._serve(end))

    async def _serve(self, end: End) -> None:
        """Serve an agent, or turn it away, as the agents' WebSocket endpoint does."""
        try:
            self._need_newest()
        except Unserved:
            return end.hang_up()
        await self._hub.serve(PARTITION, end)

    def _need_newest(self) -> None:
        """Check that a server whose clock never stood still serves only while no other server leads."""
        epoch = self._control.find(PARTITION).epoch
        if not self._clock_stood_still:
            self._judge(lambda: self._group.leaders.serves(self.name, epoch))

    def request(self, command: Command, reply: Reply, unserved: Callable[[], None]) -> None:
        """Send a command to this server; `unserved` is called if it does not lead."""
        if self._process is None:
            return unserved()
        self._process.start(self._request(command, reply, unserved, self.loop.time()))

    async def _request(self, command: Command, reply: Reply, unserved: Callable[[], None], sent: float) -> None:
        if isinstance(command, RemoveNode) and self.loop.time() > sent + STALE:
            return
        if not isinstance(command, Configure):
            try:
                self._need_newest()
            except Unserved:
                return unserved()
        await self._execute(command, reply, unserved)

    async def read_state(self, seq: int, answered: Callable[[bytes], None]) -> None:
        """Read the state at a revision or later, as a client does from any server."""
        reader = await self._control.reader(PARTITION, seq)
        state = await reader.read(dump)
        self._judge(lambda: answered(state))

    def _stood_still_since(self, when: float) -> bool:
        return self._thawed > when

    # -- turns ---------------------------------------------------------------------------------------------------

    def _give(self, given: Given | None) -> None:
        process = self._process
        if given is not None and self._pause_in_turn and self.is_up and process is not None:
            seconds, self._pause_in_turn = self._pause_in_turn, 0.0
            self._outside.log(f"{self.name} stands still before its work for {seconds:.1f} s")
            self._freeze(seconds)
            process.post(lambda: self._give(given))  # done when the process continues
            return
        self._group.acting = self
        super()._give(given)

    def _may_lose_answers(self) -> bool:
        return self.truth.partition is not None and (self.is_cut_off or bool(self._losing[0]))

    def _longest(self) -> float:
        return PATIENCE if self.is_cut_off else TURN

    def _stop(self, problem: Stopped, fault: ServerFault | None, live: LiveWriter | None, before: bytes) -> None:
        true = live is not None and self._is_true(live.writer.partition)
        if fault is not None and "a fault was injected" in str(problem):
            self._fail(fault, before if true else None)
        elif live is not None and true and isinstance(problem.__cause__, UnknownOutcome):
            written = self.journal.last(live.writer.stream) > live.writer.seq
            self.truth.before = None if written else before
        elif live is None and self.truth.recovered is not None and isinstance(problem.__cause__, UnknownOutcome):
            last, recovered = self.truth.recovered  # the configuration that a new leader writes before its first turn
            self.truth.before = None if self.journal.last(stream_of(PARTITION)) > last else recovered

    @property
    def is_cut_off(self) -> bool:
        return self.loop.time() < max(self._cut_off_until, self._group.database_away_until)

    def lose_connection(self) -> Literal["", "before", "after"]:
        when, seconds = self._losing
        self._losing = ("", 0.0)
        if when:
            self._outside.log(f"{self.name} loses its connection {when} a write, for {seconds:.1f} s")
            self._cut_off_until = max(self._cut_off_until, self.loop.time() + seconds)
        return when

    # -- faults --------------------------------------------------------------------------------------------------

    def inject(self, what: str, seconds: float) -> None:
        now, rng = self.loop.time(), self._outside.rng
        if self._process is None:
            return
        if what == "pause":
            self._freeze(seconds)
        elif what == "pause in a turn":
            self._pause_in_turn = seconds
        elif what == "suspend":
            self._clock_stood_still = True
            self._suspended_since = self._suspended_since or now
            self._freeze(seconds)
        elif what == "cut off":
            self._cut_off_until = max(self._cut_off_until, now + seconds)
        elif what == "cut off agents":
            self._unreachable_until = max(self._unreachable_until, now + seconds)
            self._group.cut_agents(self._process)
        elif what == "lose an answer":
            away = 0.0 if rng.random() < 0.5 else seconds
            self._losing = ("before" if rng.random() < 0.5 else "after", away)
        elif what == "restart":
            if self._closing is not self._process:
                self._closing = self._process
                self._process.start(self._close(self._process))
        else:
            assert what == "drain"
            self._group.drain(self, seconds)

    @property
    def listens(self) -> Process | None:
        """Return the process that agents connect to; None if they cannot reach it."""
        return None if self.loop.time() < self._unreachable_until else self._process

    async def drain(self, member: str, draining: bool) -> bool:
        """Drain another server; False if this one cannot."""
        try:
            return await self._control.drain(member, draining)
        except Unserved:
            return False

    async def _close(self, process: Process) -> None:
        await self._control.close()
        if self._process is process:
            self._end_process(RESTART)

    def _freeze(self, seconds: float) -> None:
        process = self._process
        assert process is not None
        process.freeze()
        self._thawed = max(self._thawed, self.loop.time() + seconds)
        self.loop.world_at(self._thawed, self._go_on, process)

    def _go_on(self, process: Process) -> None:
        if self.loop.time() < self._thawed:
            return
        if self._suspended_since is not None:
            self._suspended += self.loop.time() - self._suspended_since
            self._suspended_since = None
        process.thaw()


class Servers:
    """All servers of a trial, with the interface of one."""

    def __init__(
        self,
        outside: Outside,
        config: PartitionConfig,
        observer: Observer,
        providers: MakeProvider,
        number: int,
        leaders: LeaderChecker,
        machines: Callable[[], Collection[Machine]],
    ) -> None:
        self.leaders = leaders
        self.store = SharedStore(outside.loop.time, leaders)
        self.truth = Truth()
        self.keys = Keys()
        self.database_away_until = 0.0
        self._outside = outside
        self._loop = outside.loop
        self._machines = machines
        self._servers = [SharedServer(at, self, outside, config, observer, providers) for at in range(number)]
        self.acting = self._servers[0]
        """The server that acts now, or acted last."""

    def start(self) -> None:
        for server in self._servers:
            server.start()

    @property
    def leader(self) -> SharedServer | None:
        return next((server for server in self._servers if server.is_up), None)

    @property
    def partition(self) -> Partition:
        assert self.truth.partition is not None
        return self.truth.partition

    @property
    def connected(self) -> Collection[str]:
        return self.acting.connected

    @property
    def is_up(self) -> bool:
        return self.leader is not None

    @property
    def is_settled(self) -> bool:
        leader = self.leader
        return leader is not None and leader.is_settled

    @property
    def fault(self) -> ServerFault | None:
        leader = self.leader
        return None if leader is None else leader.fault

    @fault.setter
    def fault(self, fault: ServerFault) -> None:
        leader = self.leader
        if leader is not None:
            leader.fault = fault

    def inject(self, fault: LeaderFault) -> None:
        """Inject a fault into the leader, the server `which` places after the leader, or the database."""
        seconds = fault.lasts / SECOND
        if fault.what == "database":
            self.database_away_until = max(self.database_away_until, self._loop.time() + seconds)
            return
        leader = self.leader
        at = 0 if leader is None else leader.at
        server = self._servers[(at + fault.which) % len(self._servers)]
        self._outside.log(f"{server.name}: {fault.what} for {seconds:.1f} s")
        server.inject(fault.what, seconds)

    def drain(self, server: SharedServer, seconds: float) -> None:
        """Drain a server for a while, through any other server."""
        member = server.name
        for other in self._servers:
            if other is not server and other.process is not None:
                other.process.start(other.drain(member, True))
                break
        self._loop.world_at(self._loop.time() + seconds, self._end_drain, member)

    def _end_drain(self, member: str) -> None:
        row = self.store.servers.get(member)
        if row is not None:
            row.draining = False
            self.store.notify()

    def cut_agents(self, process: Process) -> None:
        silently = self._outside.rng.random() < 0.5
        for machine in self._machines():
            machine.cut_from(process, silently)

    def execute(self, command: Command, reply: Reply) -> None:
        """Send a command to the servers one after the other, until one serves it."""
        self._ask(command, reply, self._outside.rng.randrange(len(self._servers)), len(self._servers))

    def _ask(self, command: Command, reply: Reply, at: int, tries: int) -> None:
        if tries:
            server = self._servers[at % len(self._servers)]
            when = self._loop.time() + self._outside.rng.random() * TURN

            def again() -> None:
                self._loop.world_at(max(when, self._loop.time()), self._ask, command, reply, at + 1, tries - 1)

            server.request(command, reply, again)

    def serves(self, machine: Machine) -> bool:
        leader = self.leader
        return leader is not None and machine.connected_to is leader.process and leader.serves(machine)

    def listen(self, turn: int) -> Process | None:
        return self._servers[turn % len(self._servers)].listens

    def serve(self, end: End) -> None:
        next(server for server in self._servers if server.process is end.owner).serve(end)

    def end(self) -> None:
        for server in self._servers:
            server.end()

    def check_readers(self, done: Callable[[], None]) -> None:
        """Check that every server answers reads with the state of the leader, then call `done`."""
        seq, expected = self.journal_end, dump(self.partition)
        left = [server for server in self._servers if server.process is not None]

        def answered(server: SharedServer, state: bytes) -> None:
            need(state == expected, f"{server.name} answers reads with another state")
            left.remove(server)
            if not left:
                done()

        for server in list(left):
            assert server.process is not None
            server.process.start(server.read_state(seq, partial(answered, server)))

    @property
    def journal_end(self) -> int:
        return self.store.records.last(stream_of(PARTITION))
