"""The phase `shares`: measures how far queues are from their shares, and rebalances if they were too far for too long.

Runs after match, because starting tasks may be enough to even out the queues.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.core.changes import SpreadSeen
from fairlead.core.entitlement import has_shares
from fairlead.core.model import Micros, Queue
from fairlead.core.plan import Plan
from fairlead.core.policy.shares import Claim, spread
from fairlead.core.preempt.rebalance import rebalance
from fairlead.core.state import Partition


def shares(plan: Plan) -> None:
    """Measure the spread between queues, and take loans back where it has been too large for too long."""
    partition = plan.partition
    if not partition.readiness.ready or plan.more:
        return
    if not is_on(partition):
        for path in sorted(partition.uneven):
            plan.do(SpreadSeen(path, None))
        return
    wanting = _wanting(partition)
    parents = [
        queue for queue in partition.queues.values() if len(queue.children) > 1 or queue.path in partition.uneven
    ]
    for queue in parents:
        _watch(plan, queue, wanting)


def _watch(plan: Plan, queue: Queue, wanting: dict[str, None]) -> None:
    """Note since when the children of a queue are uneven, and rebalance when this has lasted for too long."""
    partition, since = plan.partition, queue.uneven_since
    apart = plan.spreads[queue.path] = spread_of(partition, queue, wanting)
    if is_uneven(partition, queue, wanting, apart) != (since is not None):
        plan.do(SpreadSeen(queue.path, plan.now if since is None else None))
    elif since is not None and plan.now >= _due(partition, since):
        again_at = rebalance(plan, queue)
        if again_at is None:
            plan.more = True
        else:
            plan.do(SpreadSeen(queue.path, again_at - partition.settings.rebalance_after - 1))


def _due(partition: Partition, since: Micros) -> Micros:
    return partition.readiness.counts_from(since) + partition.settings.rebalance_after + 1


def is_on(partition: Partition) -> bool:
    """True if loans may be stopped: if queues have shares, or if `rebalance_threshold` is above 0."""
    settings, threshold = partition.settings, partition.settings.rebalance_threshold
    return settings.rebalance_after > 0 and (partition.facts().shares if threshold is None else threshold > 0)


def is_uneven(partition: Partition, parent: Queue, wanting: dict[str, None], apart: int) -> bool:
    """True if a child of a queue waits for its entitlement while a sibling has a loan, and their spread is too large.

    Without `rebalance_threshold` any spread is too large, on levels with shares.
    """
    threshold = partition.settings.rebalance_threshold
    if threshold is not None:
        return apart > threshold
    loaned = partition.entitlements().loaned
    return (
        has_shares(parent)
        and _waits_below_entitlement(partition, parent, wanting)
        and any(loaned(child) for child in parent.children.values())
    )


def spread_of(partition: Partition, parent: Queue, wanting: dict[str, None]) -> int:
    """Return how far the children of a queue are apart, in percent of its entitlement.

    It is 0 unless a child waits for its own entitlement: a loan that no queue wants back does no harm.
    """
    if not _waits_below_entitlement(partition, parent, wanting):
        return 0
    rights = partition.entitlements()
    claims = [
        Claim(child.name, rights.share(child), rights.used(child), int(child.path in wanting))
        for child in parent.children.values()
    ]
    return spread(rights.of(parent), claims)


def _waits_below_entitlement(partition: Partition, parent: Queue, wanting: dict[str, None]) -> bool:
    """True if a child of a queue has waiting asks and uses less than its entitlement."""
    rights = partition.entitlements()
    return any(child.path in wanting and rights.used(child) < rights.of(child) for child in parent.children.values())


def shares_due(partition: Partition) -> Iterator[Micros]:
    """Yield the times at which rebalance is due, if the spreads between queues last."""
    if is_on(partition):
        for path in partition.uneven:
            since = partition.queues[path].uneven_since
            if since is not None:
                yield _due(partition, since)


def _wanting(partition: Partition) -> dict[str, None]:
    """Return the queues that have, in or below them, an ask that may start and found no capacity."""
    return {
        queue.path: None
        for lane in partition.lanes.values()
        if lane.no_capacity() is not None
        for queue in lane.queue.line()
    }
