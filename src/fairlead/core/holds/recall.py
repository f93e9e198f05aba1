"""Recall: set nodes aside for an owner, so that queues above their entitlement do not renew their loans there.

An owner is an ask that may start, found no capacity, and would stay within the entitlement of its queue. Tasks of
sibling queues above their entitlements are on loan. Nodes are held for an owner if the end of one task is not enough
for it, or if loans began while it waited: the fewest nodes on which it fits when the loans there have ended. No task is
stopped. Only the owner starts tasks there then, and other asks whose tasks are expected to end before it can start.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import dropwhile, islice
from typing import NamedTuple

from fairlead.core.admission import refusal
from fairlead.core.ahead.expected_ends import end_of
from fairlead.core.ahead.whatif import WhatIf
from fairlead.core.asks import Needs, asked_for, is_single, minimum_by_stage
from fairlead.core.changes import Released
from fairlead.core.entitlement import has_shares
from fairlead.core.holds.earmarks import nodes_with_task
from fairlead.core.holds.starvation import hold, in_turn
from fairlead.core.lanes import Lane
from fairlead.core.match.share_tree import Use
from fairlead.core.model import FAR, Allocation, Ask, Hold, Micros, Place, Queue, Stage
from fairlead.core.node_fit import fitting_in
from fairlead.core.outcomes import live_of
from fairlead.core.plan import Plan
from fairlead.core.resources import Vector, add
from fairlead.core.shape import Shape
from fairlead.core.state import Partition

MAX_OWNERS = 10
"""At most this number of owners gets nodes in one cycle, because each search looks at all nodes."""
SELDOM = 64
"""The longest time between two searches for an owner, in multiples of `recall_after`."""
LOOKED_AT = 100
"""At most this number of asks of a lane is searched for owners."""


def recall_loans(plan: Plan) -> None:
    """Set nodes aside for owners, by priority and then by age, so that new loans do not take the capacity they need."""
    partition = plan.partition
    if not is_on(partition) or not partition.readiness.ready:
        return
    _release_useless(plan)
    partition.memory.next_recall_at = FAR
    returns: dict[tuple[str, ...], _Returns] = {}
    for owner in sorted(_owners(plan), key=lambda owner: in_turn(owner.ask))[:MAX_OWNERS]:
        ask = owner.ask
        lenders = tuple([queue.path for queue in owner.lenders])
        if lenders not in returns:
            returns[lenders] = _Returns(partition, owner.lenders)
        places = _find(returns[lenders], owner)
        if places:
            hold(plan, ask, places, recalled=True)


def is_on(partition: Partition) -> bool:
    """True if nodes may be set aside for owners."""
    return partition.settings.recall_after > 0 and partition.facts().shares


def recall_due(partition: Partition) -> Micros:
    """Return the next time at which nodes are searched for an owner, if no event comes before; now if unknown."""
    return max(partition.memory.next_recall_at, partition.now) if is_on(partition) else FAR


class Owner(NamedTuple):
    """An ask within the entitlement of its queue, with the queues whose loans it has a right to."""

    ask: Ask
    lenders: list[Queue]
    ahead: Needs
    """The tasks of earlier owners in its lane. They use the entitlement first."""
    takes_turns: bool
    """True if it is the first ask without capacity of its lane, so that it starts where any task ends."""


def _owners(plan: Plan) -> Iterator[Owner]:
    """Yield the owners for which nodes are searched in this cycle."""
    partition = plan.partition
    below: dict[str, bool] = {}
    for lane in partition.lanes.values():
        path = lane.queue.path
        if lane.no_capacity() is None:
            continue
        if path not in below:
            below[path] = bool(owed_by(partition, lane.queue))
        for owner in owners_in(partition, lane) if below[path] else ():
            if partition.earmark_of(owner.ask.seq) is not None:
                continue
            if not _is_due(plan, owner.ask):
                break
            yield owner


def owners_in(partition: Partition, lane: Lane) -> Iterator[Owner]:
    """Yield the owners of a lane in order, from its first ask without capacity on.

    Asks that exceed the entitlement of their queue are left out. Later, smaller asks may still be owners.
    """
    head = lane.no_capacity()
    if head is None or head.stage.asks[head.kind] is not head:
        return
    ahead: list[tuple[Stage, int]] = []
    for ask in islice(dropwhile(lambda ask: ask is not head, lane), LOOKED_AT):
        if is_recalled(partition, ask):
            continue
        needs = minimum_by_stage(ask)
        lenders = owed_by(partition, lane.queue, [*ahead, *needs])
        if lenders and refusal(partition, ask) is None:
            yield Owner(ask, lenders, tuple(ahead), ask is head)
            earmark = partition.earmark_of(ask.seq)
            held = 0 if earmark is None or ask.whole else earmark.tasks
            ahead += [(stage, max(tasks, held)) for stage, tasks in needs]


def owed_by(partition: Partition, leaf: Queue, needs: Needs = ()) -> list[Queue]:
    """Return the queues whose loans a leaf queue has a right to: siblings of the leaf or of an ancestor.

    There is such a right on levels with shares, if the queue stays within its entitlement when the tasks `needs` have
    started, and those for which nodes are set aside. Without `needs`, the queue must be below its entitlement.
    """
    rights = partition.entitlements()
    aside = use_set_aside(partition) if needs else {}
    lending: list[Queue] = []
    for queue in leaf.line()[1:]:
        assert queue.parent is not None
        siblings = [child for child in queue.parent.children.values() if child is not queue]
        if not siblings or not has_shares(queue.parent):
            continue
        if needs:
            used, tasks = aside.get(queue.path, ({}, 0))
            add(used, queue.account.used)
            within = _fits_share(partition, queue, needs, used, tasks + queue.account.tasks)
        else:
            within = rights.used(queue) < rights.of(queue)
        if within:
            lending += [sibling for sibling in siblings if rights.loaned(sibling)]
    return lending


def _fits_share(partition: Partition, queue: Queue, needs: Needs, used: Vector, tasks: int) -> bool:
    """True if tasks beside others, which use `used`, take no more than the entitlement of a queue."""
    rights = partition.entitlements()
    more = dict(used)
    add(more, asked_for(needs))
    return rights.measure(more, tasks + sum(tasks for _, tasks in needs)) <= rights.of(queue)


def is_recalled(partition: Partition, ask: Ask) -> bool:
    """True if nodes are set aside for an ask, because it is an owner."""
    held = partition.holds.get(ask.seq)
    return held is not None and held.recalled


def use_set_aside(partition: Partition) -> dict[str, Use]:
    """Return queue path → the use of the tasks for which nodes are set aside."""
    use: dict[str, Use] = {}
    for held in partition.holds.values():
        for stage, tasks in _tasks_of(partition, held) if held.recalled else ():
            for queue in stage.job.queue.line():
                amounts, before = use.get(queue.path, ({}, 0))
                add(amounts, stage.shape.resources, tasks)
                use[queue.path] = (amounts, before + tasks)
    return use


def _tasks_of(partition: Partition, held: Hold) -> Needs:
    ask = partition.ask_of_earmark(held)
    if ask is None:
        return ()
    return ((ask.stage, min(held.tasks, ask.count)),) if is_single(ask) else minimum_by_stage(ask)


def _is_due(plan: Plan, ask: Ask) -> bool:
    """True if nodes are searched for an ask in this cycle.

    This is the case when it has waited for `recall_after`, twice, four times that time, and so on. From `SELDOM` times
    `recall_after` on, the times are multiples of that.
    """
    partition = plan.partition
    memory, every = partition.memory, partition.settings.recall_after
    pause = partition.readiness.pause_ends(ask.unheld_until, partition.settings.promise_for)
    since = max(ask.waiting_since, partition.readiness.ready_at)
    waited = (partition.now - since) // every
    following = min(1 << waited.bit_length(), (waited // SELDOM + 1) * SELDOM)
    memory.next_recall_at = min(memory.next_recall_at, max(since + following * every, pause))
    if pause > partition.now:
        return False
    return pause > plan.before or _searches(waited) > _searches(max(0, plan.before - since) // every)


def _searches(waited: int) -> int:
    """Return the number of searches for an ask that has waited for `waited` times `recall_after`."""
    return min(waited, SELDOM - 1).bit_length() + waited // SELDOM


def stops_at(partition: Partition, leaf: Queue) -> Micros:
    """Return when tasks on loan are stopped next for a leaf queue that is below its entitlement; `FAR` if never."""
    rights, first = partition.entitlements(), FAR
    for queue in leaf.line()[1:]:
        since = queue.parent.uneven_since if queue.parent is not None else None
        if since is not None and rights.used(queue) < rights.of(queue):
            first = min(first, partition.readiness.counts_from(since) + partition.settings.rebalance_after + 1)
    return first


# -- which nodes -------------------------------------------------------------------------------------------------


class _Returns:
    """The free capacity of nodes when all loans of some queues have ended."""

    def __init__(self, partition: Partition, lenders: list[Queue]) -> None:
        self.partition = partition
        self.whatif = WhatIf(partition)
        self.loans: list[Allocation] = []
        self.free_at: dict[int, Micros] = {}
        """Node → when its loans are expected to have ended or may be stopped; `FAR` if that is unknown."""
        self.renewed_at: dict[int, Micros] = {}
        """Node → when its newest loan began."""
        self._one_serves: dict[Shape, bool] = {}
        leaves = [leaf for leaf in partition.leaves() if any(queue in lenders for queue in leaf.line())]
        jobs = [job for leaf in leaves for level in leaf.at_work.values() for job in level.values()]
        for allocation in [live for job in jobs for stage in job.stages for live in live_of(stage)]:
            if allocation.slots:
                continue  # it waits in a chain and uses no capacity
            node_id = allocation.node
            self.loans.append(allocation)
            self.whatif.end(allocation)
            self.free_at[node_id] = max(self.free_at.get(node_id, 0), self._gone_at(allocation))
            self.renewed_at[node_id] = max(self.renewed_at.get(node_id, 0), allocation.since)

    def _gone_at(self, allocation: Allocation) -> Micros:
        """Return when a loan is expected to have ended, or may have been stopped; `FAR` if neither."""
        settings, job = self.partition.settings, allocation.stage.job
        end = end_of(allocation, self.partition.now)
        gone_at = FAR if end is None else end
        if (
            settings.rebalance_after
            and job.preemptible
            and all(queue.settings.preemptible for queue in job.queue.line())
        ):
            earliest = self.partition.now + settings.rebalance_after
            gone_at = min(
                gone_at,
                max(earliest, allocation.since + settings.least_runtime) + self.partition.grace_of(allocation.stage),
            )
        return gone_at

    def serves_in_turn(self, owner: Owner) -> bool:
        """True if the end of any loan is enough for an ask of single tasks, and no loan began while the ask waited.

        Such an owner needs no hold: it starts when a task ends, because its queue has the next turn.
        """
        ask, shape = owner.ask, owner.ask.stage.shape
        if not is_single(ask) or not owner.takes_turns:
            return False
        if any(
            since > ask.waiting_since and self.whatif.fitting(node_id, shape, 1)
            for node_id, since in self.renewed_at.items()
        ):
            return False
        if shape not in self._one_serves:
            now = WhatIf(self.partition)
            useful = [loan for loan in self.loans if self.whatif.fitting(loan.node, shape, 1)]
            self._one_serves[shape] = bool(useful) and all(self._serves(now, loan, shape) for loan in useful)
        return self._one_serves[shape]

    def _serves(self, now: WhatIf, loan: Allocation, shape: Shape) -> bool:
        if not now.takes(loan.node, shape):
            return False
        first = (loan.indices[0], loan.indices[0] + 1)
        return fitting_in(*now.without_some(loan.node, [(loan, first)]), shape, 1)[0] > 0

    def take(self, stage: Stage, needed: int) -> list[tuple[int, int]]:
        """Take the fewest nodes for up to `needed` tasks of a stage. Ties: the nodes whose loans end first."""
        shape, whatif, labels = stage.shape, self.whatif, self.partition.nodes.labels
        used = nodes_with_task(stage)
        fitting = {
            node_id: whatif.fitting(node_id, shape, needed)
            for node_id in sorted(self.partition.nodes.rows)
            if node_id not in used
        }
        order = [node_id for node_id, tasks in fitting.items() if tasks]
        order.sort(key=lambda node_id: (-fitting[node_id], self.free_at.get(node_id, 0), node_id))
        if shape.key.near:
            value = {node_id: labels[self.partition.nodes.rows[node_id]].get(shape.key.near, "") for node_id in order}
            within: dict[str, int] = {}
            for node_id in order:
                within[value[node_id]] = within.get(value[node_id], 0) + fitting[node_id]
            order.sort(key=lambda node_id: (-min(within[value[node_id]], needed), value[node_id]))
        taken: list[tuple[int, int]] = []
        for node_id in order:
            tasks = whatif.pack(node_id, shape, needed) if needed else 0
            if tasks:
                taken.append((node_id, tasks))
                needed -= tasks
        return taken


def _find(returns: _Returns, owner: Owner) -> tuple[Place, ...]:
    """Return nodes to hold for an owner. A gang gets enough nodes for all of its tasks, or none."""
    ask = owner.ask
    if returns.serves_in_turn(owner):
        return ()
    single = is_single(ask)
    places: list[Place] = []
    before = returns.whatif
    if not single:
        returns.whatif = before.copy()
    for stage, needed in [(ask.stage, _within(returns.partition, owner))] if single else minimum_by_stage(ask):
        taken = returns.take(stage, needed)
        places += [(node_id, stage.position, tasks) for node_id, tasks in taken]
        if not single and sum(tasks for _, tasks in taken) < needed:
            returns.whatif = before
            return ()
    return tuple(places)


def _within(partition: Partition, owner: Owner) -> int:
    """Return how many tasks of an ask, at least 1, can start within the entitlement of its queue."""
    ask = owner.ask
    least, most = 1, ask.count
    while least < most:
        middle = (least + most + 1) // 2
        if owed_by(partition, ask.stage.job.queue, [*owner.ahead, (ask.stage, middle)]):
            least = middle
        else:
            most = middle - 1
    return least


# -- the end of a recall -----------------------------------------------------------------------------------------


def _release_useless(plan: Plan) -> None:
    """End recalls for asks that exceed the entitlement, or that do not fit although all tasks there have ended."""
    partition = plan.partition
    for seq, held in sorted(partition.holds.items()) if partition.holds else ():
        ask = partition.ask_of_earmark(held) if held.recalled else None
        if ask is None:
            continue
        if not any(_may_keep(partition, queue, ask) for queue in ask.stage.job.queue.line()[1:]):
            plan.do(Released(seq, "its queue uses its entitlement"))
        elif not _waits_for_tasks(partition, held, ask):
            pause = plan.now + partition.settings.promise_for
            plan.do(Released(seq, "all tasks there have ended, and it does not fit", pause))


def _may_keep(partition: Partition, queue: Queue, ask: Ask) -> bool:
    """True if the nodes that are set aside for an ask do not exceed the entitlement of its queue.

    Its right was settled when they were set aside: tasks of the queue that start later are on loan. An array has used
    up its right when that number of its tasks has started elsewhere.
    """
    account = queue.account
    used, tasks = (account.used, account.tasks) if is_single(ask) and ask.count > 1 else ({}, 0)
    return _fits_share(partition, queue, minimum_by_stage(ask), used, tasks)


def _waits_for_tasks(partition: Partition, held: Hold, ask: Ask) -> bool:
    """True if tasks of other jobs still run on the nodes of a hold, or one of these nodes accepts no work now."""
    nodes = partition.nodes
    rows = [nodes.rows[node_id] for node_id in held.nodes]
    return not all(nodes.placeable(row) for row in rows) or any(
        allocation.stage.job is not ask.stage.job for row in rows for allocation in nodes.allocations[row].values()
    )
