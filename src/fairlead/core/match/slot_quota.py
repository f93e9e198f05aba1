"""Slot quotas: with `unit: slots`, the number of tasks that each queue starts first, level by level.

`start_counts` computes the numbers. Other slots are given out by turns. So are slots that a queue cannot use because of
limits, gangs or tasks that do not fit.
"""

from __future__ import annotations

from fairlead.core.entitlement import Entitlements
from fairlead.core.model import Queue
from fairlead.core.policy.shares import FEW, Claim, start_counts
from fairlead.core.state import Partition


def slot_quotas(partition: Partition) -> dict[str, int]:
    """Return queue path → number of starts. More than `FEW` siblings have no quotas, but turns alone.

    With `share_memory` no queue has a quota, because only turns count past use.
    """
    if partition.settings.share_memory:
        return {}
    rights = partition.entitlements()
    idle = max(0, rights.whole - partition.root.account.tasks)
    owed: dict[str, int] = {}
    if idle:
        _count_out(partition.root, idle, rights, _waiting(partition, idle), owed)
    return owed


def _count_out(parent: Queue, idle: int, rights: Entitlements, waiting: dict[str, int], owed: dict[str, int]) -> None:
    children = [child for child in parent.children.values() if waiting.get(child.path) or child.account.tasks]
    if not idle or len(parent.children) > FEW:
        return
    claims = [
        Claim(child.name, rights.share(child), child.account.tasks, waiting.get(child.path, 0))
        for child in parent.children.values()
    ]
    counts = start_counts(rights.of(parent), idle, claims)
    for child in children:
        owed[child.path] = counts[child.name]
        _count_out(child, counts[child.name], rights, waiting, owed)


def _waiting(partition: Partition, most: int) -> dict[str, int]:
    """Return queue path → the number of tasks that wait there or below. A lane counts for little more than `most`."""
    waiting: dict[str, int] = {}
    for lane in partition.lanes.values():
        tasks = 0
        for ask in lane:
            tasks += ask.count
            if tasks >= most:
                break
        for queue in lane.queue.line():
            waiting[queue.path] = waiting.get(queue.path, 0) + tasks
    return waiting
