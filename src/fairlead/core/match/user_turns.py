"""Turns of the users of a leaf queue: the user with the least use is next, with this user's first ask.

Users take turns task by task. If their tasks are equal, turns are counted out beforehand: each ask then starts at once
the number of tasks that it would start in single turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heapreplace

from fairlead.core.entitlement import Uses
from fairlead.core.lanes import Lane, Place
from fairlead.core.model import Account, Ask
from fairlead.core.policy.turns import Ladder, Level
from fairlead.core.resources import Vector, add


class UserTurn:
    """The use of a user in a leaf queue, including starts that are not booked yet."""

    __slots__ = ("_past", "_tasks", "_used", "_uses", "name", "use")

    def __init__(self, account: Account, uses: Uses) -> None:
        self.name = account.name
        self._uses = uses
        self._used, self._tasks = dict(account.used), account.tasks
        self._past = uses.past_of(account) if uses.weight else {}
        self.use = uses.counted(self._used, self._tasks, self._past)

    def add(self, resources: Vector, times: int, tasks: int) -> None:
        """Count the use of `resources`, `times` times, by a number of tasks."""
        add(self._used, resources, times)
        self._tasks += tasks
        self.use = self._uses.counted(self._used, self._tasks, self._past)

    def ladder(self, resources: Vector, most: int) -> Ladder:
        return UseLadder(
            self.name,
            self._uses.parts(self._used, self._tasks, self._past),
            self._uses.parts(resources, 1, {}),
            most,
        )


class UseLadder(Ladder):
    """The use of a user after each of its next equal tasks."""

    __slots__ = ("_base", "_step")

    def __init__(self, name: str, base: Mapping[str, int], step: Mapping[str, int], most: int) -> None:
        super().__init__(name, most)
        self._base = {**dict.fromkeys(step, 0), **base}
        self._step = step

    def level(self, turns: int) -> Level:
        step = self._step
        return max([base + turns * step.get(name, 0) for name, base in self._base.items()], default=0), self.name

    def turns_before(self, level: Level) -> int:
        bound = level[0] + (self.name < level[1])
        turns = self.most
        for name, base in self._base.items():
            step = self._step.get(name, 0)
            if base >= bound:
                return 0
            if step:
                turns = min(turns, -(-(bound - base) // step))
        return turns


def count_out_asks(lane: Lane, asks: list[Ask], turns: int, rival: Place | None = None) -> dict[int, int]:
    """Give the turns of one user to asks for single tasks, in the queue's order. Returns ask id → number of tasks.

    Turns end where an ask with the place `rival` would have the next one.
    """
    if len(asks) == 1 and rival is None:
        return {id(asks[0]): min(turns, asks[0].count)}
    counts: dict[int, int] = {}
    running: dict[str, int] = {}
    heap = [(lane.rank(ask), ask.count, ask) for ask in asks]
    heapify(heap)
    while turns and heap:
        rank, left, ask = heap[0]
        job = ask.stage.job.id
        now = lane.rank(ask, running.get(job, 0))
        if now != rank:
            heapreplace(heap, (now, left, ask))  # another ask of the job had turns
            continue
        if rival is not None and rank > rival:
            break
        alone = len(heap) == 1 and rival is None
        taken = min(left, turns) if alone or not lane.queue.order.by_running else 1
        counts[id(ask)] = counts.get(id(ask), 0) + taken
        running[job] = running.get(job, 0) + taken
        turns -= taken
        if left > taken:
            heapreplace(heap, (lane.rank(ask, running[job]), left - taken, ask))
        else:
            heappop(heap)
    return counts
