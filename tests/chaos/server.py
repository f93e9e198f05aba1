"""A server of a trial: the shipped control plane, hub and pools, in a process that can be killed at any step.

Its surroundings are virtual: the journal's disk, the network, the cloud, the clocks and the writer's thread. A turn is
computed at once, and its result arrives a little later. `servers.py` has several servers that share a journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Literal, Protocol

from fairlead.control.control import Control
from fairlead.control.dependencies import Dependencies
from fairlead.core import cycle
from fairlead.core.commands import Accepted, Answer, Command, Configure, Rejected
from fairlead.core.cycle import Cycle
from fairlead.core.dump import dump
from fairlead.core.errors import Refused
from fairlead.core.model import Micros
from fairlead.core.resources import SECOND
from fairlead.core.settings import PartitionConfig
from fairlead.core.state import Partition
from fairlead.engines.agents import Agents
from fairlead.engines.engine import Peer
from fairlead.journal.codec import stream_of
from fairlead.journal.in_memory import MemoryJournal
from fairlead.journal.journal import Journal
from fairlead.journal.roster import Roster
from fairlead.pools.pool_service import Figures, PoolService
from fairlead.pools.provider import Join, MakeProvider
from fairlead.wire.agent_messages import Challenge, Knock, NewKey, Proof
from fairlead.wire.handshake import Exchange
from fairlead.wire.unserved import Unserved
from fairlead.writer.inbox import Inbox, Message, Unavailable
from fairlead.writer.loop import Given, LiveWriter, WriterThread
from fairlead.writer.writer import Observer, Stopped, Writer
from tests.chaos.agents import Machine
from tests.chaos.checkers import CheckFailed, need
from tests.chaos.faults import ServerFault
from tests.chaos.loop import Process, VirtualLoop
from tests.chaos.network import End

PARTITION = "default"
TURN = 0.04
"""The most seconds that a turn takes, or an answer on its way to the client."""
UNANSWERED = 60.0
"""Seconds within which a working server answers any request."""
STEPS = 60
"""The most steps until a server that is sending its decisions is killed."""
REHEARSED = 0.2
"""Fraction of the turns that are first run and rolled back, which must leave the state unchanged."""
MAX_IDLE = 50
"""Number of successive turns without a change that timers may start, apart from turns for overrun estimates."""
DOUBLINGS = 12
"""How often one task's estimate can be overrun and doubled in a trial; each takes one turn."""
AWAY = "the disk is away"

Reply = Callable[[Answer], None]


class Truth:
    """The state in the journal, as the last writer knows it."""

    def __init__(self) -> None:
        self.partition: Partition | None = None
        """The state of the current or last writer."""
        self.before: bytes | None = None
        """The state in the journal, if it differs from the one in memory."""
        self.recovered: tuple[int, bytes] | None = None
        """The last record and the state that the last writer found in the journal, until its first turn."""


class Outside(Protocol):
    """The trial, as the server sees it: connections, log and checkers."""

    loop: VirtualLoop
    rng: Random

    def new_process(self, name: str) -> Process: ...
    def hung_up(self, server: Process) -> None: ...
    def turned(self, writer: Writer, inbox: Inbox, now: Micros, changed: bool) -> None: ...
    def failed(self, names: Sequence[str]) -> None: ...
    def log(self, text: str) -> None: ...


