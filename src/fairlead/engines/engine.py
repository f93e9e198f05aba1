"""The interfaces of engines: what the control plane calls, and what engines need of writers, agents and node keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from fairlead.core.commands import Command
from fairlead.core.effects import ForNode
from fairlead.core.state import Partition
from fairlead.wire.agent_messages import Challenge, Knock, NewKey, Proof
from fairlead.wire.handshake import Exchange
from fairlead.wire.unserved import Unserved

Result = TypeVar("Result")


class Busy(Unserved):
    def __init__(self, problem: str) -> None:
        super().__init__("too many", problem, 1)


class PartitionHandle(Protocol):
    """The interface of a partition's writer for engines, valid during the term of the writer, in one asyncio loop."""

    @property
    def epoch(self) -> int: ...

    @property
    def skipped_epochs(self) -> range:
        """Epochs before this one that have no record, because older data were restored; mostly empty."""

    @property
    def leads(self) -> bool:
        """True while the state matches the journal. Once it is False, do not act on the state."""

    @property
    def partition(self) -> Partition:
        """The state. Read it only within `Engine.begin` and `Engine.dispatch`, which are called between cycles."""

    def offer(self, command: Command) -> Awaitable[object]:
        """Put a command into the inbox. Raises `Busy` if the inbox is full.

        The answer is `Accepted` or `Rejected`, or another value if the writer ended first.
        """

    async def read(self, look: Callable[[Partition], Result]) -> Result:
        """Call `look` with the state, between two cycles. The writer waits for it, so it must be quick.

        All effects of earlier cycles have been dispatched. Effects of later cycles are dispatched after the caller has
        the result.
        """


class Engine(Protocol):
    """Runs tasks. All calls come from one asyncio loop."""

    def begin(self, partition: str, handle: PartitionHandle) -> None:
        """Start working for a writer that took over the partition."""

    def dispatch(self, partition: str, messages: Sequence[ForNode]) -> None:
        """Send nodes the tasks to start and to stop. Quick, and never raises."""

    def end(self, partition: str) -> None:
        """Stop working for a partition that has no writer now."""


class Closed(Exception):
    """Raised if the peer of a connection is gone."""


class Away(Exception):
    """Raised if the agent of a node is not connected or disconnects."""


class Connection(Protocol):
    """A WebSocket for whole binary messages."""

    async def send(self, data: bytes) -> None:
        """Send a message. Raises `Closed` if the peer is gone."""

    async def recv(self) -> bytes:
        """Return the next message. Raises `Closed` when the connection has ended."""

    def trust(self) -> None:
        """Accept messages of any size that the protocol allows, because the peer has proved its identity."""

    async def close(self, code: int, reason: str) -> None:
        """Close the connection with a code of RFC 6455, even if the peer reads nothing. May be called twice."""


class Peer(msgspec.Struct, frozen=True):
    """The authenticated node at the other end of a connection."""

    exchange: Exchange
    key: str
    pool: str
    """The only pool that the node may be in; empty for any."""
    users: tuple[str, ...]
    """The only users whose tasks the node may take; empty for all."""
    instance: str
    """The id of the agent's directory on this boot of its machine."""
    before: str
    """The instance that used the key last; empty if unknown."""

    @property
    def node(self) -> str:
        return self.exchange.node


class Credentials(Protocol):
    """The keys of nodes. All methods except `challenge` and `validity` block on a disk and may raise `Refused`."""

    def challenge(self, partition: str, knock: Knock) -> tuple[Exchange, Challenge]:
        """Return a new exchange and the challenge, signed by the server, that the node has to sign."""

    async def admit(self, exchange: Exchange, proof: Proof) -> Peer:
        """Return the node that sent a proof. A join token in the proof admits a new key, durably."""

    def validity(self, peer: Peer) -> Literal["valid", "due", "expired", "revoked"]:
        """Return the validity of a node's key. A key that is `due` has to be renewed soon."""

    async def renew(self, peer: Peer, new: NewKey) -> None:
        """Admit a new key for later connections."""

    async def settle(self, peer: Peer) -> None:
        """Record the instance that uses the node's key from now on."""


class Ended(msgspec.Struct, frozen=True):
    """The end of one task and the resources it used, for the history. Times are in microseconds."""

    partition: str
    node: str
    job: str
    number: int
    stage: str
    index: int
    attempt: int
    state: str
    exit_code: int | None
    signal: int
    ran: int
    cpu: int
    memory: int
    stale: bool = False
    """True if the end was known before, or if the task was not assigned to this node."""
    pool: str = ""
    """The pool of the node."""


Secrets = Callable[[str, tuple[str, ...]], dict[str, str]]
"""User and names of secrets → their values, looked up for each launch when it is sent."""

Log = Callable[[str, dict[str, Any]], None]
"""Called with the name of an event and its fields. Fields never contain secrets of users."""
