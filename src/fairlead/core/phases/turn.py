"""One turn: what a reservation gets, a gang whole or not at all, or why it gets nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fairlead.core.changes import Began, Part, Placed, Released
from fairlead.core.explain import most_ever, never_whole
from fairlead.core.holding import choose_held, choose_lent, choose_on
from fairlead.core.model import NEW, REPLACE, SCALE, Job, Reservation, Stage
from fairlead.core.nodeindex import Choice
from fairlead.core.phases.topology import gather
from fairlead.core.plan import Plan
from fairlead.core.policy.limits import allowed, may_run, tasks_allowed
from fairlead.core.ranges import split
from fairlead.core.reasons import NeverFits, NoRoom, NotActive, OverLimit, Reason, ShareSpent, StillStopping
from fairlead.core.resources import CPU, GPU, MEMORY, Vector, add, scale
from fairlead.core.scoreindex import ScoreIndex
from fairlead.core.shape import Shape
from fairlead.core.state import Partition


def blocks_all(reservation: Reservation, reason: Reason) -> bool:
    """Whether what keeps this one back keeps back its whole lane: equal tasks of the same queue."""
    if isinstance(reason, OverLimit):
        shared = (level.account.name for level in reservation.stage.job.queue.line())
        return together_of(reservation) == 1 and reason.account in shared
    if isinstance(reason, NeverFits):
        return reason.most == 0 and not reservation.whole
    return isinstance(reason, NotActive)


def take_turn(
    plan: Plan,
    reservation: Reservation,
    together: int,
    most: int,
    full: Mapping[Shape, Reason] | None = None,
    on: int | None = None,
) -> tuple[int, Reason | None]:
    """One gang, or single tasks up to a number. Returns how many were placed, and why no more could be.

    `full` are shapes of which not one task has room: they need not be tried again. `on` is the only node to use.
    """
    if reservation.whole:
        return _start_whole(plan, reservation, together)
    stage, kind = reservation.stage, reservation.kind
    wanted = stage.pending[kind]
    p, job = plan.partition, stage.job
    if wanted is None or len(wanted) < together or (stage.live and _still_stopping(reservation)):
        return 0, StillStopping()
    reason = _admit(p, job)
    if reason is not None:
        return 0, reason
    most = together if together > 1 else min(most, len(wanted))
    if _bound_by_share(p, reservation):
        spent, most = _without_loan(p, stage, most)
        if spent is not None:
            return 0, spent
        most = max(most, together)
    limited = limits_of(p, reservation) if p.facts().limits else []
    if limited:
        reason = allowed(limited, scale(stage.shape.resources, together))
        if reason is not None:
            return 0, reason
        most = tasks_allowed(limited, stage.shape.resources, most)
    if together == 1 and full and stage.shape in full:
        return 0, full[stage.shape]
    placed = _place(plan, stage, kind, together, most, p.counters.allocation if together > 1 else 0, on)
    if placed < together:
        return 0, _no_room(p, reservation, together, placed)
    if p.nodes.held:
        _let_go(plan, reservation)
    return placed, None


def _start_whole(plan: Plan, reservation: Reservation, together: int) -> tuple[int, Reason | None]:
    """What a job needs of every stage, at once or not at all. Returns how many tasks were placed, or why none was."""
    p = plan.partition
    job = reservation.stage.job
    needs = needs_of(reservation)
    if any(len(stage.wanted(NEW)) < needed for stage, needed in needs) or _still_stopping(reservation):
        return 0, StillStopping()
    reason = _admit(p, job) or share_spent(p, reservation) or over_limit(p, reservation)
    if reason is not None:
        return 0, reason
    tried = _place_all(plan, needs)
    if tried and isinstance(p.index, ScoreIndex):
        # Where one stage was spread out, another may have found no room: packed tightly they may all have some.
        p.index.tight = True
        try:
            tried = _place_all(plan, needs)
        finally:
            p.index.tight = False
    if tried:
        found = sum(placed for _, _, placed in tried)
        return 0, never_whole(p, needs) or NoRoom(together, found, stages=tuple(tried))
    plan.do(Began(job.id))
    _let_go(plan, reservation)
    return together, None


def _place_all(plan: Plan, needs: list[tuple[Stage, int]]) -> list[tuple[str, int, int]]:
    """Place all of it. If that cannot be, nothing is placed: returns stage, wanted and found, as far as was tried."""
    p = plan.partition
    mark, room = plan.mark(), p.room
    group = p.counters.allocation if sum([needed for _, needed in needs]) > 1 else 0
    tried: list[tuple[str, int, int]] = []
    for stage, needed in needs:
        placed = _place(plan, stage, NEW, needed, needed, group)
        tried.append((stage.name, needed, placed))
        if placed < needed:
            plan.rollback(mark)
            p.room = room  # what is free again was only tried: nobody else need look
            p.index.refresh()
            return tried
    return []


def needs_of(reservation: Reservation) -> list[tuple[Stage, int]]:
    """How much of each stage has to start at once, those first that are the hardest to find room for.

    Small tasks that may go anywhere would otherwise stand where alone the large and choosy ones fit.
    """

    def ease(stage: Stage) -> tuple[int, ...]:
        key = stage.shape.key
        asked = dict(key.resources)
        choosy = len(key.selectors) + bool(key.pool) + key.apart
        return (-asked.get(GPU, 0), -choosy, -asked.get(CPU, 0), -asked.get(MEMORY, 0), stage.position)

    if not reservation.whole:
        return [(reservation.stage, together_of(reservation))]
    return [(stage, stage.needed) for stage in sorted(reservation.stages, key=ease) if stage.needed]


def over_limit(p: Partition, reservation: Reservation) -> OverLimit | None:
    """A limit that all of it together would exceed."""
    return allowed(limits_of(p, reservation), asked_by(reservation))


def asked_by(reservation: Reservation) -> Vector:
    """What has to be there for a reservation to start."""
    asked: Vector = {}
    for stage, needed in needs_of(reservation):
        add(asked, stage.shape.resources, needed)
    return asked


def limits_of(p: Partition, reservation: Reservation) -> list[tuple[str, Vector, Vector]]:
    """The limits that count for a reservation: whose, how much, and what of that is used, or promised to others."""
    limited = [(each, each.limit) for each in reservation.stage.job.accounts if each.limit is not None]
    if not p.promises:
        return [(account.name, limit, account.used) for account, limit in limited]
    found: list[tuple[str, Vector, Vector]] = []
    for account, limit in limited:
        used = dict(account.used)
        for promise in p.promises.values():
            claimant = p.kept_for(promise)
            if claimant is not None and claimant is not reservation and account in claimant.stage.job.accounts:
                add(used, asked_by(claimant))
        found.append((account.name, limit, used))
    return found


def _still_stopping(reservation: Reservation) -> bool:
    """Whether members of the same gang have yet to come back."""
    stage = reservation.stage
    if stage.started and reservation.kind != SCALE:
        return False
    # Of a stage that goes on, tasks beyond what it needs may be stopped for others.
    causes = ("gang",) if stage.started else ("gang", "preempt")
    return any(each.cause in causes for stage in reservation.stages for each in (stage.live or {}).values())


def together_of(reservation: Reservation) -> int:
    """How many tasks have to start at once."""
    if reservation.whole:
        return sum(stage.needed for stage in reservation.stages)
    stage = reservation.stage
    if stage.count == 1:
        return 1
    if reservation.kind == NEW:
        return 1 if stage.started else max(1, stage.needed)
    if reservation.kind == SCALE and stage.terms.scaling == "strict" and not stage.terms.min:
        return reservation.count
    return 1


def _admit(p: Partition, job: Job) -> Reason | None:
    """Whether the job may start, or go on, at all."""
    if p.stopped:
        for queue in job.queue.line():
            if queue.state == "stopped":
                return NotActive(queue.path)
    if job.allocations or not p.facts().limits:
        return None
    bounded = [(each, each.max_jobs) for each in job.accounts if each.max_jobs is not None]
    if not bounded:
        return None
    # Others for whom somebody stops will run, too.
    names = {promise.job: None for promise in p.promises.values() if promise.job != job.id}
    coming = [p.jobs[name] for name in names if name in p.jobs and not p.jobs[name].allocations]
    return may_run(
        [
            (each.name, most, each.running + sum(each in claimant.accounts for claimant in coming))
            for each, most in bounded
        ]
    )


def is_admitted(p: Partition, job: Job) -> bool:
    """Whether nothing but room and limits of resources keeps a job back."""
    return _admit(p, job) is None


def is_firm(p: Partition, job: Job) -> bool:
    """Whether what the job uses cannot be taken back."""
    return not job.preemptible or (p.facts().firm and not all(queue.settings.preemptible for queue in job.queue.line()))


def share_spent(p: Partition, reservation: Reservation) -> ShareSpent | None:
    """The share that keeps a reservation back because what it uses could not be taken back."""
    return _without_loan(p, reservation.stage, 1)[0] if _bound_by_share(p, reservation) else None


def _bound_by_share(p: Partition, reservation: Reservation) -> bool:
    """Whether it must not borrow. Who is promised room was within its share when others were stopped for it."""
    return reservation.kind != REPLACE and is_firm(p, reservation.stage.job) and reservation.seq not in p.promises


def _without_loan(p: Partition, stage: Stage, most: int) -> tuple[ShareSpent | None, int]:
    """Where a share is spent, if one is; and how many tasks, up to a number, start before one is."""
    rights = p.entitlements()
    for queue in stage.job.queue.line()[1:]:
        if rights.of(queue) == rights.whole:
            continue  # there is nobody it could borrow from
        used = (queue.account.used, queue.account.tasks)
        most = rights.starts_below(rights.of(queue), *used, stage.shape.resources, most)
        if not most:
            return ShareSpent(queue.path), 0
    return None, most


def is_bounded(p: Partition, job: Job) -> bool:
    """Whether something other than room may keep the job back, now or later."""
    if is_firm(p, job):
        return True
    return p.facts().limits and any(each.limit is not None or each.max_jobs is not None for each in job.accounts)


def barred(p: Partition, reservation: Reservation) -> bool:
    """Whether who had no room is not even allowed any more. Then it is passed over, and the next one's turn comes."""
    job = reservation.stage.job
    if _admit(p, job) is not None or over_limit(p, reservation) is not None:
        return True
    return share_spent(p, reservation) is not None


