"""Preempt: stops tasks to free capacity that an ask is entitled to.

Within a queue, a higher priority may claim from a lower one; across queues, an unmet guarantee may claim. Tasks are
stopped only if the claimant can then start. The freed capacity is promised to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairlead.core.admission import LIMITS, Admission, has_claimed
from fairlead.core.ahead.whatif import WhatIf
from fairlead.core.asks import asked_by, minimum_by_stage
from fairlead.core.changes import Promised, Released
from fairlead.core.holds.earmarks import back_soon
from fairlead.core.holds.release import end_promises
from fairlead.core.lanes import Lane, lane_key
from fairlead.core.model import FAR, Account, Ask, ClaimCause, Micros, Place, Queue
from fairlead.core.node_fit import may_take
from fairlead.core.plan import Plan
from fairlead.core.policy.victim_sets import (
    FEW,
    VICTIMS,
    Unit,
    best_of_few,
    is_unmet,
    keeps,
    lowest_level,
    without_covered,
)
from fairlead.core.preempt.victims import (
    Clearing,
    Losses,
    Victim,
    own_nodes,
    protected_until,
    ranked,
    stop_victims,
    victims_of,
)
from fairlead.core.ranges import count
from fairlead.core.resources import Vector, add
from fairlead.core.state import Partition

MAX_CLAIMS = 2_000
"""The number of units that are considered as victims for one claimant, plus 8 for each of its tasks."""

SPARED = 64
"""The number of chosen units, the most important first, that are tested again for being needed."""

Versions = tuple[int, int, int, int, int]
"""Versions of all state that claims depend on: allocations, openings, nodes, holds, stops. Starts change the first."""


def preempt(plan: Plan) -> None:
    """Make claims for the asks of sleeping lanes. Without backfill, other asks have claimed in their turn of match."""
    partition = plan.partition
    if not partition.readiness.ready or plan.more:
        return
    end_promises(plan)
    partition.memory.claims_at = FAR
    if not can_claim(partition):
        return
    later = [
        lane.memory.look_at
        for lane in partition.lanes.values()
        if lane.memory.look_at is not None and lane.memory.look_at > partition.now
    ]
    partition.memory.claims_at = min(later, default=FAR)
    claims = Claims(plan)
    refused = [(lane, ask) for lane in partition.lanes.values() for ask in _refused(lane)]
    for lane, ask in sorted(refused, key=lambda pair: _place_of(pair[1])):
        claims.make(lane, ask)


def can_claim(partition: Partition) -> bool:
    """True if tasks may be stopped for some ask: there are several priorities, or guarantees."""
    return partition.settings.preempt != "off" and (
        len(partition.derived.priorities) > 1 or partition.facts().guarantees
    )


class Claims:
    """The claims of one cycle."""

    def __init__(self, plan: Plan) -> None:
        self.partition = plan.partition
        self.plan = plan
        self._coming: Coming | None = None

    def may_make(self, lane: Lane, untried: bool = False) -> bool:
        """True if an ask of a sleeping lane may claim. `untried` leaves out asks whose claim failed in this state."""
        partition = self.partition
        for ask in _refused(lane):
            if _may_claim(partition, lane, ask):
                attempt = lane.memory.claim_attempts.get(ask.seq) if untried else None
                if attempt is None or attempt[0] != _versions(partition) or attempt[1] <= partition.now:
                    return True
        return False

    def make(self, lane: Lane, ask: Ask) -> bool:
        """Stop tasks for an ask without capacity, if it has a right to this and can then start. True if tasks stop.

        A failed claim is tried again only after a change, or when the protection of tasks ends. A claim that failed for
        lack of victims is not tried again because of starts in the same cycle: they used capacity that was free before.
        """
        partition = self.partition
        if not _may_claim(partition, lane, ask):
            return False
        versions = _versions(partition)
        attempt = lane.memory.claim_attempts.get(ask.seq)
        same_cycle = self.plan.unclaimed.get(ask.seq)
        if same_cycle is not None and same_cycle[0] == _without_starts(versions):
            attempt = (versions, same_cycle[1])
        if attempt is None or attempt[0] != versions or attempt[1] <= partition.now:
            if self._coming is None or self._coming.versions != (
                partition.derived.stops_version,
                partition.derived.holds_version,
            ):
                self._coming = Coming(partition)
            claim = _Claim(self.plan, ask, self._coming)
            if claim.make():
                return True
            attempts = lane.memory.claim_attempts
            lane.memory.claim_attempts = {seq: entry for seq, entry in attempts.items() if entry[0] == versions}
            attempt = lane.memory.claim_attempts[ask.seq] = (versions, claim.again_at)
            if not claim.is_coming:
                self.plan.unclaimed[ask.seq] = (_without_starts(versions), claim.again_at)
        _claim_later(partition, lane, attempt[1])
        return False


def _versions(partition: Partition) -> Versions:
    return (
        partition.counters.allocation,
        partition.derived.openings,
        partition.nodes.version,
        partition.derived.holds_version,
        partition.derived.stops_version,
    )


def _without_starts(versions: Versions) -> tuple[int, ...]:
    return versions[1:]


def claims_due(partition: Partition) -> Micros:
    """Return the next time at which an ask may claim: after a pause, or when the protection of tasks ends."""
    return partition.memory.claims_at if partition.now < partition.memory.claims_at else FAR


def claims_again_at(partition: Partition, ask: Ask) -> Micros:
    """Return when an ask whose claim failed may claim again, because the protection of tasks ends; `FAR` if never."""
    lane = partition.lanes.get(lane_key(ask))
    attempt = lane.memory.claim_attempts.get(ask.seq) if lane is not None else None
    return attempt[1] if attempt is not None and not has_claimed(partition, ask) else FAR


def changes_to_come(partition: Partition) -> tuple[dict[str, Vector], dict[str, Vector]]:
    """Return two maps from queues: to the resources that stopping tasks will free, and to those promised to asks."""
    losing: dict[str, Vector] = {}
    for allocation in partition.allocations.values():
        if allocation.leaving:
            for queue in allocation.stage.job.queue.line():
                add(losing.setdefault(queue.path, {}), allocation.stage.shape.resources, count(allocation.indices))
    gaining: dict[str, Vector] = {}
    for promise in partition.promises.values():
        claimant = partition.ask_of_earmark(promise)
        for queue in claimant.stage.job.queue.line() if claimant is not None else ():
            assert claimant is not None
            add(gaining.setdefault(queue.path, {}), asked_by(claimant))
    return losing, gaining


# -- claimants ---------------------------------------------------------------------------------------------------


def _refused(lane: Lane) -> list[Ask]:
    """Return the asks of a sleeping lane that were over a limit or found no capacity."""
    verdict = lane.memory.verdict
    return [ask for ask in (verdict.limited, verdict.no_capacity) if ask is not None] if verdict is not None else []


def _claim_later(partition: Partition, lane: Lane, when: Micros) -> None:
    """Note when the lane may claim again, so that match tries it at this time."""
    if when < FAR:
        lane.memory.look_at = when if lane.memory.look_at is None else min(lane.memory.look_at, when)
    partition.memory.claims_at = min(partition.memory.claims_at, when)


def _may_claim(partition: Partition, lane: Lane, ask: Ask) -> bool:
    stage = ask.stage
    if stage.asks[ask.kind] is not ask or not stage.job.preempts:
        return False
    if has_claimed(partition, ask):
        return False
    queue, priority = stage.job.queue, stage.job.priority
    lower = partition.settings.preempt == "priority" and any(other < priority for other in queue.at_work)
    if not lower and not (partition.facts().guarantees and any(level.settings.guarantee for level in queue.line())):
        return False
    if Admission(partition).refusal(ask, minimum_by_stage(ask), ignoring=(LIMITS,)) is not None:
        return False
    pause = partition.readiness.pause_ends(ask.unclaimed_until, partition.settings.promise_for)
    if pause > partition.now:
        _claim_later(partition, lane, pause)
        return False
    return True


def _place_of(ask: Ask) -> tuple[int, int, int]:
    return (-ask.stage.job.priority, ask.waiting_since, ask.seq)


class Coming:
    """The capacity that will be free when the tasks that are already stopping have ended."""

    def __init__(self, partition: Partition) -> None:
        self.versions = (partition.derived.stops_version, partition.derived.holds_version)
        self.losing, self.gaining = changes_to_come(partition)
        self.stopping = [allocation for allocation in partition.allocations.values() if allocation.leaving]
        self._partition = partition
        self._started = partition.counters.allocation
        self._future = self._look_ahead()

    def whatif(self) -> WhatIf:
        """Return a copy of this capacity for a trial. It is read again if asks started since the last claim."""
        if self._started != self._partition.counters.allocation:
            self._started = self._partition.counters.allocation
            self._future = self._look_ahead()
        return self._future.copy()

    def _look_ahead(self) -> WhatIf:
        partition = self._partition
        whatif = WhatIf(partition)
        for allocation in self.stopping:
            whatif.end(allocation)
        for node_id in back_soon(partition):
            whatif.count_on(node_id)
        return whatif


class _Claim:
    """One claim: the needs of an ask, and the search for tasks that can be stopped for it."""

    def __init__(self, plan: Plan, ask: Ask, coming: Coming) -> None:
        self.plan = plan
        self.partition = plan.partition
        self.coming = coming
        self.ask = ask
        self.is_coming = False
        """True if the claim failed because stopping tasks already free enough capacity for the ask."""
        self.again_at: Micros = FAR
        """When a claim may succeed later: the first end of a possible victim's protection."""
        self.job = ask.stage.job
        self.needs = minimum_by_stage(ask)
        self.asked = asked_by(ask)
        self.binding = self._binding(ask)
        self.own = own_nodes(self.partition, ask)
        self._left: dict[str, Vector] = {}
        """Queue → its use when all stopping tasks have ended."""
        self.guaranteed: list[Queue] = []
        for queue in self.job.queue.line():
            # Promises to other asks below the queue already use a part of its guarantee.
            used = {**self._left_of(queue)}
            add(used, coming.gaining.get(queue.path, {}))
            if ask.seq in self.partition.promises:  # a promise of ordered nodes, which the claim replaces
                add(used, self.asked, -1)
            if is_unmet(used, self.asked, dict(queue.settings.guarantee)):
                self.guaranteed.append(queue)
        self.most = MAX_CLAIMS + 8 * sum(needed for _, needed in self.needs)
        self._open: list[int] | None = None

    def make(self) -> bool:
        """Stop tasks for the ask if that lets it start. True if tasks are stopped."""
        choice = self._find()
        if choice is not None:
            self._stop(*choice)
        return choice is not None

    def _find(self) -> tuple[ClaimCause, Sequence[Victim], tuple[Place, ...]] | None:
        """Return the right of the claim, its victims and the places of the claimant; None if there are none."""
        ways: list[tuple[ClaimCause, list[Victim]]] = []
        if self.partition.settings.preempt == "priority":
            ways.append(("priority", self.in_queue()))
        if self.guaranteed:
            ways.append(("guarantee", (ways[0][1] if ways else []) + self.elsewhere()))
        if not ways or not ways[-1][1]:
            return None
        self.is_coming = self.places(()) is not None
        if self.is_coming:
            return None
        for cause, victims in ways:
            chosen = self.choose(victims)
            if chosen is not None:
                return cause, *chosen
        return None

    def _stop(self, cause: ClaimCause, victims: Sequence[Victim], places: tuple[Place, ...]) -> None:
        plan, stage, kind = self.plan, self.ask.stage, self.ask.kind
        if self.partition.earmark_of(self.ask.seq) is not None:
            plan.do(Released(self.ask.seq, "running tasks stop for it instead"))
        stopping = tuple(stop_victims(plan, victims, f"job {stage.job.id}"))
        plan.note("claimed")
        plan.do(Promised(stage.job.id, stage.position, kind, places, stopping, cause))

    def whatif(self) -> WhatIf:
        """Return the capacity that the claimant may use when all stopping tasks have ended."""
        whatif = self.coming.whatif()
        whatif.own = self.own
        return whatif

    def open(self) -> list[int]:
        """Return the nodes with capacity for a task now, or when all stopping tasks have ended."""
        if self._open is None:
            whatif = self.whatif()  # a copy: this reads every node, which would make later copies slow
            shapes = [stage.shape for stage, _ in self.needs]
            node_ids = sorted(self.partition.nodes.rows)
            self._open = [node_id for node_id in node_ids if any(whatif.fitting(node_id, shape, 1) for shape in shapes)]
        return self._open

    def _binding(self, ask: Ask) -> list[tuple[Account, Vector, Vector]]:
        """Return the accounts whose limits refuse the ask, with limit and use. Only their tasks can help as victims."""
        binding: list[tuple[Account, Vector, Vector]] = []
        for account, limit, used in Admission(self.partition).limits(ask):
            left = dict(used)
            for allocation in self.coming.stopping:
                if account in allocation.stage.job.accounts:
                    add(left, allocation.stage.shape.resources, -count(allocation.indices))
            if any(left.get(name, 0) + self.asked.get(name, 0) > most for name, most in limit.items()):
                binding.append((account, limit, left))
        return binding

    def _left_of(self, queue: Queue) -> Vector:
        left = self._left.get(queue.path)
        if left is None:
            left = self._left[queue.path] = dict(queue.account.used)
            add(left, self.coming.losing.get(queue.path, {}), -1)
        return left

    # -- which tasks might be stopped

    def in_queue(self) -> list[Victim]:
        """Return tasks of lower priority in the same queue, without those that a hold still protects."""
        return self._of(self.job.queue, lambda priority: priority < self.job.priority, by_priority=True)

    def elsewhere(self) -> list[Victim]:
        """Return tasks of the same or a lower priority outside the queues whose guarantee the claimant has."""
        victims: list[Victim] = []
        for queue in self.partition.leaves():
            above = queue.line()
            if queue is not self.job.queue and any(level not in above for level in self.guaranteed):
                victims += self._of(queue, lambda priority: priority <= self.job.priority)
        return victims

    def _of(self, queue: Queue, counts: Callable[[int], bool], by_priority: bool = False) -> list[Victim]:
        victims: list[Victim] = []
        for priority in sorted(queue.at_work):
            for job in reversed(queue.at_work[priority].values()) if counts(priority) else ():
                if len(victims) >= self.most:
                    return ranked(self.partition, victims)
                if all(account in job.accounts for account, _, _ in self.binding):
                    victims += [
                        victim for victim in victims_of(self.partition, job) if self._may_stop(victim, by_priority)
                    ]
        return ranked(self.partition, victims)

    def _may_stop(self, victim: Victim, by_priority: bool) -> bool:
        if not self._helps(victim):
            return False
        safe_until = protected_until(self.partition, self.ask, victim)
        if by_priority:
            safe_until = max(safe_until, *(allocation.safe_until for allocation, _ in victim.tasks))
        if safe_until <= self.partition.now:
            return True
        self.again_at = min(self.again_at, safe_until)
        return False

    def _helps(self, victim: Victim) -> bool:
        """True if a victim is on a node that the claimant could use, or if a limit refuses the claimant."""
        nodes = self.partition.nodes
        for allocation, _ in victim.tasks if not self.binding else ():
            row = nodes.rows[allocation.node]
            usable = nodes.placeable(row) and (allocation.node not in nodes.held or allocation.node in self.own)
            if usable and any(may_take(nodes, row, stage.shape) for stage, _ in self.needs):
                return True
        return bool(self.binding)

    # -- which are stopped

    def choose(self, victims: list[Victim]) -> tuple[Sequence[Victim], tuple[Place, ...]] | None:
        """Return the best set of victims that lets the claimant start, and its places; None if there is none.

        With at most `FEW` units all sets are compared. Otherwise `Clearing.clear` finds a set at the lowest priorities
        that are enough.
        """
        if len(victims) <= FEW:
            by_unit = {victim.unit: victim for victim in victims}
            rank = VICTIMS[self.partition.settings.victims]
            best = best_of_few(list(by_unit), lambda units: self._lets_start([by_unit[unit] for unit in units]), rank)
            chosen = [by_unit[unit] for unit in best or ()]
            places = self.places(chosen) if chosen else None
            return (chosen, places) if places is not None else None
        clearing = Clearing(
            self.partition, self.whatif(), victims, self._keeps if self.partition.facts().guarantees else None
        )
        saved = clearing.save()

        def enough(level: int) -> bool:
            clearing.restore(saved)
            return self._clear(clearing, victims, level)

        if lowest_level(clearing.levels, enough) is None:
            return None
        chosen = clearing.chosen
        if clearing.overlaps or len(self.needs) > 1 or self.binding:
            chosen = self._needed(chosen)
        return chosen, self.places(chosen) or clearing.places_of()

    def _lets_start(self, victims: Sequence[Victim]) -> bool:
        if self.partition.facts().guarantees:
            losses = Clearing(self.partition, self.coming.whatif(), (), None)
            for victim in victims:
                losses.end(victim)
            if not self._keeps(losses.losses, ()):
                return False
        return self.places(victims) is not None

    def _clear(self, clearing: Clearing, victims: Sequence[Victim], level: int) -> bool:
        """Find victims of priorities up to `level`. True if all tasks of the claimant fit when they have ended."""
        for stage, needed in self.needs:
            left = clearing.put(stage, needed, self.open())
            if clearing.clear(stage, left, level):
                return False
        return not self.binding or self._relieve(
            clearing, [victim for victim in victims if victim.unit.priority <= level]
        )

    def _relieve(self, clearing: Clearing, victims: Sequence[Victim]) -> bool:
        """Add victims until the claimant is within its limits, first those that use most of the exceeded resources."""
        over = self._over(clearing.chosen)

        def help_of(victim: Victim) -> int:
            used = dict(victim.unit.amounts)
            return (
                sum(min(used.get(name, 0), most) * 1_000_000 // most for name, most in over.items())
                // victim.unit.tasks
            )

        while over:
            left = [victim for victim in victims if help_of(victim) and clearing.may_go(victim)]
            if not left:
                return False
            unit = max(
                left, key=lambda victim: (help_of(victim), not victim.unit.gang, victim.unit.began, victim.unit.number)
            )
            clearing.end(unit)
            over = self._over(clearing.chosen)
        return True

    def _needed(self, chosen: Sequence[Victim]) -> list[Victim]:
        """Return the chosen victims without unneeded ones, of which the most important are spared first."""
        units = {id(unit) for unit in without_covered([victim.unit for victim in chosen])}
        needed = [victim for victim in chosen if id(victim.unit) in units]
        for victim in sorted(needed, key=lambda victim: _worth(victim.unit))[:SPARED]:
            without = [other for other in needed if other is not victim]
            if without and self.places(without) is not None:
                needed = without
        return needed

    def _keeps(self, losses: Losses, last: Sequence[Losses]) -> bool:
        own = self.job.queue.line()
        for path, (lost, _) in losses.items():
            queue = self.partition.queues[path]
            guarantee = dict(queue.settings.guarantee)
            if guarantee and queue not in own and not keeps(self._left_of(queue), guarantee, lost):
                return False
        return True

    def places(self, victims: Sequence[Victim]) -> tuple[Place, ...] | None:
        """Return the places of the claimant if these victims had ended; None if it could not start."""
        units = {id(unit) for unit in without_covered([victim.unit for victim in victims])}
        gone = [victim for victim in victims if id(victim.unit) in units]
        if self._over(gone):
            return None
        clearing = Clearing(self.partition, self.whatif(), (), None)
        freed: dict[int, None] = {}
        for victim in gone:
            freed |= clearing.end(victim)
        nodes = [*sorted(freed), *(node_id for node_id in self.open() if node_id not in freed)]
        for stage, needed in self.needs:
            if clearing.put(stage, needed, nodes):
                return None
        return clearing.places_of()

    def _over(self, victims: Sequence[Victim]) -> Vector:
        """Return the amounts by which the claimant would be over its limits without these victims."""
        if not self.binding:
            return {}
        freed: Vector = {}
        for unit in without_covered([victim.unit for victim in victims]):
            add(freed, dict(unit.amounts))
        over: Vector = {}
        for _, limit, used in self.binding:
            for name, most in limit.items():
                more = used.get(name, 0) - freed.get(name, 0) + self.asked.get(name, 0) - most
                if self.asked.get(name, 0) and more > over.get(name, 0):
                    over[name] = more
        return over


def _worth(unit: Unit) -> tuple[int, bool, int, int]:
    """Return a sort key that puts the most important units first: by priority, then gangs, then the oldest."""
    return (-unit.priority, not unit.gang, unit.began, unit.number)
