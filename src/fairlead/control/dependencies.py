"""What the control plane is given from outside: one record, which each of its parts takes."""

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
from fairlead.writer.observer import Observer


class Dependencies(msgspec.Struct, frozen=True):
    """What the control plane is given from outside."""

    open_journal: Callable[[], Journal]
    """Called in each thread that uses the journal."""
    engine: Engine
    observers: Sequence[Observer] = ()
    first: Mapping[str, PartitionConfig] = msgspec.field(default_factory=lambda: {"default": DEFAULT_CONFIG})
    """The configuration of a new journal."""
    after_cycle: AfterCycle = lambda partition, seq: None
    note: Callable[[str], None] = lambda text: None
    """Called with texts for operators."""
    pools: PoolService = msgspec.field(default_factory=PoolService)
    """By default a service without providers: ordered nodes never arrive."""
    wall: Nanoseconds = msgspec.field(default_factory=steady_wall)
    steady: Steady = monotonic
    new_thread: Callable[[], WriterThread] = WriterThread
    on_lead: Callable[[str], None] = lambda partition: None
    """Called in a writer's thread after this server has taken over a partition and before it serves it."""
    roster: Roster | None = None
    """The servers that share the journal; None if no other server uses it."""
