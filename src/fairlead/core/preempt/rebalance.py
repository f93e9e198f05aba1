"""Rebalance: stops tasks on loan for queues that are below their entitlement and have work waiting.

No stop is wasted: waiting tasks fit where a victim was, and no more tasks stop than the queue needs to reach its
entitlement. A gang is stopped whole or not at all, and no queue goes below its share.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import dropwhile

from fairlead.core.admission import Admission, has_claimed
from fairlead.core.asks import Needs, gang_size, minimum_by_stage
from fairlead.core.changes import Promised, Released
from fairlead.core.lanes import Lane
from fairlead.core.model import Ask, Micros, Place, Queue, Stage
from fairlead.core.plan import Plan
from fairlead.core.policy.shares import turn_key
from fairlead.core.policy.victims import FEW, lowest_level
from fairlead.core.preempt.victims import (
    Clearing,
    Losses,
    Victim,
    is_fresh,
    newest_first,
    own_nodes,
    stop_victims,
    victims_of,
)
from fairlead.core.ranges import count
from fairlead.core.resources import SECOND, Vector, add
from fairlead.core.state import Partition
from fairlead.core.whatif import WhatIf


def rebalance(plan: Plan, parent: Queue) -> Micros | None:
    """Stop tasks that children of a queue have on loan, as far as other children are entitled to them and wait.

    Returns the time at which to try again if nothing more can be done for now. Returns None if the next cycle tries
    again: either tasks were stopped, and further asks may wait behind those that start then; or the possible victims
    were placed in this cycle.
    """
    partition = plan.partition
    balance = _balance(plan, parent)
    if not balance.claims and balance.fresh and _balance(plan, parent, with_fresh=True).claims:
        return None
    stopped = 0
    for claim in balance.claims:
        seq = claim.head.seq
        if claim.places and partition.earmark_of(seq) is not None:
            plan.do(Released(seq, "running tasks stop for it instead"))
        job = claim.head.stage.job
        # Single tasks stop for any tasks of the lane, a gang's victims for the gang.
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


def _balance(plan: Plan, parent: Queue, with_fresh: bool = False) -> Balance:
    """Collect claims for the children that are below their entitlement, in the order of turns."""
    partition = plan.partition
    rights = partition.entitlements()
    balance = Balance(plan, parent, with_fresh)
    for child in sorted(parent.children.values(), key=balance.place_of):
        if rights.used(child) < rights.of(child):
            for lane, head in _claimants(partition, child):
                balance.claim(child, lane, head)
    return balance


def _claimants(partition: Partition, child: Queue) -> Iterator[tuple[Lane, Ask]]:
    """Yield the asks below a queue that found no capacity, leaf by leaf, including asks with a hold."""
    lanes = [lane for lane in partition.lanes.values() if child in lane.queue.line()]
    for lane in sorted(lanes, key=lambda lane: (lane.queue.path, lane.text)):
        head = lane.memory.no_room
        if head is None or lane.memory.asleep_at is None or head.stage.asks[head.kind] is not head:
            continue
        if not has_claimed(partition, head):
            yield lane, head


class Claim:
    """The victims of an ask, and its places if it is a gang."""

    __slots__ = ("head", "places", "victims")

    def __init__(self, head: Ask, victims: list[Victim], places: tuple[Place, ...]) -> None:
        self.head = head
        self.victims = victims
        self.places = places


class Balance:
    """Free capacity and use of queues, updated claim by claim.

    With `with_fresh`, tasks that this cycle placed count as victims too, to find out what the next cycle could do.
    """

    def __init__(self, plan: Plan, parent: Queue, with_fresh: bool = False) -> None:
        partition = self.partition = plan.partition
        self.plan = plan
        self.parent = parent
        self.rights = partition.entitlements()
        self.claims: list[Claim] = []
        self._with_fresh = with_fresh
        self.fresh = False
        """True if tasks on loan were left out because this cycle placed them."""
        self.again_at: Micros = plan.now + partition.settings.rebalance_after + 1
        """When tasks may be stopped that have just begun; at most `rebalance_after` and at least a second later."""
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
                for queue in allocation.stage.job.queue.line():
                    # A queue must keep its share without its stopping tasks.
                    self._use(queue, allocation.stage, -count(allocation.indices))
        for promise in partition.promises.values():
            claimant = None if promise.ordered else partition.ask_of_earmark(promise)
            for stage, needed in minimum_by_stage(claimant) if claimant is not None else ():
                # Capacity that is being freed for a claimant counts as used by the claimant's queues.
                for queue in stage.job.queue.line():
                    self._use(queue, stage, needed)
        self._clearing = Clearing(partition, whatif, newest_first(self._on_loan()), self._keeps)

    def place_of(self, child: Queue) -> tuple[int, int, str]:
        rights = self.rights
        return turn_key(rights.used(child), rights.share(child), rights.of(child), child.name)

    def claim(self, child: Queue, lane: Lane, head: Ask) -> None:
        """Find victims for a gang, or for single tasks of a lane, up to the queue's entitlement."""
        if self.rights.measure(*self._level(child)) >= self.rights.of(child):
            return
        self._clearing.places = {}  # drop the places of earlier claims
        if not _is_single(head):
            if self._admission().refusal(head, minimum_by_stage(head)) is None:
                self._claim_whole(child, head)
        else:
            self._claim_singles(child, lane, head)

    def _claim_singles(self, child: Queue, lane: Lane, head: Ask) -> None:
        stage, clearing = head.stage, self._clearing
        before = len(clearing.chosen)
        allowed = self._allowed(lane, head, self._lacking(child, lane, stage))
        lacking = sum(tasks for _, tasks in allowed)
        # Nodes held for the head accept only its tasks.
        own = own_nodes(self.partition, head)
        fitting = self._make_room(stage, min(lacking, head.count), own) if own else 0
        fitting += self._make_room(stage, lacking - fitting, {})
        if clearing.chosen[before:]:
            self.claims.append(Claim(head, clearing.chosen[before:], ()))
        self._use(child, stage, fitting)
        for ask, tasks in allowed:
            if fitting > 0:
                self._met.append((ask, ((ask.stage, min(tasks, fitting)),)))
                fitting -= tasks

    def _admission(self) -> Admission:
        """Return an admission that counts the claims so far, so that no tasks stop for an ask over a limit."""
        admission = Admission(self.partition)
        for ask, needs in self._met:
            admission.count(ask, needs)
        return admission

    def _allowed(self, lane: Lane, first: Ask, most: int) -> list[tuple[Ask, int]]:
        """Return the single tasks of a lane that may start, from an ask on, up to `most`.

        Stops at a gang that may start: it found no capacity, and tasks behind it do not pass it.
        """
        admission = self._admission()
        allowed: list[tuple[Ask, int]] = []
        for ask in dropwhile(lambda ask: ask is not first, lane):
            if most <= 0:
                break
            if not _is_single(ask):
                if admission.refusal(ask, minimum_by_stage(ask)) is None:
                    break
                continue
            tasks, _ = admission.most(ask, ask.stage, 1, min(ask.count, most))
            if tasks:
                admission.count(ask, ((ask.stage, tasks),))
                allowed.append((ask, tasks))
                most -= tasks
        return allowed

    def _make_room(self, stage: Stage, wanted: int, own: dict[int, None]) -> int:
        """Free capacity for single tasks, stopping the lowest priorities first. Returns how many then fit."""
        clearing = self._clearing
        clearing.whatif.own = own
        left = clearing.put(stage, wanted, sorted({**self._coming, **own}))
        for level in clearing.levels:
            left = clearing.clear(stage, left, level)
        clearing.whatif.own = ()
        return wanted - left

    def _claim_whole(self, child: Queue, head: Ask) -> None:
        clearing, needs = self._clearing, minimum_by_stage(head)
        before = len(clearing.chosen)
        clearing.whatif.own = own_nodes(self.partition, head)
        saved = clearing.save()
        shapes = [stage.shape for stage, _ in needs]
        whatif = clearing.whatif.copy()
        nodes = [
            node_id
            for node_id in sorted(self.partition.nodes.rows)
            if any(whatif.room(node_id, shape, 1) for shape in shapes)
        ]

        def enough(level: int, first: Victim | None = None) -> bool:
            clearing.restore(saved)
            free = nodes if first is None else [*nodes, *clearing.end(first)]
            return not any(clearing.clear(stage, clearing.put(stage, needed, free), level) for stage, needed in needs)

        clearing.refused = False
        fits = lowest_level(clearing.levels, enough) is not None
        if not fits and clearing.refused:
            # The cheapest victim on one node may use up what its queue can lose, so that a larger gang cannot be
            # stopped although it is needed. Try to start with each of the cheapest victims.
            clearing.restore(saved)
            firsts = clearing.cheapest(FEW)
            fits = any(enough(victim.unit.priority, victim) for victim in firsts)
            fits = fits or any(enough(clearing.levels[-1], victim) for victim in firsts)
            if not fits:
                # A queue that loses some of its dominant resource can lose less of the others: spare resources not
                # asked for.
                clearing.only = {name for stage, _ in needs for name in stage.shape.resources}
                fits = lowest_level(clearing.levels, enough) is not None
                clearing.only = None
        if not fits:
            clearing.restore(saved)
        else:
            if clearing.chosen[before:]:
                self.claims.append(Claim(head, clearing.chosen[before:], clearing.places_of()))
            for stage, needed in needs:
                self._use(child, stage, needed)
            self._met.append((head, needs))
        clearing.whatif.own = ()

    # -- what is used

    def _level(self, queue: Queue) -> tuple[Vector, int]:
        account = queue.account
        return self._used.get(queue.path) or (account.used, account.tasks)

    def _use(self, queue: Queue, stage: Stage, tasks: int) -> None:
        used, before = self._level(queue)
        more = dict(used)
        add(more, stage.shape.resources, tasks)
        self._used[queue.path] = (more, before + tasks)

    def _lacking(self, child: Queue, lane: Lane, stage: Stage) -> int:
        """Return how many tasks of a lane may start before their queue reaches its entitlement."""
        waiting = sum(ask.count for ask in lane if _is_single(ask))
        resources = stage.shape.resources
        return self.rights.starts_below(self.rights.of(child), *self._level(child), resources, waiting)

    def _keeps(self, losses: Losses) -> bool:
        """True if all queues below the rebalanced one keep their share and their guarantee."""
        for path, (lost, tasks) in losses.items():
            queue = self.partition.queues[path]
            if queue is self.parent or self.parent not in queue.line():
                continue
            used, tasks_used = self._level(queue)
            less = dict(used)
            add(less, lost, -1)
            guarantee = dict(queue.settings.guarantee)
            if any(less.get(name, 0) < guarantee[name] for name in lost if name in guarantee):
                return False
            if self.rights.measure(less, tasks_used - tasks) < self.rights.of(queue):
                return False
        return True

    # -- victims

    def _on_loan(self) -> Iterator[Victim]:
        """Yield the possible victims below children that have a loan."""
        for leaf in self.partition.leaves():
            line = leaf.line()
            if self.parent in line[:-1] and self.rights.loaned(line[line.index(self.parent) + 1]):
                for priority in sorted(leaf.at_work):
                    for job in leaf.at_work[priority].values():
                        for victim in victims_of(job):
                            fresh = is_fresh(self.plan, victim)
                            self.fresh = self.fresh or fresh
                            if (not fresh or self._with_fresh) and not self._has_just_begun(victim):
                                yield victim

    def _has_just_begun(self, victim: Victim) -> bool:
        """True if a victim has run for less than `min_runtime`, or again for less than `rebalance_after`.

        A task that is stopped again and again would never finish.
        """
        settings = self.partition.settings
        again = any(allocation.attempt > 1 for allocation, _ in victim.tasks)
        least = max(settings.least_runtime, settings.rebalance_after if again else 0)
        if self.partition.now - victim.unit.began >= least:
            return False
        self.again_at = max(self.plan.now + SECOND, min(self.again_at, victim.unit.began + least))
        return True


def _is_single(ask: Ask) -> bool:
    """True if the tasks of an ask start one by one."""
    return gang_size(ask) == 1 and not ask.whole
