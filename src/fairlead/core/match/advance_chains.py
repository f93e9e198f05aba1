"""Chains: quick tasks wait on a node behind running tasks of their stage, to save a round trip per task.

The slot of a chain is the capacity of one task. When a task of the chain ends, the agent starts the next one in its
slot. `advance_chains` repeats this in the state before match, so that match cannot give the slot to another ask.
`chain` makes chains for tasks that match has just placed, and lengthens chains with few waiting tasks. Both consider
only chains that the cycle changed.
"""

from __future__ import annotations

from fairlead.core.admission import Admission
from fairlead.core.changes import Chained, SlotPassed
from fairlead.core.model import Allocation, Stage
from fairlead.core.plan import Plan
from fairlead.core.policy.run_times import ahead
from fairlead.core.ranges import count, split
from fairlead.core.state import Partition


def advance_chains(plan: Plan) -> None:
    """Let queued chain tasks take over the slots of finished ones."""
    for number in sorted(plan.partition.touched.chains):
        _fill(plan, number)
        _follow_agent(plan, number)


def _fill(plan: Plan, number: int) -> None:
    waiting = plan.partition.waiting_in(number)
    free = waiting[0].slots - _slots(plan.partition, number) if waiting else 0
    # A task that runs already has its slot. Of the others the agent starts the task with the lowest index first.
    for allocation in sorted(waiting, key=lambda allocation: (allocation.state != "running", allocation.indices[0])):
        if free > 0:
            taken = split(allocation.indices, free)[0]
            _pass(plan, allocation, taken, 0)
            free -= count(taken)


def _follow_agent(plan: Plan, number: int) -> None:
    """Move slots from tasks that are not reported as running to tasks that are."""
    partition = plan.partition
    for waiting in partition.waiting_in(number):
        if waiting.state != "running":
            continue
        left = count(waiting.indices)
        for front in sorted(partition.derived.chains[number].values(), key=lambda allocation: -allocation.id):
            if front.state == "assigned" and not front.slots and left:
                # An agent starts tasks in the order of their indices, so the last ones still wait.
                back = split(front.indices, max(0, count(front.indices) - left))[1]
                _pass(plan, front, back, waiting.slots)
                left -= count(back)
        started = count(waiting.indices) - left
        if started:
            _pass(plan, waiting, split(waiting.indices, started)[0], 0)


def _pass(plan: Plan, allocation: Allocation, block: tuple[int, ...], slots: int) -> None:
    into = 0 if block == allocation.indices else plan.partition.counters.allocation
    plan.do(SlotPassed(allocation.id, block, slots, into))


def _slots(partition: Partition, number: int) -> int:
    """Return the number of tasks of a chain that have a slot."""
    return sum(
        count(allocation.indices) for allocation in partition.derived.chains[number].values() if not allocation.slots
    )


def chain(plan: Plan) -> None:
    """Send waiting tasks ahead to nodes. Does nothing if another cycle follows, because that cycle may place them."""
    partition = plan.partition
    touched = partition.touched
    if not (touched.quick or touched.chains) or not partition.readiness.ready or plan.more:
        return
    left = _begin(plan, partition.settings.max_placed)
    for number in sorted(touched.chains):
        if left > 0:
            left -= _lengthen(plan, number, left)


def _begin(plan: Plan, left: int) -> int:
    """Make chains for tasks placed in this cycle. Returns how many more tasks may be sent ahead."""
    partition = plan.partition
    stages: dict[int, list[Allocation]] = {}
    # Allocation numbers can repeat: a whole job that was tried and taken back leaves its numbers to later allocations.
    for number in dict.fromkeys(partition.touched.quick):
        placed = partition.allocations.get(number)
        # Members of a gang are not independent until all are acknowledged.
        if placed is not None and placed.state == "assigned" and not placed.group:
            stages.setdefault(id(placed.stage), []).append(placed)
    for fronts in stages.values():
        stage = fronts[0].stage
        slots = sum(count(front.indices) for front in fronts)
        # If too few tasks are left to fill all chains, the chains share them evenly.
        per_slot = min(ahead(stage.ran, partition.settings.chain), -(-stage.waiting() // slots))
        for front in fronts:
            taken = count(front.indices)
            left -= _send(plan, front, min(per_slot * taken, left), taken)
    return left


def _lengthen(plan: Plan, number: int, most: int) -> int:
    """Lengthen a chain with few waiting tasks. Returns the number of tasks sent.

    A chain that is lengthened keeps its slots, so this is done only if no other ask waits for capacity.
    """
    partition = plan.partition
    fronts = [allocation for allocation in partition.derived.chains.get(number, {}).values() if not allocation.slots]
    if not fronts:
        return 0
    front = min(fronts, key=lambda allocation: allocation.id)
    stage = front.stage
    enough = ahead(stage.ran, partition.settings.chain)
    # The tasks of a gang that has not started must start together.
    if not enough or not stage.started or not stage.waiting() or not _may_grow(partition, stage, front.node):
        return 0
    slots = _slots(partition, number)
    waiting = sum(count(allocation.indices) for allocation in partition.waiting_in(number))
    if 2 * waiting >= enough * slots:
        return 0
    return _send(plan, front, min(enough * slots - waiting, most), slots)


def _may_grow(partition: Partition, stage: Stage, node_id: int) -> bool:
    lane = partition.lane_of(stage)
    own = sum(ask is not None for ask in stage.asks)
    if lane is None or len(partition.lanes) > 1 or lane.size > own:
        return False
    return partition.nodes.placeable(partition.nodes.rows[node_id]) and node_id not in partition.nodes.held


def _send(plan: Plan, front: Allocation, most: int, slots: int) -> int:
    """Queue up to `most` pending tasks of a stage behind an allocation of it. Returns the number queued.

    The tasks will take over slots in use, so admission is asked for 0 more tasks. It refuses if a limit was lowered
    below the use, because then slots must become free.
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
            plan.do(Chained(front.id, kind, block, attempt, partition.counters.allocation, slots))
            # Asks behind a completed ask have not had their turn. With backfill, any ask may be kept back for it.
            plan.more |= stage.asks[kind] is None and partition.backfills
    lane = partition.lane_of(stage)
    plan.more = plan.more or (lane is not None and lane.memory.verdict is None)
    return most - max(left, 0)
