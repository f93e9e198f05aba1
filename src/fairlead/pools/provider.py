"""The provider interface, its data types, the setting `provider` of a pool, and the interface of a writer for pools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from fairlead.core.commands import Command
from fairlead.core.errors import Refused
from fairlead.core.model import PoolSettings
from fairlead.core.reader import Reader, suggestion
from fairlead.core.resources import GPU, SECOND, shown
from fairlead.core.settings import PartitionConfig
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


KINDS = ("local", "command")
FORMS = "{local: {}} or {command: [./mycloud]}"
TIMEOUT = 60 * SECOND


class ProviderSettings(msgspec.Struct, frozen=True):
    kind: Literal["local", "command"]
    command: tuple[str, ...] = ()
    timeout: float = 0.0
    """Longest time for a call of the command, in seconds."""


def check_providers(configs: Mapping[str, PartitionConfig]) -> None:
    for name, config in configs.items():
        for pool, settings in config.pools:
            if settings.provider:
                parse_provider(settings, f"partitions.{name}.pools.{pool}")


def kind_of(pool: PoolSettings) -> str:
    """Return the name of a pool's provider; empty if it has none."""
    named = msgspec.json.decode(pool.provider) if pool.provider else {}
    return next((kind for kind in KINDS if kind in named), ", ".join(named))


def parse_provider(pool: PoolSettings, field: str) -> ProviderSettings:
    """Read a pool's `provider`. `field` is the path of the pool in the configuration, for errors."""
    doc = msgspec.json.decode(pool.provider)
    read = Reader(doc, f"{field}.provider", "a provider")
    named = [kind for kind in KINDS if kind in read.doc]
    if not named:
        given = ", ".join(map(shown, read.doc))
        meant = suggestion(next(iter(read.doc), ""), KINDS)
        raise Refused(read.field, f"{given or 'it'} names no provider{meant}; write for example {FORMS}")
    if len(named) > 1:
        raise Refused(read.field, f"it names {' and '.join(named)}; a pool has one provider, so remove one")
    settings = _local(read, pool, field) if named == ["local"] else _command(read)
    read.close()
    return settings


def _local(read: Reader, pool: PoolSettings, field: str) -> ProviderSettings:
    inner = Reader(read.get("local", {}), read.at("local"), "a local provider")
    for key in inner.doc:
        raise Refused(inner.at(key), f"a local provider has no settings; write {FORMS}")
    if pool.max is None:
        raise Refused(f"{field}.max", "missing; a local pool starts agents on this machine, so say how many at most")
    if GPU in dict(pool.node):
        raise Refused(
            f"{field}.node.gpu",
            "local agents cannot divide the GPUs of this machine; start one agent that has all of them",
        )
    return ProviderSettings("local")


def _command(read: Reader) -> ProviderSettings:
    command = read.texts("command", most=100)
    if not command or not command[0]:
        raise Refused(read.at("command"), "empty; name the program, such as [./mycloud]")
    timeout = read.duration("timeout", TIMEOUT)
    if timeout <= 0:
        raise Refused(read.at("timeout"), "it has to be longer than 0 s; write for example 1min")
    return ProviderSettings("command", command, timeout / SECOND)
