"""Clearing: finds the tasks to stop so that an ask can start. Used by preemption and rebalance.

Free and coming capacity is used first. Then, node by node, it chooses the cheapest set of tasks that frees capacity for
one more task of the ask. Tasks whose stop would not help are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import combinations
from typing import Any, NamedTuple

from fairlead.core.admission import has_claimed
from fairlead.core.ahead.whatif import WhatIf, devices_of
from fairlead.core.changes import Stopped
from fairlead.core.model import Allocation, Ask, Job, Micros, Place, Stage
from fairlead.core.node_fit import fitting_in
from fairlead.core.outcomes import live_of, restart, stop
from fairlead.core.plan import Plan
from fairlead.core.policy.victim_sets import (
    FEW,
    VICTIMS,
    Cost,
    StageKey,
    Unit,
    are_apart,
    cost_of,
    overdrawn,
    surplus,
    without_covered,
)
from fairlead.core.ranges import Ranges, count, difference
from fairlead.core.resources import Vector, add
from fairlead.core.state import Partition

Block = tuple[Allocation, tuple[int, ...]]
"""Tasks of an allocation."""

Losses = dict[str, tuple[Vector, int]]
"""Queue → the resources and the number of tasks that it would lose."""


Keeps = Callable[[Losses, Sequence[Losses]], bool]


class Victim(NamedTuple):
    """Tasks that may be stopped together: a single task, or a whole gang."""

    unit: Unit
    stage: Stage
    tasks: list[Block]

    @property
    def nodes(self) -> dict[int, None]:
        return {allocation.node: None for allocation, _ in self.tasks}


Candidate = tuple[Victim, Unit, list[Block], int]
"""A victim, its remaining tasks in this trial, those of them on one node, and its kind.

