"""Preempt: who has a right to room that others use has these stopped, and gets what they leave.

Within a queue a higher priority goes before a lower one; across queues a guarantee that is not met does. A claimant
gets all that it has to start with, or nobody is stopped. What becomes of the room is promised to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from fairlead.core.changes import Promised, Stopped
from fairlead.core.future import Future
from fairlead.core.holding import may_take
from fairlead.core.lanes import Lane
from fairlead.core.model import (
    Account,
    Allocation,
    ClaimCause,
    Job,
    Micros,
    Place,
    Queue,
    Reservation,
    Stage,
    StopCause,
)
from fairlead.core.outcomes import restart, stop
from fairlead.core.phases.kept import end_promises
from fairlead.core.phases.turn import asked_by, is_admitted, limits_of, needs_of, share_spent
from fairlead.core.plan import Plan
from fairlead.core.policy.victims import (
    Unit,
    fewest,
    in_order,
    is_unmet,
    keeping_guarantees,
    surplus,
    without_covered,
)
from fairlead.core.ranges import Ranges, count
from fairlead.core.resources import Vector, add
from fairlead.core.state import FAR, Partition

MOST = 2_000
"""So many that could be stopped are looked at for a claimant, and some more for a large one."""


class Victim:
    """A unit of tasks that may be stopped: what it is, and where its tasks are."""

    __slots__ = ("stage", "tasks", "unit")

    def __init__(self, unit: Unit, stage: Stage, tasks: list[tuple[Allocation, tuple[int, ...]]]) -> None:
        self.unit = unit
        self.stage = stage
        self.tasks = tasks


def preempt(plan: Plan) -> None:
    p = plan.partition
    end_promises(plan)
    if not p.reign.ready or plan.more or (len(p.priorities) < 2 and not p.facts().guarantees):
        return
    p.claims_at = FAR
    coming: Coming | None = None
    for lane, reservation in sorted(_claimants(p), key=lambda each: _place_of(each[1])):
        seen = (p.room, p.nodes.version, p.holds_version, p.counters.allocation, p.stops)
        if lane.unclaimed.get(reservation.seq) == seen:
            continue
        if coming is None or coming.seen != (p.stops, p.holds_version):
            coming = Coming(p)
        if not _claim(plan, reservation, coming):
            lane.unclaimed = {seq: then for seq, then in lane.unclaimed.items() if then == seen}
            lane.unclaimed[reservation.seq] = seen


def claims_due(p: Partition) -> Micros:
    """When somebody may claim again for whom stopping others did not help, if nothing happens before."""
    return p.claims_at if p.now < p.claims_at else FAR


def changes_to_come(p: Partition) -> tuple[dict[str, Vector], dict[str, Vector]]:
    """Queue → what it will have lost when all that stops is gone, and what is promised to those below it."""
    losing: dict[str, Vector] = {}
    for allocation in p.allocations.values():
        if allocation.leaving:
            for queue in allocation.stage.job.queue.line():
                add(losing.setdefault(queue.path, {}), allocation.stage.shape.resources, count(allocation.indices))
    gaining: dict[str, Vector] = {}
    for promise in p.promises.values():
        claimant = p.kept_for(promise)
        for queue in claimant.stage.job.queue.line() if claimant is not None else ():
            assert claimant is not None
            add(gaining.setdefault(queue.path, {}), asked_by(claimant))
    return losing, gaining


def stop_victims(plan: Plan, victims: Iterable[Victim], cause: StopCause = "preempt") -> list[int]:
    """Stop tasks for somebody else: gangs whole, or those that they can do without. They are asked for again.

    Returns the numbers of the allocations that stop.
    """
    mark = plan.mark()
    singles: dict[int, Ranges] = {}
    for victim in victims:
        if victim.unit.gang:
            restart(plan, victim.stage, cause)
            continue
        for allocation, block in victim.tasks:
            singles.setdefault(allocation.id, Ranges()).add(block)
    for number, ranges in singles.items():
        stop(plan, plan.partition.allocations[number], ranges.flat(), cause)
    return [change.into or change.allocation for change, _ in plan.done[mark:] if isinstance(change, Stopped)]


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
    everything: list[tuple[Allocation, tuple[int, ...]]] = []
    total: Vector = {}
    of = (job.id, first.position)
    for stage in first.gang():
        live = [each for each in (stage.live or {}).items() if each[1].state != "stopping" and not each[1].rooms]
        live.sort(key=lambda item: (_began(item[1]), item[1].id, item[0]))
        amounts = stage.shape.amounts
        add(total, stage.shape.resources, len(live))
        whole = {allocation.id: allocation for _, allocation in live}
        everything += [(allocation, allocation.indices) for allocation in whole.values()]
        spared = len(live) - surplus(len(live), stage.needed if stage.started else len(live))
        for index, allocation in reversed(live[spared:]):
            unit = Unit(False, job.priority, _began(allocation), allocation.id, index, of, job.queue.path, amounts)
            yield Victim(unit, stage, [(allocation, (index, index + 1))])
    if everything:
        newest = max(everything, key=lambda item: (_began(item[0]), item[0].id))[0]
        amounts = tuple(sorted(total.items()))
        unit = Unit(True, job.priority, _began(newest), newest.id, 0, of, job.queue.path, amounts)
        yield Victim(unit, first, everything)


def _began(allocation: Allocation) -> int:
    return allocation.since if allocation.started is None else allocation.started


# -- who claims --------------------------------------------------------------------------------------------------


def _claimants(p: Partition) -> Iterator[tuple[Lane, Reservation]]:
    """Those who are first in their lanes to find no room, or to be beyond a limit."""
    for lane in p.lanes.values():
        for reservation in (lane.limited, lane.no_room):
            if reservation is not None and _may_claim(p, lane, reservation):
                yield lane, reservation


def _may_claim(p: Partition, lane: Lane, reservation: Reservation) -> bool:
    stage = reservation.stage
    if lane.slept is None or stage.reservations[reservation.kind] is not reservation:
        return False
    if p.kept(reservation.seq) is not None:
        return False
    queue, priority = stage.job.queue, stage.job.priority
    if not any(each < priority for each in queue.at_work) and not (
        p.facts().guarantees and any(each.settings.guarantee for each in queue.line())
    ):
        return False
    if not is_admitted(p, stage.job) or share_spent(p, reservation) is not None:
        return False
    if reservation.unclaimed_until > p.now:
        p.claims_at = min(p.claims_at, reservation.unclaimed_until)
        return False
    return True


def _place_of(reservation: Reservation) -> tuple[int, int, int]:
    return (-reservation.stage.job.priority, reservation.waiting_since, reservation.seq)


class Coming:
    """What will be there when all that stops is gone: it is free before anybody who is stopped now."""

    def __init__(self, p: Partition) -> None:
        self.seen = (p.stops, p.holds_version)
        self.losing, self.gaining = changes_to_come(p)
        self.stopping = [each for each in p.allocations.values() if each.leaving]
        self.future = Future(p)
        for allocation in self.stopping:
            self.future.end(allocation)


def _claim(plan: Plan, reservation: Reservation, coming: Coming) -> bool:
    """Stop others for a reservation, if that lets it start. Returns whether anybody is stopped."""
    claim = _Claim(plan.partition, reservation, coming)
    ways: list[tuple[ClaimCause, list[Victim]]] = [("priority", claim.in_queue())]
    if claim.guaranteed:
        ways.append(("guarantee", ways[0][1] + claim.elsewhere()))
    if not ways[-1][1] or claim.places(()) is not None:
        return False  # there is nobody, or what it needs is coming anyway
    for cause, victims in ways:
        chosen = claim.choose(victims)
        if chosen:
            places = claim.places(chosen)
            assert places is not None
            stage = reservation.stage
            stopping = tuple(stop_victims(plan, chosen))
            plan.note("claimed")
            plan.do(Promised(stage.job.id, stage.position, reservation.kind, places, stopping, cause))
            return True
    return False


class _Claim:
    """What a reservation needs, and who might make room for it."""

    def __init__(self, p: Partition, reservation: Reservation, coming: Coming) -> None:
        self.p = p
        self.coming = coming
        self.job = reservation.stage.job
        self.needs = needs_of(reservation)
        self.asked = asked_by(reservation)
        self.binding = self._binding(reservation)
        self._left: dict[str, Vector] = {}
        """Queue → what it keeps when all that stops is gone."""
        self.guaranteed: list[Queue] = []
        for queue in self.job.queue.line():
            # Others below the queue who are promised room have a part of its guarantee already.
            used = {**self._left_of(queue)}
            add(used, coming.gaining.get(queue.path, {}))
            if is_unmet(used, self.asked, dict(queue.settings.guarantee)):
                self.guaranteed.append(queue)
        self.most = MOST + 8 * sum(needed for _, needed in self.needs)
        self._open: list[int] | None = None

    def open(self) -> list[int]:
        """The nodes that have room now, or will have when all that stops is gone."""
        if self._open is None:
            future = self.coming.future.copy()  # it learns of every node, and is copied often
            shapes = [stage.shape for stage, _ in self.needs]
            joins = sorted(self.p.nodes.rows)
            self._open = [join for join in joins if any(future.room(join, shape, 1) for shape in shapes)]
        return self._open

    def _binding(self, reservation: Reservation) -> list[tuple[Account, Vector, Vector]]:
        """The accounts whose limits keep it back, with limit and use: only who is booked there can help."""
        found: list[tuple[Account, Vector, Vector]] = []
        accounts = [account for account in self.job.accounts if account.limit is not None]
        for account, (_, limit, used) in zip(accounts, limits_of(self.p, reservation), strict=True):
            left = dict(used)
            for allocation in self.coming.stopping:
                if account in allocation.stage.job.accounts:
                    add(left, allocation.stage.shape.resources, -count(allocation.indices))
            if any(left.get(name, 0) + self.asked.get(name, 0) > most for name, most in limit.items()):
                found.append((account, limit, left))
        return found

    def _left_of(self, queue: Queue) -> Vector:
        known = self._left.get(queue.path)
        if known is None:
            known = self._left[queue.path] = dict(queue.account.used)
            add(known, self.coming.losing.get(queue.path, {}), -1)
        return known

    # -- who might be stopped

    def in_queue(self) -> list[Victim]:
        """Tasks of lower priority in the same queue."""
        return self._of(self.job.queue, lambda priority: priority < self.job.priority)

    def elsewhere(self) -> list[Victim]:
        """Tasks of no higher priority in queues that the guarantee is not theirs as well."""
        found: list[Victim] = []
        for queue in self.p.leaves():
            above = queue.line()
            if queue is not self.job.queue and any(level not in above for level in self.guaranteed):
                found += self._of(queue, lambda priority: priority <= self.job.priority)
        return found

    def _of(self, queue: Queue, counts: Callable[[int], bool]) -> list[Victim]:
        found: list[Victim] = []
        for priority in sorted(queue.at_work):
            for job in reversed(queue.at_work[priority].values()) if counts(priority) else ():
                if len(found) >= self.most:
                    return found
                if all(account in job.accounts for account, _, _ in self.binding):
                    found += [victim for victim in victims_of(job) if self._helps(victim)]
        return found

    def _helps(self, victim: Victim) -> bool:
        """Whether its room is where the claimant could go, or what it uses counts against the same limit."""
        nodes = self.p.nodes
        for allocation, _ in victim.tasks if not self.binding else ():
            row = nodes.rows[allocation.node]
            usable = nodes.placeable(row) and allocation.node not in nodes.held
            if usable and any(may_take(nodes, row, stage.shape) for stage, _ in self.needs):
                return True
        return bool(self.binding)

    # -- who is

    def choose(self, victims: list[Victim]) -> list[Victim]:
        """As few as let the claimant start, or none."""
        known = {victim.unit: victim for victim in victims}
        line = self.job.queue.line()
        queues = {
            path: [
                (self._left_of(level), dict(level.settings.guarantee))
                for level in self.p.queues[path].line()
                if level not in line and level.settings.guarantee
            ]
            for path in {unit.queue: None for unit in known}
        }
        units = keeping_guarantees(in_order(known), queues)
        chosen = fewest(units, lambda some: self.places([known[unit] for unit in some]) is not None)
        return [known[unit] for unit in chosen or ()]

    def places(self, victims: Sequence[Victim]) -> tuple[Place, ...] | None:
        """Where the claimant would start if these were gone; None if it could not."""
        units = {id(unit) for unit in without_covered([victim.unit for victim in victims])}
        gone = [victim for victim in victims if id(victim.unit) in units]
        if not self._allowed(gone):
            return None
        future = self.coming.future.copy()
        freed: dict[int, None] = {}
        for victim in gone:
            for allocation, block in victim.tasks:
                future.end_some(allocation, block)
                freed[allocation.node] = None
        nodes = [*sorted(freed), *(join for join in self.open() if join not in freed)]
        places: list[Place] = []
        for stage, needed in self.needs:
            left = needed
            for join in nodes:
                tasks = future.pack(join, stage.shape, left)
                if tasks:
                    places.append((join, stage.position, tasks))
                    left -= tasks
                if not left:
                    break
            if left:
                return None
        return tuple(places)

    def _allowed(self, victims: list[Victim]) -> bool:
        """Whether the limits that keep it back would let it start."""
        freed: Vector = {}
        for victim in victims:
            add(freed, dict(victim.unit.amounts))
        return all(
            used.get(name, 0) - freed.get(name, 0) + self.asked.get(name, 0) <= most
            for _, limit, used in self.binding
            for name, most in limit.items()
            if self.asked.get(name, 0)
        )
