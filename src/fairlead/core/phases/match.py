"""Match: in turns, the first head over all open lanes of a leaf is tried, a gang whole or not at all.

A head for which there is no room closes its lane for this cycle; one that is not allowed (a limit, a stopped queue,
too large for any node) is passed over and keeps its place. A lane in which nothing can be placed sleeps until room or
a limit may have opened. A cycle places at most `max_placed` tasks, or one gang.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace

from fairlead.core.changes import Part, Placed
from fairlead.core.explain import most_ever
from fairlead.core.fitindex import FitIndex
from fairlead.core.lanes import Lane
from fairlead.core.model import NEW, SCALE, Job, Queue, Reservation, Stage
from fairlead.core.nodeindex import Choice
from fairlead.core.phases.hands import Hands
from fairlead.core.phases.topology import gather
from fairlead.core.plan import Plan
from fairlead.core.policy.limits import allowed, may_run, tasks_allowed
from fairlead.core.policy.order import Key
from fairlead.core.ranges import split
from fairlead.core.reasons import NeverFits, NoRoom, NotActive, NotReady, OverLimit, Reason, StillStopping
from fairlead.core.resources import scale
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
    while awake:
        before = left
        for path in sorted(awake):
            left = _serve_leaf(plan, p.queues[path], awake[path], left)
            if left <= 0:
                plan.more = True
                return
        # What was placed may have moved others up in their lanes (`fair`), or barred a head that had no room.
        awake = _awake(plan) if left < before else {}


def _awake(plan: Plan) -> dict[str, list[Lane]]:
    """The lanes that may have something to place, by queue."""
    p = plan.partition
    seen = (p.room, p.nodes.version)
    awake: dict[str, list[Lane]] = {}
    for key, lane in p.lanes.items():
        if lane.slept != seen or (lane.blocked is not None and _barred(p, lane.blocked)):
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
                heappush(self._heap, (lane.key(head), lane.shape.text, lane, next(walk)))

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
            heapreplace(self._heap, (lane.key(following), lane.shape.text, lane, following))

    def pass_over(self) -> None:
        """It keeps its place, and the next one of its lane is tried."""
        self._passed[id(self._heap[0][3])] = None
        self.go_on()

    def close(self, blocked: Reservation | None = None) -> None:
        """Nothing more of this lane: it sleeps until something changes for it, or for who found no room."""
        lane = heappop(self._heap)[2]
        lane.blocked = blocked
        lane.slept = (self.plan.partition.room, self.plan.partition.nodes.version)


def _serve_leaf(plan: Plan, leaf: Queue, lanes: list[Lane], left: int) -> int:
    """Give turns until every lane is closed, or as many tasks as may be are placed. Returns how many may still be."""
    p = plan.partition
    turns, most = Turns(plan, leaf, lanes), p.settings.max_placed
    # Under `fair` places move with every task that starts, so that each start has to be seen at once.
    hands = Hands(plan, p.index) if isinstance(p.index, FitIndex) and not turns.fair else None
    while turns and left > 0:
        lane, reservation = turns.current()
        if hands and hands.give(lane, reservation):
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
            turns.go_on(reservation)
        elif isinstance(reason, NoRoom) and hands and hands.empty():
            continue  # there is more room than it seemed: the same one is tried again
        else:
            _say(plan, reservation, reason)
            if isinstance(reason, NoRoom):
                turns.close(reservation if _is_bounded(reservation.stage.job) else None)
            elif _blocks_all(reservation, reason):
                turns.close()
            else:
                turns.pass_over()
    if hands:
        hands.empty()
    return left


def _blocks_all(reservation: Reservation, reason: Reason) -> bool:
    """Whether what keeps this one back keeps back its whole lane: equal tasks of the same queue."""
    if isinstance(reason, OverLimit):
        shared = (level.account.name for level in reservation.stage.job.queue.line())
        return _together(reservation) == 1 and reason.account in shared
    return isinstance(reason, NotActive) or (isinstance(reason, NeverFits) and reason.most == 0)


def _take_turn(plan: Plan, reservation: Reservation, together: int, most: int) -> tuple[int, Reason | None]:
    """One gang, or single tasks up to a number. Returns how many were placed, and why no more could be."""
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
    chosen = _choose(p, stage, most)
    placed = sum([each.tasks for each in chosen])
    if placed >= together:
        block = wanted.first(placed)
        attempt = stage.next_attempt(block) if stage.history else stage.floor + 1
        parts = (Part(chosen[0].join, block, chosen[0].devices),) if len(chosen) == 1 else tuple(_parts(chosen, block))
        plan.do(Placed(job.id, stage.position, kind, attempt, p.counters.allocation, parts, together > 1))
    if stage.shape.key.apart:
        p.index.put_all_back()
    p.index.put_back([each.join for each in chosen])
    if placed < together:
        return 0, _no_room(p, reservation, together, placed)
    return placed, None


def _still_stopping(reservation: Reservation) -> bool:
    """Whether members of the same gang have yet to come back."""
    stage = reservation.stage
    if stage.started and reservation.kind != SCALE:
        return False
    return any(each.cause == "gang" for each in (stage.live or {}).values())


def _together(reservation: Reservation) -> int:
    """How many tasks have to start at once."""
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


def _is_bounded(job: Job) -> bool:
    return any(each.limit is not None or each.max_jobs is not None for each in job.accounts)


def _barred(p: Partition, reservation: Reservation) -> bool:
    """Whether who had no room is not even allowed any more. Then it is passed over, and the next one's turn comes."""
    stage = reservation.stage
    limited = [(each.name, each.limit, each.used) for each in stage.job.accounts if each.limit is not None]
    asked = scale(stage.shape.resources, _together(reservation))
    return _admit(p, stage.job) is not None or allowed(limited, asked) is not None


def _choose(p: Partition, stage: Stage, most: int) -> list[Choice]:
    """Nodes for up to that many tasks of a stage. They have to be put back into the index."""
    shape, number = stage.shape, p.counters.allocation
    if shape.key.apart and stage.live:
        p.index.withdraw(sorted({each.node for each in stage.live.values()}))
    if shape.key.near and (most > 1 or stage.live):
        rows = [p.nodes.rows[each.node] for each in (stage.live or {}).values()]
        return gather(p.index, shape, most, number, {p.nodes.labels[row].get(shape.key.near, "") for row in rows})
    return p.index.choose(shape, most, number)


def _parts(chosen: list[Choice], block: tuple[int, ...]) -> Iterator[Part]:
    for join, tasks, devices in chosen:
        taken, block = split(block, tasks)
        yield Part(join, taken, devices)


def _no_room(p: Partition, reservation: Reservation, wanted: int, found: int) -> Reason:
    most = most_ever(p, reservation.stage.shape, reservation.stage.job.manager, wanted)
    return NeverFits(wanted, most) if most < wanted else NoRoom(wanted, found)


def _say(plan: Plan, reservation: Reservation | None, reason: Reason) -> None:
    if reservation is not None:
        plan.reasons[reservation.stage.job.id, reservation.stage.name, reservation.kind] = reason
