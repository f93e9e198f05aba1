"""The server of a trial: the control plane, hub and pools as they ship, in a process that can be killed at any step.

Virtual is what they reach: the journal's disk, the network, the cloud, the clocks, and the thread in which turns are
made. A turn is made at once, and its outcome is there a little later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Literal, Protocol

from fairlead.api.control import Control, offered
from fairlead.api.problems import Unserved
from fairlead.core import cycle
from fairlead.core.commands import Accepted, Answer, AnyCommand, Configure, Rejected
from fairlead.core.cycle import Cycle
from fairlead.core.dump import dump
from fairlead.core.errors import Refused
from fairlead.core.model import Micros
from fairlead.core.resources import SECOND
from fairlead.core.settings import PartitionConfig
from fairlead.core.state import Partition
from fairlead.engines.agents import Agents
from fairlead.engines.base import Peer
from fairlead.journal.memory import MemoryJournal
from fairlead.pools.base import Join, MakeProvider
from fairlead.pools.figures import Figures
from fairlead.pools.service import PoolService
from fairlead.sim.chaos.checkers import CheckFailed, need
from fairlead.sim.chaos.faults import ServerTrouble
from fairlead.sim.chaos.loop import Process, VirtualLoop
from fairlead.sim.chaos.network import End
from fairlead.wire.agent import Challenge, Knock, NewKey, Proof
from fairlead.wire.identity import Exchange
from fairlead.writer.inbox import Inbox, Message, Unavailable
from fairlead.writer.loop import Given, LiveWriter, WriterThread
from fairlead.writer.observer import Observer
from fairlead.writer.writer import Stopped, Writer

PARTITION = "default"
TURN = 0.04
"""The most seconds that a turn takes, or the way of an answer to its client."""
UNANSWERED = 60.0
"""Seconds in which a server that works has answered, whatever it was asked."""
STEPS = 60
"""The most steps that a server takes which is killed while it tells what it has decided."""
REHEARSED = 0.2
"""The part of the turns that is tried and taken back first: nothing may be left of them."""
MOST_IDLE = 50
AWAY = "the disk is away"

Reply = Callable[[Answer], None]


class Outside(Protocol):
    """What the server is connected to, and those who watch."""

    loop: VirtualLoop
    rng: Random

    def new_process(self, name: str) -> Process: ...
    def hung_up(self) -> None: ...
    def turned(self, writer: Writer, inbox: Inbox, now: Micros, changed: bool) -> None: ...
    def failed(self, names: Sequence[str]) -> None: ...
    def log(self, text: str) -> None: ...


class Server:
    def __init__(self, outside: Outside, config: PartitionConfig, observer: Observer, providers: MakeProvider) -> None:
        self.journal = MemoryJournal()
        self.trouble: ServerTrouble | None = None
        """It is to be killed in the next turn, or its disk is to fail."""
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
        self._partition: Partition | None = None
        """The state of the last reign."""
        self._before: bytes | None = None
        """The state that the journal has, if that is not the one in memory."""
        self._offset: Micros = 0
        """By how much the wall clock is wrong."""
        self._closed_until = 0.0
        """Until then the journal cannot be opened."""
        self._dying = False
        self._at_work = 0
        """Turns that are not over."""
        self._changed = False
        self._idle = 0
        """How many turns in a row altered nothing."""
        self._undelivered: list[asyncio.Future[Any]] = []

    def start(self) -> None:
        """Start the process. The state that it recovers must be the one that was left, to the byte."""
        loop = self._loop
        self._process = self._outside.new_process("server")
        self._dying, self._at_work = False, 0
        self._hub = Agents(self._credentials, self._hear_hub, gang_seed=b"gangs", steady=loop.time)
        join = Join("", lambda partition, pool, names: {}, self._credentials.forget)
        self._control = Control(
            self._open_journal,
            self._hub,
            [self],
            {PARTITION: self._config},
            note=self._note,
            pools=PoolService(self._providers, join, self._figures, self._hear_pools, loop.time),
            wall=lambda: round(loop.time() * 1e9) + self._offset * 1000,
            steady=loop.time,
            thread=lambda: WriterThread(self._give),
        )
        self._process.start(self._control.start())

    @property
    def partition(self) -> Partition:
        assert self._partition is not None
        return self._partition

    @property
    def is_up(self) -> bool:
        """True if it serves."""
        if self._process is None or self._control.problem:
            return False
        return self._control.find(PARTITION).reigns

    @property
    def is_settled(self) -> bool:
        """True if it serves, nothing waits for a turn, and none is being made."""
        return self.is_up and not self._at_work and not self._control.find(PARTITION).live.inbox.waiting

    def listen(self) -> Process | None:
        """The process that agents connect to, if there is one."""
        return self._process

    def serve(self, end: End) -> None:
        """An agent has connected."""
        assert self._process is not None
        self._process.start(self._hub.serve(PARTITION, end))

    def ask(self, command: AnyCommand, reply: Reply) -> None:
        """Have a command carried out. What reaches a server that is down is lost."""
        if self._process is not None:
            self._process.start(self._ask(command, reply))

    async def _ask(self, command: AnyCommand, reply: Reply) -> None:
        control = self._control
        answer: object
        try:
            if isinstance(command, Configure):
                await control.configure({PARTITION: command.config})
                answer = Accepted()
            else:
                async with asyncio.timeout(UNANSWERED):
                    answer = await offered(control.find(PARTITION), command)
        except Refused as refusal:
            answer = Rejected(refusal.field, refusal.problem)
        except Unserved:
            return
        except TimeoutError:
            raise CheckFailed(f"{type(command).__name__} has no answer after {UNANSWERED} seconds") from None
        if not isinstance(answer, Unavailable):
            assert isinstance(answer, Accepted | Rejected)
            self._loop.world_at(self._loop.time() + self._outside.rng.random() * TURN, reply, answer)

    def end(self) -> None:
        """Let all that waits for turns which were never over end."""
        for future in self._undelivered:
            if not future.done():
                future.set_exception(Stopped("the trial is over"))

    # -- turns ---------------------------------------------------------------------------------------------------

    def _give(self, given: Given | None) -> None:
        """Do what the writer's thread does."""
        if given is None:
            return
        work, future = given
        self._undelivered = [each for each in self._undelivered if not each.done()] + [future]
        trouble = self.trouble if self.is_up and not self._dying else None
        point = None if trouble is None else trouble.point
        if point == "before":
            self._die()
            return
        live, batch = _turn_of(work)
        before = dump(self.partition) if point is not None else b""
        if live is not None and self._outside.rng.random() < REHEARSED:
            self._judge(lambda: self._rehearse(live.writer.partition, [message.command for message in batch]))
        if point in ("failed", "unknown, written", "unknown, not written"):
            self.journal.break_next("failed" if point == "failed" else "unknown", written=point == "unknown, written")
        try:
            settle = partial(future.set_result, work())
        except (Stopped, Refused, OSError) as problem:
            settle = partial(future.set_exception, problem)
            if isinstance(problem, Stopped) and trouble is not None:
                self._fail(trouble, before if live is not None else None)
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
        self._loop.call_later(self._outside.rng.random() * TURN, self._deliver, future, settle)

    def _deliver(self, future: asyncio.Future[Any], settle: Callable[[], None]) -> None:
        self._at_work -= 1
        if not future.done():
            settle()

    def _rehearse(self, partition: Partition, commands: list[AnyCommand]) -> None:
        before = dump(partition)
        cycle.run(partition, commands, self._control.now).plan.abandon()
        need(dump(partition) == before, "a turn that was taken back left something behind")

    def _look(self, live: LiveWriter, some: bool) -> None:
        """A turn is over."""
        self._idle = 0 if some or self._changed else self._idle + 1
        need(self._idle < MOST_IDLE, "time alone starts turns that alter nothing, again and again")
        self._outside.turned(live.writer, live.inbox, self._control.now, self._changed)

    # -- trouble -------------------------------------------------------------------------------------------------

    def _die(self) -> None:
        """The process is killed, and another one is started after a while."""
        trouble, process = self.trouble, self._process
        assert trouble is not None and process is not None
        self._outside.log(f"the server is killed: {trouble.point}")
        process.kill()
        self.trouble = self._process = None
        self._offset += trouble.step
        self._outside.hung_up()
        self._loop.world_at(self._loop.time() + trouble.down / SECOND, self.start)

    def _fail(self, trouble: ServerTrouble, before: bytes | None) -> None:
        """The journal has failed, and cannot be opened for a while. The process goes on.

        `before` is the state before the turn, if it was one that was not written.
        """
        self._outside.log(f"the journal fails: {trouble.point}")
        self._before = before if trouble.point == "unknown, not written" else None
        self.trouble = None
        self._offset += trouble.step
        self._closed_until = self._loop.time() + trouble.down / SECOND

    def _open_journal(self) -> MemoryJournal:
        if self._loop.time() < self._closed_until:
            raise OSError(AWAY)
        return self.journal

    def _note(self, text: str) -> None:
        self._outside.log(f"server: {text}")
        meant = "a fault was injected" in text or AWAY in text or "works again" in text
        if not meant:
            self._loop.fail(CheckFailed(text))

    # -- watching ------------------------------------------------------------------------------------------------

    def began(self, partition: Partition) -> None:
        if self._partition is not None:
            expected = self._before if self._before is not None else dump(self._partition)
            same = dump(partition) == expected
            self._judge(lambda: need(same, "the journal gives back another state than there was"))
        self._partition, self._before = partition, None
        self._outside.log("the server is up")
        self._judge(lambda: self._observer.began(partition))

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        self._changed = bool(decided.changes)
        self._judge(lambda: self._observer.cycle(decided, seconds))

    def stopped(self, partition: Partition, why: str) -> None:
        """What is recovered then is checked."""

    def _hear_hub(self, event: str, fields: dict[str, Any]) -> None:
        problem = fields.get("problem", "")
        self._outside.log(f"hub: {event} {fields.get('node', '')} {problem}".rstrip())
        if event == "tasks missing":  # agents write down what they take, and no disk of theirs is lost
            self._loop.fail(CheckFailed(f"{fields['node']} does not know what it was told to run: {fields['job']}"))
        if event == "report refused" and "newer than the journal's" in problem:
            self._loop.fail(CheckFailed(f"a node runs what was never written: {problem}"))

    def _hear_pools(self, level: str, event: str, fields: dict[str, Any]) -> None:
        names, reason = fields.get("names", fields.get("node", "")), fields.get("reason", "")
        self._outside.log(f"pool {fields['pool']}: {event} {names} {reason}".rstrip())
        if event == "pool not tended":
            self._loop.fail(CheckFailed(reason))
        if event == "machines failed":
            self._judge(lambda: self._outside.failed(names))

    def _judge(self, look: Callable[[], None]) -> None:
        """What a judge objects to is a fault, whatever becomes of its exception."""
        try:
            look()
        except Exception as problem:
            self._loop.fail(problem)
            raise


