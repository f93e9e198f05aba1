"""Chains: quick tasks wait behind others of their stage for the same rooms, so that not each costs a round trip.

Their agent starts the next one by itself when one of the chain ends. `pass_rooms` follows it, before match, so that
a room of a chain is free only when nobody waits for it. `chain` gives chains to what match has just placed, and
lengthens those that run low. Both look only at what the cycle touched.
"""

from __future__ import annotations

from fairlead.core.admission import Admission
from fairlead.core.changes import Chained, RoomPassed
from fairlead.core.model import Allocation, Stage
from fairlead.core.plan import Plan
from fairlead.core.policy.chain import ahead
from fairlead.core.ranges import count, split
from fairlead.core.state import Partition

# -- passing rooms on --------------------------------------------------------------------------------------------


def pass_rooms(plan: Plan) -> None:
    """Whoever waits in a chain takes over the rooms of those that ended."""
    for number in sorted(plan.partition.touched.chains):
        _fill(plan, number)
        _follow_agent(plan, number)


def _fill(plan: Plan, number: int) -> None:
    waiting = plan.partition.waiting_in(number)
    free = waiting[0].rooms - _rooms(plan.partition, number) if waiting else 0
    # Who runs has its room already; of the others the agent takes the lowest index first.
    for each in sorted(waiting, key=lambda each: (each.state != "running", each.indices[0])):
        if free > 0:
            taken = split(each.indices, free)[0]
            _pass(plan, each, taken, 0)
            free -= count(taken)


def _follow_agent(plan: Plan, number: int) -> None:
    """Tasks that run have rooms before those that are not known to."""
    partition = plan.partition
    for each in partition.waiting_in(number):
        if each.state != "running":
            continue
        left = count(each.indices)
        for front in sorted(partition.chains[number].values(), key=lambda one: -one.id):
            if front.state == "assigned" and not front.rooms and left:
                # An agent goes by the order of the indices, so that the last one is the one that waits.
                back = split(front.indices, max(0, count(front.indices) - left))[1]
                _pass(plan, front, back, each.rooms)
                left -= count(back)
        started = count(each.indices) - left
        if started:
            _pass(plan, each, split(each.indices, started)[0], 0)


def _pass(plan: Plan, of: Allocation, block: tuple[int, ...], rooms: int) -> None:
    into = 0 if block == of.indices else plan.partition.counters.allocation
    plan.do(RoomPassed(of.id, block, rooms, into))


def _rooms(partition: Partition, number: int) -> int:
    """How many tasks of a chain have a room."""
    return sum(count(each.indices) for each in partition.chains[number].values() if not each.rooms)


# -- making and lengthening --------------------------------------------------------------------------------------


def chain(plan: Plan) -> None:
    """Send work ahead, where there is no room for it now. What match left for another cycle may still get some."""
    partition = plan.partition
    touched = partition.touched
    if not (touched.quick or touched.chains) or not partition.reign.ready or plan.more:
        return
    left = _begin(plan, partition.settings.max_placed)
    for number in sorted(touched.chains):
        if left > 0:
            left -= _lengthen(plan, number, left)


def _begin(plan: Plan, left: int) -> int:
    """Chains for what was placed in this cycle. Returns how many tasks may still be sent ahead."""
    partition = plan.partition
    stages: dict[int, list[Allocation]] = {}
    # What was tried for a whole job and taken back left its numbers to others.
    for number in dict.fromkeys(partition.touched.quick):
        placed = partition.allocations.get(number)
        # Members of a gang are not independent until all are acknowledged.
        if placed is not None and placed.state == "assigned" and not placed.group:
            stages.setdefault(id(placed.stage), []).append(placed)
    for fronts in stages.values():
        stage = fronts[0].stage
        rooms = sum(count(each.indices) for each in fronts)
        # If less is left than would fill them all, they share it evenly.
        each_room = min(ahead(stage.ran, partition.settings.chain), -(-stage.waiting() // rooms))
        for front in fronts:
            taken = count(front.indices)
            left -= _send(plan, front, min(each_room * taken, left), taken)
    return left


def _lengthen(plan: Plan, number: int, most: int) -> int:
    """A chain that runs low gets more, if nobody else waits: others would never see its rooms."""
    partition = plan.partition
    fronts = [each for each in partition.chains.get(number, {}).values() if not each.rooms]
    if not fronts:
        return 0
    front = min(fronts, key=lambda each: each.id)
    stage = front.stage
    enough = ahead(stage.ran, partition.settings.chain)
    # A gang that was taken back comes together, or not at all.
    if not enough or not stage.started or not stage.waiting() or not _may_grow(partition, stage, front.node):
        return 0
    rooms = _rooms(partition, number)
    known = sum(count(each.indices) for each in partition.waiting_in(number))
    if 2 * known >= enough * rooms:
        return 0
    return _send(plan, front, min(enough * rooms - known, most), rooms)


def _may_grow(partition: Partition, stage: Stage, node_id: int) -> bool:
    lane = partition.lane_of(stage)
    own = sum(each is not None for each in stage.asks)
    if lane is None or len(partition.lanes) > 1 or lane.size > own:
        return False
    return partition.nodes.placeable(partition.nodes.rows[node_id]) and node_id not in partition.nodes.held


def _send(plan: Plan, front: Allocation, most: int, rooms: int) -> int:
    """Let up to `most` pending tasks of its stage wait behind an allocation. Returns how many do.

    They take over rooms, so that admission is asked whether 0 tasks more may start: under a limit that was lowered,
    rooms have to become free.
    """
    partition = plan.partition
    stage, admission = front.stage, Admission(partition)
    left = most
    for kind, wanted in enumerate(stage.pending):
        ask = stage.asks[kind]
        if wanted is not None and ask is not None and left > 0:
            if admission.refusal(ask, ((stage, 0),)) is not None:
                continue
            block = wanted.first(left)
            left -= count(block)
            attempt = stage.next_attempt(block)
            plan.do(Chained(front.id, kind, block, attempt, partition.counters.allocation, rooms))
    lane = partition.lane_of(stage)
    # Whoever stood behind an ask that is gone with this has not had its turn.
    plan.more = plan.more or (lane is not None and lane.asleep_at is None)
    return most - max(left, 0)
