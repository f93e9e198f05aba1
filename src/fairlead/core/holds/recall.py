"""Recall: set nodes aside for an owner, so that queues above their entitlement do not renew their loans there.

An owner is an ask that may start and found no capacity, and whose start keeps its queue within the entitlement. Tasks
of sibling queues above their entitlements are on loan. If tasks on loan started while an owner waited, nodes are held
for the owner: the fewest on which it fits once the loans there have ended, and of these the soonest free. No task is
stopped. From then on, only the owner starts tasks there, and other asks whose tasks are expected to end before the
owner can start.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.core.admission import refusal
from fairlead.core.asks import Needs, asked_for, gang_size, minimum_by_stage
from fairlead.core.changes import Released
from fairlead.core.forecast import end_of
from fairlead.core.holds.holds import hold, in_turn
from fairlead.core.model import FAR, Ask, Hold, Micros, Place, Queue, Stage
from fairlead.core.outcomes import live_of
from fairlead.core.plan import Plan
from fairlead.core.resources import add
from fairlead.core.state import Partition
from fairlead.core.whatif import WhatIf

MAX_OWNERS = 10
"""At most this number of owners are served in one cycle, since each one looks at all nodes."""


def recall_loans(plan: Plan) -> None:
    """Set nodes aside for owners while later loans take the capacity that they wait for; by priority, then by age."""
    partition = plan.partition
    if not partition.reign.ready or not partition.settings.recall_after or not partition.facts().shares:
        return
    _release_useless(plan)
    owners = sorted(_owners(plan), key=in_turn)
    for ask in owners[:MAX_OWNERS]:
        lenders = owed_by(partition, ask) if refusal(partition, ask) is None else []
        places = _find(partition, ask, lenders) if lenders else ()
        if places:
            hold(plan, ask, places, recalled=True)


def _owners(plan: Plan) -> Iterator[Ask]:
    """Yield the asks without capacity that are due for a recall in this cycle and have no earmarked nodes."""
    partition = plan.partition
    for lane in partition.lanes.values():
        ask = lane.memory.no_room
        if ask is None or lane.memory.asleep_at is None or ask.stage.asks[ask.kind] is not ask:
            continue
        if _is_due(plan, ask) and partition.earmark_of(ask.seq) is None:
            yield ask


def _is_due(plan: Plan, ask: Ask) -> bool:
    """True if an ask is due for a recall in this cycle.

    An ask is due when it has waited for `recall_after`, for twice that time, for four times that time, and so on.
    """
    partition = plan.partition
    if partition.reign.pause_ends(ask.unheld_until, partition.settings.promise_for) > partition.now:
        return False
    every = partition.settings.recall_after
    before = max(0, plan.before - ask.waiting_since) // every
    return ((partition.now - ask.waiting_since) // every).bit_length() > before.bit_length()


# -- owners and loans --------------------------------------------------------------------------------------------


def owed_by(partition: Partition, ask: Ask, tasks: int | None = None) -> list[Queue]:
    """Return the queues with loans that an ask has a right to: siblings of its queue or of an ancestor.

    On the level of such a sibling, shares are set, and the queue of the ask stays within its entitlement when the ask
    has started.
    """
    needs = minimum_by_stage(ask) if tasks is None else [(ask.stage, tasks)]
    rights = partition.entitlements()
    lending: list[Queue] = []
    for queue in ask.stage.job.queue.line()[1:]:
        assert queue.parent is not None
        siblings = [child for child in queue.parent.children.values() if child is not queue]
        if not siblings or not has_shares(queue.parent) or not _stays_within(partition, queue, needs):
            continue
        lending += [sibling for sibling in siblings if rights.loaned(sibling)]
    return lending


def has_shares(parent: Queue) -> bool:
    """True if at least one child of a queue has a configured share."""
    return any(child.settings.share is not None for child in parent.children.values())


def _stays_within(partition: Partition, queue: Queue, needs: Needs) -> bool:
    rights = partition.entitlements()
    used = dict(queue.account.used)
    add(used, asked_for(needs))
    return rights.measure(used, queue.account.tasks + sum(tasks for _, tasks in needs)) <= rights.of(queue)


class _Returns:
    """The free capacity of nodes after the loans that must be returned for an ask have ended."""

    def __init__(self, partition: Partition, ask: Ask, lenders: list[Queue]) -> None:
        self.partition = partition
        self.whatif = WhatIf(partition)
        self.free_at: dict[int, Micros] = {}
        """Node → when its loans are expected to have ended; `FAR` if that is unknown."""
        self.renewed: dict[int, None] = {}
        """The nodes on which a loan began while the ask waited."""
        leaves = [leaf for leaf in partition.leaves() if any(queue in lenders for queue in leaf.line())]
        jobs = [job for leaf in leaves for level in leaf.at_work.values() for job in level.values()]
        for allocation in [live for job in jobs for stage in job.stages for live in live_of(stage)]:
            if allocation.rooms:
                continue  # it waits in a chain and uses no capacity
            node_id, end = allocation.node, end_of(allocation, partition.now)
            self.whatif.end(allocation)
            self.free_at[node_id] = max(self.free_at.get(node_id, 0), FAR if end is None else end)
            if allocation.since > ask.waiting_since:
                self.renewed[node_id] = None

    def take(self, stage: Stage, needed: int) -> list[tuple[int, int]]:
        """Take nodes for up to `needed` tasks of a stage: the fewest nodes, those that are free soonest first."""
        shape, whatif, labels = stage.shape, self.whatif, self.partition.nodes.labels
        used = {live.node for live in live_of(stage)} if shape.key.apart else ()
        rooms = {
            node_id: whatif.room(node_id, shape, needed)
            for node_id in sorted(self.partition.nodes.rows)
            if node_id not in used
        }
        order = [node_id for node_id, room in rooms.items() if room]
        order.sort(key=lambda node_id: (-rooms[node_id], self.free_at.get(node_id, 0), node_id))
        if shape.key.near:
            value = {node_id: labels[self.partition.nodes.rows[node_id]].get(shape.key.near, "") for node_id in order}
            within: dict[str, int] = {}
            for node_id in order:
                within[value[node_id]] = within.get(value[node_id], 0) + rooms[node_id]
            order.sort(key=lambda node_id: (-min(within[value[node_id]], needed), value[node_id]))
        taken: list[tuple[int, int]] = []
        for node_id in order:
            tasks = whatif.pack(node_id, shape, needed) if needed else 0
            if tasks:
                taken.append((node_id, tasks))
                needed -= tasks
        return taken


def _find(partition: Partition, ask: Ask, lenders: list[Queue]) -> tuple[Place, ...]:
    """Return nodes to hold for an ask; for a gang, enough for all of it or none.

    Returns none if no loan began, while the ask waited, on a node that could serve the ask.
    """
    returns = _Returns(partition, ask, lenders)
    shapes = [stage.shape for stage, _ in minimum_by_stage(ask)]
    if not any(returns.whatif.room(node_id, shape, 1) for node_id in returns.renewed for shape in shapes):
        return ()
    single = gang_size(ask) == 1 and not ask.whole
    places: list[Place] = []
    for stage, needed in [(ask.stage, _within(partition, ask))] if single else minimum_by_stage(ask):
        taken = returns.take(stage, needed)
        places += [(node_id, stage.position, tasks) for node_id, tasks in taken]
        if not single and sum(tasks for _, tasks in taken) < needed:
            return ()
    return tuple(places)


def _within(partition: Partition, ask: Ask) -> int:
    """Return how many single tasks of an ask may start before its queue has a right to no further loans; at least 1."""
    least, most = 1, ask.count
    while least < most:
        middle = (least + most + 1) // 2
        if owed_by(partition, ask, middle):
            least = middle
        else:
            most = middle - 1
    return least


# -- the end of a recall -----------------------------------------------------------------------------------------


def _release_useless(plan: Plan) -> None:
    """Release nodes set aside for an ask whose queue uses its entitlement, or on which no other task is left to end."""
    partition = plan.partition
    for seq, held in sorted(partition.holds.items()) if partition.holds else ():
        ask = partition.ask_of_earmark(held) if held.recalled else None
        if ask is None:
            continue
        if not any(_stays_within(partition, queue, minimum_by_stage(ask)) for queue in ask.stage.job.queue.line()[1:]):
            plan.do(Released(seq, "its queue uses its entitlement"))
        elif not _waits_for_tasks(partition, held, ask):
            plan.do(
                Released(
                    seq, "all tasks there have ended, and it does not fit", plan.now + partition.settings.promise_for
                )
            )


def _waits_for_tasks(partition: Partition, held: Hold, ask: Ask) -> bool:
    """True if tasks of other jobs still run on nodes that are set aside, or one of them accepts no work now."""
    nodes = partition.nodes
    rows = [nodes.rows[node_id] for node_id in held.nodes]
    return not all(nodes.placeable(row) for row in rows) or any(
        allocation.stage.job is not ask.stage.job for row in rows for allocation in nodes.allocations[row].values()
    )
