"""The objects and settings that the control plane gets from its caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic

import msgspec

from fairlead.control.partition import AfterCycle
from fairlead.control.walltime import Nanoseconds, steady_wall
from fairlead.core.settings import DEFAULT_CONFIG, PartitionConfig
from fairlead.engines.engine import Engine
from fairlead.journal.journal import Journal
from fairlead.journal.roster import Roster
from fairlead.pools.pool_service import PoolService
from fairlead.writer.clock import Steady
from fairlead.writer.loop import WriterThread
from fairlead.writer.writer import Observer


class Dependencies(msgspec.Struct, frozen=True):
    """The objects and settings that the control plane gets. All of its parts take this record."""

    open_journal: Callable[[], Journal]
    """Opens a journal object. Called once in each thread that uses the journal."""
    engine: Engine
    observers: Sequence[Observer] = ()
    first: Mapping[str, PartitionConfig] = msgspec.field(default_factory=lambda: {"default": DEFAULT_CONFIG})
    """The configuration of a new journal."""
    after_cycle: AfterCycle = lambda partition, seq: None
    note: Callable[[str], None] = lambda text: None
    """Logs a text for operators."""
    pools: PoolService = msgspec.field(default_factory=PoolService)
    """The default has no providers, so ordered nodes never arrive."""
    wall: Nanoseconds = msgspec.field(default_factory=steady_wall)
    steady: Steady = monotonic
    new_thread: Callable[[], WriterThread] = WriterThread
    on_lead: Callable[[str], None] = lambda partition: None
    """Called when this server has taken over a partition, before it serves the partition, in the writer's thread."""
    cores: int = 1
    """The cores of this machine, on which the pauses between cycles depend."""
    on_end: Callable[[str], None] = lambda partition: None
    """Called when this server does not serve a partition any more."""
    inform: Callable[[str], None] = lambda text: None
    """Logs a text about planned work, which is no problem."""
    roster: Roster | None = None
    """The servers that share the journal; None if no other server uses it."""
