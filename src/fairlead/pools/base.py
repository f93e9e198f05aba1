"""The seams of pools: what a provider is asked, what it is told, and the desk that a keeper works at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from fairlead.core.commands import AnyCommand
from fairlead.core.model import PoolSettings
from fairlead.core.state import Partition

Result = TypeVar("Result")

Log = Callable[[str, str, dict[str, Any]], None]
"""A level (info or warning), an event by name, its particulars."""


class Machine(msgspec.Struct, frozen=True):
    """A machine that there is. Its name is that of the node which its agent brings."""

    name: str
    note: str = ""
    """What helps a person to find it at the provider, such as an instance's id."""


class Join(msgspec.Struct, frozen=True):
    """How agents of new machines join this server."""

    url: str
    invite: Callable[[str, str, Sequence[str]], dict[str, str]]
    """Partition, pool and names of nodes → a join token for each. It waits for a disk."""
    forget: Callable[[str, Sequence[str]], None]
    """Drop the credentials of nodes of a partition, whose machines are gone. It waits for a disk."""


class PoolKind(msgspec.Struct, frozen=True):
    """What every machine of a pool is: how much it has, and how its agent has to join."""

    partition: str
    pool: str
    settings: PoolSettings
    join: Join


class ProviderError(Exception):
    """Something could not be done. `names` are the machines that it certainly was not done for, if that is known.

    If it is `unknown` what came of it, because there was no answer, the provider has to be looked up.
    """

    def __init__(self, reason: str, names: Sequence[str] = (), unknown: bool = False) -> None:
        super().__init__(reason, tuple(names), unknown)
        self.reason = reason
        self.names = tuple(names)
        self.unknown = unknown

    def __str__(self) -> str:
        return self.reason


class Provider(Protocol):
    """Brings machines of one pool and takes them away. It is asked one thing at a time, and raises `ProviderError`."""

    async def create(self, names: Sequence[str]) -> None:
        """Bring machines of these names. One that is there already is not brought a second time."""

    async def destroy(self, names: Sequence[str]) -> None:
        """Take machines away. One that is not there is none to take away. It may go later, and is listed until then."""

    async def list(self) -> Sequence[Machine]:
        """All machines of the pool that there are, also those that have yet to start or to end."""

    async def close(self) -> None:
        """Nobody asks any more. Machines stay."""


MakeProvider = Callable[[PoolKind], Provider]
"""Raises `Refused` if the pool's provider cannot be understood."""


class PartitionHandle(Protocol):
    """One partition's writer, as a keeper may use it while that writer reigns."""

    @property
    def partition(self) -> Partition:
        """The state. It may be looked at between turns only."""

    @property
    def reigns(self) -> bool:
        """Whether the writer is still at work. Afterwards the state may have what the journal does not."""

    def settle(self, command: AnyCommand) -> Awaitable[object]:
        """Have a command carried out, however long the inbox is full.

        What comes is an `Accepted` or `Rejected`, or anything else if the writer ended before.
        """

    async def read(self, look: Callable[[Partition], Result]) -> Result:
        """Look at the state between two turns. It holds up the writer, so it must be quick."""
