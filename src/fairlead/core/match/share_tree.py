"""Turns down the queue tree: on each level the child whose turn it is by its share, down to a leaf.

Only queues with something to serve stand here. Each keeps what it would use by now, with starts that are not booked.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from fairlead.core.entitlement import Entitlements
from fairlead.core.model import Queue
from fairlead.core.policy.shares import Key, turn_key
from fairlead.core.resources import Vector, add

Place = tuple[bool, Key]
"""Whether it has had the starts that `slots` count out for it, and its place by use and share."""

FIRST: Place = (False, (0, 0, ""))
"""The place of who is alone on its level."""


class ShareNode:
    """A queue that has something to serve, itself or below it."""

    __slots__ = ("_owed", "_rights", "_tasks", "_used", "below", "entitled", "queue", "rivals", "share", "up")

    def __init__(self, queue: Queue, up: ShareNode | None, rights: Entitlements, owed: dict[str, int]) -> None:
        self.queue = queue
        self.up = up
        self.below: list[tuple[Place, ShareNode]] = []
        """A heap of those below it, first the one whose turn it is."""
        self.rivals = False
        """Whether anybody else on its level, or above it, had something to serve at the beginning."""
        self._owed = owed
        """In `slots`: how many starts a queue, by its path, has yet to get before it stands in line for more."""
        self.share = self.entitled = 0
        self._rights = rights
        self._used: Vector = {}
        self._tasks = 0

    def stand(self) -> Place:
        """Take up its place among its siblings."""
        self.share, self.entitled = self._rights.share(self.queue), self._rights.of(self.queue)
        self._used, self._tasks = dict(self.queue.account.used), self.queue.account.tasks
        return self._place(self._rights.measure(self._used, self._tasks))

    def _place(self, use: int, more: int = 0) -> Place:
        """Its place with some use; it has started so many more than it says."""
        owes = bool(self._owed) and self._owed.get(self.queue.path, 0) > more
        return (not owes, turn_key(use, self.share, self.entitled, self.queue.name))

    def use(self, resources: Vector, times: int, tasks: int) -> Place:
        """It uses so much more from here on; returns the place it has now."""
        add(self._used, resources, times)
        self._tasks += tasks
        if self._owed:
            self._owed[self.queue.path] = self._owed.get(self.queue.path, 0) - tasks
        return self._place(self._rights.measure(self._used, self._tasks))

    def turns_before(self, rival: Place, resources: Vector, most: int) -> int:
        """How many equal tasks it may start, one after the other, before it is the rival's turn; at least one."""
        least = 1
        while least < most:
            middle = (least + most + 1) // 2
            # The place it would have after all but the last of them.
            used = dict(self._used)
            add(used, resources, middle - 1)
            use = self._rights.measure(used, self._tasks + middle - 1)
            if self._place(use, middle - 1) < rival:
                least = middle
            else:
                most = middle - 1
        return least


class Tree:
    """Levels are made when a turn first goes down to them: where only some get a turn, the others cost little."""

    def __init__(self, leaves: Sequence[Queue], rights: Entitlements, owed: dict[str, int]) -> None:
        """`owed` says, by path, how many starts a queue has to get first; it is kept up."""
        self._rights = rights
        self._owed = owed
        self._below: dict[str, list[Queue]] = {}
        self._root: ShareNode | None = None
        if len(leaves) == 1:
            self._root = ShareNode(leaves[0], None, rights, owed)  # there is nobody to take turns with
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
                self._root = ShareNode(queue, None, rights, owed)

    def next(self) -> ShareNode | None:
        """The leaf whose turn it is."""
        branch = self._root
        while branch is not None and (branch.below or self._open(branch)):
            branch = branch.below[0][1]
        return branch

    def after(self, leaf: ShareNode, over: bool, resources: Vector, times: int, tasks: int) -> None:
        """The turn was the leaf's; it started so many tasks, which use the resources so many times. Or it is over."""
        branch: ShareNode = leaf
        while branch.up is not None:
            level = branch.up.below
            if over:
                heappop(level)
                over = not level
            elif len(level) > 1:
                heapreplace(level, (branch.use(resources, times, tasks), branch))
            branch = branch.up
        if over:
            self._root = None

    def run(self, leaf: ShareNode, resources: Vector, most: int) -> int:
        """How many equal tasks the leaf may start at once, as if by single turns: until it is somebody else's."""
        branch: ShareNode = leaf
        while branch.up is not None and most > 1:
            level = branch.up.below
            if len(level) > 1:
                most = branch.turns_before(min(level[1:3])[0], resources, most)
            branch = branch.up
        return most

    def _open(self, branch: ShareNode) -> bool:
        """Make the level below, if there is one."""
        queues = self._below.pop(branch.queue.path, None)
        if queues is None:
            return False
        below = [ShareNode(queue, branch, self._rights, self._owed) for queue in queues]
        for each in below:
            each.rivals = branch.rivals or len(below) > 1
        branch.below = [(each.stand() if len(below) > 1 else FIRST, each) for each in below]
        heapify(branch.below)
        return True
