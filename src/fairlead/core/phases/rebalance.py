"""Rebalance: the newest tasks on loan make room for queues that are below their entitlement and have work waiting.

Nobody is stopped in vain: a victim's room is where waiting work will fit, and there are no more victims than what that
work needs until its queue has its own. A gang goes whole or not at all, and no queue goes below its share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairlead.core.changes import Promised
from fairlead.core.future import Future
from fairlead.core.holding import may_take
from fairlead.core.lanes import Lane
from fairlead.core.model import Allocation, Place, Queue, Reservation, Stage
from fairlead.core.phases.preempt import Victim, stop_victims, victims_of
from fairlead.core.phases.turn import is_admitted, needs_of, together_of
from fairlead.core.plan import Plan
from fairlead.core.policy.shares import turn_key
from fairlead.core.policy.victims import without_covered
from fairlead.core.ranges import Ranges, count, difference
from fairlead.core.resources import Vector, add
from fairlead.core.state import Partition

Block = tuple[Allocation, tuple[int, ...]]
"""Tasks of an allocation."""


def rebalance(plan: Plan, parent: Queue) -> None:
    """Stop what the children of a queue have on loan, as far as others of them are entitled to it and wait for it."""
    p = plan.partition
    rights = p.entitlements()
    balance = Balance(p, parent)
    for child in sorted(parent.children.values(), key=balance.place_of):
        if rights.used(child) < rights.of(child):
            for lane, reservation in _claimants(p, child):
                balance.claim(child, lane, reservation)
    stopped = 0
    for claim in balance.claims:
        # Who takes all of a gang need not take some of it as well.
        units = {id(unit) for unit in without_covered([victim.unit for victim in claim.victims])}
        numbers = stop_victims(plan, [victim for victim in claim.victims if id(victim.unit) in units])
        stopped += sum(count(p.allocations[number].indices) for number in numbers)
        if claim.places:
            stage = claim.reservation.stage
            plan.do(
                Promised(stage.job.id, stage.position, claim.reservation.kind, claim.places, tuple(numbers), "share")
            )
    if stopped:
        plan.note("rebalanced")
        plan.note("rebalance victims", stopped)


def _claimants(p: Partition, child: Queue) -> Iterator[tuple[Lane, Reservation]]:
    """Those below a queue who are allowed to start and found no room, leaf by leaf."""
    found = [lane for lane in p.lanes.values() if child in lane.queue.line()]
    for lane in sorted(found, key=lambda lane: (lane.queue.path, lane.text)):
        reservation = lane.no_room
        if (
            reservation is None
            or lane.slept is None
            or reservation.stage.reservations[reservation.kind] is not reservation
        ):
            continue
        if p.kept(reservation.seq) is None and is_admitted(p, reservation.stage.job):
            yield lane, reservation


class Claim:
    """Whom somebody's start costs their room; where it will start, if it needs all of that at once."""

    __slots__ = ("places", "reservation", "victims")

    def __init__(self, reservation: Reservation, victims: list[Victim], places: tuple[Place, ...]) -> None:
        self.reservation = reservation
        self.victims = victims
        self.places = places


