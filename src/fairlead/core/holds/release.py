"""Releases held and promised nodes that no longer serve their ask.

An earmark ends when its ask starts, changes or is withdrawn, when admission refuses the ask for a lasting reason, and
after some time. When an earmarked node leaves or changes, the other nodes stay earmarked, so that no other ask takes
them. Missing nodes of an order are then ordered again; for a hold or a claim, nodes are chosen again after match.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fairlead.core.admission import Admission
from fairlead.core.asks import gang_size, minimum_by_stage
from fairlead.core.changes import Promised, Released, Trimmed
from fairlead.core.holds.earmarks import ends_at, is_coming, is_stuck, usable_places
from fairlead.core.model import Ask, Earmark, Hold, Micros, Place, Promise
from fairlead.core.plan import Plan
from fairlead.core.policy.fit import may_be_held
from fairlead.core.state import Partition
from fairlead.core.why.reasons import OverLimit, ShareSpent

NODE_UNUSABLE = "one of its nodes can no longer be used"


def release_obsolete(plan: Plan) -> None:
    """Release obsolete holds and promises. If too many nodes are still held, release the last holds."""
    partition = plan.partition
    if not partition.nodes.held:
        return
    _release_outdated(plan)
    if partition.readiness.ready:
        _release_refused(plan)
    counted = [held for held in in_order(partition) if isinstance(held, Hold) and not (held.large or held.recalled)]
    while len(held_nodes(counted)) > most_held(partition):
        plan.do(Released(counted.pop().seq, "more nodes were held than held_nodes_percent allows"))


def _release_outdated(plan: Plan) -> None:
    """Release earmarks whose ask has changed or whose time is over, and nodes that have become unusable."""
    partition = plan.partition
    for _, earmark in (*sorted(partition.holds.items()), *sorted(partition.promises.items())):
        ask = partition.ask_of_earmark(earmark)
        if ask is None or not _needs_all(earmark, ask):
            plan.do(Released(earmark.seq, "what the job waits for has changed"))
            _pass_on(plan, earmark)
    for earmark in in_order(partition):
        expired = _expired(partition, earmark)
        if expired is not None:
            plan.do(Released(earmark.seq, *expired))
        elif partition.memory.checked_earmarks.get(earmark.seq) != partition.nodes.version:
            _trim(plan, earmark)


def _pass_on(plan: Plan, earmark: Earmark) -> None:
    """Keep the nodes that were ordered for an ask for the ask that replaced it."""
    ask = plan.partition.waits(earmark.job, earmark.stage, earmark.kind)
    if ask is not None and isinstance(earmark, Promise) and earmark.ordered:
        for place in usable_places(plan.partition, earmark):
            keep_arrived(plan, ask, place)


def keep_arrived(plan: Plan, ask: Ask, place: Place) -> None:
    """Keep an ordered node for its ask, in addition to nodes that joined before, if the ask still needs the node.

    A gang needs capacity for the tasks that start together, an ask of single tasks for all its pending tasks.
    """
    earmark = plan.partition.earmark_of(ask.seq)
    if isinstance(earmark, Hold) or (earmark is not None and not earmark.ordered):
        return  # the ask already has a hold or a claim
    node_id, position, tasks = place
    places = () if earmark is None else earmark.places
    needed = sum(needed for stage, needed in minimum_by_stage(ask) if stage.position == position)
    if not ask.whole and needed == 1:
        needed = ask.count
    lacking = needed - sum(tasks for _, at, tasks in places if at == position)
    if lacking <= 0:
        return  # the node was ordered for tasks that start later than the gang
    places = (*places, (node_id, position, min(tasks, lacking)))
    if earmark is not None:
        plan.do(Released(earmark.seq, "more of its nodes have come"))
    stage = ask.stage
    plan.do(Promised(stage.job.id, stage.position, ask.kind, places, (), "order"))


def _release_refused(plan: Plan) -> None:
    """Release the nodes of asks that admission refuses, unless the end of running tasks may remove the reason."""
    partition = plan.partition
    admission = Admission(partition)
    for earmark in in_order(partition):
        ask = partition.ask_of_earmark(earmark)
        reason = admission.refusal(ask, minimum_by_stage(ask)) if ask is not None else None
        passing = (ShareSpent, OverLimit) if isinstance(earmark, Promise) else (ShareSpent,)
        if reason is not None and not isinstance(reason, passing):
            plan.do(Released(earmark.seq, f"it may not start: {reason}"))


def end_promises(plan: Plan) -> None:
    """Release promises that cannot be kept: a task that had to stop for one is overdue, or all have ended in vain."""
    partition = plan.partition
    for _, promise in sorted(partition.promises.items()) if partition.promises and partition.readiness.ready else ():
        if not promise.ordered and not is_coming(partition, promise):
            if is_stuck(partition, promise):
                plan.do(Released(promise.seq, "a task did not stop in time"))
            else:
                # If the promise lost a node, the ask may claim again at once.
                pause = 0 if _lacks_some(partition, promise) else partition.now + partition.settings.promise_for
                plan.do(Released(promise.seq, "the stopped tasks freed too little", pause))


def end_short_holds(plan: Plan) -> None:
    """Release holds that have lost nodes which their ask needs. Nodes are chosen again afterwards."""
    partition = plan.partition
    for _, hold in sorted(partition.holds.items()):
        if _lacks_some(partition, hold):
            plan.do(Released(hold.seq, "it needs more nodes than are held for it"))


def in_order(partition: Partition) -> list[Hold | Promise]:
    """Return all holds and promises by the priority of their jobs, then by age."""
    earmarks: list[Hold | Promise] = [*partition.holds.values(), *partition.promises.values()]
    return sorted(earmarks, key=lambda earmark: (-partition.jobs[earmark.job].priority, earmark.since, earmark.seq))


def kept_due(partition: Partition) -> Iterator[Micros]:
    """Yield the times at which holds and promises expire."""
    if partition.nodes.held:
        for earmark in in_order(partition):
            yield ends_at(partition, earmark, partition.now)


def held_nodes(holds: Iterable[Hold]) -> dict[int, None]:
    return {node_id: None for hold in holds for node_id in hold.nodes}


def starving_holds(partition: Partition) -> list[Hold]:
    """Return the holds of starving asks. `held_nodes_percent` limits these holds only, not those that recall loans."""
    return [hold for hold in partition.holds.values() if not hold.recalled]


def most_held(partition: Partition) -> int:
    """Return the number of nodes that may be held for starving asks at the same time."""
    return may_be_held(partition.settings.held_nodes_percent, len(partition.nodes))


def _expired(partition: Partition, earmark: Hold | Promise) -> tuple[str, Micros] | None:
    """Return why an earmark expires now, and the time until which its ask gets no new one; None if it stays."""
    if partition.readiness.ready and partition.now >= ends_at(partition, earmark, partition.now):
        if isinstance(earmark, Promise) and earmark.ordered:
            return "the rest of its nodes did not come in time", 0
        return "it did not help in time", partition.now + pause_after(partition, earmark)
    return None


def pause_after(partition: Partition, earmark: Hold | Promise) -> Micros:
    """Return how long an ask gets no new earmark after one that did not help or that an operator released."""
    starving = isinstance(earmark, Hold) and not earmark.recalled
    return partition.settings.starving_after if starving else partition.settings.promise_for


def _trim(plan: Plan, earmark: Hold | Promise) -> None:
    partition = plan.partition
    places = usable_places(partition, earmark)
    if not places:
        plan.do(Released(earmark.seq, NODE_UNUSABLE))
        return
    if places != earmark.places:
        plan.do(Trimmed(earmark.seq, places, NODE_UNUSABLE))
    partition.memory.checked_earmarks[earmark.seq] = partition.nodes.version


def _needs_all(earmark: Earmark, ask: Ask) -> bool:
    """True if an ask still needs all capacity that is kept for it."""
    reserved: dict[int, int] = {}
    for _, position, tasks in earmark.places:
        reserved[position] = reserved.get(position, 0) + tasks
    needs = {stage.position: needed for stage, needed in minimum_by_stage(ask)}
    if is_for_many(earmark) and not ask.whole:  # single tasks may have nodes for all
        return reserved.get(ask.stage.position, 0) <= max(gang_size(ask), ask.count)
    return all(tasks <= needs.get(position, 0) for position, tasks in reserved.items())


def is_for_many(earmark: Earmark) -> bool:
    """True if an earmark may have nodes for more tasks than must start together: recalls and ordered nodes may."""
    return earmark.recalled if isinstance(earmark, Hold) else isinstance(earmark, Promise) and earmark.ordered


def _lacks_some(partition: Partition, earmark: Earmark) -> bool:
    """True if an ask needs more capacity than is kept for it."""
    ask = partition.ask_of_earmark(earmark)
    return ask is not None and earmark.tasks < gang_size(ask)
