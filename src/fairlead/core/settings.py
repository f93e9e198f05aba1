"""The settings of a partition, with their defaults. `core/config.py` reads them from a document."""

from __future__ import annotations

from typing import Literal

import msgspec

from fairlead.core.model import Micros, PoolSettings, QueueSettings, Unit
from fairlead.core.resources import HOUR, MINUTE, SECOND

Fence = Literal["lease", "none"]
Backfill = Literal["off", "easy", "shortest", "conservative"]
"""Which asks may overtake an ask that has no capacity. docs/starvation.md explains the modes."""
Estimates = Literal["given", "learned"]
"""Where expected run times come from: from submissions only, or also from earlier runs."""
Preempt = Literal["priority", "guarantees", "off"]
"""The reasons to stop tasks: priorities and guarantees, guarantees only, or neither. Loans are stopped regardless."""


class Requestor(msgspec.Struct, frozen=True, array_like=True):
    """A rule: if a job names no queue and its user matches the pattern, it goes to this queue."""

    match: str
    queue: str


class PartitionSettings(msgspec.Struct, frozen=True, array_like=True):
    """The settings. Durations are in microseconds, percentages in whole percent. docs/settings.md explains each."""

    unit: Unit = "dominant"
    place: str = "priced"
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
    starving_after: Micros = 10 * MINUTE
    held_nodes_percent: int = 50
    hold_large: bool = True
    hold_for: Micros = 24 * HOUR
    backfill: Backfill | bool = "easy"
    """Journals of earlier versions contain True for `easy` and False for `off`."""
    preempt_grace: Micros = 30 * SECOND
    rebalance_threshold: int | None = None
    """None to stop loans at any spread where queues have shares; 0 to stop none."""
    rebalance_after: Micros = MINUTE
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
    recall_after: Micros = SECOND
    min_runtime: Micros | None = None
    """None means, for loans, `rebalance_after` or a minute, whichever is less, and 0 for other claims."""
    hold_score: str = "fit"
    victims: str = "newest"

    def __post_init__(self) -> None:
        if isinstance(self.backfill, bool):
            msgspec.structs.force_setattr(self, "backfill", "easy" if self.backfill else "off")

    @property
    def least_runtime(self) -> Micros:
        """How long a task on loan runs before it may be stopped."""
        return min(MINUTE, self.rebalance_after) if self.min_runtime is None else self.min_runtime

    @property
    def backfills(self) -> bool:
        """True if asks may overtake an ask without capacity."""
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


DEFAULT_QUEUES = (("root", QueueSettings()), ("root.default", QueueSettings(share=100, order="fair")))
"""The queues of a configuration that names none: one, in which users take turns."""
DEFAULT_CONFIG = PartitionConfig(PartitionSettings(), DEFAULT_QUEUES)
"""The configuration of a new installation, and of an empty file."""
