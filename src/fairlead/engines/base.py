"""The engine interface: the calls of the control plane, the handle of a partition, and connections to agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from fairlead.core.commands import AnyCommand
from fairlead.core.effects import ForNode
from fairlead.core.state import Partition
from fairlead.wire.agent import Challenge, Knock, NewKey, Proof
from fairlead.wire.identity import Exchange

Result = TypeVar("Result")


class Busy(Exception):
    """The inbox is full; retry."""


class PartitionHandle(Protocol):
    """The interface of one partition's writer for an engine, valid for the term of that writer.

    It belongs to one asyncio loop.
    """

    @property
    def epoch(self) -> int: ...

    @property
    def skipped_epochs(self) -> range:
        """The epochs before this one that are in no record, because the data were set back; mostly empty."""

    @property
    def reigns(self) -> bool:
        """True while the state matches the journal. Once it is False, the state must not be acted on."""

    @property
    def partition(self) -> Partition:
        """The state. Read it only within `Engine.begin` and `Engine.dispatch`, which are called between cycles."""

    def offer(self, command: AnyCommand) -> Awaitable[object]:
        """Take a command. The answer is an `Accepted` or `Rejected`, or anything else if the writer ended before.

        Raises `Busy` if the command was not taken.
        """

    async def read(self, look: Callable[[Partition], Result]) -> Result:
        """Read the state between two cycles.

        All effects of earlier cycles have been dispatched. Effects of later cycles are dispatched after the caller has
        the result. The writer waits for `look`, so it must be quick.
        """


class Engine(Protocol):
    """Runs tasks. All calls come from one asyncio loop."""

    def begin(self, partition: str, handle: PartitionHandle) -> None:
        """Start working for a writer that took the partition over."""

    def dispatch(self, partition: str, messages: Sequence[ForNode]) -> None:
        """Send nodes the tasks to start and to stop. Quick, and never raises."""

    def end(self, partition: str) -> None:
        """Stop working for the partition: it has no writer now."""


class Closed(Exception):
    """The other end of a connection is gone."""


class Away(Exception):
    """The agent of a node is not connected, or not any more; the text says so."""


class Connection(Protocol):
    """A WebSocket with whole binary messages."""

    async def send(self, data: bytes) -> None:
        """Send a message. Raises `Closed` if the other end is gone."""

    async def recv(self) -> bytes:
        """Return the next message. Raises `Closed` when the connection has ended."""

    def trust(self) -> None:
        """Accept messages of any size that the protocol allows: the other end has proved which node it is."""

    async def close(self, code: int, reason: str) -> None:
        """Close the connection with a code of RFC 6455, even if the other end reads nothing. Closing twice is fine."""


class Peer(msgspec.Struct, frozen=True):
    """The node at the other end of a connection, as its key proves."""

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
    """The keys of nodes. All methods except `challenge` and `standing` wait for a disk and may raise `Refused`."""

    def challenge(self, partition: str, knock: Knock) -> tuple[Exchange, Challenge]:
        """Return the exchange and the challenge, which the server signs and the node has to sign."""

    async def admit(self, exchange: Exchange, proof: Proof) -> Peer:
        """Return the node that sent a proof. A join token in the proof admits a new key, durably."""

    def standing(self, peer: Peer) -> Literal["valid", "due", "expired", "revoked"]:
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
    """True if the end was known before, or if the task was not given to this node."""
    pool: str = ""
    """The pool of the node."""


Secrets = Callable[[str, tuple[str, ...]], dict[str, str]]
"""User and names of secrets → their values, looked up for each launch when it is sent."""

Log = Callable[[str, dict[str, Any]], None]
"""An event by name, with its fields. Fields never contain secrets of users."""
