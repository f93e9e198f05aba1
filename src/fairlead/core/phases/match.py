"""Match: in turns, the first head over all open lanes of a leaf is tried, a gang whole or not at all.

A head for which there is no room closes its lane for this cycle; one that is not allowed (a limit, a stopped queue,
too large for any node) is passed over and keeps its place. A lane in which nothing can be placed sleeps until room or
a limit may have opened. A cycle places at most `max_placed` tasks, or one gang. A job that starts whole is one gang
over all its stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace

from fairlead.core.changes import Began, Part, Placed
from fairlead.core.explain import most_ever, never_whole
from fairlead.core.lanes import Lane
from fairlead.core.model import NEW, SCALE, Job, Queue, Reservation, Stage
from fairlead.core.outcomes import ask_for_rest
from fairlead.core.phases.hands import Hands, room_on
from fairlead.core.plan import Plan
from fairlead.core.policy.limits import allowed, may_run, tasks_allowed
from fairlead.core.policy.order import Key
from fairlead.core.ranges import split
from fairlead.core.reasons import NeverFits, NoRoom, NotActive, NotReady, OverLimit, Reason, StillStopping
from fairlead.core.resources import CPU, GPU, MEMORY, Vector, add, scale
from fairlead.core.shape import Shape
from fairlead.core.state import Partition


def match(plan: Plan) -> None:
    p = plan.partition
    awake = _awake(plan)
    if not p.reign.ready:
        for lanes in awake.values():
            for lane in lanes:
                _say(plan, lane.head(), NotReady())
        return
    if awake:
        p.index.put_all_back()
    left = p.settings.max_placed
    for path in sorted(awake):
        left = _serve_leaf(plan, p.queues[path], awake[path], left)
        if left <= 0:
            plan.more = True
            return


def _awake(plan: Plan) -> dict[str, list[Lane]]:
    """The lanes that may have something to place, by queue."""
    p = plan.partition
    seen = (p.room, p.nodes.version)
    awake: dict[str, list[Lane]] = {}
    for key, lane in p.lanes.items():
        if lane.slept != seen:
            awake.setdefault(lane.queue.path, []).append(lane)
            plan.looked.add(key)
    return awake


class Turns:
    """The next reservation of each open lane of a leaf, first the one whose turn it is."""

    def __init__(self, plan: Plan, leaf: Queue, lanes: list[Lane]) -> None:
        self.plan = plan
        self.fair = leaf.settings.order == "fair"
        self._heap: list[tuple[Key, str, Lane, Reservation]] = []
        self._walks: dict[Lane, Iterator[Reservation]] = {}
        self._passed: dict[int, None] = {}
        for lane in lanes:
            head = lane.head()
            if head is not None:
                self._walks[lane] = walk = iter(lane)
                heappush(self._heap, (lane.key(head), lane.text, lane, next(walk)))

    def __len__(self) -> int:
        return len(self._heap)

    def current(self) -> tuple[Lane, Reservation]:
        """Whose turn it is, until its lane goes on or is closed."""
        heap = self._heap
        while self.fair:
            key, text, lane, reservation = heap[0]
            place = lane.key(reservation)
            if place == key:
                break
            heapreplace(heap, (place, text, lane, reservation))  # its job runs more than before
        return heap[0][2], heap[0][3]

    def go_on(self, after: Reservation | None = None) -> None:
        """The turn is over. The lane queues up again, with the reservation that had it if that wants more."""
        lane = self._heap[0][2]
        following = after
        if self.fair:
            # Places move with every task that starts: look from the beginning, past those that were passed over.
            found = lane.after(self._passed)
            following = None if found is None else found[1]
        elif after is None or after.stage.reservations[after.kind] is not after:
            following = next(self._walks[lane], None)
        if following is None:
            self.close()
        else:
            heapreplace(self._heap, (lane.key(following), lane.text, lane, following))

    def pass_over(self) -> None:
        """It keeps its place, and the next one of its lane is tried."""
        self._passed[id(self._heap[0][3])] = None
        self.go_on()

    def close(self) -> None:
        """Nothing more of this lane in this cycle: it sleeps until something changes for it."""
        lane = heappop(self._heap)[2]
        lane.slept = (self.plan.partition.room, self.plan.partition.nodes.version)


def _serve_leaf(plan: Plan, leaf: Queue, lanes: list[Lane], left: int) -> int:
    """Give turns until every lane is closed, or as many tasks as may be are placed. Returns how many may still be."""
    turns, hands = Turns(plan, leaf, lanes), Hands(plan)
    most = plan.partition.settings.max_placed
    begun: list[Reservation] = []
    while turns and left > 0:
        lane, reservation = turns.current()
        # Under `fair` places move with every task that starts, so that each start has to be seen at once.
        if not turns.fair and hands.give(lane, reservation):
            left -= 1
            turns.go_on()
            continue
        together = _together(reservation)
        if together > left and left < most:
            left = 0  # a gang that is too large for what is left of this cycle opens the next one
            break
        alone = len(turns) == 1 and lane.size == 1
        placed, reason = _take_turn(plan, reservation, together, left if alone or not turns.fair else 1)
        left -= placed
        if reason is None:
            if reservation.whole:
                begun.append(reservation)
            turns.go_on(reservation)
        elif isinstance(reason, NoRoom) and hands.empty():
            continue  # there is more room than it seemed: the same one is tried again
        else:
            _say(plan, reservation, reason)
            if isinstance(reason, NoRoom) or _blocks_all(reservation, reason):
                turns.close()
            else:
                turns.pass_over()
    hands.empty()
    for whole in begun:
        # The lanes that they go to now may have had their turns; another cycle looks at them.
        plan.more |= ask_for_rest(plan, whole)
    return left


def _blocks_all(reservation: Reservation, reason: Reason) -> bool:
    """Whether what keeps this one back keeps back its whole lane: equal tasks of the same queue."""
    if isinstance(reason, OverLimit):
        shared = (level.account.name for level in reservation.stage.job.queue.line())
        return _together(reservation) == 1 and reason.account in shared
    if isinstance(reason, NeverFits):
        return reason.most == 0 and not reservation.whole
    return isinstance(reason, NotActive)


def _take_turn(plan: Plan, reservation: Reservation, together: int, most: int) -> tuple[int, Reason | None]:
    """One gang, or single tasks up to a number. Returns how many were placed, and why no more could be."""
    if reservation.whole:
        return _start_whole(plan, reservation, together)
    stage, kind = reservation.stage, reservation.kind
    wanted = stage.pending[kind]
    p, job = plan.partition, stage.job
    if wanted is None or len(wanted) < together or (stage.live and _still_stopping(reservation)):
        return 0, StillStopping()
    reason = _admit(p, job)
    if reason is not None:
        return 0, reason
    most = together if together > 1 else min(most, len(wanted))
    limited = [(each.name, each.limit, each.used) for each in job.accounts if each.limit is not None]
    if limited:
        reason = allowed(limited, scale(stage.shape.resources, together))
        if reason is not None:
            return 0, reason
        most = tasks_allowed(limited, stage.shape.resources, most)
    block = wanted.first(most)
    parts, placed = _choose(p, stage.shape, block, most)
    taken = [part.node for part in parts]
    if placed < together:
        p.index.put_back(taken)
        return 0, _no_room(p, reservation, together, placed)
    if placed < most:
        block = wanted.first(placed)
    attempt = stage.next_attempt(block) if stage.history else stage.floor + 1
    number = p.counters.allocation
    plan.do(Placed(job.id, stage.position, kind, attempt, number, tuple(parts), number if together > 1 else 0))
    p.index.put_back(taken)
    return placed, None


def _start_whole(plan: Plan, reservation: Reservation, together: int) -> tuple[int, Reason | None]:
    """What a job needs of every stage, at once or not at all. Returns how many tasks were placed, or why none was."""
    p = plan.partition
    job = reservation.stage.job
    needs = _needs(job)
    if any(len(stage.wanted(NEW)) < needed for stage, needed in needs) or _still_stopping(reservation):
        return 0, StillStopping()
    reason = _admit(p, job) or _over_limit(job, needs)
    if reason is not None:
        return 0, reason
    mark, room = plan.mark(), p.room
    group = p.counters.allocation if together > 1 else 0
    tried: list[tuple[str, int, int]] = []
    for stage, needed in needs:
        block = stage.wanted(NEW).first(needed)
        parts, placed = _choose(p, stage.shape, block, needed)
        tried.append((stage.name, needed, placed))
        if placed == needed:
            attempt = stage.next_attempt(block)
            plan.do(Placed(job.id, stage.position, NEW, attempt, p.counters.allocation, tuple(parts), group))
        else:
            plan.rollback(mark)
            p.room = room  # what is free again was only tried: nobody else need look
        p.index.put_back([part.node for part in parts])
        if placed < needed:
            found = sum(placed for _, _, placed in tried)
            return 0, never_whole(p, needs) or NoRoom(together, found, stages=tuple(tried))
    plan.do(Began(job.id))
    return together, None


def _needs(job: Job) -> list[tuple[Stage, int]]:
    """How much of each stage has to start, those first that are the hardest to find room for.

    Small tasks that may go anywhere would otherwise stand where alone the large and choosy ones fit.
    """

    def ease(stage: Stage) -> tuple[int, ...]:
        key = stage.shape.key
        asked = dict(key.resources)
        choosy = len(key.selectors) + bool(key.pool)
        return (-asked.get(GPU, 0), -choosy, -asked.get(CPU, 0), -asked.get(MEMORY, 0), stage.position)

    return [(stage, stage.needed) for stage in sorted(job.stages, key=ease) if stage.needed]


def _over_limit(job: Job, needs: list[tuple[Stage, int]]) -> OverLimit | None:
    """A limit that all of it together would exceed."""
    asked: Vector = {}
    for stage, needed in needs:
        add(asked, stage.shape.resources, needed)
    return allowed(((each.name, each.limit, each.used) for each in job.accounts), asked)


def _still_stopping(reservation: Reservation) -> bool:
    """Whether members of the same gang have yet to come back."""
    if reservation.whole:
        return any(each.cause == "gang" for stage in reservation.stages for each in (stage.live or {}).values())
    stage = reservation.stage
    if stage.started and reservation.kind != SCALE:
        return False
    return any(each.cause == "gang" for each in (stage.live or {}).values())


def _together(reservation: Reservation) -> int:
    """How many tasks have to start at once."""
    if reservation.whole:
        return sum(stage.needed for stage in reservation.stages)
    stage = reservation.stage
    if stage.count == 1:
        return 1
    if reservation.kind == NEW:
        return 1 if stage.started else max(1, stage.needed)
    if reservation.kind == SCALE and stage.terms.scaling == "strict" and not stage.terms.min:
        return reservation.count
    return 1


def _admit(p: Partition, job: Job) -> Reason | None:
    """Whether the job may start, or go on, at all."""
    if p.stopped:
        for queue in job.queue.line():
            if queue.state == "stopped":
                return NotActive(queue.path)
    if job.allocations:
        return None
    bounded = [(each.name, each.max_jobs, each.running) for each in job.accounts if each.max_jobs is not None]
    return may_run(bounded) if bounded else None


def _choose(p: Partition, shape: Shape, block: tuple[int, ...], most: int) -> tuple[list[Part], int]:
    """Nodes for up to that many tasks of a block, the fullest that fit first; out of the index until put back."""
    nodes, index = p.nodes, p.index
    parts: list[Part] = []
    left = most
    while left:
        # The last one may stay where it is: nobody looks for another.
        join = index.first(shape) if left == 1 else index.take(shape)
        if join is None:
            break
        row = nodes.rows[join]
        # The index says that one fits; only more need a look.
        fitting, devices = (1, ()) if left == 1 and not shape.devices else room_on(p, shape, row, left)
        if fitting < left:
            taken, block = split(block, fitting)
        else:
            taken = block
        parts.append(Part(join, taken, devices))
        left -= fitting
    return parts, most - left


def _no_room(p: Partition, reservation: Reservation, wanted: int, found: int) -> Reason:
    most = most_ever(p, reservation.stage.shape, reservation.stage.job.manager, wanted)
    return NeverFits(wanted, most) if most < wanted else NoRoom(wanted, found)


def _say(plan: Plan, reservation: Reservation | None, reason: Reason) -> None:
    if reservation is not None:
        for stage in reservation.stages:
            plan.reasons[stage.job.id, stage.name, reservation.kind] = reason