class Balance:
    """What would be free and used, as one claim after the other is met."""

    def __init__(self, p: Partition, parent: Queue) -> None:
        self.p = p
        self.parent = parent
        self.rights = p.entitlements()
        self.claims: list[Claim] = []
        self._used: dict[str, tuple[Vector, int]] = {}
        self._future = Future(p)
        self._coming: dict[int, None] = {}
        """The nodes where something stops already, and will be free before anybody who is stopped now."""
        for allocation in p.allocations.values():
            if allocation.leaving:
                self._future.end(allocation)
                self._coming[allocation.node] = None
                for queue in allocation.stage.job.queue.line():
                    # What stops is not theirs any more: they must keep their shares without it.
                    self._use(queue, allocation.stage, -count(allocation.indices))
        self._victims = sorted(self._on_loan(), key=_newest_first)
        self._gone: dict[int, Ranges] = {}
        """Allocation → the tasks of it that are as if ended."""
        self._unused: dict[int, list[Victim]] = {}
        """Node → victims on it of whose room nothing has come yet."""
        self._taken: dict[int, None] = {}
        """The victims of whose room something has come."""

    def place_of(self, child: Queue) -> tuple[int, int, str]:
        rights = self.rights
        return turn_key(rights.used(child), rights.share(child), rights.of(child), child.name)

    def claim(self, child: Queue, lane: Lane, reservation: Reservation) -> None:
        """Find room for a gang, or for as many single tasks of a lane as its queue is entitled to."""
        if self.rights.measure(*self._level(child)) >= self.rights.of(child):
            return
        if together_of(reservation) > 1 or reservation.whole:
            self._claim_whole(child, reservation)
            return
        stage = reservation.stage
        victims: list[Victim] = []
        places = self._find(stage, self._lacking(child, lane, stage), victims)
        if victims:
            self.claims.append(Claim(reservation, victims, ()))
        self._use(child, stage, sum(tasks for _, _, tasks in places))

    def _claim_whole(self, child: Queue, reservation: Reservation) -> None:
        before = self._state()
        victims: list[Victim] = []
        places: list[Place] = []
        for stage, needed in needs_of(reservation):
            found = self._find(stage, needed, victims)
            places += found
            if sum(tasks for _, _, tasks in found) < needed:
                self._future, self._used, self._victims, self._gone, self._unused, self._taken = before
                return
        if victims:
            self.claims.append(Claim(reservation, victims, tuple(places)))
        for stage, needed in needs_of(reservation):
            self._use(child, stage, needed)

    def _state(self) -> tuple[Any, ...]:
        gone = {number: ranges.copy() for number, ranges in self._gone.items()}
        unused = {join: list(victims) for join, victims in self._unused.items()}
        return self._future.copy(), dict(self._used), self._victims, gone, unused, dict(self._taken)

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
        resources = stage.shape.resources
        return self.rights.starts_below(self.rights.of(child), *self._level(child), resources, _waiting(lane))

    def _may_lose(self, victim: Victim, blocks: list[Block]) -> bool:
        """Whether all queues below the uneven one keep their share, and what they are guaranteed; it counts if so."""
        freed: Vector = {}
        tasks = 0
        for allocation, block in blocks:
            add(freed, allocation.stage.shape.resources, count(block))
            tasks += count(block)
        line = victim.stage.job.queue.line()
        after: dict[str, tuple[Vector, int]] = {}
        for level in line[line.index(self.parent) + 1 :]:
            used, many = self._level(level)
            less = dict(used)
            add(less, freed, -1)
            guarantee = dict(level.settings.guarantee)
            if any(less.get(name, 0) < guarantee[name] for name in freed if name in guarantee):
                return False
            if self.rights.measure(less, many - tasks) < self.rights.of(level):
                return False
            after[level.path] = (less, many - tasks)
        self._used |= after
        return True

    # -- room

    def _find(self, stage: Stage, wanted: int, victims: list[Victim]) -> list[Place]:
        """Places for up to so many tasks; whoever makes room for them is added to the victims."""
        places: dict[int, int] = {}
        for join in sorted(self._coming):
            wanted -= self._settle(join, stage, wanted, victims, places)
        left: list[Victim] = []
        for at, victim in enumerate(self._victims):
            if not wanted:
                left += self._victims[at:]
                break
            freed = self._end(victim, stage)
            for join in freed:
                wanted -= self._settle(join, stage, wanted, victims, places)
            if not freed:
                left.append(victim)
        self._victims = left
        return [(join, stage.position, tasks) for join, tasks in places.items()]

    def _settle(self, join: int, stage: Stage, wanted: int, victims: list[Victim], places: dict[int, int]) -> int:
        """Set down what fits a node by now, and take those who made room there. Returns how many tasks that are."""
        tasks = self._future.pack(join, stage.shape, wanted)
        if tasks:
            places[join] = places.get(join, 0) + tasks
            for victim in self._unused.pop(join, ()):
                if id(victim) not in self._taken:
                    self._taken[id(victim)] = None
                    victims.append(victim)
        return tasks

    # -- victims

    def _on_loan(self) -> Iterator[Victim]:
        """All that could be stopped below the children that have something on loan."""
        for leaf in self.p.leaves():
            line = leaf.line()
            if self.parent in line[:-1] and self.rights.loaned(line[line.index(self.parent) + 1]):
                for priority in sorted(leaf.at_work):
                    for job in leaf.at_work[priority].values():
                        yield from victims_of(job)

    def _end(self, victim: Victim, stage: Stage) -> list[int]:
        """Think of a victim as gone, if it may go and its room is of use. Returns the nodes that have more room."""
        gone = self._gone
        blocks = [
            (each, difference(block, gone[each.id].flat()) if each.id in gone else block)
            for each, block in victim.tasks
        ]
        blocks = [(each, block) for each, block in blocks if block]
        if not any(self._helps(each, stage) for each, _ in blocks) or self._has_just_begun(victim):
            return []
        if not self._may_lose(victim, blocks):
            return []
        for allocation, block in blocks:
            self._future.end_some(allocation, block)
            gone.setdefault(allocation.id, Ranges()).add(block)
            self._unused.setdefault(allocation.node, []).append(victim)
        return list({each.node: None for each, _ in blocks})

    def _helps(self, allocation: Allocation, stage: Stage) -> bool:
        nodes = self.p.nodes
        row = nodes.rows[allocation.node]
        usable = nodes.placeable(row) and allocation.node not in nodes.held
        return usable and may_take(nodes, row, stage.shape)

    def _has_just_begun(self, victim: Victim) -> bool:
        """Whether it is at work again after it had been stopped, and not for long: it would never get anywhere."""
        again = any(allocation.attempt > 1 for allocation, _ in victim.tasks)
        return again and self.p.now - victim.unit.began < self.p.settings.rebalance_after


def _newest_first(victim: Victim) -> tuple[int, int, int, bool]:
    # Of a gang that can lose some, these come before all of it.
    return (-victim.unit.began, -victim.unit.number, -victim.unit.task, victim.unit.gang)


def _waiting(lane: Lane) -> int:
    """How many tasks of a lane wait to start one by one."""
    return sum(each.count for each in lane if together_of(each) == 1 and not each.whole)
