"""Nodes that are held or promised: those they are kept for are tried first, and they are let go when they do not serve.

That is when the reservation has started, when it is not wanted as it was or may not start any more, and when it takes
too long. When one of the nodes is no longer what it was, the others stay kept: what is missing of an order is ordered
again, and for a hold or a claim nodes are looked for anew after match, so that no other ask takes them meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.core.changes import Released, Trimmed
from fairlead.core.holding import is_coming, standing
from fairlead.core.model import Hold, Kept, Micros, Promise, Reservation
from fairlead.core.outcomes import ask_for_rest
from fairlead.core.phases.turn import is_admitted, needs_of, over_limit, take_turn, together_of
from fairlead.core.plan import Plan
from fairlead.core.policy.score import may_be_held
from fairlead.core.reasons import NoRoom, OverLimit, ShareSpent
from fairlead.core.state import Partition

NOT_AS_IT_WAS = "a node of it is not what it was"


def serve_kept(plan: Plan) -> int:
    """Whoever has nodes is tried first, wherever it stands in its lane. Returns how many tasks were placed."""
    p = plan.partition
    placed, before = 0, -1
    while p.nodes.held and before < placed:
        before = placed
        for kept in in_order(p):
            reservation = p.kept_for(kept)
            if reservation is None:
                continue
            # Without more room it need not be tried again, unless others have used up what it would be allowed.
            if kept.looked == (p.room, p.nodes.version) and not _is_kept_back(p, reservation):
                continue
            tasks, reason = take_turn(plan, reservation, together_of(reservation), kept.tasks)
            placed += tasks
            # Where a share is spent, or for a promise a limit, those who stop or end make it whole again.
            waits = isinstance(reason, (NoRoom, ShareSpent)) or (
                isinstance(reason, OverLimit) and isinstance(kept, Promise)
            )
            if waits:
                kept.looked = (p.room, p.nodes.version)
            elif reason is not None:
                plan.do(Released(kept.seq, f"it may not start: {reason}"))
            elif reservation.whole:
                ask_for_rest(plan, reservation)
    return placed


def _is_kept_back(p: Partition, reservation: Reservation) -> bool:
    return not is_admitted(p, reservation.stage.job) or over_limit(p, reservation) is not None


def end_kept(plan: Plan) -> None:
    """Let go what does not serve any more, and the last holds if there are more than there may be."""
    p = plan.partition
    if not p.nodes.held:
        return
    for kept in (*p.holds.values(), *p.promises.values()):
        reservation = p.kept_for(kept)
        if reservation is None or not _same(kept, reservation):
            plan.do(Released(kept.seq, "it is not wanted as it was"))
    for kept in in_order(p):
        over = _over(p, kept)
        if over is not None:
            plan.do(Released(kept.seq, *over))
        elif kept.checked != p.nodes.version:
            _trim(plan, kept)
    counted = [kept for kept in in_order(p) if isinstance(kept, Hold) and not kept.large]
    while len({join: None for hold in counted for join in hold.nodes}) > most_held(p):
        plan.do(Released(counted.pop().seq, "more nodes were held than may be"))


def end_promises(plan: Plan) -> None:
    """Let go what is promised to somebody who did not start though all whose room it counted on are gone."""
    p = plan.partition
    for promise in list(p.promises.values()) if p.reign.ready else ():
        if not promise.ordered and not is_coming(p, promise):
            # Where a node went, that is why it did not help: the claim may be made anew at once.
            pause = 0 if _lacks_some(p, promise) else p.now + p.settings.promise_for
            plan.do(Released(promise.seq, "it did not help", pause))


def end_short_holds(plan: Plan) -> None:
    """Let holds go that have too few nodes by now: after match, when nodes are looked for anew."""
    p = plan.partition
    for hold in list(p.holds.values()):
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
            yield _until(p, kept)


def held_nodes(p: Partition) -> dict[int, None]:
    return {join: None for hold in p.holds.values() for join in hold.nodes}


def most_held(p: Partition) -> int:
    """How many nodes may be held at once."""
    return may_be_held(p.settings.held_nodes_percent, len(p.nodes))


def _over(p: Partition, kept: Hold | Promise) -> tuple[str, Micros] | None:
    """Why it is over, and until when there is no other."""
    if p.reign.ready and p.now >= _until(p, kept):
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


def _until(p: Partition, kept: Hold | Promise) -> Micros:
    settings = p.settings
    if isinstance(kept, Hold):
        return p.reign.counts_from(kept.since) + settings.hold_for
    return p.reign.counts_from(kept.since) + settings.promise_for + (0 if kept.ordered else settings.preempt_grace)


def _same(kept: Kept, reservation: Reservation) -> bool:
    """Whether a reservation needs all that is kept for it. It may need more."""
    there: dict[int, int] = {}
    for _, position, tasks in kept.places:
        there[position] = there.get(position, 0) + tasks
    needs = {stage.position: needed for stage, needed in needs_of(reservation)}
    return all(tasks <= needs.get(position, 0) for position, tasks in there.items())


def _lacks_some(p: Partition, kept: Kept) -> bool:
    """Whether a reservation needs more than what is kept for it."""
    reservation = p.kept_for(kept)
    return reservation is not None and kept.tasks < together_of(reservation)
