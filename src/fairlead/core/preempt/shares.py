"""Shares: measure how far queues are from their shares, and rebalance if the spread was too large for too long.

Runs after match, because starting tasks may be enough to even out the queues.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.core.changes import SpreadSeen
from fairlead.core.model import Micros, Queue
from fairlead.core.plan import Plan
from fairlead.core.policy.shares import Claim, spread
from fairlead.core.preempt.rebalance import rebalance
from fairlead.core.state import Partition


def shares(plan: Plan) -> None:
    """Measure the spread between queues, and take loans back where it was too large for too long without a dip."""
    partition = plan.partition
    if not partition.reign.ready or plan.more:
        return
    if not is_on(partition):
        for path in sorted(partition.uneven):
            plan.do(SpreadSeen(path, None))
        return
    wanting = _wanting(partition)
    for queue in [
        queue for queue in partition.queues.values() if len(queue.children) > 1 or queue.path in partition.uneven
    ]:
        plan.spreads[queue.path] = spread_of(partition, queue, wanting)
        uneven = plan.spreads[queue.path] > partition.settings.rebalance_threshold
        if uneven and queue.uneven_since is None:
            plan.do(SpreadSeen(queue.path, plan.now))
        elif not uneven and queue.uneven_since is not None:
            plan.do(SpreadSeen(queue.path, None))
        elif (
            queue.uneven_since is not None
            and plan.now > partition.reign.counts_from(queue.uneven_since) + partition.settings.rebalance_after
        ):
            if rebalance(plan, queue):
                plan.do(SpreadSeen(queue.path, plan.now))
            else:
                plan.more = True


def is_on(partition: Partition) -> bool:
    return partition.settings.rebalance_threshold > 0 and partition.settings.rebalance_after > 0


def spread_of(partition: Partition, parent: Queue, wanting: dict[str, None]) -> int:
    """Return how far the children of a queue are apart, in percent of its entitlement.

    A loan that no queue wants back does no harm: the spread is 0 unless a child waits for its own entitlement.
    """
    rights = partition.entitlements()
    children = parent.children.values()
    if not any(child.path in wanting and rights.used(child) < rights.of(child) for child in children):
        return 0
    claims = [
        Claim(child.name, rights.share(child), rights.used(child), int(child.path in wanting)) for child in children
    ]
    return spread(rights.of(parent), claims)


def shares_due(partition: Partition) -> Iterator[Micros]:
    """Yield the times when a spread between queues will have lasted for too long."""
    if is_on(partition):
        for path in partition.uneven:
            since = partition.queues[path].uneven_since
            if since is not None:
                yield partition.reign.counts_from(since) + partition.settings.rebalance_after + 1


def _wanting(partition: Partition) -> dict[str, None]:
    """Return the queues with an ask, in or below them, that was allowed to start and found no capacity."""
    return {
        queue.path: None
        for lane in partition.lanes.values()
        if lane.memory.no_room is not None and lane.memory.asleep_at is not None
        for queue in lane.queue.line()
    }