class Server:
    name = "server"
    _hub_name = "hub"
    _expected: tuple[type[Exception], ...] = (Stopped, Refused, OSError)
    """Exceptions with which work may end."""
    _expected_notes: tuple[str, ...] = ("a fault was injected", AWAY, "works again")

    def __init__(self, outside: Outside, config: PartitionConfig, observer: Observer, providers: MakeProvider) -> None:
        self.journal = MemoryJournal()
        self.truth = Truth()
        self.fault: ServerFault | None = None
        """The fault of the next turn: a kill, or a failing disk."""
        self._outside = outside
        self._loop = outside.loop
        self._config = config
        self._observer = observer
        self._providers = providers
        self._credentials = Keys()
        self._figures = Figures()
        self._process: Process | None = None
        self._control: Control
        self._hub: Agents
        self._offset: Micros = 0
        """Error of the wall clock."""
        self._closed_until = 0.0
        """The journal cannot be opened before this time."""
        self._dying = False
        self._at_work = 0
        """Number of turns without a result yet."""
        self._changed = False
        self._idle = 0
        """Number of successive turns without a change."""
        self._undelivered: list[asyncio.Future[Any]] = []

    def start(self) -> None:
        """Start the process. It must recover the state of the last process, to the byte."""
        loop = self._loop
        self._process = self._outside.new_process(self.name)
        self._dying, self._at_work = False, 0
        self._hub = Agents(self._credentials, self._hear_hub, gang_seed=b"gangs", steady=self.steady)
        join = Join(lambda: "", lambda partition, pool, names: {}, self._credentials.forget)
        given = Dependencies(
            self._open_journal,
            self._hub,
            [self],
            {PARTITION: self._config},
            note=self._note,
            pools=PoolService(self._providers, join, self._figures, self._hear_pools, self.steady),
            wall=lambda: round(loop.time() * 1e9) + self._offset * 1000,
            steady=self.steady,
            new_thread=lambda: WriterThread(self._give),
            roster=self._new_roster(),
        )
        self._control = Control(given)
        self._process.start(self._run())

    def steady(self) -> float:
        """Return the time of the machine's steady clock."""
        return self._loop.time()

    def _new_roster(self) -> Roster | None:
        return None

    async def _run(self) -> None:
        await self._control.start()

    @property
    def partition(self) -> Partition:
        assert self.truth.partition is not None
        return self.truth.partition

    @property
    def connected(self) -> Collection[str]:
        """Return the nodes with a connection to the hub."""
        return self._hub.connected(PARTITION)

    @property
    def is_up(self) -> bool:
        """True if the server has a working writer."""
        if self._process is None or self._control.problem:
            return False
        return self._control.find(PARTITION).leads

    @property
    def is_settled(self) -> bool:
        """True if the server is up, no message waits and no turn is under way."""
        return self.is_up and not self._at_work and not self._control.find(PARTITION).live.inbox.waiting

    def serves(self, machine: Machine) -> bool:
        """True if a machine is connected to the leading server, which withholds nothing from it."""
        return not self._hub.waits_for_ports(PARTITION, machine.name)

    def listen(self, turn: int) -> Process | None:
        """Return the process that an agent connects to at an attempt; None if it does not listen."""
        return self._process

    def serve(self, end: End) -> None:
        """Serve the connection of an agent."""
        assert self._process is not None
        self._process.start(self._hub.serve(PARTITION, end))

    def execute(self, command: Command, reply: Reply) -> None:
        """Send a command to the server. It is lost if the server is down."""
        if self._process is not None:
            self._process.start(self._execute(command, reply, lambda: None))

    async def _execute(self, command: Command, reply: Reply, unserved: Callable[[], None]) -> None:
        control, began = self._control, self._loop.time()
        answer: object
        try:
            if isinstance(command, Configure):
                await control.configure({PARTITION: command.config})
                answer = Accepted()
            else:
                async with asyncio.timeout(UNANSWERED):
                    answer = await control.find(PARTITION).offer(command)
        except Refused as refusal:
            answer = Rejected(refusal.field, refusal.problem)
        except Unserved:
            return unserved()
        except TimeoutError:
            if self._stood_still_since(began):
                return
            raise CheckFailed(f"{type(command).__name__} has no answer after {UNANSWERED} seconds") from None
        if not isinstance(answer, Unavailable):
            assert isinstance(answer, Accepted | Rejected)
            self._loop.world_at(self._loop.time() + self._outside.rng.random() * TURN, reply, answer)

    def check_readers(self, done: Callable[[], None]) -> None:
        """Call `done`: there is no other server to read from."""
        done()

    def _stood_still_since(self, when: float) -> bool:
        """True if the process was frozen at some time since then."""
        return False

    def end(self) -> None:
        """End the waits for turns that will have no result."""
        for future in self._undelivered:
            if not future.done():
                future.set_exception(Stopped("the trial is over"))

    # -- turns ---------------------------------------------------------------------------------------------------

    def _give(self, given: Given | None) -> None:
        """Do the work of the writer's thread."""
        if given is None:
            return
        work, future = given
        self._undelivered = [waiting for waiting in self._undelivered if not waiting.done()] + [future]
        fault = self.fault if self.is_up and not self._dying else None
        point = None if fault is None else fault.point
        if point == "before":
            self._die()
            return
        live, batch = _turn_of(work)
        before = dump(self.partition) if point is not None or self._may_lose_answers() else b""
        if live is not None and self._outside.rng.random() < REHEARSED:
            self._judge(lambda: self._rehearse(live.writer.partition, [message.command for message in batch]))
        if point in ("failed", "unknown, written", "unknown, not written"):
            self.journal.break_next("failed" if point == "failed" else "unknown", written=point == "unknown, written")
        try:
            settle = partial(future.set_result, work())
        except self._expected as problem:
            settle = partial(future.set_exception, problem)
            if isinstance(problem, Stopped):
                self._stop(problem, fault, live, before)
        except Exception as fault:
            self._loop.fail(fault)
            raise
        else:
            if live is not None:
                self._judge(lambda: self._look(live, bool(batch)))
            if point == "committed":
                self._die()
                return
            if point == "half told" and self._process is not None:
                self._dying = True
                self._process.kill_after(self._outside.rng.randrange(STEPS), self._die)
        self.journal.mend()
        self._at_work += 1
        self._loop.call_later(self._outside.rng.random() * self._longest(), self._deliver, future, settle)

    def _may_lose_answers(self) -> bool:
        """True if the outcome of an append may be unknown without an injected fault of the journal."""
        return False

    def _longest(self) -> float:
        """Return the most seconds until the result of a turn arrives."""
        return TURN

    def _deliver(self, future: asyncio.Future[Any], settle: Callable[[], None]) -> None:
        self._at_work -= 1
        if not future.done():
            settle()

    def _rehearse(self, partition: Partition, commands: list[Command]) -> None:
        before = dump(partition)
        now = max(partition.now, self._control.now)  # the last turn of a writer may end when it is no longer served
        cycle.run(partition, commands, now).plan.abandon()
        need(dump(partition) == before, "a turn that was taken back left something behind")

    def _look(self, live: LiveWriter, had_messages: bool) -> None:
        """Check the state after a turn."""
        self._idle = 0 if had_messages or self._changed else self._idle + 1
        most = MAX_IDLE + DOUBLINGS * len(live.writer.partition.allocations)
        need(self._idle < most, f"{most} turns in a row were started by time alone and changed nothing")
        if self._is_true(live.writer.partition):
            self.truth.recovered = None
            self._outside.turned(live.writer, live.inbox, self._control.now, self._changed)

    def _is_true(self, partition: Partition) -> bool:
        """True if this is the state of the newest writer. An earlier one may not know yet that it was replaced."""
        return partition is self.truth.partition

    # -- faults --------------------------------------------------------------------------------------------------

    def _die(self) -> None:
        """Kill the process, and start another one after a while."""
        fault, process = self.fault, self._process
        assert fault is not None and process is not None
        self._outside.log(f"the {self.name} is killed: {fault.point}")
        process.kill()
        self.fault = self._process = None
        self._offset += fault.step
        self._outside.hung_up(process)
        self._loop.world_at(self._loop.time() + fault.down / SECOND, self.start)

    def _stop(self, problem: Stopped, fault: ServerFault | None, live: LiveWriter | None, before: bytes) -> None:
        """Note that a writer stopped in a turn, or in other work if `live` is None."""
        if fault is not None:
            self._fail(fault, before if live is not None else None)

    def _fail(self, fault: ServerFault, before: bytes | None) -> None:
        """Close the journal for a while after a failed write. The process stays up.

        `before` is the state before the turn; None if the failed work was not a turn.
        """
        self._outside.log(f"the journal fails: {fault.point}")
        self.truth.before = before if fault.point == "unknown, not written" else None
        self.fault = None
        self._offset += fault.step
        self._closed_until = self._loop.time() + fault.down / SECOND

    def _open_journal(self) -> Journal:
        if self._loop.time() < self._closed_until:
            raise OSError(AWAY)
        return self.journal

    def _note(self, text: str) -> None:
        self._outside.log(f"{self.name}: {text}")
        if not any(part in text for part in self._expected_notes):
            self._loop.fail(CheckFailed(text))

    # -- watching ------------------------------------------------------------------------------------------------

    def began(self, partition: Partition) -> None:
        truth = self.truth
        if truth.partition is not None:
            expected = truth.before if truth.before is not None else dump(truth.partition)
            same = dump(partition) == expected
            self._judge(lambda: need(same, "the state recovered from the journal differs from the last state"))
        truth.partition, truth.before = partition, None
        truth.recovered = self.journal.last(stream_of(PARTITION)), dump(partition)
        self._outside.log(f"the {self.name} is up")
        self._judge(lambda: self._observer.began(partition))

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        self._changed = bool(decided.changes)
        if self._is_true(decided.plan.partition):
            self._judge(lambda: self._observer.cycle(decided, seconds))

    def stopped(self, partition: Partition, why: str) -> None:
        """Do nothing: `began` checks the recovered state."""

    def _hear_hub(self, event: str, fields: dict[str, Any]) -> None:
        problem = fields.get("problem", "")
        self._outside.log(f"{self._hub_name}: {event} {fields.get('node', '')} {problem}".rstrip())
        if event == "tasks missing":  # spawners keep a ledger, and their disks do not fail
            self._loop.fail(CheckFailed(f"{fields['node']} does not know what it was told to run: {fields['job']}"))
        if event == "report refused" and "newer than the journal's" in problem:
            self._loop.fail(CheckFailed(f"a node runs what was never written: {problem}"))

    def _hear_pools(self, level: str, event: str, fields: dict[str, Any]) -> None:
        names, reason = fields.get("names", fields.get("node", "")), fields.get("reason", "")
        self._outside.log(f"pool {fields['pool']}: {event} {names} {reason}".rstrip())
        if event == "pool pass failed":
            self._loop.fail(CheckFailed(reason))
        if event == "machines failed":
            self._judge(lambda: self._outside.failed(names))

    def _judge(self, look: Callable[[], None]) -> None:
        """Run a check. A failure ends the trial, even if its exception is caught elsewhere."""
        try:
            look()
        except Exception as problem:
            self._loop.fail(problem)
            raise


