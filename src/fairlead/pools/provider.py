"""The provider interface, its data types, and the interface of a partition's writer for pools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from fairlead.core.commands import Command
from fairlead.core.model import PoolSettings
from fairlead.core.state import Partition

Result = TypeVar("Result")

Log = Callable[[str, str, dict[str, Any]], None]
"""Level (info or warning), event name, fields."""


class Machine(msgspec.Struct, frozen=True):
    """An existing machine. Its name is the name of the node that its agent adds."""

    name: str
    note: str = ""
    """A text that helps a person find the machine at the provider, such as an instance id."""


class Join(msgspec.Struct, frozen=True):
    url: Callable[[], str]
    """Returns the address of this server, or the addresses of all servers, separated by commas."""
    invite: Callable[[str, str, Sequence[str]], dict[str, str]]
    """Called with a partition, a pool and names of nodes. Returns a join token for each name. Blocks on a disk."""
    forget: Callable[[str, Sequence[str]], None]
    """Called with a partition and nodes whose machines are gone. Drops the nodes' keys. Blocks on a disk."""


class PoolKind(msgspec.Struct, frozen=True):
    """What all machines of a pool have in common."""

    partition: str
    pool: str
    settings: PoolSettings
    join: Join


class ProviderError(Exception):
    """Raised if a call has failed. `names` are the machines for which it certainly failed, if known.

    If the outcome is `unknown` because no answer arrived, the machines have to be listed.
    """

    def __init__(self, reason: str, names: Sequence[str] = (), unknown: bool = False) -> None:
        super().__init__(reason, tuple(names), unknown)
        self.reason = reason
        self.names = tuple(names)
        self.unknown = unknown

    def __str__(self) -> str:
        return self.reason


class Provider(Protocol):
    """Creates and destroys machines of one pool. Calls come one at a time and may raise `ProviderError`."""

    async def create(self, names: Sequence[str]) -> None:
        """Create machines of these names. A machine that exists already is not created again."""

    async def destroy(self, names: Sequence[str]) -> None:
        """Destroy machines, now or later. Missing machines are ignored. A machine is listed until it is gone."""

    async def list(self) -> Sequence[Machine]:
        """Return all existing machines of the pool, including those that are starting or ending."""

    async def close(self) -> None:
        """Release the provider: no more calls follow. Machines stay."""


MakeProvider = Callable[[PoolKind], Provider]
"""Creates the provider of a pool. Raises `Refused` if its settings are invalid."""


class PartitionHandle(Protocol):
    """The interface of a partition's writer for pools, valid during the term of the writer."""

    @property
    def partition(self) -> Partition:
        """The state. Read it only between cycles."""

    @property
    def leads(self) -> bool:
        """True while the writer works. Once it is False, the state may differ from the journal."""

    async def still_leads(self) -> bool:
        """True if the journal confirms that this writer's epoch is the newest. Check it before changing machines."""

    def execute_patiently(self, command: Command) -> Awaitable[object]:
        """Execute a command; wait while the inbox is full.

        The answer is `Accepted`, `Rejected`, or anything else if the writer ended first.
        """

    async def read(self, look: Callable[[Partition], Result]) -> Result:
        """Call `look` with the state, between two cycles. The writer waits for `look`, so it must be quick."""