def _place(plan: Plan, stage: Stage, kind: int, least: int, most: int, group: int, on: int | None = None) -> int:
    """Place up to so many tasks, or none if fewer than the least found room. Returns how many found room."""
    p, shape = plan.partition, stage.shape
    if on is not None:
        return _place_chosen(plan, stage, kind, least, group, choose_on(p, stage, on, most))
    held: list[Choice] = []
    if p.nodes.held:
        held = choose_held(p, stage, kind, most)
        most -= sum([each.tasks for each in held])
    away = p.index.withdraw({each.node: None for each in stage.live.values()}) if shape.key.apart and stage.live else []
    if shape.key.near and (most > 1 or stage.live):
        rows = [p.nodes.rows[each.node] for each in (stage.live or {}).values()]
        home = {p.nodes.labels[row].get(shape.key.near, "") for row in rows}
        chosen = gather(p.index, shape, most, p.counters.allocation, home)
    else:
        chosen = p.index.choose(shape, most, p.counters.allocation)
    if p.nodes.held:
        chosen = held + chosen + choose_lent(p, stage, most - sum([each.tasks for each in chosen]), plan.lent)
    placed = _place_chosen(plan, stage, kind, least, group, chosen)
    p.index.put_back([*away, *[each.join for each in chosen]])
    return placed


