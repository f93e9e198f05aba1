"""Nodes that are held or promised are released when they do not serve their ask any more.

That is when the ask is not wanted as it was, when admission refuses it for a reason that does not pass by itself, when
one of the nodes is no longer what it was, and when it takes too long. An ask that starts releases its nodes itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.core.admission import Admission
from fairlead.core.asks import needs_of
from fairlead.core.changes import Released
from fairlead.core.holding import is_coming, stands
from fairlead.core.model import Hold, Kept, Micros, Promise, Reservation
from fairlead.core.plan import Plan
from fairlead.core.policy.score import may_be_held
from fairlead.core.reasons import OverLimit, Reason, ShareSpent
from fairlead.core.state import Partition


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
    if p.reign.ready:
        _end_refused(plan)
    counted = [kept for kept in in_order(p) if isinstance(kept, Hold) and not kept.large]
    while len({join: None for hold in counted for join in hold.nodes}) > most_held(p):
        plan.do(Released(counted.pop().seq, "more nodes were held than may be"))


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
    for promise in list(p.promises.values()):
        if not promise.ordered and not is_coming(p, promise):
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
    if isinstance(kept, Promise) and kept.ordered:  # the other nodes have yet to come
        stages, kind = reservation.stage.job.stages, reservation.kind
        return all(tasks <= max(needs.get(at, 0), len(stages[at].wanted(kind))) for at, tasks in there.items())
    return there == needs
