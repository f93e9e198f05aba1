"""What the hub keeps: nodes that were heard of, connections that speak for them, and which tasks run there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from fairlead.core.ranges import Ranges, check_flat, difference
from fairlead.engines.base import Connection, PartitionHandle, Peer, Secrets
from fairlead.engines.launches import Orders
from fairlead.wire import agent as wire
from fairlead.wire.agent import Tasks

MOST_UNSENT = 10_000
"""Messages. An agent that does not read them is cut off; it learns all of it when it is back."""

Block = tuple[str, int, str, int]
"""Job, number, stage, attempt."""


def block_of(tasks: Tasks) -> Block:
    return (tasks.job, tasks.number, tasks.stage, tasks.attempt)


class Blocks:
    """A set of tasks, by stage and attempt."""

    def __init__(self, tasks: Iterable[Tasks] = ()) -> None:
        """Raises `Refused` for what cannot be: it may come from an agent, which is not ours to trust."""
        self._known: dict[Block, Ranges] = {}
        for each in tasks:
            check_flat(each.indices, "indices")
            self.add(each)

    def add(self, tasks: Tasks) -> None:
        ranges = self._known.setdefault(block_of(tasks), Ranges())
        ranges.add(difference(tasks.indices, ranges.overlap(tasks.indices)))

    def drop(self, tasks: Tasks) -> None:
        ranges = self._known.get(block_of(tasks))
        if ranges is not None:
            ranges.remove(ranges.overlap(tasks.indices))
            if not ranges:
                del self._known[block_of(tasks)]

    def __bool__(self) -> bool:
        return bool(self._known)

    def without(self, other: Blocks) -> list[Tasks]:
        """Those that are not in another."""
        found: list[Tasks] = []
        for block, ranges in self._known.items():
            flat = ranges.flat()
            theirs = other._known.get(block)
            gone = difference(flat, theirs.overlap(flat)) if theirs is not None else flat
            if gone:
                found.append(Tasks(*block, gone))
        return found


class Seen(msgspec.Struct):
    """What is known of a node in this reign, connected or not."""

    heard: float
    """When it was heard last, by the clock of the hub."""
    address: str = ""
    instance: str = ""
    """Where its key is used, by the agent that spoke for it last; empty if none has in this reign."""
    lost: bool = False


class Attached:
    """A connection that speaks for a node."""

    def __init__(self, peer: Peer, connection: Connection) -> None:
        self.node = peer.node
        self.peer = peer
        self.connection = connection
        self.open = False
        """Whether it has been told what stands: before that, only stops are kept for it."""
        self.early: list[wire.Stop] = []
        self.running = Blocks()
        """What the state knows to run there, from its reports."""
        self._outbox: asyncio.Queue[wire.FromServer | None] = asyncio.Queue(MOST_UNSENT)
        """`None` is the end."""
        self.readers: dict[int, asyncio.Queue[wire.LogPart]] = {}
        self.renewal: float | None = None
        """When a new key was asked for, by the clock of the hub."""
        self.refusal: wire.Refusal | None = None
        """The last message, if it says why the connection ends."""

    def put(self, message: wire.FromServer) -> None:
        try:
            self._outbox.put_nowait(message)
        except asyncio.QueueFull:
            self.cut()

    async def take(self) -> list[wire.FromServer]:
        """All that is to be sent now; nothing at the end. Confirmations travel with work, if there is some."""
        messages = [await self._outbox.get()]
        while messages[-1] is not None and not self._outbox.empty():
            messages.append(self._outbox.get_nowait())
        if messages[-1] is None:
            return []  # what was not sent by now is learnt over another connection
        found = [each for each in messages if each is not None]
        at = next((at for at, each in enumerate(found) if isinstance(each, wire.Work)), None)
        if at is None or len(found) == 1:
            return found
        confirmed = tuple(each.number for each in found if isinstance(each, wire.Confirmed))
        found[at] = msgspec.structs.replace(found[at], confirmed=confirmed)
        return [each for each in found if not isinstance(each, wire.Confirmed)]

    def cut_if_failed(self, task: asyncio.Task[None]) -> None:
        """What could not be confirmed, by a fault of ours, is sent again over another connection."""
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            task.get_loop().call_exception_handler({"message": "reports were not confirmed", "exception": fault})
            self.cut()

    def refuse(self, problem: str) -> None:
        """End it, and say why."""
        self.refusal = wire.Refusal(problem)
        self.cut()

    def cut(self) -> None:
        """End it when what is being sent has been."""
        while not self._outbox.empty():
            self._outbox.get_nowait()
        self._outbox.put_nowait(None)


class LedPartition:
    """A partition under one writer."""

    def __init__(self, handle: PartitionHandle, secrets: Secrets, gang_seed: bytes) -> None:
        self.handle = handle
        self.nodes: dict[str, Seen] = {}
        self.attached: dict[str, Attached] = {}
        self.orders = Orders(handle.epoch, self._address, secrets, gang_seed)
        self.ready_since: float | None = None
        """When readiness was noticed: the clocks of silence start there."""

    def _address(self, node: str) -> str:
        seen = self.nodes.get(node)
        return seen.address if seen is not None else ""