def _place_chosen(plan: Plan, stage: Stage, kind: int, least: int, group: int, chosen: list[Choice]) -> int:
    p = plan.partition
    placed = chosen[0].tasks if len(chosen) == 1 else sum([each.tasks for each in chosen])
    if placed >= least:
        block = stage.wanted(kind).first(placed)
        attempt = stage.next_attempt(block) if stage.history else stage.floor + 1
        parts = (Part(chosen[0].join, block, chosen[0].devices),) if len(chosen) == 1 else tuple(_parts(chosen, block))
        safe_until = _safe_until(p, stage, kind) if p.holds else 0
        plan.do(Placed(stage.job.id, stage.position, kind, attempt, p.counters.allocation, parts, group, safe_until))
    return placed


def _safe_until(p: Partition, stage: Stage, kind: int) -> int:
    """Until when work that starts from a hold is not stopped for a higher priority; 0 without a hold."""
    reservation = stage.reservations[kind]
    return p.now + p.settings.hold_for if reservation is not None and reservation.seq in p.holds else 0


def _let_go(plan: Plan, reservation: Reservation) -> None:
    """Who has started needs its nodes no longer."""
    if plan.partition.kept(reservation.seq) is not None:
        plan.do(Released(reservation.seq, "it has started"))
        plan.partition.index.refresh()


def _parts(chosen: list[Choice], block: tuple[int, ...]) -> Iterator[Part]:
    for join, tasks, devices in chosen:
        taken, block = split(block, tasks)
        yield Part(join, taken, devices)


def _no_room(p: Partition, reservation: Reservation, wanted: int, found: int) -> Reason:
    most = most_ever(p, reservation.stage.shape, reservation.stage.job.manager, wanted)
    return NeverFits(wanted, most) if most < wanted else NoRoom(wanted, found)
