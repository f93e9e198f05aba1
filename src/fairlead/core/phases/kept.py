"""Nodes that are held or promised are released when they do not serve their ask any more.

That is when the ask is not wanted as it was, when admission refuses it for a reason that does not pass by itself, and
when it takes too long. When one of the nodes is no longer what it was, the others stay kept: what is missing of an
order is ordered again, and for a hold or a claim nodes are looked for anew after match, so that no other ask takes them
meanwhile. An ask that starts releases its nodes itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.core.admission import Admission
from fairlead.core.asks import needs_of, together_of
from fairlead.core.changes import Promised, Released, Trimmed
from fairlead.core.holding import ends_at, is_coming, is_stuck, standing
from fairlead.core.model import Hold, Kept, Micros, Place, Promise, Reservation
from fairlead.core.plan import Plan
from fairlead.core.policy.score import may_be_held
from fairlead.core.reasons import OverLimit, Reason, ShareSpent
from fairlead.core.state import Partition

NOT_AS_IT_WAS = "a node of it is not what it was"


def end_kept(plan: Plan) -> None:
    """Let go what does not serve any more, and the last holds if there are more than there may be."""
    p = plan.partition
    if not p.nodes.held:
        return
    for _, kept in (*sorted(p.holds.items()), *sorted(p.promises.items())):
        reservation = p.kept_for(kept)
        if reservation is None or not _same(kept, reservation):
            plan.do(Released(kept.seq, "it is not wanted as it was"))
            _pass_on(plan, kept)
    for kept in in_order(p):
        over = _over(p, kept)
        if over is not None:
            plan.do(Released(kept.seq, *over))
        elif kept.checked != p.nodes.version:
            _trim(plan, kept)
    if p.reign.ready:
        _end_refused(plan)
    counted = [kept for kept in in_order(p) if isinstance(kept, Hold) and not kept.large]
    while len({join: None for hold in counted for join in hold.nodes}) > most_held(p):
        plan.do(Released(counted.pop().seq, "more nodes were held than may be"))


def _pass_on(plan: Plan, kept: Kept) -> None:
    """Keep nodes that came for an ask of another size, or in another place, for what is asked for instead of it."""
    ask = plan.partition.waits(kept.job, kept.stage, kept.kind)
    if ask is not None and isinstance(kept, Promise) and kept.ordered:
        for place in standing(plan.partition, kept):
            keep_arrived(plan, ask, place)


def keep_arrived(plan: Plan, reservation: Reservation, place: Place) -> None:
    """Keep a node that was ordered for an ask, with those that came before, and no more of it than the ask lacks.

    A gang lacks what has to start together; an ask of single tasks, all that is pending.
    """
    kept = plan.partition.kept(reservation.seq)
    if isinstance(kept, Hold) or (kept is not None and not kept.ordered):
        return  # it is served already
    join, position, tasks = place
    places = () if kept is None else kept.places
    needed = sum(needed for stage, needed in needs_of(reservation) if stage.position == position)
    if not reservation.whole and needed == 1:
        needed = reservation.count
    lacking = needed - sum(tasks for _, at, tasks in places if at == position)
    if lacking <= 0:
        return  # it was ordered for those who follow when the gang has started
    places = (*places, (join, position, min(tasks, lacking)))
    if kept is not None:
        plan.do(Released(kept.seq, "more of its nodes have come"))
    stage = reservation.stage
    plan.do(Promised(stage.job.id, stage.position, reservation.kind, places, (), "order"))


def _end_refused(plan: Plan) -> None:
    """Release nodes of asks that may not start, unless what stops or ends will let them."""
    p = plan.partition
    admission = Admission(p)
    for kept in in_order(p):
        ask = p.kept_for(kept)
        reason = admission.refusal(ask, needs_of(ask)) if ask is not None else None
        if reason is not None and not _passes(kept, reason):
            plan.do(Released(kept.seq, f"it may not start: {reason}"))


def _passes(kept: Hold | Promise, reason: Reason) -> bool:
    """True if a reason ends when tasks end: a share that is spent, or, for a promise, a limit."""
    return isinstance(reason, ShareSpent) or (isinstance(reason, OverLimit) and isinstance(kept, Promise))


def end_promises(plan: Plan) -> None:
    """Let go what is promised to somebody who did not start though all whose room it counted on are gone."""
    p = plan.partition
    for _, promise in sorted(p.promises.items()) if p.promises and p.reign.ready else ():
        if not promise.ordered and not is_coming(p, promise):
            if is_stuck(p, promise):
                plan.do(Released(promise.seq, "a task did not stop in time"))
            else:
                # Where a node went, that is why it did not help: the claim may be made anew at once.
                pause = 0 if _lacks_some(p, promise) else p.now + p.settings.promise_for
                plan.do(Released(promise.seq, "it did not help", pause))


def end_short_holds(plan: Plan) -> None:
    """Let holds go that have too few nodes by now: after match, when nodes are looked for anew."""
    p = plan.partition
    for _, hold in sorted(p.holds.items()):
        if _lacks_some(p, hold):
            plan.do(Released(hold.seq, "it needs more nodes than are held for it"))


def in_order(p: Partition) -> list[Hold | Promise]:
    """All that is kept, by the priority of those it is kept for, then by age."""
    kept: list[Hold | Promise] = [*p.holds.values(), *p.promises.values()]
    return sorted(kept, key=lambda each: (-p.jobs[each.job].priority, each.since, each.seq))


def kept_due(p: Partition) -> Iterator[Micros]:
    """When holds and promises end, if nothing happens before."""
    if p.nodes.held:
        for kept in in_order(p):
            yield ends_at(p, kept, p.now)


def held_nodes(p: Partition) -> dict[int, None]:
    return {join: None for hold in p.holds.values() for join in hold.nodes}


def most_held(p: Partition) -> int:
    """How many nodes may be held at once."""
    return may_be_held(p.settings.held_nodes_percent, len(p.nodes))


def _over(p: Partition, kept: Hold | Promise) -> tuple[str, Micros] | None:
    """Why it is over, and until when there is no other."""
    if p.reign.ready and p.now >= ends_at(p, kept, p.now):
        if isinstance(kept, Promise) and kept.ordered:
            return "the rest of its nodes did not come in time", 0
        pause = p.settings.starving_after if isinstance(kept, Hold) else p.settings.promise_for
        return "it did not help in time", p.now + pause
    return None


def _trim(plan: Plan, kept: Hold | Promise) -> None:
    """Let those of its nodes go that are not what they were."""
    p = plan.partition
    places = standing(p, kept)
    if not places:
        plan.do(Released(kept.seq, NOT_AS_IT_WAS))
        return
    if places != kept.places:
        plan.do(Trimmed(kept.seq, places, NOT_AS_IT_WAS))
    kept.checked = p.nodes.version


def _same(kept: Kept, reservation: Reservation) -> bool:
    """Whether a reservation needs all that is kept for it. It may need more."""
    there: dict[int, int] = {}
    for _, position, tasks in kept.places:
        there[position] = there.get(position, 0) + tasks
    needs = {stage.position: needed for stage, needed in needs_of(reservation)}
    if isinstance(kept, Promise) and kept.ordered and not reservation.whole:  # single tasks may have nodes for all
        return there.get(reservation.stage.position, 0) <= max(together_of(reservation), reservation.count)
    return all(tasks <= needs.get(position, 0) for position, tasks in there.items())


def _lacks_some(p: Partition, kept: Kept) -> bool:
    """Whether a reservation needs more than what is kept for it."""
    reservation = p.kept_for(kept)
    return reservation is not None and kept.tasks < together_of(reservation)
