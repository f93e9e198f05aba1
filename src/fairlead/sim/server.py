"""A server that can be killed between any two steps: the real writer and journal, its links, and its clocks of silence.

It does what the live loop does: batches become turns, what is committed is answered and sent out, and whoever connects
is told all that it should be doing.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

import msgspec

from fairlead.core import cycle
from fairlead.core.commands import AddNode, Answer, AnyCommand, MoveNode, Report
from fairlead.core.cycle import Cycle, due
from fairlead.core.dump import dump
from fairlead.core.effects import ForNode, ForPool, standing_effects
from fairlead.core.model import Micros
from fairlead.core.state import Partition
from fairlead.journal.memory import MemoryJournal
from fairlead.sim.checkers import need
from fairlead.sim.faults import ServerTrouble
from fairlead.writer.clock import Clock, cycle_clock
from fairlead.writer.observer import Observer
from fairlead.writer.writer import Stopped, Writer

SOON = 20_000
REHEARSED = 0.2
"""So many of the turns are tried and taken back first: nothing may be left of them."""

MOST_IDLE = 50

Reply = Callable[[Answer], None]


class Item(msgspec.Struct):
    """What waits for a turn. `link` is the connection of a node that registers."""

    command: AnyCommand
    reply: Reply
    link: int = 0
    sent: Micros = 0


class Outside(Protocol):
    """What the server is connected to."""

    now: Micros
    rng: Random
    lease: Micros
    heartbeat: Micros

    def at(self, when: Micros, what: Callable[[], None]) -> None: ...
    def to_agent(self, node: str, what: str, body: Any) -> None: ...
    def to_pool(self, pool: str) -> None: ...
    def turned(self, partition: Partition, now: Micros) -> None: ...
    def log(self, text: str) -> None: ...


class Server:
    def __init__(self, outside: Outside, observer: Observer) -> None:
        self.outside = outside
        self.journal = MemoryJournal()
        self.writer: Writer | None = None
        self.links: dict[str, int] = {}
        self.inbox: list[Item] = []
        self.trouble: ServerTrouble | None = None
        """It is to be killed in the next turn."""
        self._observer = observer
        self._clock: Clock = lambda: 0
        self._offset: Micros = 0
        """By how much the wall clock is wrong."""
        self._heard: dict[str, Micros] = {}
        self._expected: bytes | None = None
        self._planned: Micros | None = None
        """When the next turn is to be."""
        self._reign = 0
        self._idle = 0
        """How many turns in a row altered nothing."""

    @property
    def partition(self) -> Partition:
        assert self.writer is not None
        return self.writer.partition

    def start(self) -> None:
        """Recover from the journal, whose state must be the one that was left, to the byte."""
        outside = self.outside
        self.writer = Writer(self.journal, "default", [self._observer])
        if self._expected is not None:
            need(dump(self.partition) == self._expected, "the journal gives back another state than there was")
        self._clock = cycle_clock(
            self.partition.now,
            lambda: (outside.now + self._offset) * 1000,
            lambda: outside.now * 1000,
        )
        self._heard, self._planned = {}, None
        self._reign += 1
        reign = self._reign
        outside.log("the server is up")
        self._plan(0)
        outside.at(outside.now + outside.heartbeat, lambda: self._look_for_silence(reign))

    def offer(self, item: Item) -> None:
        """What reaches a server that is down is lost."""
        if self.writer is not None:
            self.inbox.append(item)
            self._plan(self.outside.rng.randrange(SOON))

    def hear(self, node: str) -> None:
        self._heard[node] = self._clock()

    # -- turns ---------------------------------------------------------------------------------------------------

    def _plan(self, wait: Micros) -> None:
        when = self.outside.now + wait
        if self._planned is None or when < self._planned:
            self._planned = when
            self.outside.at(when, lambda: self._turn(when))

    def _turn(self, planned: Micros) -> None:
        if self.writer is None or self._planned != planned or planned != self.outside.now:
            return
        self._planned = None
        most = self.partition.settings.max_batch
        batch, self.inbox = self.inbox[:most], self.inbox[most:]
        commands = [item.command for item in batch]
        before = dump(self.partition)
        point = self.trouble.point if self.trouble is not None else None
        if point == "before":
            self._die(before)
            return
        if self.outside.rng.random() < REHEARSED:
            self._rehearse(commands, before)
        if point is not None and point not in ("committed", "half told"):
            self.journal.break_next("failed" if point == "failed" else "unknown", written=point == "unknown, written")
        try:
            done = self.writer.cycle(commands, self._clock())
        except Stopped:
            after = dump(self.partition)
            need(point != "failed" or after == before, "a turn that was not written left something behind")
            self._die(after if point == "unknown, written" else before)
            return
        if point in ("committed", "half told"):
            if point == "half told":
                self._tell(batch, done, self.outside.rng.random())
            self._die(dump(self.partition))
            return
        self._tell(batch, done, 1.0)
        self.outside.turned(self.partition, self._clock())
        self._idle = 0 if batch or done.changes else self._idle + 1
        need(self._idle < MOST_IDLE, "time alone starts turns that alter nothing, again and again")
        if self.writer.more or self.inbox:
            self._plan(SOON // 2)
        else:
            when = due(self.partition)
            if when is not None:
                self._plan(max(SOON // 2, when - self._clock()))

    def _rehearse(self, commands: list[AnyCommand], before: bytes) -> None:
        cycle.run(self.partition, commands, self._clock()).plan.abandon()
        need(dump(self.partition) == before, "a turn that was taken back left something behind")

    def _tell(self, batch: list[Item], done: Cycle, part: float) -> None:
        """Answer and send, as far as it comes."""
        confirmed: dict[str, None] = {}
        todo: list[Callable[[], None]] = []
        for item, answer in zip(batch, done.answers, strict=True):
            todo.append(lambda item=item, answer=answer: item.reply(answer))  # type: ignore[misc]
            if isinstance(item.command, AddNode):
                todo.append(lambda item=item: self._welcome(item))  # type: ignore[misc]
            elif isinstance(item.command, Report):
                confirmed[item.command.node] = None
        for effect in done.effects:
            if isinstance(effect, ForNode):
                todo.append(lambda effect=effect: self.outside.to_agent(effect.node, "work", effect))  # type: ignore[misc]
            elif isinstance(effect, ForPool):
                todo.append(lambda effect=effect: self.outside.to_pool(effect.pool))  # type: ignore[misc]
        for each in todo[: round(len(todo) * part)]:
            each()

    def _welcome(self, item: Item) -> None:
        assert isinstance(item.command, AddNode)
        node = item.command.name
        node_id = self.partition.nodes.find(node)
        # It may have been declared lost in the same turn, after it had registered: then it has to register again.
        if node_id is None or not item.link or self.partition.nodes.state[self.partition.nodes.rows[node_id]] == "lost":
            return
        self.links[node] = item.link
        self.hear(node)
        self.outside.to_agent(node, "welcome", (item.link, item.sent))
        for effect in standing_effects(self.partition, node_id):
            self.outside.to_agent(node, "work", effect)

    def _die(self, expected: bytes) -> None:
        trouble = self.trouble
        assert trouble is not None
        self.outside.log(f"the server is killed: {trouble.point}")
        self.writer, self.trouble, self._expected = None, None, expected
        self.links, self.inbox = {}, []
        self._offset += trouble.step
        self.outside.at(self.outside.now + trouble.down, self.start)

    # -- silence -------------------------------------------------------------------------------------------------

    def _look_for_silence(self, reign: int) -> None:
        """Who has not been heard for longer than it may run without an answer is lost."""
        outside = self.outside
        if self.writer is None or reign != self._reign:
            return
        outside.at(outside.now + outside.heartbeat, lambda: self._look_for_silence(reign))
        partition = self.partition
        if not partition.reign.ready:
            return
        for name, node_id in sorted(partition.nodes.joins.items()):
            since = max(self._heard.get(name, 0), partition.reign.ready_at)
            if (
                partition.nodes.state[partition.nodes.rows[node_id]] != "lost"
                and self._clock() > since + outside.lease + outside.heartbeat
            ):
                self.links.pop(name, None)
                self.offer(Item(MoveNode(name=name, action="lose", operator=True), lambda answer: None))
