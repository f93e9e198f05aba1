"""The hub's records of nodes, their connections, and the tasks that run there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from fairlead.core.ranges import Ranges, check_flat, difference
from fairlead.engines.engine import Connection, PartitionHandle, Peer, Secrets
from fairlead.engines.launches import Orders, parts_of
from fairlead.wire import agent_messages as wire
from fairlead.wire.agent_messages import Tasks

FAILED_JOBS, FAILED_USERS = 5, 2
"""A node that could start no task of this many jobs in a row, of at least this many users, is drained."""
MAX_UNSENT = 10_000
"""Most messages waiting to be sent. A slower agent is disconnected, and gets its orders when it reconnects."""

Block = tuple[str, int, str, int]
"""Job, number, stage, attempt."""


def block_of(tasks: Tasks) -> Block:
    return (tasks.job, tasks.number, tasks.stage, tasks.attempt)


class Blocks:
    """A set of tasks, by stage and attempt."""

    def __init__(self, tasks: Iterable[Tasks] = ()) -> None:
        """Collect the tasks. Raises `Refused` for malformed indices, because agents are not trusted."""
        self._ranges: dict[Block, Ranges] = {}
        for block in tasks:
            check_flat(block.indices, "indices")
            self.add(block)

    def add(self, tasks: Tasks) -> None:
        ranges = self._ranges.setdefault(block_of(tasks), Ranges())
        ranges.add(difference(tasks.indices, ranges.overlap(tasks.indices)))

    def drop(self, tasks: Tasks) -> None:
        ranges = self._ranges.get(block_of(tasks))
        if ranges is not None:
            ranges.remove(ranges.overlap(tasks.indices))
            if not ranges:
                del self._ranges[block_of(tasks)]

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def among(self, tasks: Iterable[Tasks]) -> Blocks:
        """Return the tasks of a list, without those of stages and attempts that have no tasks here."""
        for block in tasks:
            check_flat(block.indices, "indices")
        return Blocks(block for block in tasks if block_of(block) in self._ranges)

    def without(self, other: Blocks) -> list[Tasks]:
        rest: list[Tasks] = []
        for block, ranges in self._ranges.items():
            flat = ranges.flat()
            other_ranges = other._ranges.get(block)
            indices = difference(flat, other_ranges.overlap(flat)) if other_ranges is not None else flat
            if indices:
                rest.append(Tasks(*block, indices))
        return rest


class FailedStarts:
    """Jobs in a row of which a node could start no task. With jobs of several users, the node is the cause."""

    def __init__(self) -> None:
        self._users: dict[int, str] = {}
        """Number of a job → its user."""

    def add(self, job: int, user: str) -> None:
        self._users[job] = user

    def clear(self) -> None:
        self._users.clear()

    @property
    def jobs(self) -> int:
        return len(self._users)

    @property
    def is_nodes_fault(self) -> bool:
        """True if a user alone cannot have caused this, for example with commands that do not exist."""
        return self.jobs >= FAILED_JOBS and len(set(self._users.values())) >= FAILED_USERS


class Seen(msgspec.Struct):
    """The hub's record of a node, connected or not, during the term of one writer."""

    heard: float
    """Time of the last message from the node, by the clock of the hub."""
    address: str = ""
    instance: str = ""
    """The instance of the agent that connected last; empty if none has during this term."""
    connection: int = 0
    """The number of the last connection. A connection with a lower number was abandoned by the agent."""
    lost: bool = False
    told: int = 0
    """The lease that the agent was told last."""
    lease: int = 0
    """The longest lease that the agent may keep, until it has acknowledged a shorter one."""
    speaks: int = 0
    """The version of the messages that its agent speaks; 0 if none has connected during this term."""

    def tell_lease(self, lease: int) -> None:
        self.told, self.lease = lease, max(self.lease, lease)

    def acknowledge_lease(self, lease: int) -> None:
        if lease == self.told:
            self.lease = lease


