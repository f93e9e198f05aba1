"""Nodes that are held or promised are released when they do not serve their ask any more.

That is when the ask is not wanted as it was, when admission refuses it for a reason that does not pass by itself, and
when it takes too long. When one of the nodes is no longer what it was, the others stay kept: what is missing of an
order is ordered again, and for a hold or a claim nodes are looked for anew after match, so that no other ask takes them
meanwhile. An ask that starts releases its nodes itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.core.admission import Admission
from fairlead.core.asks import gang_size, minimum_by_stage
from fairlead.core.changes import Promised, Released, Trimmed
from fairlead.core.holds.room import ends_at, is_coming, is_stuck, standing
from fairlead.core.model import Ask, Earmark, Hold, Micros, Place, Promise
from fairlead.core.plan import Plan
from fairlead.core.policy.score import may_be_held
from fairlead.core.reasons import OverLimit, Reason, ShareSpent
from fairlead.core.state import Partition

NOT_AS_IT_WAS = "a node of it is not what it was"


def release_obsolete(plan: Plan) -> None:
    """Let go what does not serve any more, and the last holds if there are more than there may be."""
    partition = plan.partition
    if not partition.nodes.held:
        return
    for _, kept in (*sorted(partition.holds.items()), *sorted(partition.promises.items())):
        ask = partition.kept_for(kept)
        if ask is None or not _same(kept, ask):
            plan.do(Released(kept.seq, "it is not wanted as it was"))
            _pass_on(plan, kept)
    for kept in in_order(partition):
        over = _over(partition, kept)
        if over is not None:
            plan.do(Released(kept.seq, *over))
        elif kept.checked != partition.nodes.version:
            _trim(plan, kept)
    if partition.reign.ready:
        _end_refused(plan)
    counted = [kept for kept in in_order(partition) if isinstance(kept, Hold) and not kept.large]
    while len({node_id: None for hold in counted for node_id in hold.nodes}) > most_held(partition):
        plan.do(Released(counted.pop().seq, "more nodes were held than may be"))


def _pass_on(plan: Plan, kept: Earmark) -> None:
    """Keep nodes that came for an ask of another size, or in another place, for what is asked for instead of it."""
    ask = plan.partition.waits(kept.job, kept.stage, kept.kind)
    if ask is not None and isinstance(kept, Promise) and kept.ordered:
        for place in standing(plan.partition, kept):
            keep_arrived(plan, ask, place)


def keep_arrived(plan: Plan, ask: Ask, place: Place) -> None:
    """Keep a node that was ordered for an ask, with those that came before, and no more of it than the ask lacks.

    A gang lacks what has to start together; an ask of single tasks, all that is pending.
    """
    kept = plan.partition.kept(ask.seq)
    if isinstance(kept, Hold) or (kept is not None and not kept.ordered):
        return  # it is served already
    node_id, position, tasks = place
    places = () if kept is None else kept.places
    needed = sum(needed for stage, needed in minimum_by_stage(ask) if stage.position == position)
    if not ask.whole and needed == 1:
        needed = ask.count
    lacking = needed - sum(tasks for _, at, tasks in places if at == position)
    if lacking <= 0:
        return  # it was ordered for those who follow when the gang has started
    places = (*places, (node_id, position, min(tasks, lacking)))
    if kept is not None:
        plan.do(Released(kept.seq, "more of its nodes have come"))
    stage = ask.stage
    plan.do(Promised(stage.job.id, stage.position, ask.kind, places, (), "order"))


def _end_refused(plan: Plan) -> None:
    """Release nodes of asks that may not start, unless what stops or ends will let them."""
    partition = plan.partition
    admission = Admission(partition)
    for kept in in_order(partition):
        ask = partition.kept_for(kept)
        reason = admission.refusal(ask, minimum_by_stage(ask)) if ask is not None else None
        if reason is not None and not _passes(kept, reason):
            plan.do(Released(kept.seq, f"it may not start: {reason}"))


def _passes(kept: Hold | Promise, reason: Reason) -> bool:
    """True if a reason ends when tasks end: a share that is spent, or, for a promise, a limit."""
    return isinstance(reason, ShareSpent) or (isinstance(reason, OverLimit) and isinstance(kept, Promise))


def end_promises(plan: Plan) -> None:
    """Let go what is promised to somebody who did not start though all whose room it counted on are gone."""
    partition = plan.partition
    for _, promise in sorted(partition.promises.items()) if partition.promises and partition.reign.ready else ():
        if not promise.ordered and not is_coming(partition, promise):
            if is_stuck(partition, promise):
                plan.do(Released(promise.seq, "a task did not stop in time"))
            else:
                # Where a node went, that is why it did not help: the claim may be made anew at once.
                pause = 0 if _lacks_some(partition, promise) else partition.now + partition.settings.promise_for
                plan.do(Released(promise.seq, "it did not help", pause))


def end_short_holds(plan: Plan) -> None:
    """Let holds go that have too few nodes by now: after match, when nodes are looked for anew."""
    partition = plan.partition
    for _, hold in sorted(partition.holds.items()):
        if _lacks_some(partition, hold):
            plan.do(Released(hold.seq, "it needs more nodes than are held for it"))


def in_order(partition: Partition) -> list[Hold | Promise]:
    """All that is kept, by the priority of those it is kept for, then by age."""
    kept: list[Hold | Promise] = [*partition.holds.values(), *partition.promises.values()]
    return sorted(kept, key=lambda each: (-partition.jobs[each.job].priority, each.since, each.seq))


def kept_due(partition: Partition) -> Iterator[Micros]:
    """When holds and promises end, if nothing happens before."""
    if partition.nodes.held:
        for kept in in_order(partition):
            yield ends_at(partition, kept, partition.now)


def held_nodes(partition: Partition) -> dict[int, None]:
    return {node_id: None for hold in partition.holds.values() for node_id in hold.nodes}


def most_held(partition: Partition) -> int:
    """How many nodes may be held at once."""
    return may_be_held(partition.settings.held_nodes_percent, len(partition.nodes))


def _over(partition: Partition, kept: Hold | Promise) -> tuple[str, Micros] | None:
    """Why it is over, and until when there is no other."""
    if partition.reign.ready and partition.now >= ends_at(partition, kept, partition.now):
        if isinstance(kept, Promise) and kept.ordered:
            return "the rest of its nodes did not come in time", 0
        pause = partition.settings.starving_after if isinstance(kept, Hold) else partition.settings.promise_for
        return "it did not help in time", partition.now + pause
    return None


def _trim(plan: Plan, kept: Hold | Promise) -> None:
    """Let those of its nodes go that are not what they were."""
    partition = plan.partition
    places = standing(partition, kept)
    if not places:
        plan.do(Released(kept.seq, NOT_AS_IT_WAS))
        return
    if places != kept.places:
        plan.do(Trimmed(kept.seq, places, NOT_AS_IT_WAS))
    kept.checked = partition.nodes.version


def _same(kept: Earmark, ask: Ask) -> bool:
    """Whether an ask needs all that is kept for it. It may need more."""
    there: dict[int, int] = {}
    for _, position, tasks in kept.places:
        there[position] = there.get(position, 0) + tasks
    needs = {stage.position: needed for stage, needed in minimum_by_stage(ask)}
    if isinstance(kept, Promise) and kept.ordered and not ask.whole:  # single tasks may have nodes for all
        return there.get(ask.stage.position, 0) <= max(gang_size(ask), ask.count)
    return all(tasks <= needs.get(position, 0) for position, tasks in there.items())


def _lacks_some(partition: Partition, kept: Earmark) -> bool:
    """Whether an ask needs more than what is kept for it."""
    ask = partition.kept_for(kept)
    return ask is not None and kept.tasks < gang_size(ask)
