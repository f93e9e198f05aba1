"""Rebalance: stops tasks on loan for queues that are below their entitlement and have work waiting.

No stop is wasted: waiting tasks fit where a victim was, and no more tasks stop than the queue needs to reach its
entitlement. A gang is stopped whole or not at all. Tasks that end by themselves in time are not stopped.

A queue loses tasks until it is down to its share. The last unit that it loses may be only partly on loan, if an ask
within the entitlement of its own queue cannot start otherwise. Such a unit cannot win its capacity back in the same
way, because with it the queue would exceed its entitlement.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import dropwhile, islice
from typing import Any, NamedTuple

from fairlead.core.admission import Admission, has_claimed
from fairlead.core.ahead.easy import is_kept_back
from fairlead.core.ahead.expected_ends import end_of
from fairlead.core.ahead.whatif import WhatIf
from fairlead.core.asks import Needs, asked_for, is_single, minimum_by_stage
from fairlead.core.changes import Promised, Released
from fairlead.core.holds.recall import LOOKED_AT, is_recalled
from fairlead.core.holds.starvation import in_turn
from fairlead.core.lanes import Lane
from fairlead.core.model import Allocation, Ask, Micros, Place, Queue, Stage
from fairlead.core.node_fit import fitting_in
from fairlead.core.plan import Plan
from fairlead.core.policy.shares import turn_key
from fairlead.core.policy.victim_sets import FEW, lowest_level
from fairlead.core.preempt.victims import Clearing, Losses, Victim, own_nodes, ranked, stop_victims, victims_of
from fairlead.core.ranges import count
from fairlead.core.resources import SECOND, Vector, add
from fairlead.core.shape import Shape
from fairlead.core.state import Partition


def rebalance(plan: Plan, parent: Queue) -> Micros | None:
    """Stop tasks that children of a queue have on loan, for siblings that wait and are entitled to the capacity.

    Returns the time at which to try again. Returns None if tasks were stopped: then the next cycle tries again, because
    further asks may wait behind those that start.
    """
    partition = plan.partition
    balance = Balance(partition, parent, plan.now).settle()
    stopped = 0
    for claim in balance.claims:
        seq = claim.head.seq
        if claim.places and partition.earmark_of(seq) is not None:
            plan.do(Released(seq, "running tasks stop for it instead"))
        job = claim.head.stage.job
        # Tasks that are replaced one by one stop for any tasks of the lane.
        claimant = f"job {job.id}" if claim.places else f"queue {job.queue.path}"
        numbers = stop_victims(plan, claim.victims, claimant)
        stopped += sum(count(partition.allocations[number].indices) for number in numbers)
        if claim.places:
            stage = claim.head.stage
            plan.do(Promised(stage.job.id, stage.position, claim.head.kind, claim.places, tuple(numbers), "share"))
    if stopped:
        plan.note("rebalanced")
        plan.note("rebalance victims", stopped)
    return None if stopped else balance.again_at


def _claimants(partition: Partition, child: Queue) -> list[tuple[Lane, Ask]]:
    """Return the heads that claim for a queue: those for which nodes are set aside, then by priority and age."""
    lanes = [lane for lane in partition.lanes.values() if child in lane.queue.line()]
    heads = [(lane, head) for lane in lanes if (head := lane.no_capacity()) and head.stage.asks[head.kind] is head]
    return sorted(heads, key=lambda pair: (not is_recalled(partition, pair[1]), in_turn(pair[1])))


class Claim(NamedTuple):
    head: Ask
    victims: list[Victim]
    places: tuple[Place, ...]
    """Empty for single tasks of which each takes the place of one, and for an ask that nodes are kept for already."""


class Balance:
    """A plan of claims below one queue, with the capacity and the use of queues that result from them."""

    def __init__(self, partition: Partition, parent: Queue, now: Micros) -> None:
        self.partition = partition
        self.now = now
        self.parent = parent
        self.rights = partition.entitlements()
        self.claims: list[Claim] = []
        self.again_at: Micros = now + partition.settings.rebalance_after + 1
        """When to try again: when tasks that have just begun may be stopped, within a second to `rebalance_after`."""
        self._met: list[tuple[Ask, Needs]] = []
        """The asks that the claims so far let start, with the number of their tasks."""
        self._used: dict[str, tuple[Vector, int]] = {}
        whatif = WhatIf(partition)
        self._coming: dict[int, None] = {}
        """Nodes where tasks are already stopping. Their capacity becomes free first."""
        for allocation in partition.allocations.values():
            if allocation.leaving:
                whatif.end(allocation)
                self._coming[allocation.node] = None
                self._use_of_ended(allocation)
        for promise in partition.promises.values():
            claimant = None if promise.ordered else partition.ask_of_earmark(promise)
            for stage, needed in minimum_by_stage(claimant) if claimant is not None else ():
                # Capacity that is being freed for a claimant counts as used by the claimant's queues.
                for queue in stage.job.queue.line():
                    self._use(queue, stage, needed)
        soon = self.now + partition.settings.preempt_grace
        self._ending: dict[int, Micros] = {}
        """Allocations that end by themselves within `preempt_grace` → their expected ends."""
        self._ended: dict[int, None] = {}
        """The allocations in `_ending` that count as ended."""
        for allocation in partition.allocations.values():
            end = None if allocation.leaving or allocation.slots else end_of(allocation, partition.now)
            if end is not None and end <= soon:
                self._ending[allocation.id] = end
        self.served: dict[int, tuple[Micros, int, int]] = {}
        """Ask → when it can start, and the numbers of tasks that end by themselves and that are stopped until then."""
        self._last_let_end: tuple[int, Micros] = (0, now)
        """The number of tasks that end by themselves for the last ask, and the last of their ends."""
        self._crossing = False
        """True while the last unit that a queue loses may be only partly on loan."""
        self._clearing = Clearing(partition, whatif, ranked(partition, self._on_loan()), self._keeps)

    def settle(self) -> Balance:
        """Collect claims for the children that are below their entitlement, in the order of turns."""
        rights = self.rights
        for child in sorted(self.parent.children.values(), key=self.place_of):
            if rights.used(child) < rights.of(child):
                for lane, head in _claimants(self.partition, child):
                    self.serve(child, lane, head)
        return self

    def place_of(self, child: Queue) -> tuple[int, int, str]:
        rights = self.rights
        return turn_key(rights.used(child), rights.share(child), rights.of(child), child.name)

    def serve(self, child: Queue, lane: Lane, head: Ask) -> None:
        """Find victims for the asks of a lane in order, as long as its queue is below its entitlement.

        A gang within the entitlement that gets none ends the search: later asks do not pass it. Behind any other gang
        the search goes on, but later asks need nodes of their own: a gang gets them by its claim, and single tasks
        start only on nodes that are held for them.
        """
        hidden = False
        for ask in islice(dropwhile(lambda ask: ask is not head, lane), LOOKED_AT):
            if self.rights.measure(*self._level(child)) >= self.rights.of(child):
                return
            self._clearing.places = {}  # drop the places of earlier claims
            if has_claimed(self.partition, ask):
                hidden = True
            elif is_single(ask):
                self._claim_singles(child, lane, ask, hidden)
                return
            elif self._admission().refusal(ask, minimum_by_stage(ask)) is None:
                within = self._stays_within(child, minimum_by_stage(ask))
                if not self._claim_whole(child, ask, within, hidden) and within:
                    if is_recalled(self.partition, ask):  # its share stays set aside
                        for stage, needed in minimum_by_stage(ask):
                            self._use(child, stage, needed)
                    return
                hidden = True

    def _claim_singles(self, child: Queue, lane: Lane, head: Ask, hidden: bool) -> None:
        """Find victims for single tasks of a lane, up to the queue's entitlement.

        With `hidden`, an ask ahead of them has no capacity yet, so they start only on nodes that are held for them.
        """
        stage, clearing = head.stage, self._clearing
        before = len(clearing.chosen)
        allowed = self._allowed(lane, head, self._lacking(child, lane, stage))
        # Nodes held for one of the asks accept only its tasks.
        held = {id(ask): own_nodes(self.partition, ask) for ask, _ in allowed} if self.partition.nodes.held else {}
        own = {node_id: None for nodes in held.values() for node_id in nodes}
        if hidden:
            allowed = [(ask, tasks) for ask, tasks in allowed if held.get(id(ask))]
        lacking = sum(tasks for _, tasks in allowed)
        most_own = sum(tasks for ask, tasks in allowed if held.get(id(ask)))
        let_end = self._let_end(head, own, lacking)
        ending, saved = self._last_let_end, clearing.save()

        def free(most: int) -> int:
            fitting = self._free_capacity(stage, most_own, own) if own else 0
            fitting += self._free_capacity(stage, most - fitting, {}) if not hidden else 0
            return fitting + self._free_crossing(stage, self._within(child, stage, most) - fitting, most_own, own)

        fitting = free(lacking)
        places: tuple[Place, ...] = ()
        stopped = len(clearing.chosen) - before
        if (
            not (own or let_end)
            and fitting > 0
            and (stopped > fitting or (stopped and is_kept_back(self.partition, head)))
        ):
            # Several tasks or gangs stop for one task, or the task is kept back for a planned head: without a promise,
            # others would take each part of their room.
            clearing.restore(saved)
            fitting, places = free(1), clearing.places_of()
        victims = clearing.chosen[before:]
        if victims:
            self.claims.append(Claim(head, victims, places))
        if fitting:
            self._serve(head, victims, ending)
        self._use(child, stage, fitting)
        for ask, tasks in allowed:
            if fitting > 0:
                self._met.append((ask, ((ask.stage, min(tasks, fitting)),)))
                fitting -= tasks

    def _free_crossing(self, stage: Stage, more: int, most_own: int, own: dict[int, None]) -> int:
        """Free capacity for more single tasks within the entitlement, also from units that are only partly on loan."""
        if more <= 0:
            return 0
        self._crossing = True
        fitting = self._free_capacity(stage, min(more, most_own) if own else more, own)
        self._crossing = False
        return fitting

    def _let_end(self, head: Ask, own: Collection[int], lacking: int) -> bool:
        """Count tasks as ended that end by themselves within `preempt_grace`, if the head will get their capacity.

        A head gets it on nodes that are kept for it, and single tasks wherever one ended task is enough. Nothing is
        counted for a head that has waited for longer than loans may last, because estimates may be wrong. True if a
        task counts as ended.
        """
        settings, clearing = self.partition.settings, self._clearing
        clearing.spared = {}
        self._last_let_end = (0, self.now)
        patience = settings.rebalance_after + settings.preempt_grace
        waits_until = self.partition.readiness.counts_from(head.waiting_since) + patience
        if self.now >= waits_until:
            return False
        before = len(self._ended)
        clearing.spared = self._ending
        whatif, shape = clearing.whatif, head.stage.shape
        for number, end in self._ending.items():
            allocation = self.partition.allocations[number]
            node_id = allocation.node
            if number in self._ended or clearing.is_victim(allocation):
                continue
            if node_id not in own:
                if lacking <= 0 or not is_single(head) or whatif.fitting(node_id, shape, 1):
                    continue
                if not whatif.takes(node_id, shape) or not self._is_room_without(allocation, shape):
                    continue
                lacking -= 1
            self._ended[number] = None
            clearing.expect(allocation)
            self._coming[node_id] = None
            self._use_of_ended(allocation)
            tasks, last = self._last_let_end
            self._last_let_end = (tasks + count(allocation.indices), max(last, end))
            self.again_at = max(self.now + SECOND, min(self.again_at, end + 1, waits_until))
        return len(self._ended) > before

    def _serve(self, head: Ask, victims: Sequence[Victim], ending: tuple[int, Micros]) -> None:
        """Note when an ask can start. Tasks that are told to stop end within their grace."""
        ends, last = ending
        stopped = sum(count(block) for victim in victims for _, block in victim.tasks)
        grace = max((self.partition.grace_of(victim.stage) for victim in victims), default=0)
        when = max(last, self.now + grace) if stopped else last
        self.served[head.seq] = (when, ends, stopped)

    def _is_room_without(self, allocation: Allocation, shape: Shape) -> bool:
        left = self._clearing.whatif.without_some(allocation.node, [(allocation, allocation.indices)])
        return fitting_in(*left, shape, 1)[0] > 0

    def _admission(self) -> Admission:
        """Return an admission that counts the claims so far, because no tasks may stop for an ask over a limit."""
        admission = Admission(self.partition)
        for ask, needs in self._met:
            admission.count(ask, needs)
        return admission

    def _allowed(self, lane: Lane, first: Ask, most: int) -> list[tuple[Ask, int]]:
        """Return up to `most` single tasks of a lane that may start, beginning with an ask.

        A gang that may start ends the list, because it found no capacity and later tasks do not pass it.
        """
        admission = self._admission()
        allowed: list[tuple[Ask, int]] = []
        for ask in dropwhile(lambda ask: ask is not first, lane):
            if most <= 0:
                break
            if not is_single(ask):
                if admission.refusal(ask, minimum_by_stage(ask)) is None:
                    break
                continue
            tasks, _ = admission.most(ask, ask.stage, 1, min(ask.count, most))
            if tasks:
                admission.count(ask, ((ask.stage, tasks),))
                allowed.append((ask, tasks))
                most -= tasks
        return allowed

    def _free_capacity(self, stage: Stage, wanted: int, own: dict[int, None]) -> int:
        """Free capacity for single tasks, stopping the lowest priorities first. Returns how many then fit."""
        clearing = self._clearing
        clearing.whatif.own = own
        left = clearing.put(stage, wanted, sorted({**self._coming, **own}))
        for level in clearing.levels:
            left = clearing.clear(stage, left, level)
        clearing.whatif.own = ()
        return wanted - left

    def _claim_whole(self, child: Queue, head: Ask, within: bool, hidden: bool) -> bool:
        """Find victims for a gang. True if it can start when they end, or without victims unless `hidden`.

        With `hidden`, an ask ahead of it has no capacity yet, so it does not start on free nodes.
        """
        clearing, needs = self._clearing, minimum_by_stage(head)
        before = len(clearing.chosen)
        own = clearing.whatif.own = own_nodes(self.partition, head)
        let_end = self._let_end(head, own, 0)
        ending = self._last_let_end
        saved = clearing.save()
        shapes = [stage.shape for stage, _ in needs]
        whatif = clearing.whatif.copy()
        nodes = [
            node_id
            for node_id in sorted(self.partition.nodes.rows)
            if any(whatif.fitting(node_id, shape, 1) for shape in shapes)
        ]

        def enough(level: int, first: Victim | None = None) -> bool:
            clearing.restore(saved)
            free = nodes if first is None else [*nodes, *clearing.end(first)]
            return not any(clearing.clear(stage, clearing.put(stage, needed, free), level) for stage, needed in needs)

        may_fit = all(clearing.may_fit(stage, needed) for stage, needed in needs)
        fits = may_fit and self._fits_by_stops(needs, saved, enough)
        if may_fit and not fits and within:
            self._crossing = True
            fits = self._fits_by_stops(needs, saved, enough)
            self._crossing = False
        chosen, places = clearing.chosen[before:], clearing.places_of()
        if fits and chosen and let_end:
            # A promise would end when the last stopped task has ended. The hold lasts until the others have, too.
            if any(node_id not in own for node_id, _, _ in places):
                fits = False
            places = ()
        if hidden and not (chosen or own):
            fits = False
        if not fits:
            clearing.restore(saved)
        else:
            if chosen:
                self.claims.append(Claim(head, chosen, places))
            self._serve(head, chosen, ending)
            for stage, needed in needs:
                self._use(child, stage, needed)
            self._met.append((head, needs))
        clearing.whatif.own = ()
        return fits

    def _fits_by_stops(self, needs: Needs, saved: tuple[Any, ...], enough: Callable[..., bool]) -> bool:
        """Find the victims of the lowest possible priorities so that a gang can start. False if there are none."""
        clearing = self._clearing
        clearing.refused = False
        if lowest_level(clearing.levels, enough) is not None:
            return True
        if not clearing.refused:
            return False
        # The cheapest victim on one node may use up what its queue can lose, so that a larger gang cannot be
        # stopped although it is needed. Try to start with each of the cheapest victims.
        clearing.restore(saved)
        firsts = clearing.cheapest(FEW)
        if any(enough(victim.unit.priority, victim) for victim in firsts):
            return True
        if any(enough(clearing.levels[-1], victim) for victim in firsts):
            return True
        # A queue that loses some of its dominant resource can lose less of the others: spare resources not asked for.
        clearing.only = {name for stage, _ in needs for name in stage.shape.resources}
        fits = lowest_level(clearing.levels, enough) is not None
        clearing.only = None
        return fits

    # -- what is used

    def _level(self, queue: Queue) -> tuple[Vector, int]:
        account = queue.account
        return self._used.get(queue.path) or (account.used, account.tasks)

    def _use(self, queue: Queue, stage: Stage, tasks: int) -> None:
        used, before = self._level(queue)
        more = dict(used)
        add(more, stage.shape.resources, tasks)
        self._used[queue.path] = (more, before + tasks)

    def _use_of_ended(self, allocation: Allocation) -> None:
        """Count the tasks of an allocation as ended in the use of its queues."""
        for queue in allocation.stage.job.queue.line():
            self._use(queue, allocation.stage, -count(allocation.indices))

    def _lacking(self, child: Queue, lane: Lane, stage: Stage) -> int:
        """Return how many tasks of a lane may start before their queue reaches its entitlement."""
        waiting = sum(ask.count for ask in lane if is_single(ask))
        resources = stage.shape.resources
        return self.rights.starts_below(self.rights.of(child), *self._level(child), resources, waiting)

    def _within(self, child: Queue, stage: Stage, most: int) -> int:
        """Return how many more tasks of a stage, up to `most`, keep their queue within its entitlement."""
        resources, beyond = stage.shape.resources, self.rights.of(child) + 1
        return self.rights.starts_below(beyond, *self._level(child), resources, most + 1) - 1

    def _stays_within(self, child: Queue, needs: Needs) -> bool:
        used, before = self._level(child)
        more = dict(used)
        add(more, asked_for(needs))
        return self.rights.measure(more, before + sum(tasks for _, tasks in needs)) <= self.rights.of(child)

    def _keeps(self, losses: Losses, last: Sequence[Losses]) -> bool:
        """True if all queues below `parent` keep their guarantee and share with these losses.

        `last` has the losses of the newest units, one by one. While `_crossing`, one unit of each queue may be only
        partly on loan. That may be one chosen earlier: the others are on loan then, in whatever order they were chosen.
        """
        for path, (lost, tasks) in losses.items():
            queue = self.partition.queues[path]
            if queue is self.parent or self.parent not in queue.line() or not any(path in each for each in last):
                continue
            used, tasks_used = self._level(queue)
            less = dict(used)
            add(less, lost, -1)
            guarantee = dict(queue.settings.guarantee)
            if any(less.get(name, 0) < guarantee[name] for name in lost if name in guarantee):
                return False
            if self.rights.measure(less, tasks_used - tasks) < self.rights.of(queue) and not (
                self._crossing
                and any(
                    self._was_on_loan(queue, less, tasks_used - tasks, each)
                    for each in (*self._clearing.unit_losses, *last)
                )
            ):
                return False
        return True

    def _was_on_loan(self, queue: Queue, less: Vector, tasks: int, last: Losses) -> bool:
        """True if a queue with these losses would be above its entitlement if it kept one unit."""
        amounts, more = last.get(queue.path, ({}, 0))
        used = dict(less)
        add(used, amounts)
        return self.rights.measure(used, tasks + more) > self.rights.of(queue)

    # -- victims

    def _on_loan(self) -> Iterator[Victim]:
        for leaf in self.partition.leaves():
            line = leaf.line()
            if self.parent in line[:-1] and self.rights.loaned(line[line.index(self.parent) + 1]):
                for priority in sorted(leaf.at_work):
                    for job in leaf.at_work[priority].values():
                        for victim in victims_of(self.partition, job):
                            if not self._has_just_begun(victim):
                                yield victim

    def _has_just_begun(self, victim: Victim) -> bool:
        """True if a victim has run for less than `min_runtime`, or in a later attempt for less than `rebalance_after`.

        Otherwise a task could be stopped again and again and never finish.
        """
        settings = self.partition.settings
        again = any(allocation.attempt > 1 for allocation, _ in victim.tasks)
        least = max(settings.least_runtime, settings.rebalance_after if again else 0, 1)
        if self.now - victim.unit.began >= least:
            return False
        self.again_at = max(self.now + SECOND, min(self.again_at, victim.unit.began + least))
        return True
