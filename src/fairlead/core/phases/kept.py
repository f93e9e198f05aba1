"""Nodes that are held or promised: those they are kept for are tried first, and they are let go when they do not serve.

That is when the reservation has started, when it is not wanted as it was or may not start any more, when one of the
nodes is no longer what it was, and when it takes too long.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.core.changes import Released
from fairlead.core.holding import is_coming, is_stuck, stands
from fairlead.core.model import Hold, Kept, Micros, Promise, Reservation
from fairlead.core.outcomes import ask_for_rest
from fairlead.core.phases.turn import is_admitted, needs_of, over_limit, take_turn, together_of
from fairlead.core.plan import Plan
from fairlead.core.policy.score import may_be_held
from fairlead.core.reasons import NoRoom, OverLimit, ShareSpent
from fairlead.core.state import Partition


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
    counted = [kept for kept in in_order(p) if isinstance(kept, Hold) and not kept.large]
    while len({join: None for hold in counted for join in hold.nodes}) > most_held(p):
        plan.do(Released(counted.pop().seq, "more nodes were held than may be"))


def end_promises(plan: Plan) -> None:
    """Let go what is promised to somebody who did not start though all whose room it counted on are gone."""
    p = plan.partition
    for promise in list(p.promises.values()):
        if not promise.ordered and not is_coming(p, promise):
            if is_stuck(p, promise):
                plan.do(Released(promise.seq, "a task did not stop in time"))
            else:
                plan.do(Released(promise.seq, "it did not help", p.now + p.settings.promise_for))


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
    if p.now >= _until(p, kept):
        if isinstance(kept, Promise) and kept.ordered:
            return "the rest of its nodes did not come in time", 0
        pause = p.settings.starving_after if isinstance(kept, Hold) else p.settings.promise_for
        return "it did not help in time", p.now + pause
    if kept.checked != p.nodes.version:
        if not stands(p, kept):
            return "a node of it is not what it was", 0
        kept.checked = p.nodes.version
    return None


def _until(p: Partition, kept: Hold | Promise) -> Micros:
    settings = p.settings
    if isinstance(kept, Hold):
        return kept.since + settings.hold_for
    return kept.since + settings.promise_for + (0 if kept.ordered else settings.preempt_grace)


def _same(kept: Kept, reservation: Reservation) -> bool:
    """Whether a reservation needs what is kept for it."""
    there: dict[int, int] = {}
    for _, position, tasks in kept.places:
        there[position] = there.get(position, 0) + tasks
    needs = {stage.position: needed for stage, needed in needs_of(reservation)}
    if isinstance(kept, Promise) and kept.ordered:  # the others have yet to come
        return all(tasks <= needs.get(position, 0) for position, tasks in there.items())
    return there == needs