Candidates of one kind free the same on their node, cost their queues the same, and differ only in rank.
"""

Solution = tuple[tuple[int, int, Cost], Sequence[Candidate]]
"""The rank of victims on a node, and the victims. The rank: tasks that stop, minus the tasks that then fit, cost."""

Offer = tuple[int, Cost, int, int, int, list[Victim]]
"""Tasks that stop per million that start, cost, node, version of the node, number of tasks that start there,
victims."""


class Clearing:
    """A trial: the capacity and the losses of queues if some tasks stopped and others started. Alters no state.

    `keeps(losses, newest)` returns True if queues may have these losses; `newest` has those by the last victims alone.
    """

    def __init__(self, partition: Partition, whatif: WhatIf, victims: Iterable[Victim], keeps: Keeps | None) -> None:
        self.partition = partition
        self.whatif = whatif
        self.chosen: list[Victim] = []
        self.losses: Losses = {}
        self.unit_losses: list[Losses] = []
        """The losses by each chosen victim alone, without repetitions."""
        self.places: dict[tuple[int, int], int] = {}
        """Node and stage → the number of tasks placed there."""
        self._keeps = keeps
        self._rank = VICTIMS[partition.settings.victims]
        self.refused = False
        """True if `keeps` refused further victims, or a stage can spare no more tasks."""
        self.only: set[str] | None = None
        """If given, victims must use no other resources than these."""
        self.spared: Collection[int] = ()
        """Allocations that end by themselves soon enough. A unit is no victim if all its tasks are in these."""
        self._gone: dict[int, Ranges] = {}
        """Allocation → its tasks that count as ended."""
        self._lost: dict[StageKey, int] = {}
        """Stage → the number of its single tasks that count as ended."""
        self._rests: dict[int, tuple[int, dict[int, list[Block]]]] = {}
        """A cache. Id of a victim → its tasks that do not count as ended: their number, and the blocks on each node."""
        self._gangs: dict[tuple[str, int], tuple[list[Victim], list[Victim]]] = {}
        """Gang → the victims that are single tasks of it, and the victim that is the whole gang."""
        self.overlaps = False
        """True if victims chosen later may make earlier ones on the same node unneeded."""
        self._kinds: dict[object, int] = {}
        self._sets: dict[tuple[int, tuple[int, ...]], list[tuple[int, ...]]] = {}
        self._fits: dict[object, int] = {}
        """Caches: numbers of kinds, sets of candidates by size and kinds, and how many tasks fit without victims."""
        self._may: dict[tuple[int, ...], bool] = {}
        """Kinds of victims → True if they may go, until the losses change."""
        self._on: dict[int, list[Victim]] = {}
        self._levels: dict[int, None] = {}
        for victim in victims:
            self._levels[victim.unit.priority] = None
            self._gangs.setdefault(victim.unit.of, ([], []))[victim.unit.gang].append(victim)
            for node_id in victim.nodes:
                self._on.setdefault(node_id, []).append(victim)

    @property
    def levels(self) -> list[int]:
        """Return the priorities of possible victims, ascending."""
        return sorted(self._levels)

    def save(self) -> tuple[Any, ...]:
        gone = {number: ranges.copy() for number, ranges in self._gone.items()}
        chosen, losses = (list(self.chosen), list(self.unit_losses)), dict(self.losses)
        return self.whatif.copy(), chosen, losses, dict(self.places), gone, dict(self._lost)

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Return to a saved state, which can be restored again."""
        whatif, (chosen, unit_losses), losses, places, gone, lost = saved
        self.whatif, self.losses, self.places = whatif.copy(), dict(losses), dict(places)
        self.chosen, self.unit_losses = list(chosen), list(unit_losses)
        self._gone = {number: ranges.copy() for number, ranges in gone.items()}
        self._lost = dict(lost)
        self._rests.clear()

    def places_of(self) -> tuple[Place, ...]:
        return tuple((node_id, position, tasks) for (node_id, position), tasks in self.places.items())

    # -- capacity

    def put(self, stage: Stage, wanted: int, node_ids: Iterable[int]) -> int:
        """Place tasks where there is capacity. Returns the number of tasks left."""
        for node_id in node_ids if wanted else ():
            wanted -= self._put_on(node_id, stage, wanted)
            if not wanted:
                break
        return wanted

    def clear(self, stage: Stage, wanted: int, level: int) -> int:
        """Stop tasks of priorities up to `level`, and place tasks of the stage there. Returns the number of tasks left.

        Each step takes the node where the fewest tasks stop per task that starts; ties: the cheapest victims. The
        result is the best for one task if no node has more than `FEW` units. For several tasks it may not be the best.
        """
        heap: list[Offer] = []
        version: dict[int, int] = {}
        self._may.clear()
        for node_id in sorted(self._on) if wanted else ():
            self._offer(heap, version, node_id, stage, wanted, level)
        while wanted and heap:
            _, _, node_id, offered, fitting, victims = heappop(heap)
            if offered != version.get(node_id, 0):
                continue  # a newer offer exists for this node
            if fitting > wanted:
                self._offer(heap, version, node_id, stage, wanted, level)
                continue
            touched = {node_id: None}
            if self._may_go(victims):
                for victim in victims:
                    touched |= self.end(victim)
                self.overlaps = self.overlaps or offered > 0 or len(touched) > 1
                wanted = self.put(stage, wanted, touched)
            for touched_id in touched if wanted else ():
                version[touched_id] = version.get(touched_id, 0) + 1
                self._offer(heap, version, touched_id, stage, wanted, level)
        return wanted

    def may_fit(self, stage: Stage, wanted: int) -> bool:
        """False if some of the tasks would not fit although all victims had ended."""
        shape = stage.shape
        for node_id in self.partition.nodes.rows if wanted > 0 else ():
            if self.whatif.takes(node_id, shape):
                victims = self._on.get(node_id, ())
                gangs = {victim.unit.of for victim in victims if victim.unit.gang}
                gone = [
                    block
                    for victim in victims
                    if victim.unit.gang or victim.unit.of not in gangs
                    for block in self._rest(victim)[1].get(node_id, ())
                ]
                most = 1 if shape.key.apart else wanted
                wanted -= fitting_in(*self.whatif.without_some(node_id, gone), shape, most)[0]
            if wanted <= 0:
                return True
        return wanted <= 0

    def _put_on(self, node_id: int, stage: Stage, wanted: int) -> int:
        if stage.shape.key.apart and self._is_near(node_id, stage):
            return 0
        tasks = self.whatif.pack(node_id, stage.shape, wanted)
        if tasks:
            where = (node_id, stage.position)
            self.places[where] = self.places.get(where, 0) + tasks
        return tasks

    def _is_near(self, node_id: int, stage: Stage) -> bool:
        """True if a task of the stage is on the node, or is placed there in this trial."""
        return (node_id, stage.position) in self.places or any(
            allocation.node == node_id for allocation in (stage.live or {}).values()
        )

    # -- victims

    def end(self, victim: Victim) -> dict[int, None]:
        """Count a victim as ended. Returns the nodes that have more capacity now."""
        blocks = self.blocks(victim)
        self._may.clear()
        for allocation, block in blocks:
            self.whatif.end_some(allocation, block)
            self._gone.setdefault(allocation.id, Ranges()).add(block)
        if not victim.unit.gang:
            key = (victim.unit.of, victim.unit.stage)
            self._lost[key] = self._lost.get(key, 0) + 1
        _lose(self.losses, blocks)
        self._lessen(victim, blocks)
        self.chosen.append(victim)
        lost: Losses = {}
        _lose(lost, blocks)
        if lost not in self.unit_losses:
            self.unit_losses.append(lost)
        return {allocation.node: None for allocation, _ in blocks}

    def expect(self, allocation: Allocation) -> None:
        """Count an allocation as ended, because it will end by itself."""
        self.whatif.end(allocation)
        self._gone.setdefault(allocation.id, Ranges()).add(allocation.indices)
        self._rests.clear()

    def is_victim(self, allocation: Allocation) -> bool:
        """True if tasks of an allocation count as ended."""
        return allocation.id in self._gone

    def blocks(self, victim: Victim) -> list[Block]:
        """Return the tasks of a victim that do not count as ended yet."""
        return self._left(victim.tasks)

    def _left(self, blocks: list[Block]) -> list[Block]:
        gone = self._gone
        left = [
            (allocation, difference(block, gone[allocation.id].flat()) if allocation.id in gone else block)
            for allocation, block in blocks
        ]
        return [(allocation, block) for allocation, block in left if block]

    def _lessen(self, victim: Victim, ended: list[Block]) -> None:
        """Update the cache of remaining tasks for an ended victim, and for the units that share its tasks."""
        singles, whole = self._gangs.get(victim.unit.of, ([], []))
        self._rests.pop(id(victim), None)
        if victim.unit.gang:
            for other in singles:
                self._rests.pop(id(other), None)
            return
        for other in whole:
            rest = self._rests.get(id(other))
            if rest is not None:
                tasks, nodes = rest
                for node_id in {allocation.node: None for allocation, _ in ended}:
                    left = self._left(nodes[node_id])
                    if left:
                        nodes[node_id] = left
                    else:
                        del nodes[node_id]
                self._rests[id(other)] = (tasks - sum([count(block) for _, block in ended]), nodes)

    def _rest(self, victim: Victim) -> tuple[int, dict[int, list[Block]]]:
        rest = self._rests.get(id(victim))
        if rest is None:
            tasks = 0
            nodes: dict[int, list[Block]] = {}
            for block in self.blocks(victim):
                tasks += count(block[1])
                nodes.setdefault(block[0].node, []).append(block)
            rest = self._rests[id(victim)] = (tasks, nodes)
        return rest

    def _may_go(self, victims: Sequence[Victim]) -> bool:
        if overdrawn([victim.unit for victim in victims], self._lost):
            self.refused = True
            return False
        if self._keeps is None:
            return True
        lost = {path: (dict(amounts), tasks) for path, (amounts, tasks) in self.losses.items()}
        last: list[Losses] = []
        for victim in victims:
            blocks = self.blocks(victim)
            _lose(lost, blocks)
            last.append({})
            _lose(last[-1], blocks)
        kept = self._keeps(lost, last)
        self.refused = self.refused or not kept
        return kept

    def may_go(self, victim: Victim) -> bool:
        """True if a victim has tasks left and its queues may lose them."""
        return bool(self.blocks(victim)) and self._may_go([victim])

    def cheapest(self, most: int) -> list[Victim]:
        """Return up to `most` victims that may be stopped, by the lowest priority and then by cost."""
        by_id = {id(victim): victim for victims in self._on.values() for victim in victims}
        victims = [victim for victim in by_id.values() if self._counts(victim)]
        order = sorted(victims, key=lambda victim: (victim.unit.priority, cost_of([victim.unit], self._rank)))
        return [victim for victim in order if self.may_go(victim)][:most]

    def _offer(
        self, heap: list[Offer], version: dict[int, int], node_id: int, stage: Stage, wanted: int, level: int
    ) -> None:
        if node_id not in self._on or not self.whatif.takes(node_id, stage.shape):
            return
        if stage.shape.key.apart and self._is_near(node_id, stage):
            return
        victims = [victim for victim in self._on[node_id] if victim.unit.priority <= level and self._counts(victim)]
        candidates: list[Candidate] = []
        for victim in victims:
            tasks, nodes = self._rest(victim)
            if node_id in nodes:
                unit = victim.unit if victim.unit.tasks == tasks else victim.unit._replace(tasks=tasks)
                kind = self._kind(victim, nodes[node_id], len(victims))
                candidates.append((victim, unit, nodes[node_id], kind))
        if not candidates:
            return
        most = 1 if stage.shape.key.apart else wanted
        search = self._best if len(candidates) <= FEW else self._greedy
        best = search(node_id, stage, candidates, most)
        if best is not None:
            (tasks, fewer, cost), chosen = best
            victims = [candidate[0] for candidate in chosen]
            heappush(heap, (tasks * 1_000_000 // -fewer, cost, node_id, version.get(node_id, 0), -fewer, victims))

    def _counts(self, victim: Victim) -> bool:
        """True if a victim uses no resources besides `only`, and not all its tasks are in `spared`."""
        if self.only is not None and not self.only.issuperset(_resources(victim)):
            return False
        return not self.spared or any(allocation.id not in self.spared for allocation, _ in victim.tasks)

    def _kind(self, victim: Victim, blocks: list[Block], most: int) -> int:
        """Return the kind of a victim with these tasks on a node that has `most` victims."""
        unit = victim.unit
        queue, freed = victim.stage.job.queue.path, tuple([_freed_by(block) for block in blocks])
        key: tuple[object, ...] = (queue, unit.priority, freed)
        if unit.gang:
            key = (id(victim), freed)
        elif self._gangs[unit.of][1] or self._lost.get((unit.of, unit.stage), 0) + most > unit.spare:
            key = (*key, unit.of, unit.stage)  # not all of them may stop, or not beside their gang
        return self._kinds.setdefault(key, len(self._kinds))

    def _sets_of(self, size: int, candidates: Sequence[Candidate]) -> list[tuple[int, ...]]:
        """Return the sets of `size` candidates, by position. Of sets with the same kinds only the first is returned.

        It has the lowest ranks, because candidates of one kind are in the order of their ranks.
        """
        kinds = tuple([kind for *_, kind in candidates])
        sets = self._sets.get((size, kinds))
        if sets is None:
            first: dict[tuple[int, ...], tuple[int, ...]] = {}
            for chosen in combinations(range(len(kinds)), size):
                first.setdefault(tuple(sorted([kinds[at] for at in chosen])), chosen)
            sets = self._sets[size, kinds] = list(first.values())
        return sets

    def _best(self, node_id: int, stage: Stage, candidates: Sequence[Candidate], most: int) -> Solution | None:
        """Return the cheapest set of victims on a node that frees capacity for a task, comparing all sets."""
        best: Solution | None = None
        for size in range(1, len(candidates) + 1):
            if best is not None and size > best[0][0]:
                break  # each victim stops at least one task
            for positions in self._sets_of(size, candidates):
                chosen = [candidates[at] for at in positions]
                fitting = self._fitting(node_id, stage, chosen, most)
                units = [candidate[1] for candidate in chosen]
                if not fitting or not are_apart(units):
                    continue
                cost = cost_of(units, self._rank)
                worth = (cost[0], -fitting, cost)
                if (best is None or worth < best[0]) and self._may_all_go(chosen):
                    best = (worth, chosen)
        return best

    def _greedy(self, node_id: int, stage: Stage, candidates: Sequence[Candidate], most: int) -> Solution | None:
        """Return a cheap set of victims on a node with many candidates.

        Two sets are compared: one takes the candidates first that free most per task, the other the cheapest ones.
        """
        free = self.whatif.free_on(node_id)
        wanted = {name: amount * most for name, amount in stage.shape.amounts}
        lacking = {name: amount - free.get(name, 0) for name, amount in wanted.items() if amount > free.get(name, 0)}

        def cost(candidate: Candidate) -> Cost:
            return cost_of([candidate[1]], self._rank)

        def usefulness(candidate: Candidate) -> tuple[int, Cost]:
            return -_help_of(candidate, lacking), cost(candidate)

        best: Solution | None = None
        orders: list[Callable[[Candidate], Any]] = [usefulness, cost]
        for order in orders:
            chosen = self._collect(node_id, stage, sorted(candidates, key=order))
            if not self._make_way(node_id, stage, chosen):
                continue
            for candidate in reversed(chosen[:-1]):
                without = [other for other in chosen if other is not candidate]
                if self._make_way(node_id, stage, without):
                    chosen = without
            total = cost_of([candidate[1] for candidate in chosen], self._rank)
            worth = (total[0], -self._fitting(node_id, stage, chosen, most), total)
            if best is None or worth < best[0]:
                best = (worth, chosen)
        return best

    def _collect(self, node_id: int, stage: Stage, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Take candidates in order until one task fits. A whole gang replaces its single tasks."""
        chosen: list[Candidate] = []
        for candidate in candidates:
            unit = candidate[1]
            if any(other[1].gang and other[1].of == unit.of for other in chosen):
                continue
            kept = [other for other in chosen if other[1].gang or not unit.gang or other[1].of != unit.of]
            if self._may_all_go([*kept, candidate]):
                chosen = [*kept, candidate]
            if self._make_way(node_id, stage, chosen):
                break
        return chosen

    def _make_way(self, node_id: int, stage: Stage, candidates: Sequence[Candidate]) -> bool:
        """True if one task fits a node without these tasks, and the queues of these tasks allow them to be stopped."""
        return bool(self._fitting(node_id, stage, candidates, 1)) and self._may_all_go(candidates)

    def _may_all_go(self, candidates: Sequence[Candidate]) -> bool:
        kinds = tuple(sorted([kind for *_, kind in candidates]))
        may = self._may.get(kinds)
        if may is None:
            may = self._may[kinds] = self._may_go([candidate[0] for candidate in candidates])
        self.refused = self.refused or not may
        return may

    def _fitting(self, node_id: int, stage: Stage, candidates: Sequence[Candidate], most: int) -> int:
        """Return the number of tasks that fit a node without these victims, up to `most`."""
        kinds = tuple(sorted([kind for *_, kind in candidates]))
        key = (self.whatif.left_on(node_id), kinds, id(stage.shape), most)
        fitting = self._fits.get(key)
        if fitting is None:
            gone = [block for candidate in candidates for block in candidate[2]]
            fitting = self._fits[key] = fitting_in(*self.whatif.without_some(node_id, gone), stage.shape, most)[0]
        return fitting


def _freed_by(block: Block) -> tuple[int, int, tuple[int, ...]]:
    """Return a key that is equal for tasks with equal resources on equal devices of their node."""
    allocation, tasks = block
    return id(allocation.stage.shape), count(tasks), devices_of(allocation, tasks)


def _help_of(candidate: Candidate, lacking: Vector) -> int:
    """Return how much of the lacking amounts a candidate frees per task, in millionths summed over resources."""
    _, unit, blocks, _ = candidate
    freed: Vector = {}
    for allocation, block in blocks:
        add(freed, allocation.stage.shape.resources, count(block))
    return sum(min(freed.get(name, 0), amount) * 1_000_000 // amount for name, amount in lacking.items()) // unit.tasks


def _lose(losses: Losses, blocks: Iterable[Block]) -> None:
    for allocation, block in blocks:
        tasks = count(block)
        for queue in allocation.stage.job.queue.line():
            amounts, before = losses.get(queue.path, ({}, 0))
            amounts = dict(amounts)
            add(amounts, allocation.stage.shape.resources, tasks)
            losses[queue.path] = (amounts, before + tasks)


# -- units -------------------------------------------------------------------------------------------------------


def victims_of(partition: Partition, job: Job) -> Iterator[Victim]:
    """Yield the single tasks and gangs of a job that may be stopped."""
    if job.manager and partition.readiness.is_spared(job.manager, job.id):
        return
    if job.preemptible and all(queue.settings.preemptible for queue in job.queue.line()):
        live = [stage for stage in job.stages if stage.live]
        for stage in live[:1] if job.whole else live:
            yield from _units(job, stage)


def _units(job: Job, first: Stage) -> Iterator[Victim]:
    """Yield the tasks that can be stopped alone, because their stage has more than it needs, and the whole gang.

    Tasks that start one by one stop one by one, also the last of them: they are no gang.
    """
    blocks: list[Block] = []
    total: Vector = {}
    tasks = 0
    of = (job.id, first.position)
    is_gang = job.whole or not first.started or first.min > 1
    for stage in first.gang():
        live = _stoppable(stage)
        add(total, stage.shape.resources, len(live))
        tasks += len(live)
        blocks += [(allocation, allocation.indices) for allocation in {each.id: each for _, each in live}.values()]
        least = stage.needed if stage.started else len(live)
        spare = surplus(len(live), least) if is_gang else len(live)
        for index, allocation in reversed(live) if spare else ():
            unit = Unit(
                False,
                job.priority,
                allocation.began,
                allocation.id,
                index,
                of,
                job.queue.path,
                stage.shape.amounts,
                stage=stage.position,
                spare=spare,
            )
            yield Victim(unit, stage, [(allocation, (index, index + 1))])
    if blocks and is_gang:
        newest = max(blocks, key=lambda item: (item[0].began, item[0].id))[0]
        amounts = tuple(sorted(total.items()))
        unit = Unit(True, job.priority, newest.began, newest.id, 0, of, job.queue.path, amounts, tasks)
        yield Victim(unit, first, blocks)


def _stoppable(stage: Stage) -> list[tuple[int, Allocation]]:
    """Return the running tasks of a stage by index, the oldest first; not those that stop or wait in a chain."""
    live = [entry for entry in (stage.live or {}).items() if entry[1].state != "stopping" and not entry[1].slots]
    return sorted(live, key=lambda entry: (entry[1].began, entry[1].id, entry[0]))


def _resources(victim: Victim) -> set[str]:
    return {name for allocation, _ in victim.tasks for name in allocation.stage.shape.resources}


def ranked(partition: Partition, victims: Iterable[Victim]) -> list[Victim]:
    """Sort victims by the lowest priority, then by rank.

    The order of `Queue.at_work` is not used, because a restart changes it. For each stage and node, only as many single
    tasks are returned as the stage can spare. Tasks with devices are all returned, as each frees other devices.
    """
    rank = VICTIMS[partition.settings.victims]
    kept: list[Victim] = []
    on_node: dict[tuple[StageKey, int], int] = {}
    for victim in sorted(victims, key=lambda victim: (victim.unit.priority, rank(victim.unit))):
        unit, allocation = victim.unit, victim.tasks[0][0]
        if not unit.gang and not allocation.devices:
            key = ((unit.of, unit.stage), allocation.node)
            on_node[key] = on_node.get(key, 0) + 1
            if on_node[key] > unit.spare:
                continue
        kept.append(victim)
    return kept


def protected_until(partition: Partition, ask: Ask, victim: Victim) -> Micros:
    """Return the time from which a victim may be stopped for the priority or a guarantee of an ask.

    A victim runs for `min_runtime` first, unless the ask has waited for as long. It is never stopped at the time of its
    start.
    """
    began = max(allocation.since for allocation, _ in victim.tasks)
    least = partition.settings.min_runtime or 0
    return max(began + 1, min(victim.unit.began + least, ask.waiting_since + least))


def own_nodes(partition: Partition, ask: Ask) -> dict[int, None]:
    """Return the nodes that are earmarked for no other ask. The claim of the ask may use them."""
    earmark = partition.earmark_of(ask.seq)
    if earmark is None or has_claimed(partition, ask):
        return {}
    return {node_id: None for node_id in earmark.nodes if len(partition.nodes.held[node_id]) == 1}


def stop_victims(plan: Plan, victims: Iterable[Victim], stopped_for: str) -> list[int]:
    """Stop victims, which then wait again. Returns the numbers of the stopping allocations.

    A stage of which all tasks stop begins a new wait, as a whole gang does. `stopped_for` names the job or queue that
    gets the capacity.
    """
    mark = plan.mark()
    victims = list(victims)
    units = {id(unit) for unit in without_covered([victim.unit for victim in victims])}
    singles: dict[int, Ranges] = {}
    stages: dict[int, Stage] = {}
    for victim in victims:
        if id(victim.unit) not in units:
            continue
        if victim.unit.gang:
            restart(plan, victim.stage, "preempt", stopped_for)
            continue
        stages[id(victim.stage)] = victim.stage
        for allocation, block in victim.tasks:
            singles.setdefault(allocation.id, Ranges()).add(block)
    for number, ranges in singles.items():
        stop(plan, plan.partition.allocations[number], ranges.flat(), "preempt", stopped_for)
    for stage in stages.values():
        if not stage.job.whole and all(allocation.state == "stopping" for allocation in live_of(stage)):
            restart(plan, stage, "preempt", stopped_for)
    return [change.into or change.allocation for change, _ in plan.done[mark:] if isinstance(change, Stopped)]
