"""In `slots`, how many tasks each queue starts first: the published counts, level by level.

What they leave over, and what they could not foresee (limits, gangs, tasks that do not fit), is spent by turns.
"""

from __future__ import annotations

from fairlead.core.entitlement import Entitlements
from fairlead.core.model import Queue
from fairlead.core.policy.shares import FEW, Claim, start_counts
from fairlead.core.state import Partition


def slot_quotas(partition: Partition) -> dict[str, int]:
    """Path → starts. Among many siblings turns alone give the same, and nothing is counted out."""
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
    """Path → how many tasks wait there or below, counted as far as they could matter."""
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