class Attached:
    def __init__(self, peer: Peer, connection: Connection) -> None:
        self.node = peer.node
        self.pool = ""
        self.peer = peer
        self.connection = connection
        self.open = False
        """True once the standing orders have been sent. Before that, only stops are queued for the agent."""
        self.early: list[wire.Stop] = []
        self.failed_starts = FailedStarts()
        self.running = Blocks()
        """Tasks that run there according to the state, from the agent's reports."""
        self._outbox: asyncio.Queue[wire.FromServer | None] = asyncio.Queue(MAX_UNSENT)
        """`None` ends the connection."""
        self.readers: dict[int, asyncio.Queue[wire.LogPart | wire.OutputPart | None]] = {}
        """Requests for logs → where their parts arrive. `None` says that the agent has disconnected."""
        self.renewal: float | None = None
        """The time at which the node was asked for a new key; None if it was not."""
        self.refusal: wire.Refusal | None = None
        """The last message, which says why the connection ends."""

    def put(self, message: wire.FromServer) -> None:
        try:
            for part in parts_of(message) if isinstance(message, wire.Work) else (message,):
                self._outbox.put_nowait(part)
        except asyncio.QueueFull:
            self.cut()

    async def take(self) -> list[wire.FromServer]:
        """Wait for messages to send and return all of them; empty when the connection has to end.

        Confirmations are merged into the first message with work, if there is one.
        """
        messages = [await self._outbox.get()]
        while messages[-1] is not None and not self._outbox.empty():
            messages.append(self._outbox.get_nowait())
        if messages[-1] is None:
            return []  # the agent gets unsent messages over its next connection
        unsent = [message for message in messages if message is not None]
        at = next((at for at, message in enumerate(unsent) if isinstance(message, wire.Work)), None)
        if at is None or len(unsent) == 1:
            return unsent
        confirmed = tuple(message.number for message in unsent if isinstance(message, wire.Confirmed))
        unsent[at] = msgspec.structs.replace(unsent[at], confirmed=confirmed)
        return [message for message in unsent if not isinstance(message, wire.Confirmed)]

    def cut_if_failed(self, task: asyncio.Task[None]) -> None:
        """Close the connection if confirming failed because of a bug; the agent then sends its reports again."""
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            task.get_loop().call_exception_handler({"message": "reports were not confirmed", "exception": fault})
            self.cut()

    def refuse(self, problem: str) -> None:
        """Close the connection after sending the reason. Retrying is useless until an operator acts."""
        self.refusal = wire.Refusal(problem, final=True)
        self.cut()

    def cut(self) -> None:
        """Close the connection after the message that is being sent. Drops all unsent messages."""
        while not self._outbox.empty():
            self._outbox.get_nowait()
        self._outbox.put_nowait(None)


class LedPartition:
    def __init__(self, handle: PartitionHandle, secrets: Secrets, gang_seed: bytes) -> None:
        self.handle = handle
        self.nodes: dict[str, Seen] = {}
        self.attached: dict[str, Attached] = {}
        self.orders = Orders(handle.epoch, self._address, secrets, gang_seed, self._chooses_ports)
        self.ahead: dict[str, None] = {}
        """Nodes that report attempts or epochs which are not in the journal."""
        self.parted: dict[str, None] = {}
        """Nodes whose agents have disconnected, not yet reported to the core."""
        self.parting: asyncio.Task[None] | None = None
        """The asyncio task that reports them to the core."""
        self.ready_since: float | None = None
        """When the partition became ready; None before. Silence of nodes before this time does not count."""

    def _chooses_ports(self, node: str) -> bool | None:
        seen = self.nodes.get(node)
        return seen.speaks >= 2 if seen is not None and seen.speaks else None

    def _address(self, node: str) -> str:
        seen = self.nodes.get(node)
        return seen.address if seen is not None else ""
