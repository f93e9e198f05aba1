"""Match: in turns, the first head over all open lanes of a leaf is tried, a gang whole or not at all.

A head for which there is no room closes its lane for this cycle; one that is not allowed (a limit, a stopped queue,
too large for any node) is passed over and keeps its place. A lane in which nothing can be placed sleeps until room or
a limit may have opened. A cycle places at most `max_placed` tasks, or one gang.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from fairlead.core.changes import Part, Placed
from fairlead.core.explain import most_ever
from fairlead.core.lanes import Lane
from fairlead.core.model import NEW, SCALE, Job, Queue, Reservation
from fairlead.core.nodes import NodeTable
from fairlead.core.plan import Plan
from fairlead.core.policy.fit import choose_devices, room
from fairlead.core.policy.limits import allowed, may_run, tasks_allowed
from fairlead.core.policy.order import Key
from fairlead.core.ranges import split
from fairlead.core.reasons import NeverFits, NoRoom, NotActive, NotReady, OverLimit, Reason, StillStopping
from fairlead.core.resources import GPU, scale
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
        p.index.refresh()
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

    def __init__(self, plan: Plan, leaf: Queue) -> None:
        self.plan = plan
        self.fair = leaf.settings.order == "fair"
        self._heap: list[tuple[Key, str, Lane, Reservation]] = []
        self._walks: dict[int, Iterator[Reservation]] = {}
        self._passed: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def enter(self, lane: Lane) -> None:
        self._walks[id(lane)] = iter(lane)
        self.go_on(lane, None)

    def next(self) -> tuple[Lane, Reservation]:
        while True:
            key, _, lane, reservation = heappop(self._heap)
            if not self.fair or lane.key(reservation) == key or not self._heap:
                return lane, reservation
            # Its job runs more than before, and somebody else has this place now.
            heappush(self._heap, (lane.key(reservation), lane.shape.text, lane, reservation))

    def pass_over(self, lane: Lane, reservation: Reservation) -> None:
        """It keeps its place, and the next one of its lane is tried."""
        self._passed[id(reservation)] = None
        self.go_on(lane, None)

    def go_on(self, lane: Lane, after: Reservation | None) -> None:
        """Queue a lane up again, with the reservation that just had a turn if it wants more."""
        following = after
        if self.fair:
            # Places move with every task that starts: look from the beginning, past those that were passed over.
            found = lane.after(self._passed)
            following = None if found is None else found[1]
        elif after is None or after.stage.reservations[after.kind] is not after:
            following = next(self._walks[id(lane)], None)
        if following is None:
            _close(self.plan, lane)
        else:
            heappush(self._heap, (lane.key(following), lane.shape.text, lane, following))


def _serve_leaf(plan: Plan, leaf: Queue, lanes: list[Lane], left: int) -> int:
    """Give turns until every lane is closed, or as many tasks as may be are placed. Returns how many may still be."""
    turns = Turns(plan, leaf)
    most = plan.partition.settings.max_placed
    for lane in lanes:
        turns.enter(lane)
    while turns and left > 0:
        lane, reservation = turns.next()
        if left < most and _together(reservation) > left:
            return 0  # a gang that is too large for what is left of this cycle opens the next one
        alone = not turns and lane.size == 1
        placed, reason = _take_turn(plan, reservation, left if alone or not turns.fair else 1)
        left -= placed
        if reason is None:
            turns.go_on(lane, reservation)
            continue
        _say(plan, reservation, reason)
        if isinstance(reason, NoRoom) or _blocks_all(reservation, reason):
            _close(plan, lane)
        else:
            turns.pass_over(lane, reservation)
    return left


def _close(plan: Plan, lane: Lane) -> None:
    lane.slept = (plan.partition.room, plan.partition.nodes.version)


def _blocks_all(reservation: Reservation, reason: Reason) -> bool:
    """Whether what keeps this one back keeps back its whole lane: equal tasks of the same queue."""
    if isinstance(reason, OverLimit):
        shared = (level.account.name for level in reservation.stage.job.queue.line())
        return _together(reservation) == 1 and reason.account in shared
    return isinstance(reason, NotActive) or (isinstance(reason, NeverFits) and reason.most == 0)


def _take_turn(plan: Plan, reservation: Reservation, most: int) -> tuple[int, Reason | None]:
    """One gang, or single tasks up to a number. Returns how many were placed, and why no more could be."""
    stage = reservation.stage
    together = _together(reservation)
    wanted = reservation.count
    if _still_stopping(reservation) or wanted < together:
        return 0, StillStopping()
    reason = _admit(plan.partition, stage.job)
    if reason is not None:
        return 0, reason
    most = together if together > 1 else min(most, wanted)
    limited = [(each.name, each.limit, each.used) for each in stage.job.accounts if each.limit is not None]
    if limited:
        reason = allowed(limited, scale(stage.shape.resources, together))
        if reason is not None:
            return 0, reason
        most = tasks_allowed(limited, stage.shape.resources, most)
    parts, placed = _choose(plan, reservation, most)
    if placed < together:
        return 0, _no_room(plan.partition, reservation, together, placed)
    block = stage.wanted(reservation.kind).first(placed)
    plan.do(
        Placed(
            stage.job.id,
            stage.position,
            reservation.kind,
            stage.next_attempt(block),
            plan.partition.counters.allocation,
            tuple(parts),
            together > 1,
        )
    )
    plan.partition.index.put_back()
    return placed, None


def _still_stopping(reservation: Reservation) -> bool:
    """Whether members of the same gang have yet to come back."""
    stage = reservation.stage
    if not stage.live or (stage.started and reservation.kind != SCALE):
        return False
    return any(each.cause == "gang" for each in stage.live.values())


def _together(reservation: Reservation) -> int:
    """How many tasks have to start at once."""
    stage = reservation.stage
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


def _choose(plan: Plan, reservation: Reservation, most: int) -> tuple[list[Part], int]:
    """Nodes for up to that many tasks, the fullest that fit first. They are out of the index until put back."""
    p = plan.partition
    nodes, index = p.nodes, p.index
    stage = reservation.stage
    shape = stage.shape
    block = stage.wanted(reservation.kind).first(most)
    parts: list[Part] = []
    left = most
    while left:
        join = index.take(shape)
        if join is None:
            break
        row = nodes.rows[join]
        # The index says that one fits; only more need a look.
        fitting = 1 if left == 1 else _room(nodes, shape, row, left)
        devices: tuple[int, ...] = ()
        if shape.devices:
            devices = choose_devices(
                nodes.devices[row], nodes.device_count(row), shape.devices, shape.device_milli, fitting
            )
            fitting = len(devices) // shape.devices
        if fitting < left:
            taken, block = split(block, fitting)
        else:
            taken = block
        parts.append(Part(join, taken, devices))
        left -= fitting
    return parts, most - left


def _room(nodes: NodeTable, shape: Shape, row: int, most: int) -> int:
    return room(
        [(nodes.capacity[name][row] - nodes.used[name][row], amount) for name, amount in shape.amounts if name != GPU],
        most,
    )


def _no_room(p: Partition, reservation: Reservation, wanted: int, found: int) -> Reason:
    p.index.put_back()
    most = most_ever(p, reservation.stage.shape, reservation.stage.job.manager, wanted)
    return NeverFits(wanted, most) if most < wanted else NoRoom(wanted, found)


def _say(plan: Plan, reservation: Reservation | None, reason: Reason) -> None:
    if reservation is not None:
        plan.reasons[reservation.stage.job.id, reservation.stage.name, reservation.kind] = reason