def _turn_of(work: Callable[[], Any]) -> tuple[LiveWriter | None, Sequence[Message]]:
    """The live writer whose turn it is, and the messages of the turn."""
    live = getattr(work.func, "__self__", None) if isinstance(work, partial) else None
    if isinstance(work, partial) and isinstance(live, LiveWriter):
        return live, work.args[0]
    return None, ()


class Keys:
    """Keys that prove themselves, and where each is used. All of it outlives a server."""

    def __init__(self) -> None:
        self._instances: dict[str, str] = {}

    def challenge(self, partition: str, knock: Knock) -> tuple[Exchange, Challenge]:
        return Exchange(b"", partition, knock.node, knock.nonce, b""), Challenge(partition, b"", b"", b"")

    async def admit(self, exchange: Exchange, proof: Proof) -> Peer:
        return Peer(exchange, "", "", (), proof.instance, self._instances.get(exchange.node, ""))

    def standing(self, peer: Peer) -> Literal["valid", "due", "expired", "revoked"]:
        return "valid"

    async def renew(self, peer: Peer, new: NewKey) -> None:
        raise AssertionError("keys do not end in a trial")

    async def settle(self, peer: Peer) -> None:
        self._instances[peer.node] = peer.instance

    def forget(self, partition: str, names: Sequence[str]) -> None:
        for name in names:
            self._instances.pop(name, None)
