"""The settings of a partition, with their defaults. `core/config.py` reads them from a document."""

from __future__ import annotations

from typing import Literal

import msgspec

from fairlead.core.model import Micros, PoolSettings, QueueSettings, Unit
from fairlead.core.resources import HOUR, MINUTE, SECOND

Fence = Literal["lease", "none"]
Backfill = Literal["off", "easy", "shortest", "conservative"]
"""Which asks may pass an ask without capacity. docs/starvation.md explains the modes."""
Estimates = Literal["given", "learned"]
"""Where expected run times come from: from submissions only, or also from earlier runs."""
Preempt = Literal["priority", "guarantees", "off"]
"""What tasks may be stopped for: priorities and guarantees, guarantees only, or neither. It does not affect loans."""


class Requestor(msgspec.Struct, frozen=True, array_like=True):
    """Jobs without a queue of users that match the pattern go to this queue."""

    match: str
    queue: str


class PartitionSettings(msgspec.Struct, frozen=True, array_like=True):
    """The settings. Durations are in microseconds, percentages in whole percent. docs/settings.md explains each."""

    unit: Unit = "dominant"
    place: str = "pack"
    seed: int = 0
    max_batch: int = 100
    batch_window: Micros = 50_000
    max_placed: int = 5000
    launch_timeout: Micros = 60 * SECOND
    max_launch_tries: int = 3
    replace_within: Micros = 5 * MINUTE
    ready_after: Micros = 30 * SECOND
    heartbeat: Micros = 5 * SECOND
    lease: Micros = 60 * SECOND
    fence: Fence = "lease"
    chain: Micros = 100_000
    starving_after: Micros = 48 * HOUR
    held_nodes_percent: int = 50
    hold_large: bool = True
    hold_for: Micros = 24 * HOUR
    backfill: Backfill | bool = "off"
    """Journals of earlier versions have True for `easy` and False for `off`."""
    preempt_grace: Micros = 30 * SECOND
    rebalance_threshold: int = 0
    rebalance_after: Micros = 4 * MINUTE
    promise_for: Micros = 3 * MINUTE
    max_orders: int = 3
    pool_pause: Micros = 5 * SECOND
    keep_ended: Micros = 24 * HOUR
    keep_keys: Micros = 24 * HOUR
    requestors: tuple[Requestor, ...] = ()
    preempt: Preempt = "priority"
    max_queued_jobs: int = 100_000
    max_queued_bytes: int = 512 * 2**20
    checks: tuple[str, ...] = ()
    max_result_files: int = 1_000
    max_result_bytes: int = 2**30
    share_memory: Micros = 0
    estimates: Estimates = "given"

    def __post_init__(self) -> None:
        if isinstance(self.backfill, bool):
            msgspec.structs.force_setattr(self, "backfill", "easy" if self.backfill else "off")

    @property
    def backfills(self) -> bool:
        """True if asks may pass an ask without capacity."""
        return self.backfill != "off"

    @property
    def learns(self) -> bool:
        """True if expected run times come from earlier runs."""
        return self.estimates == "learned"


class PartitionConfig(msgspec.Struct, frozen=True, array_like=True):
    """The configuration of one partition. Queues are listed with parents before children."""

    settings: PartitionSettings
    queues: tuple[tuple[str, QueueSettings], ...]
    pools: tuple[tuple[str, PoolSettings], ...] = ()


DEFAULT_QUEUES = (("root", QueueSettings()), ("root.default", QueueSettings(share=100)))
"""The queues of a configuration that names none."""
DEFAULT_CONFIG = PartitionConfig(
    PartitionSettings(starving_after=10 * MINUTE),
    (("root", QueueSettings()), ("root.default", QueueSettings(share=100, order="fair"))),
)
"""The configuration of a new installation: users take turns, and small tasks delay a larger one for minutes only."""
