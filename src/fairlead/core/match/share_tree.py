"""Turns in the queue tree: picks on each level the child that is next by its share, down to a leaf.

The tree has only queues with open lanes. The use of a queue includes starts that are not booked yet.

With `unit: slots`, `slot_quotas` counts the tasks that each queue starts first, level by level. Other slots are given
out by turns. So are slots that a queue cannot use because of limits, gangs or tasks that do not fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from types import MappingProxyType

from fairlead.core.entitlement import Entitlements, Uses
from fairlead.core.model import Queue
from fairlead.core.policy.shares import FEW, Claim, Key, start_counts, turn_key
from fairlead.core.resources import Vector, add
from fairlead.core.state import Partition

Place = tuple[bool, Key]
"""False while the queue has starts of its slot quota left, else True; then its place by use and share."""

Use = tuple[Vector, int]
"""Resources, and the number of tasks that use them."""
EMPTY: Mapping[str, Use] = MappingProxyType({})

FIRST: Place = (False, (0, 0, ""))
"""The place of a queue without siblings in the tree."""


class ShareNode:
    """A queue that has open lanes, or has queues with open lanes below it."""

    __slots__ = (
        *("_aside", "_owed", "_past", "_tasks", "_used", "_uses", "below", "entitled", "queue", "rivals", "share"),
        "up",
    )

    def __init__(
        self, queue: Queue, up: ShareNode | None, uses: Uses, owed: dict[str, int], aside: Mapping[str, Use]
    ) -> None:
        self.queue = queue
        self.up = up
        self.below: list[tuple[Place, ShareNode]] = []
        """Its children in the tree: a heap by their places."""
        self.rivals = False
        """True if a sibling queue, here or on a level above, also had waiting work when the tree was built."""
        self._owed = owed
        """With `unit: slots`: queue path → the starts left of its quota, which come before turns by use."""
        self.share = self.entitled = 0
        self._uses = uses
        self._used: Vector = {}
        self._tasks = 0
        self._past: Vector = {}
        self._aside = aside
        """Queue path → the tasks for which nodes are set aside. If they use the rest of its share, its other tasks
        start last."""

    def read_use(self) -> Place:
        """Read the share, entitlement and use of the queue. Returns its place among its siblings."""
        rights, account = self._uses.rights, self.queue.account
        self.share, self.entitled = rights.share(self.queue), rights.of(self.queue)
        self._used, self._tasks = dict(account.used), account.tasks
        self._past = self._uses.past_of(account) if self._uses.weight else {}
        return self._place(self._used, self._tasks)

    def _place(self, used: Vector, tasks: int, more: int = 0) -> Place:
        """Return the place of the queue with a given use, after `more` starts that `_owed` does not count yet."""
        owes = bool(self._owed) and self._owed.get(self.queue.path, 0) > more
        use = self._uses.rights.measure(used, tasks)
        counted = self._uses.counted(used, tasks, self._past) if self._uses.weight else use
        share = self.share
        if self._aside and self.queue.path in self._aside:
            amounts, aside = self._aside[self.queue.path]
            later = dict(used)
            add(later, amounts)
            if self._uses.rights.measure(later, tasks + aside) >= self.entitled:
                share = 0
        return (not owes, turn_key(use, share, self.entitled, self.queue.name, counted))

    def add_use(self, resources: Vector, times: int, tasks: int) -> Place:
        """Add started tasks, which use `resources`, `times` times. Returns the new place."""
        add(self._used, resources, times)
        self._tasks += tasks
        if self._owed:
            self._owed[self.queue.path] = self._owed.get(self.queue.path, 0) - tasks
        return self._place(self._used, self._tasks)

    def turns_before(self, rival: Place, resources: Vector, most: int) -> int:
        """Return how many equal tasks the queue may start before the turn of the rival, from 1 to `most`."""
        least = 1
        while least < most:
            middle = (least + most + 1) // 2
            # Compare the place before the last of these tasks.
            used = dict(self._used)
            add(used, resources, middle - 1)
            if self._place(used, self._tasks + middle - 1, middle - 1) < rival:
                least = middle
            else:
                most = middle - 1
        return least


class Tree:
    """The queues with open lanes. Each level is built when a turn first reaches it."""

    def __init__(
        self, leaves: Sequence[Queue], uses: Uses, owed: dict[str, int], aside: Mapping[str, Use] = EMPTY
    ) -> None:
        """`owed` has the slot quotas: queue path → number of starts that come before all others. Starts lower it."""
        self._uses = uses
        self._owed = owed
        self._aside = aside
        self._below: dict[str, list[Queue]] = {}
        self._root: ShareNode | None = None
        if len(leaves) == 1:
            self._root = ShareNode(leaves[0], None, uses, owed, aside)  # there is no other leaf to take turns with
            return
        for leaf in leaves:
            queue = leaf
            while queue.parent is not None:
                siblings = self._below.get(queue.parent.path)
                if siblings is not None:
                    siblings.append(queue)
                    break
                self._below[queue.parent.path] = [queue]
                queue = queue.parent
            else:
                self._root = ShareNode(queue, None, uses, owed, aside)

    def next(self) -> ShareNode | None:
        """Return the leaf that has the turn."""
        node = self._root
        while node is not None and (node.below or self._open(node)):
            node = node.below[0][1]
        return node

    def after(self, leaf: ShareNode, over: bool, resources: Vector, times: int, tasks: int) -> None:
        """End a turn of a leaf queue: count its started tasks, which use `resources`, `times` times.

        With `over`, the leaf has no open lanes left and is removed from the tree.
        """
        node: ShareNode = leaf
        while node.up is not None:
            level = node.up.below
            if over:
                heappop(level)
                over = not level
            elif len(level) > 1:
                heapreplace(level, (node.add_use(resources, times, tasks), node))
            node = node.up
        if over:
            self._root = None

    def run(self, leaf: ShareNode, resources: Vector, most: int) -> int:
        """Return how many equal tasks the leaf may start before the turn of another leaf."""
        node: ShareNode = leaf
        while node.up is not None and most > 1:
            level = node.up.below
            if len(level) > 1:
                most = node.turns_before(min(level[1:3])[0], resources, most)
            node = node.up
        return most

    def _open(self, node: ShareNode) -> bool:
        """Build the level below a node. False if the queue has no children with open lanes."""
        queues = self._below.pop(node.queue.path, None)
        if queues is None:
            return False
        below = [ShareNode(queue, node, self._uses, self._owed, self._aside) for queue in queues]
        for child in below:
            child.rivals = node.rivals or len(below) > 1
        node.below = [(child.read_use() if len(below) > 1 else FIRST, child) for child in below]
        heapify(node.below)
        return True


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
