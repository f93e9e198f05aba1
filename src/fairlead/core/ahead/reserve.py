"""Capacity that is set aside for an ask at its planned start, and the check that other starts leave enough of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from fairlead.core.ahead.expected_ends import Forecast
from fairlead.core.ahead.whatif import WhatIf
from fairlead.core.asks import minimum_by_stage
from fairlead.core.changes import Part, Placed
from fairlead.core.model import Allocation, Ask, Micros
from fairlead.core.plan import Plan
from fairlead.core.policy.backfill_modes import plan_start, spare_at
from fairlead.core.ranges import count
from fairlead.core.shape import Shape


class Reserve:
    """The planned start of one ask, the head, by the expected ends of one forecast."""

    def __init__(self, plan: Plan, head: Ask, forecast: Forecast | None) -> None:
        self.plan = plan
        self.head = head
        self.when: Micros | None = None
        """The planned start. If it is unknown (None), no ask counts as delaying the head."""
        self.spare = 0
        """The number of further tasks of the head's shape that fit at the planned time; unused with several shapes."""
        self._forecast = forecast
        self._future: WhatIf | None = None
        """Free capacity at the planned time; None until it is needed."""
        self._taken: list[tuple[Shape, Part]] = []
        self._lost = 0
        """The tasks of the last `take`, and the number of tasks of the head that no longer fit because of them."""

    def plan_earliest(self, fitting: int) -> None:
        """Plan the start as early as all of the head fits. `fitting` is the number of its tasks that fit now."""
        needs = minimum_by_stage(self.head)
        if len(needs) > 1:
            self._plan_several()
            return
        stage, wanted = needs[0]
        planned = plan_start(fitting, wanted, self._ends(), self._gain(stage.shape))
        if planned is not None:
            self.when, self.spare = planned

    def plan_at(self, when: Micros, fitting: int) -> bool:
        """Plan the start for a given time; False if the head does not fit by then."""
        self.when = when
        needs = minimum_by_stage(self.head)
        if len(needs) > 1:
            self.look_ahead()
            return self._future is not None and packs(self._future.copy(), self.head)
        stage, wanted = needs[0]
        self.spare = spare_at(when, fitting, wanted, self._ends(), self._gain(stage.shape))
        return self.spare >= 0

    def look_ahead(self) -> None:
        """Compute the free capacity at the planned time, when running tasks have ended as expected."""
        if self._future is None:
            assert self.when is not None
            self._future = self._free_at(self.when, self._ends())

    def nodes(self) -> tuple[int, ...]:
        """Return the nodes on which the head fits at the planned time."""
        if self.when is None:
            return ()
        future = self._future or self._free_at(self.when, self._ends())
        return tuple(packed(future.copy(), self.head) or ())

    def see_placed(self, mark: int) -> None:
        """Note the tasks placed since a mark that end by the planned time. They take nothing from the head."""
        if self._future is not None:
            self._future.without(placed_since(self.plan, mark))

    def take(self, mark: int, own: Collection[int]) -> bool:
        """Count tasks placed since a mark at the planned time; if the head does not fit beside them, return False.

        Tasks on `own`, the nodes kept for their ask, take nothing from the head.
        """
        placed, future, head = placed_since(self.plan, mark), self._future, self.head
        self._taken = placed
        if future is None:
            self._lost = sum([count(part.indices) for _, part in placed if part.node not in own])
            fits = self._lost <= self.spare
        else:
            needs = minimum_by_stage(head)
            future.without(placed)
            self._lost = 0
            for shape, part in placed:
                before = future.fitting(part.node, needs[0][0].shape)
                future.take(part.node, shape, count(part.indices), part.devices)
                if part.node not in own:
                    self._lost += before - future.fitting(part.node, needs[0][0].shape)
            fits = self._lost <= self.spare if len(needs) == 1 else packs(future.copy(), head)
        self.spare -= self._lost
        if not fits:
            self.give_back()
        return fits

    def give_back(self) -> None:
        """Undo the last `take`."""
        self.spare += self._lost
        if self._future is not None:
            for shape, part in self._taken:
                self._future.take(part.node, shape, -count(part.indices), part.devices)

    def _ends(self) -> Iterable[tuple[Micros, Allocation]]:
        return self._forecast.in_order(self.plan.now) if self._forecast is not None else ()

    def _gain(self, shape: Shape) -> Callable[[Allocation], int]:
        """Return a function that removes an allocation and returns how many more tasks of a shape then fit."""
        partition, whatif = self.plan.partition, WhatIf(self.plan.partition)
        by_node: dict[int, int] = {}
        if len(partition.derived.shapes) == 1 and not shape.key.apart and not partition.nodes.over_rows:
            # All tasks are equal, so each task that ends frees capacity for one.
            def gain_if_equal(allocation: Allocation) -> int:
                usable = by_node.get(allocation.node)
                if usable is None:
                    usable = by_node[allocation.node] = whatif.takes(allocation.node, shape)
                return count(allocation.indices) if usable else 0

            return gain_if_equal

        self._future = whatif

        def gain(allocation: Allocation) -> int:
            node_id = allocation.node
            before = by_node.get(node_id)
            if before is None:
                before = whatif.fitting(node_id, shape)
            whatif.end(allocation)
            by_node[node_id] = after = whatif.fitting(node_id, shape)
            return after - before

        return gain

    def _plan_several(self) -> None:
        """Plan a head of several shapes: find the earliest end after which all of it fits."""
        ends = list(self._ends())
        times = sorted({end for end, _ in ends})
        low, high = 0, len(times)
        while low < high:
            middle = (low + high) // 2
            if packs(self._free_at(times[middle], ends), self.head):
                high = middle
            else:
                low = middle + 1
        if low < len(times):
            self.when = times[low]

    def _free_at(self, when: Micros, ends: Iterable[tuple[Micros, Allocation]]) -> WhatIf:
        whatif = WhatIf(self.plan.partition)
        for end, allocation in ends:
            if end > when:
                break
            whatif.end(allocation)
        return whatif


def placed_since(plan: Plan, mark: int) -> list[tuple[Shape, Part]]:
    """Return the tasks placed since a mark of the plan, by shape and node."""
    jobs = plan.partition.jobs
    return [
        (jobs[change.job].stages[change.stage].shape, part)
        for change, _ in plan.done[mark:]
        if isinstance(change, Placed)
        for part in change.parts
    ]


def packs(whatif: WhatIf, head: Ask) -> bool:
    """True if all tasks that a head needs to start fit on the nodes."""
    return packed(whatif, head) is not None


def packed(whatif: WhatIf, head: Ask) -> dict[int, None] | None:
    """Put all tasks that a head needs to start on the nodes. Returns these nodes; None if not all tasks fit."""
    used: dict[int, None] = {}
    for stage, needed in minimum_by_stage(head):
        left = needed
        for node_id in sorted(whatif.partition.nodes.rows):
            tasks = whatif.pack(node_id, stage.shape, left)
            if tasks:
                used[node_id] = None
                left -= tasks
            if not left:
                break
        if left:
            return None
    return used
