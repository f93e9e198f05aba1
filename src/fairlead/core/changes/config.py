"""Changes of the configuration: settings, queues, pools, and the removal of a partition."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy

import msgspec

from fairlead.core.changes.change import Change, Line, Names
from fairlead.core.lifecycle import QUEUE
from fairlead.core.model import Micros, Pool, PoolSettings, Queue, QueueSettings, QueueState
from fairlead.core.policy.decay import rescaled
from fairlead.core.resources import Vector
from fairlead.core.settings import PartitionSettings
from fairlead.core.state import Counters, Partition


class SettingsSetUndo(msgspec.Struct, frozen=True, gc=False):
    settings: PartitionSettings
    landmark: Micros
    pasts: dict[tuple[str, str], Vector]


class SettingsSet(Change[SettingsSetUndo], frozen=True, tag="settings set"):
    """Sets new settings. If `share_memory` changes, each account keeps its part of all past use."""

    settings: PartitionSettings

    def apply(self, partition: Partition) -> SettingsSetUndo:
        before = SettingsSetUndo(partition.settings, partition.landmark, partition.pasts())
        if self.settings.share_memory == before.settings.share_memory:
            partition.set_settings(self.settings)
            return before
        weight = partition.weight()
        partition.set_settings(self.settings)
        partition.landmark = partition.now if self.settings.share_memory else 0
        partition.set_memory(self.settings.share_memory > 0)
        pasts = {key: rescaled(past, weight, partition.weight()) for key, past in before.pasts.items()}
        partition.set_pasts(pasts)
        return before

    def undo(self, partition: Partition, before: SettingsSetUndo) -> None:
        partition.set_settings(before.settings)
        if self.settings.share_memory != before.settings.share_memory:
            partition.landmark = before.landmark
            partition.set_memory(before.settings.share_memory > 0)
            partition.set_pasts(before.pasts)


class ConfigVersioned(Change[int], frozen=True, tag="config versioned"):
    """Records which version of the cluster's configuration the partition has applied."""

    version: int

    def apply(self, partition: Partition) -> int:
        before = partition.config_version
        partition.config_version = self.version
        return before

    def undo(self, partition: Partition, before: int) -> None:
        partition.config_version = before


class NumbersContinued(Change[Counters], frozen=True, tag="numbers continued"):
    """Lets a new partition continue the numbers of a removed partition of the same name."""

    counters: Counters

    def apply(self, partition: Partition) -> Counters:
        before = partition.counters
        partition.counters = copy(self.counters)
        return before

    def undo(self, partition: Partition, before: Counters) -> None:
        partition.counters = before


class QueuesAdded(Change[None], frozen=True, tag="queues added"):
    """Adds queues, parents before children."""

    queues: tuple[tuple[str, QueueSettings], ...]

    def apply(self, partition: Partition) -> None:
        for path, settings in self.queues:
            partition.add_queue(path, settings)

    def undo(self, partition: Partition, before: None) -> None:
        for path, _ in reversed(self.queues):
            partition.remove_queue(path)


class QueuesSetUndo(msgspec.Struct, frozen=True, gc=False):
    queues: tuple[tuple[str, QueueSettings], ...]
    pasts: dict[tuple[str, str], Vector]


class QueuesSet(Change[QueuesSetUndo], frozen=True, tag="queues set"):
    """Sets the settings of existing queues. Past use of users is dropped in queues where users no longer take turns."""

    queues: tuple[tuple[str, QueueSettings], ...]

    def apply(self, partition: Partition) -> QueuesSetUndo:
        settings = tuple((path, partition.queues[path].settings) for path, _ in self.queues)
        before = QueuesSetUndo(settings, partition.pasts())
        _set_queues(partition, self.queues)
        return before

    def undo(self, partition: Partition, before: QueuesSetUndo) -> None:
        _set_queues(partition, before.queues)
        partition.set_pasts(before.pasts)


class QueueMoved(Change[QueueState], frozen=True, tag="queue moved"):
    queue: str
    state: QueueState

    def apply(self, partition: Partition) -> QueueState:
        before = partition.queues[self.queue].state
        QUEUE.check(before, self.state)
        partition.move_queue(self.queue, self.state)
        return before

    def undo(self, partition: Partition, before: QueueState) -> None:
        partition.move_queue(self.queue, before)

    def lines(self, names: Names, before: QueueState) -> Iterator[Line]:
        yield Line("info", "queue moved", {"queue": self.queue, "before": before, "state": self.state})


class QueuesRemoved(Change[list[Queue]], frozen=True, tag="queues removed"):
    """Removes queues without jobs, children before parents."""

    queues: tuple[str, ...]

    def apply(self, partition: Partition) -> list[Queue]:
        for path in self.queues:
            queue = partition.queues[path]
            if queue.jobs or any(child.path not in self.queues for child in queue.children.values()):
                raise ValueError(f"queue {path} is not empty")
        return [partition.remove_queue(path) for path in self.queues]

    def undo(self, partition: Partition, before: list[Queue]) -> None:
        for queue in reversed(before):
            partition.restore_queue(queue)


class PoolsSet(Change[dict[str, Pool]], frozen=True, tag="pools set"):
    """Sets all pools of the partition."""

    pools: tuple[tuple[str, PoolSettings], ...]

    def apply(self, partition: Partition) -> dict[str, Pool]:
        before = partition.pools
        partition.set_pools({name: _same_pool(before.get(name), name, settings) for name, settings in self.pools})
        return before

    def undo(self, partition: Partition, before: dict[str, Pool]) -> None:
        partition.set_pools(before)


def _same_pool(before: Pool | None, name: str, settings: PoolSettings) -> Pool:
    """Return a pool with new settings. An existing pool keeps its pause and the error of its last order."""
    return Pool(name, settings) if before is None else msgspec.structs.replace(before, settings=settings)


class PartitionRemoved(Change[None], frozen=True, tag="partition removed"):
    """Ends a partition without jobs and nodes. It is the last change in the partition's journal."""

    warns = True

    def apply(self, partition: Partition) -> None:
        if partition.allocations or partition.nodes.rows:
            raise ValueError(f"partition {partition.name} is not empty")
        partition.removed = True

    def undo(self, partition: Partition, before: None) -> None:
        partition.removed = False

    def lines(self, names: Names, before: None) -> Iterator[Line]:
        yield Line("warning", "partition removed", {})


def _set_queues(partition: Partition, queues: tuple[tuple[str, QueueSettings], ...]) -> None:
    accounts_changed = False
    resorted: list[Queue] = []
    partition.derived.queue_version += 1
    for path, settings in queues:
        queue = partition.queues[path]
        before, by_user = queue.settings, queue.order.by_user
        queue.configure(settings)
        accounts_changed |= (before.users, before.groups) != (settings.users, settings.groups)
        accounts_changed |= by_user != queue.order.by_user
        queue.account.limit = None if settings.limit is None else dict(settings.limit)
        queue.account.max_jobs = settings.max_jobs
        if (before.order, before.scale_first) != (settings.order, settings.scale_first):
            resorted.append(queue)
    if accounts_changed:
        partition.rebuild_accounts()
    partition.resort(resorted)
    partition.wake_all_lanes()
