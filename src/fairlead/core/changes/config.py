"""Changes of the configuration: settings, queues, pools, and the end of a partition."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.core.changes.base import Change
from fairlead.core.lifecycle import QUEUE
from fairlead.core.model import Pool, PoolSettings, Queue, QueueSettings, QueueState
from fairlead.core.settings import PartitionSettings
from fairlead.core.state import Partition


class SettingsSet(Change, frozen=True, tag="settings set"):
    settings: PartitionSettings

    def apply(self, p: Partition) -> PartitionSettings:
        before = p.settings
        p.set_settings(self.settings)
        return before

    def undo(self, p: Partition, kept: PartitionSettings) -> None:
        p.set_settings(kept)


class ConfigVersioned(Change, frozen=True, tag="config versioned"):
    """The partition follows this version of the cluster's configuration."""

    version: int

    def apply(self, p: Partition) -> int:
        before = p.config_version
        p.config_version = self.version
        return before

    def undo(self, p: Partition, kept: int) -> None:
        p.config_version = kept


class QueuesAdded(Change, frozen=True, tag="queues added"):
    """Parents before children."""

    queues: tuple[tuple[str, QueueSettings], ...]

    def apply(self, p: Partition) -> None:
        for path, settings in self.queues:
            p.add_queue(path, settings)

    def undo(self, p: Partition, kept: None) -> None:
        for path, _ in reversed(self.queues):
            p.remove_queue(path)


class QueuesSet(Change, frozen=True, tag="queues set"):
    """New settings of queues that exist."""

    queues: tuple[tuple[str, QueueSettings], ...]

    def apply(self, p: Partition) -> tuple[tuple[str, QueueSettings], ...]:
        before = tuple((path, p.queues[path].settings) for path, _ in self.queues)
        _set_queues(p, self.queues)
        return before

    def undo(self, p: Partition, kept: tuple[tuple[str, QueueSettings], ...]) -> None:
        _set_queues(p, kept)


class QueueMoved(Change, frozen=True, tag="queue moved"):
    queue: str
    state: QueueState

    def apply(self, p: Partition) -> QueueState:
        before = p.queues[self.queue].state
        QUEUE.check(before, self.state)
        p.move_queue(self.queue, self.state)
        return before

    def undo(self, p: Partition, kept: QueueState) -> None:
        p.move_queue(self.queue, kept)


class QueuesRemoved(Change, frozen=True, tag="queues removed"):
    """Queues without jobs, children before parents."""

    queues: tuple[str, ...]

    def apply(self, p: Partition) -> list[Queue]:
        for path in self.queues:
            queue = p.queues[path]
            if queue.jobs or any(child.path not in self.queues for child in queue.children.values()):
                raise ValueError(f"queue {path} is not empty")
        return [p.remove_queue(path) for path in self.queues]

    def undo(self, p: Partition, kept: list[Queue]) -> None:
        for queue in reversed(kept):
            p.restore_queue(queue)


class PoolsSet(Change, frozen=True, tag="pools set"):
    """All pools of the partition."""

    pools: tuple[tuple[str, PoolSettings], ...]

    def apply(self, p: Partition) -> dict[str, Pool]:
        before = p.pools
        p.pools = {name: _same_pool(before.get(name), name, settings) for name, settings in self.pools}
        p.pools_version += 1
        p.wake()
        return before

    def undo(self, p: Partition, kept: dict[str, Pool]) -> None:
        p.pools = kept
        p.pools_version += 1
        p.wake()


def _same_pool(before: Pool | None, name: str, settings: PoolSettings) -> Pool:
    """Another configuration makes no other pool: it stays paused, and remembers what became of its orders."""
    return Pool(name, settings) if before is None else msgspec.structs.replace(before, settings=settings)


class PartitionRemoved(Change, frozen=True, tag="partition removed"):
    """The last change of a partition's log: everything under it was released before."""

    def apply(self, p: Partition) -> None:
        if p.allocations or p.nodes.rows:
            raise ValueError(f"partition {p.name} is not empty")
        p.removed = True

    def undo(self, p: Partition, kept: None) -> None:
        p.removed = False


def _set_queues(p: Partition, queues: tuple[tuple[str, QueueSettings], ...]) -> None:
    untied = False
    p.tree += 1
    for path, settings in queues:
        queue = p.queues[path]
        before = queue.settings
        untied |= (before.users, before.groups) != (settings.users, settings.groups)
        queue.configure(settings)
        queue.account.limit = None if settings.limit is None else dict(settings.limit)
        queue.account.max_jobs = settings.max_jobs
        if (before.order, before.scale_first) != (settings.order, settings.scale_first):
            for lane in p.lanes.values():
                if lane.queue is queue:
                    lane.resort()
    if untied:
        p.retie()
    p.look_anew()


CHANGES: tuple[type[Any], ...] = (
    SettingsSet,
    ConfigVersioned,
    QueuesAdded,
    QueuesSet,
    QueueMoved,
    QueuesRemoved,
    PoolsSet,
    PartitionRemoved,
)