def _turn_of(work: Callable[[], Any]) -> tuple[LiveWriter | None, Sequence[Message]]:
    """Return the live writer and the messages of a turn; None if the work is not a turn."""
    live = getattr(work.func, "__self__", None) if isinstance(work, partial) else None
    if isinstance(work, partial) and isinstance(live, LiveWriter):
        return live, work.args[0]
    return None, ()


class Keys:
    """Node keys that are always accepted. The instance that uses each key outlives the server."""

    def __init__(self) -> None:
        self._instances: dict[str, str] = {}

    def challenge(self, partition: str, knock: Knock) -> tuple[Exchange, Challenge]:
        return Exchange(b"", partition, knock.node, knock.nonce, b""), Challenge(partition, b"", b"", b"")

    async def admit(self, exchange: Exchange, proof: Proof) -> Peer:
        return Peer(exchange, "", "", (), proof.instance, self._instances.get(exchange.node, ""))

    def validity(self, peer: Peer) -> Literal["valid", "due", "expired", "revoked"]:
        return "valid"

    async def renew(self, peer: Peer, new: NewKey) -> None:
        raise AssertionError("keys do not expire in a trial")

    async def settle(self, peer: Peer) -> None:
        self._instances[peer.node] = peer.instance

    def forget(self, partition: str, names: Sequence[str]) -> None:
        for name in names:
            self._instances.pop(name, None)
