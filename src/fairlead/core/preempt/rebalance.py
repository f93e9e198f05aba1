"""Rebalance: tasks on loan make room for queues that are below their entitlement and have work waiting.

Nothing is stopped in vain: what a victim leaves is where waiting work will fit, and there are no more victims than that
work needs until its queue has its own. A gang goes whole or not at all, and no queue goes below its share.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import dropwhile

from fairlead.core.admission import Admission, has_claimed
from fairlead.core.asks import Needs, gang_size, minimum_by_stage
from fairlead.core.changes import Promised, Released
from fairlead.core.lanes import Lane
from fairlead.core.model import Ask, Place, Queue, Stage
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
from fairlead.core.resources import Vector, add
from fairlead.core.state import Partition
from fairlead.core.whatif import WhatIf


def rebalance(plan: Plan, parent: Queue) -> bool:
    """Stop what the children of a queue have on loan, as far as others of them are entitled to it and wait for it.

    Returns True if that is all for now. Otherwise it is tried again in the next cycle: tasks were stopped, and other
    asks may wait behind those that start then; or what could be stopped was placed in this cycle.
    """
    partition = plan.partition
    balance = _balanced(plan, parent)
    if not balance.claims and balance.fresh:
        return not _balanced(plan, parent, with_fresh=True).claims
    stopped = 0
    for claim in balance.claims:
        seq = claim.head.seq
        if claim.places and partition.kept(seq) is not None:
            plan.do(Released(seq, "a claim replaces it"))
        numbers = stop_victims(plan, claim.victims)
        stopped += sum(count(partition.allocations[number].indices) for number in numbers)
        if claim.places:
            stage = claim.head.stage
            plan.do(Promised(stage.job.id, stage.position, claim.head.kind, claim.places, tuple(numbers), "share"))
    if stopped:
        plan.note("rebalanced")
        plan.note("rebalance victims", stopped)
    return not stopped


def _balanced(plan: Plan, parent: Queue, with_fresh: bool = False) -> Balance:
    """All claims of the children that are below their entitlement, in turn."""
    partition = plan.partition
    rights = partition.entitlements()
    balance = Balance(plan, parent, with_fresh)
    for child in sorted(parent.children.values(), key=balance.place_of):
        if rights.used(child) < rights.of(child):
            for lane, head in _claimants(partition, child):
                balance.claim(child, lane, head)
    return balance


def _claimants(partition: Partition, child: Queue) -> Iterator[tuple[Lane, Ask]]:
    """The asks below a queue that found no capacity, leaf by leaf. A hold is no obstacle."""
    found = [lane for lane in partition.lanes.values() if child in lane.queue.line()]
    for lane in sorted(found, key=lambda lane: (lane.queue.path, lane.text)):
        head = lane.no_room
        if head is None or lane.asleep_at is None or head.stage.asks[head.kind] is not head:
            continue
        if not has_claimed(partition, head):
            yield lane, head


class Claim:
    """The tasks that stop so that an ask can start, and where it will, if it needs all of that at once."""

    __slots__ = ("head", "places", "victims")

    def __init__(self, head: Ask, victims: list[Victim], places: tuple[Place, ...]) -> None:
        self.head = head
        self.victims = victims
        self.places = places


class Balance:
    """What would be free and used, as one claim after the other is met.

    With `with_fresh` also what this cycle placed could be stopped: to know what the next cycle could do.
    """

    def __init__(self, plan: Plan, parent: Queue, with_fresh: bool = False) -> None:
        partition = self.partition = plan.partition
        self.plan = plan
        self.parent = parent
        self.rights = partition.entitlements()
        self.claims: list[Claim] = []
        self._with_fresh = with_fresh
        self.fresh = False
        """Whether tasks on loan were left out because this cycle placed them."""
        self._met: list[tuple[Ask, Needs]] = []
        """The asks that would start by the claims so far, and how many tasks of them."""
        self._used: dict[str, tuple[Vector, int]] = {}
        whatif = WhatIf(partition)
        self._coming: dict[int, None] = {}
        """The nodes where something stops already, and will be free before anything that is stopped now."""
        for allocation in partition.allocations.values():
            if allocation.leaving:
                whatif.end(allocation)
                self._coming[allocation.node] = None
                for queue in allocation.stage.job.queue.line():
                    # What stops is not theirs any more: they must keep their shares without it.
                    self._use(queue, allocation.stage, -count(allocation.indices))
        for promise in partition.promises.values():
            claimant = None if promise.ordered else partition.kept_for(promise)
            for stage, needed in minimum_by_stage(claimant) if claimant is not None else ():
                # What tasks stop for already is theirs.
                for queue in stage.job.queue.line():
                    self._use(queue, stage, needed)
        self._clearing = Clearing(partition, whatif, newest_first(self._on_loan()), self._keeps)

    def place_of(self, child: Queue) -> tuple[int, int, str]:
        rights = self.rights
        return turn_key(rights.used(child), rights.share(child), rights.of(child), child.name)

    def claim(self, child: Queue, lane: Lane, head: Ask) -> None:
        """Find room for a gang, or for as many single tasks of a lane as may start and its queue is entitled to."""
        if self.rights.measure(*self._level(child)) >= self.rights.of(child):
            return
        self._clearing.places = {}  # those of other asks
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
        # Nodes that are held for the first of the lane take its tasks only.
        own = own_nodes(self.partition, head)
        found = self._find(stage, min(lacking, head.count), own) if own else 0
        found += self._find(stage, lacking - found, {})
        if clearing.chosen[before:]:
            self.claims.append(Claim(head, clearing.chosen[before:], ()))
        self._use(child, stage, found)
        for ask, tasks in allowed:
            if found > 0:
                self._met.append((ask, ((ask.stage, min(tasks, found)),)))
                found -= tasks

    def _admission(self) -> Admission:
        """Admission that counts the claims so far: tasks are not stopped for an ask that a limit would refuse then."""
        admission = Admission(self.partition)
        for ask, needs in self._met:
            admission.count(ask, needs)
        return admission

    def _allowed(self, lane: Lane, first: Ask, most: int) -> list[tuple[Ask, int]]:
        """The single tasks of a lane that may start, up to a number, in order from an ask on.

        Behind a gang without room none do.
        """
        admission = self._admission()
        found: list[tuple[Ask, int]] = []
        for each in dropwhile(lambda each: each is not first, lane):
            if most <= 0:
                break
            if not _is_single(each):
                if admission.refusal(each, minimum_by_stage(each)) is None:
                    break
                continue
            tasks, _ = admission.most(each, each.stage, 1, min(each.count, most))
            if tasks:
                admission.count(each, ((each.stage, tasks),))
                found.append((each, tasks))
                most -= tasks
        return found

    def _find(self, stage: Stage, wanted: int, own: dict[int, None]) -> int:
        """Make room for single tasks, the lowest priorities first. Returns for how many."""
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
        look = clearing.whatif.copy()
        nodes = [
            node_id
            for node_id in sorted(self.partition.nodes.rows)
            if any(look.room(node_id, shape, 1) for shape in shapes)
        ]

        def enough(level: int, first: Victim | None = None) -> bool:
            clearing.restore(saved)
            free = nodes if first is None else [*nodes, *clearing.end(first)]
            return not any(clearing.clear(stage, clearing.put(stage, needed, free), level) for stage, needed in needs)

        clearing.refused = False
        found = lowest_level(clearing.levels, enough) is not None
        if not found and clearing.refused:
            # What was cheap on one node may be all that its queue can lose, and a larger gang be what is needed.
            clearing.restore(saved)
            firsts = clearing.cheapest(FEW)
            found = any(enough(each.unit.priority, each) for each in firsts)
            found = found or any(enough(clearing.levels[-1], each) for each in firsts)
        if not found:
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
        used, many = self._level(queue)
        more = dict(used)
        add(more, stage.shape.resources, tasks)
        self._used[queue.path] = (more, many + tasks)

    def _lacking(self, child: Queue, lane: Lane, stage: Stage) -> int:
        """How many tasks of a lane start before their queue has all that it is entitled to."""
        waiting = sum(each.count for each in lane if _is_single(each))
        resources = stage.shape.resources
        return self.rights.starts_below(self.rights.of(child), *self._level(child), resources, waiting)

    def _keeps(self, losses: Losses) -> bool:
        """True if all queues below the uneven one keep their share, and what they are guaranteed."""
        for path, (lost, tasks) in losses.items():
            queue = self.partition.queues[path]
            if queue is self.parent or self.parent not in queue.line():
                continue
            used, many = self._level(queue)
            less = dict(used)
            add(less, lost, -1)
            guarantee = dict(queue.settings.guarantee)
            if any(less.get(name, 0) < guarantee[name] for name in lost if name in guarantee):
                return False
            if self.rights.measure(less, many - tasks) < self.rights.of(queue):
                return False
        return True

    # -- victims

    def _on_loan(self) -> Iterator[Victim]:
        """All that could be stopped below the children that have something on loan."""
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
        """True if it is at work again after it had been stopped, and not for long: it would never get anywhere."""
        again = any(allocation.attempt > 1 for allocation, _ in victim.tasks)
        return again and self.partition.now - victim.unit.began < self.partition.settings.rebalance_after


def _is_single(ask: Ask) -> bool:
    """True if the tasks of an ask start one by one."""
    return gang_size(ask) == 1 and not ask.whole
