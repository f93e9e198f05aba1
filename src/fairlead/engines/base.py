"""The seams of an engine: what the control plane gives it and asks of it, and a connection as it sees one."""

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
    """There is no place in the inbox now: offer it again in a moment."""


class PartitionHandle(Protocol):
    """One partition's writer, as an engine may use it while that writer reigns. It belongs to one asyncio loop."""

    @property
    def epoch(self) -> int: ...

    @property
    def reigns(self) -> bool:
        """Whether the state is what was written. Once it is not, nobody may act on it any more."""

    @property
    def partition(self) -> Partition:
        """The state. It may be looked at within `Engine.begin` and `Engine.dispatch` only, which come between turns."""

    def offer(self, command: AnyCommand) -> Awaitable[object]:
        """Take a command. What comes is an `Accepted` or `Rejected`, or anything else if the writer ended before.

        Raises `Busy` if it was not taken.
        """

    async def read(self, look: Callable[[Partition], Result]) -> Result:
        """Look at the state between two turns. All effects of earlier turns have been dispatched, and none of later
        ones is before whoever awaits this has had the result. It holds up the writer, so it must be quick."""


class Engine(Protocol):
    """Where tasks run. All calls come from one asyncio loop."""

    def begin(self, partition: str, handle: PartitionHandle) -> None:
        """A writer took the partition over."""

    def dispatch(self, partition: str, messages: Sequence[ForNode]) -> None:
        """Tell nodes what to start and to stop. Quick, and never raises."""

    def end(self, partition: str) -> None:
        """Nobody writes the partition any more, or not for a while."""


class Closed(Exception):
    """The other end of a connection is gone."""


class Connection(Protocol):
    """A WebSocket as an engine sees it: whole binary messages."""

    async def send(self, data: bytes) -> None:
        """Raises `Closed` if that cannot be."""

    async def recv(self) -> bytes:
        """The next message. Raises `Closed` when there is none any more."""

    def trust(self) -> None:
        """Take messages of any size that the protocol allows: the other end has proved which node it is."""

    async def close(self, code: int, reason: str) -> None:
        """Close it, with a code of RFC 6455, also if the other end reads nothing. Closing twice is fine."""


class Peer(msgspec.Struct, frozen=True):
    """The node at the other end of a connection, as its key proves."""

    exchange: Exchange
    key: str
    pool: str
    """The only pool that the node may be in; empty for any."""
    users: tuple[str, ...]
    """The only users whose tasks the node may take; empty for all."""
    instance: str
    """Where the key is used."""
    before: str
    """Where it was used last; empty if that is not known."""

    @property
    def node(self) -> str:
        return self.exchange.node


class Credentials(Protocol):
    """The keys of nodes. All but `challenge` and `standing` wait for a disk, and raise `Refused`."""

    def challenge(self, partition: str, knock: Knock) -> tuple[Exchange, Challenge]:
        """What the server signs and the node has to sign."""

    async def admit(self, exchange: Exchange, proof: Proof) -> Peer:
        """The node that a proof is of. A join token in it admits a new key, durably."""

    def standing(self, peer: Peer) -> Literal["valid", "due", "expired", "revoked"]:
        """Whether a node's key still counts. `due` is one that has to be renewed soon."""

    async def renew(self, peer: Peer, new: NewKey) -> None:
        """Admit the key of later connections."""

    async def settle(self, peer: Peer) -> None:
        """Note where the node's key is used from now on."""


class Ended(msgspec.Struct, frozen=True):
    """What one task used, for whoever keeps history. Times are in microseconds."""

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


Secrets = Callable[[str, tuple[str, ...]], dict[str, str]]
"""A user and names of secrets → their values, asked for each launch when it is sent."""

Log = Callable[[str, dict[str, Any]], None]
"""An event by name, with its particulars. Never what a user keeps secret."""
