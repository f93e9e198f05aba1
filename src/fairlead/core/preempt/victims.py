"""Clearing: which tasks to stop so that an ask can start. Preemption and rebalance search by it.

Capacity that is free or coming is used first. Then, node by node, the cheapest set of tasks is stopped whose capacity
takes one more task of the ask. A task that does not help there is not looked at, and counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import combinations
from typing import Any

from fairlead.core.admission import has_claimed
from fairlead.core.changes import Stopped
from fairlead.core.holds.room import room_for
from fairlead.core.model import Allocation, Ask, Job, Place, Stage, StopCause
from fairlead.core.outcomes import restart, stop
from fairlead.core.plan import Plan
from fairlead.core.policy.victims import FEW, Cost, Unit, cost_of, surplus, without_covered
from fairlead.core.ranges import Ranges, count, difference
from fairlead.core.resources import Vector, add
from fairlead.core.state import Partition
from fairlead.core.whatif import WhatIf

Block = tuple[Allocation, tuple[int, ...]]
"""Tasks of an allocation."""

Losses = dict[str, tuple[Vector, int]]
"""Queue → what it would lose: resources, and how many tasks."""


class Victim:
    """A unit of tasks that may be stopped: what it is, and where its tasks are."""

    __slots__ = ("stage", "tasks", "unit")

    def __init__(self, unit: Unit, stage: Stage, tasks: list[Block]) -> None:
        self.unit = unit
        self.stage = stage
        self.tasks = tasks

    @property
    def nodes(self) -> dict[int, None]:
        return {allocation.node: None for allocation, _ in self.tasks}


Here = tuple[Victim, Unit, list[Block]]
"""A victim, what stopping the rest of it costs, and its tasks on one node."""

Found = tuple[tuple[int, int, Cost], Sequence[Here]]
"""Victims on a node, by the tasks that stop, those that start there (more are better: negative), and the cost."""

Offer = tuple[int, Cost, int, int, int, list[Victim]]
"""Victims that make way on a node: the tasks that stop for a million that start, the cost, the node, its version, how
many tasks start, and the victims."""


class Clearing:
    """What would be free and lost as tasks are set down and others are stopped for them. Nothing is altered.

    `keeps` says whether the queues may lose something; none of them loses more.
    """

    def __init__(
        self, partition: Partition, whatif: WhatIf, victims: Iterable[Victim], keeps: Callable[[Losses], bool] | None
    ) -> None:
        self.partition = partition
        self.whatif = whatif
        self.chosen: list[Victim] = []
        self.losses: Losses = {}
        self.places: dict[tuple[int, int], int] = {}
        """Node and stage → how many tasks are set down there."""
        self._keeps = keeps
        self.refused = False
        """True if queues may not lose some victims beside those that were chosen."""
        self._gone: dict[int, Ranges] = {}
        """Allocation → the tasks of it that are as if ended."""
        self._rests: dict[int, tuple[int, dict[int, list[Block]]]] = {}
        """Victim → what is left of it: how many tasks, and which on each node. Worked out again after it changed."""
        self._gangs: dict[tuple[str, int], tuple[list[Victim], list[Victim]]] = {}
        """Gang → its single tasks, and itself."""
        self.overlaps = False
        """Whether some that were chosen may not be needed any more: others made way on the same node later."""
        self._on: dict[int, list[Victim]] = {}
        self._levels: dict[int, None] = {}
        for victim in victims:
            self._levels[victim.unit.priority] = None
            self._gangs.setdefault(victim.unit.of, ([], []))[victim.unit.gang].append(victim)
            for node_id in victim.nodes:
                self._on.setdefault(node_id, []).append(victim)

    @property
    def levels(self) -> list[int]:
        """The priorities of those that could be stopped, ascending."""
        return sorted(self._levels)

    def save(self) -> tuple[Any, ...]:
        gone = {number: ranges.copy() for number, ranges in self._gone.items()}
        return self.whatif.copy(), list(self.chosen), dict(self.losses), dict(self.places), gone

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Go back to what was saved, which can be gone back to again."""
        whatif, chosen, losses, places, gone = saved
        self.whatif, self.chosen, self.losses, self.places = whatif.copy(), list(chosen), dict(losses), dict(places)
        self._gone = {number: ranges.copy() for number, ranges in gone.items()}
        self._rests.clear()

    def places_of(self, position: int | None = None) -> tuple[Place, ...]:
        return tuple((node_id, at, tasks) for (node_id, at), tasks in self.places.items() if position in (None, at))

    # -- capacity

    def put(self, stage: Stage, wanted: int, joins: Iterable[int]) -> int:
        """Set tasks down where there is capacity for them. Returns how many are left."""
        for node_id in joins if wanted else ():
            wanted -= self._put_on(node_id, stage, wanted)
            if not wanted:
                break
        return wanted

    def clear(self, stage: Stage, wanted: int, level: int) -> int:
        """Stop tasks of priorities up to a level, and set tasks of the stage down there. Returns how many are left.

        The next node is always the one where the cheapest set of tasks makes way for one more, by the tasks that stop
        for each that starts. For one task that is the best set there is, if no node has more than `FEW` units; for
        several tasks it need not be.
        """
        heap: list[Offer] = []
        version: dict[int, int] = {}
        for node_id in sorted(self._on) if wanted else ():
            self._offer(heap, version, node_id, stage, wanted, level)
        while wanted and heap:
            _, _, node_id, seen, fitting, victims = heappop(heap)
            if seen != version.get(node_id, 0):
                continue  # it was looked at anew
            if fitting > wanted:
                self._offer(heap, version, node_id, stage, wanted, level)
                continue
            touched = {node_id: None}
            if self._may_go(victims):
                for victim in victims:
                    touched |= self.end(victim)
                self.overlaps = self.overlaps or seen > 0 or len(touched) > 1
                wanted = self.put(stage, wanted, touched)
            for each in touched if wanted else ():
                version[each] = version.get(each, 0) + 1
                self._offer(heap, version, each, stage, wanted, level)
        return wanted

    def _put_on(self, node_id: int, stage: Stage, wanted: int) -> int:
        if stage.shape.key.apart and self._is_near(node_id, stage):
            return 0
        tasks = self.whatif.pack(node_id, stage.shape, wanted)
        if tasks:
            where = (node_id, stage.position)
            self.places[where] = self.places.get(where, 0) + tasks
        return tasks

    def _is_near(self, node_id: int, stage: Stage) -> bool:
        """True if a node has, or would have, a task of a stage whose tasks stay apart."""
        return (node_id, stage.position) in self.places or any(
            each.node == node_id for each in (stage.live or {}).values()
        )

    # -- victims

    def end(self, victim: Victim) -> dict[int, None]:
        """Think of a victim as gone. Returns the nodes that have more capacity."""
        blocks = self.blocks(victim)
        for allocation, block in blocks:
            self.whatif.end_some(allocation, block)
            self._gone.setdefault(allocation.id, Ranges()).add(block)
        _lose(self.losses, blocks)
        self._lessen(victim, blocks)
        self.chosen.append(victim)
        return {allocation.node: None for allocation, _ in blocks}

    def blocks(self, victim: Victim) -> list[Block]:
        """The tasks of a victim that are not gone."""
        return self._left(victim.tasks)

    def _left(self, blocks: list[Block]) -> list[Block]:
        gone = self._gone
        left = [(each, difference(block, gone[each.id].flat()) if each.id in gone else block) for each, block in blocks]
        return [(each, block) for each, block in left if block]

    def _lessen(self, victim: Victim, ended: list[Block]) -> None:
        """Less is left of a victim that ended, and of the units that share its tasks."""
        singles, whole = self._gangs.get(victim.unit.of, ([], []))
        self._rests.pop(id(victim), None)
        if victim.unit.gang:
            for other in singles:
                self._rests.pop(id(other), None)
            return
        for other in whole:
            known = self._rests.get(id(other))
            if known is not None:
                tasks, nodes = known
                for node_id in {allocation.node: None for allocation, _ in ended}:
                    left = self._left(nodes[node_id])
                    if left:
                        nodes[node_id] = left
                    else:
                        del nodes[node_id]
                self._rests[id(other)] = (tasks - sum([count(block) for _, block in ended]), nodes)

    def _rest(self, victim: Victim) -> tuple[int, dict[int, list[Block]]]:
        known = self._rests.get(id(victim))
        if known is None:
            tasks = 0
            nodes: dict[int, list[Block]] = {}
            for block in self.blocks(victim):
                tasks += count(block[1])
                nodes.setdefault(block[0].node, []).append(block)
            known = self._rests[id(victim)] = (tasks, nodes)
        return known

    def _may_go(self, victims: Sequence[Victim]) -> bool:
        if self._keeps is None:
            return True
        lost = {path: (dict(amounts), tasks) for path, (amounts, tasks) in self.losses.items()}
        for victim in victims:
            _lose(lost, self.blocks(victim))
        kept = self._keeps(lost)
        self.refused = self.refused or not kept
        return kept

    def may_go(self, victim: Victim) -> bool:
        """True if a victim has tasks left, and its queues may lose them too."""
        return bool(self.blocks(victim)) and self._may_go([victim])

    def cheapest(self, most: int) -> list[Victim]:
        """The victims that could make way first, the cheapest of the lowest priorities, up to a number."""
        known = {id(victim): victim for victims in self._on.values() for victim in victims}
        order = sorted(known.values(), key=lambda each: (each.unit.priority, cost_of([each.unit])))
        return [victim for victim in order if self.may_go(victim)][:most]

    def _offer(
        self, heap: list[Offer], version: dict[int, int], node_id: int, stage: Stage, wanted: int, level: int
    ) -> None:
        """Enter the cheapest set of victims that makes way for one task on a node, if there is one."""
        if node_id not in self._on or not self.whatif.takes(node_id, stage.shape):
            return
        if stage.shape.key.apart and self._is_near(node_id, stage):
            return
        there: list[Here] = []
        for victim in self._on[node_id]:
            if victim.unit.priority <= level:
                tasks, nodes = self._rest(victim)
                if node_id in nodes:
                    there.append((victim, victim.unit._replace(tasks=tasks), nodes[node_id]))
        if not there:
            return
        most = 1 if stage.shape.key.apart else wanted
        search = self._best if len(there) <= FEW else self._greedy
        found = search(node_id, stage, there, most)
        if found is not None:
            (tasks, fewer, cost), few = found
            victims = [victim for victim, _, _ in few]
            heappush(heap, (tasks * 1_000_000 // -fewer, cost, node_id, version.get(node_id, 0), -fewer, victims))

    def _best(self, node_id: int, stage: Stage, there: Sequence[Here], most: int) -> Found | None:
        """The cheapest of all sets of victims on a node that make way for a task."""
        best: Found | None = None
        for size in range(1, len(there) + 1):
            if best is not None and size > best[0][0]:
                break  # each of them costs a task at least
            for some in combinations(there, size):
                units = [unit for _, unit, _ in some]
                if len(without_covered(units)) < size:
                    continue
                cost = cost_of(units)
                if best is None or (cost[0], -most, cost) < best[0]:
                    fitting = self._fitting(node_id, stage, some, most)
                    worth = (cost[0], -fitting, cost)
                    if fitting and (best is None or worth < best[0]) and self._may_go([each[0] for each in some]):
                        best = (worth, some)
        return best

    def _greedy(self, node_id: int, stage: Stage, there: Sequence[Here], most: int) -> Found | None:
        """A cheap set of many victims on a node: those that help most for each task, or the newest."""
        free = self.whatif.free_on(node_id)
        wanted = {name: amount * most for name, amount in stage.shape.amounts}
        lacking = {name: amount - free.get(name, 0) for name, amount in wanted.items() if amount > free.get(name, 0)}

        def help_of(each: Here) -> int:
            freed: Vector = {}
            for allocation, block in each[2]:
                add(freed, allocation.stage.shape.resources, count(block))
            parts = [min(freed.get(name, 0), amount) * 1_000_000 // amount for name, amount in lacking.items()]
            return sum(parts) // each[1].tasks

        best: Found | None = None
        orders: list[Callable[[Here], Any]] = [
            lambda each: (-help_of(each), cost_of([each[1]])),
            lambda each: cost_of([each[1]]),
        ]
        for order in orders:
            some: list[Here] = []
            for each in sorted(there, key=order):
                more = [one for one in some if one[1].gang or not each[1].gang or one[1].of != each[1].of]
                if any(one[1].gang and one[1].of == each[1].of for one in some):
                    continue
                if self._may_go([one[0] for one in (*more, each)]):
                    some = [*more, each]
                if self._make_way(node_id, stage, some):
                    break
            if not self._make_way(node_id, stage, some):
                continue
            for each in reversed(some[:-1]):
                without = [one for one in some if one is not each]
                if self._make_way(node_id, stage, without):
                    some = without
            cost = cost_of([unit for _, unit, _ in some])
            worth = (cost[0], -self._fitting(node_id, stage, some, most), cost)
            if best is None or worth < best[0]:
                best = (worth, some)
        return best

    def _make_way(self, node_id: int, stage: Stage, some: Sequence[Here]) -> bool:
        """True if one task fits a node without some victims, and their queues may lose them."""
        return bool(self._fitting(node_id, stage, some, 1)) and self._may_go([victim for victim, _, _ in some])

    def _fitting(self, node_id: int, stage: Stage, some: Sequence[Here], most: int) -> int:
        """How many tasks fit a node without some victims, up to a number."""
        free, devices = self.whatif.without_some(node_id, [block for _, _, here in some for block in here])
        return room_for(free, devices, stage.shape, most)[0]


def _lose(losses: Losses, blocks: Iterable[Block]) -> None:
    for allocation, block in blocks:
        tasks = count(block)
        for queue in allocation.stage.job.queue.line():
            amounts, before = losses.get(queue.path, ({}, 0))
            amounts = dict(amounts)
            add(amounts, allocation.stage.shape.resources, tasks)
            losses[queue.path] = (amounts, before + tasks)


# -- units -------------------------------------------------------------------------------------------------------


def victims_of(job: Job) -> Iterator[Victim]:
    """The units in which tasks of a job can be taken back."""
    if job.preemptible and all(queue.settings.preemptible for queue in job.queue.line()):
        for stage in job.stages:
            if stage.live and (not job.whole or stage is _first_live(job)):
                yield from _units(job, stage)


def _first_live(job: Job) -> Stage | None:
    return next((stage for stage in job.stages if stage.live), None)


def _units(job: Job, first: Stage) -> Iterator[Victim]:
    """The tasks that a gang can do without, the newest first, and all of it."""
    everything: list[Block] = []
    total: Vector = {}
    tasks = 0
    of = (job.id, first.position)
    for stage in first.gang():
        live = [each for each in (stage.live or {}).items() if each[1].state != "stopping" and not each[1].rooms]
        live.sort(key=lambda item: (_began(item[1]), item[1].id, item[0]))
        amounts = stage.shape.amounts
        add(total, stage.shape.resources, len(live))
        tasks += len(live)
        whole = {allocation.id: allocation for _, allocation in live}
        everything += [(allocation, allocation.indices) for allocation in whole.values()]
        spared = len(live) - surplus(len(live), stage.needed if stage.started else len(live))
        for index, allocation in reversed(live[spared:]):
            unit = Unit(False, job.priority, _began(allocation), allocation.id, index, of, job.queue.path, amounts)
            yield Victim(unit, stage, [(allocation, (index, index + 1))])
    if everything:
        newest = max(everything, key=lambda item: (_began(item[0]), item[0].id))[0]
        amounts = tuple(sorted(total.items()))
        unit = Unit(True, job.priority, _began(newest), newest.id, 0, of, job.queue.path, amounts, tasks)
        yield Victim(unit, first, everything)


def _began(allocation: Allocation) -> int:
    return allocation.since if allocation.started is None else allocation.started


def newest_first(victims: Iterable[Victim]) -> list[Victim]:
    """Those of a lower priority first, then the newest. The order in which jobs came to work is not in the state."""
    return sorted(victims, key=lambda each: (each.unit.priority, -each.unit.began, -each.unit.number, -each.unit.task))


def is_fresh(plan: Plan, victim: Victim) -> bool:
    """True if tasks of a unit were placed in this cycle: nothing is stopped that the same cycle placed."""
    return any(allocation.id >= plan.placed_from for allocation, _ in victim.tasks)


def own_nodes(partition: Partition, ask: Ask) -> dict[int, None]:
    """The nodes that are held for an ask alone, or arrived for it alone: a claim may use them, and replaces that."""
    kept = partition.kept(ask.seq)
    if kept is None or has_claimed(partition, ask):
        return {}
    return {node_id: None for node_id in kept.nodes if len(partition.nodes.held[node_id]) == 1}


def stop_victims(plan: Plan, victims: Iterable[Victim], cause: StopCause = "preempt") -> list[int]:
    """Stop tasks for another ask: gangs whole, or those that they can do without. They are asked for again.

    Returns the numbers of the allocations that stop.
    """
    mark = plan.mark()
    victims = list(victims)
    units = {id(unit) for unit in without_covered([victim.unit for victim in victims])}
    singles: dict[int, Ranges] = {}
    for victim in victims:
        if id(victim.unit) not in units:
            continue
        if victim.unit.gang:
            restart(plan, victim.stage, cause)
            continue
        for allocation, block in victim.tasks:
            singles.setdefault(allocation.id, Ranges()).add(block)
    for number, ranges in singles.items():
        stop(plan, plan.partition.allocations[number], ranges.flat(), cause)
    return [change.into or change.allocation for change, _ in plan.done[mark:] if isinstance(change, Stopped)]
