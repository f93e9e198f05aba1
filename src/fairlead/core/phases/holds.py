"""Holds: nodes are kept free of new work for a gang that small tasks keep walking past, until it can start.

After match, those that starve are taken by priority. A gang gets enough nodes to start whole, by their capacity, or
none. What becomes of them is in `phases/kept.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.core.admission import refusal
from fairlead.core.asks import needs_of, together_of
from fairlead.core.changes import Held, Placed, SinglesPlaced
from fairlead.core.forecast import end_of
from fairlead.core.lanes import Lane
from fairlead.core.model import NEW, Micros, Place, Reservation
from fairlead.core.outcomes import call_back, live_of
from fairlead.core.phases.grounds import Claims, Grounds, Offer, gather, offers, suffice
from fairlead.core.phases.kept import end_kept, end_short_holds, most_held
from fairlead.core.plan import Plan
from fairlead.core.policy.score import is_exact, may_be_held, node_score
from fairlead.core.ranges import count
from fairlead.core.shape import Shape
from fairlead.core.state import FAR, Partition

MOST = 10
"""So many get nodes in one cycle, for which all nodes are ranked; the next cycle goes on."""

# -- those who starve --------------------------------------------------------------------------------------------


def hold_nodes(plan: Plan) -> None:
    """Hold nodes for those who starve, by priority. Nobody gets any in a cycle in which higher priority was placed."""
    p = plan.partition
    end_kept(plan)
    if not p.reign.ready or plan.more or not p.settings.hold_for or not (p.starving or p.hungry <= p.now):
        return
    end_short_holds(plan)
    starving: list[tuple[Lane, Reservation]] = []
    p.hungry = FAR
    for lane, reservation in _waiting(p):
        when = starves_at(p, reservation)
        if when <= p.now:
            starving.append((lane, reservation))
        else:
            p.hungry = min(p.hungry, when)
    _hold_in_order(plan, sorted(starving, key=lambda each: _place_of(each[1])))
    p.starving = any(reservation.seq not in p.holds for _, reservation in starving)


def _hold_in_order(plan: Plan, starving: list[tuple[Lane, Reservation]]) -> None:
    p = plan.partition
    placed = _highest_placed(plan) if starving else None
    grounds: Grounds | None = None
    before = len(p.holds)
    for lane, reservation in starving:
        if len(p.holds) >= before + MOST:
            plan.more = True
            return
        if any(each.large for each in p.holds.values()):
            return
        if placed is not None and placed > reservation.stage.job.priority:
            plan.more = True
            return
        if refusal(p, reservation) is not None:
            continue
        seen = _seen(p, reservation)
        if lane.unheld is None or lane.unheld[0] != seen:
            if grounds is None or grounds.version != p.holds_version:
                grounds = Grounds(p)
            lane.unheld = (seen, _waits_alone(plan, reservation, grounds))
        if lane.unheld[1]:
            return


def _seen(p: Partition, reservation: Reservation) -> object:
    """All that decides whether there are nodes for a reservation: while it is the same, there is no use in looking."""
    needs = needs_of(reservation)
    wanted = tuple([needed for _, needed in needs])
    # Of several shapes the first ones take what is best by now, and the others what they leave.
    use = (p.now, p.room, p.counters.allocation) if len(needs) > 1 else None
    own = _own_room(reservation)
    return (reservation.seq, wanted, own, use, p.nodes.version, p.holds_version, p.settings)


def _waits_alone(plan: Plan, reservation: Reservation, grounds: Grounds) -> bool:
    """Hold nodes for a reservation. Returns whether it needs so many that nobody else may have any new ones before."""
    p = plan.partition
    places = _find(p, reservation, grounds, p.settings.held_nodes_percent)
    large = places is None and p.settings.hold_large
    if large:
        places = _find(p, reservation, Grounds(p, alone=True) if p.holds else grounds, None)
    if places is None:
        return False
    if large and p.holds:
        return True
    _hold(plan, reservation, places, large)
    return False


def _hold(plan: Plan, reservation: Reservation, places: tuple[Place, ...], large: bool) -> None:
    p, stage = plan.partition, reservation.stage
    plan.do(Held(stage.job.id, stage.position, reservation.kind, places, large))
    for join in sorted({join: None for join, _, _ in places}):
        # What was sent there ahead and has not begun is new work.
        known = p.nodes.allocations[p.nodes.rows[join]]
        call_back(plan, [known[number] for number in sorted(known) if known[number].rooms])


def starves_at(p: Partition, reservation: Reservation) -> Micros:
    """From when on a reservation that finds no room starves: it has waited for longer than it should."""
    pause = p.reign.pause_ends(reservation.unheld_until, p.settings.starving_after)
    return max(reservation.waiting_since + p.settings.starving_after + 1, pause)


def starving_due(p: Partition) -> Micros:
    """When somebody may begin to starve, if nothing happens before. After a start that is not known yet."""
    return max(p.hungry, p.now) if p.settings.hold_for else FAR


def _waiting(p: Partition) -> Iterator[tuple[Lane, Reservation]]:
    for lane in p.lanes.values():
        reservation = lane.no_room
        if reservation is not None and _may_starve(p, lane, reservation):
            yield lane, reservation


def _may_starve(p: Partition, lane: Lane, reservation: Reservation) -> bool:
    """Whether it found no room, has not got nodes, and its job cannot do its work without it."""
    stage, kind = reservation.stage, reservation.kind
    if lane.slept is None or p.kept(reservation.seq) or stage.reservations[kind] is not reservation:
        return False
    if kind == NEW:
        return not stage.started
    # What a stage that has enough grows by one by one may take its time.
    return stage.short_since is not None or together_of(reservation) > 1


def _place_of(reservation: Reservation) -> tuple[int, int, int]:
    return (-reservation.stage.job.priority, reservation.waiting_since, reservation.seq)


def _highest_placed(plan: Plan) -> int | None:
    """The highest priority of what this cycle has placed."""
    jobs = plan.partition.jobs
    highest: int | None = None
    for change, _ in plan.done:
        names = [change.job] if isinstance(change, Placed) else []
        if isinstance(change, SinglesPlaced):
            names = [name for name, _ in change.tasks]
        for name in names:
            if highest is None or jobs[name].priority > highest:
                highest = jobs[name].priority
    return highest


# -- which nodes -------------------------------------------------------------------------------------------------


def _find(p: Partition, reservation: Reservation, grounds: Grounds, percent: int | None) -> tuple[Place, ...] | None:
    """Nodes whose capacity, beside what others claim there already, takes all that has to start at once; or None.

    With a percentage, only so many of those that could take a task are used, and so many of all may be held.
    """
    own = _own_room(reservation)
    most = len(p.nodes) if percent is None else most_held(p)
    claims = dict(grounds.claims)
    places: list[Place] = []
    for stage, needed in needs_of(reservation):
        apart = {each.node: None for each in (stage.live or {}).values()} if stage.shape.key.apart else {}
        first = not (own or places or apart)
        kinds = grounds.kinds() if first else gather(p, claims, own, apart)
        found = offers(p, stage.shape, kinds, stage.count)
        if sum(min(each.alone, needed) * len(each.kind.joins) for each in found) < needed:
            return None
        many = sum(len(each.kind.joins) for each in found)
        if percent is not None:
            many = may_be_held(percent, many)
        if not suffice(found, needed, many, most - len(claims)):
            return None
        for join, tasks in _take(p, stage.shape, needed, found, many, most - len(claims)):
            claims[join] = [*claims.get(join, []), (stage.shape, tasks)]
            places.append((join, stage.position, tasks))
    return tuple(places)


def _take(p: Partition, shape: Shape, needed: int, found: list[Offer], many: int, new: int) -> list[tuple[int, int]]:
    """Nodes, and how many tasks each is kept for: the best so many, or those with most room if these do not do."""
    rooms = {join: (each.beside, each.kind.held) for each in found for join in each.kind.joins}
    ranked = _ranked(p, shape, list(rooms))
    return _keep(needed, ranked[:many], rooms, many, new) or _keep(
        needed, sorted(ranked, key=lambda join: -rooms[join][0]), rooms, many, new
    )


def _keep(
    needed: int, order: list[int], rooms: dict[int, tuple[int, bool]], many: int, new: int
) -> list[tuple[int, int]]:
    """Keep as much as there is of each node in turn, until all tasks have a place; nothing if they do not get one."""
    kept: list[tuple[int, int]] = []
    for join in order:
        room, held = rooms[join]
        if not room or (not held and new <= 0):
            continue
        new -= not held
        kept.append((join, min(room, needed)))
        needed -= min(room, needed)
        if not needed:
            return kept
        if len(kept) == many:
            break
    return []


def _own_room(reservation: Reservation) -> Claims:
    """What the gang of a reservation uses already, by node: these tasks go on beside those that it asks for.

    Tasks of other stages end by themselves, as those of other jobs do.
    """
    own: Claims = {}
    for stage in reservation.stage.gang() if reservation.stage.job.allocations else ():
        for allocation in live_of(stage):
            if allocation.state != "stopping":
                own.setdefault(allocation.node, []).append((stage.shape, count(allocation.indices)))
    return own


def _ranked(p: Partition, shape: Shape, joins: list[int]) -> list[int]:
    """The best nodes first: by their score, then who is expected to be free first, then who joined first."""
    nodes, asked = p.nodes, shape.resources
    columns = [(nodes.capacity[name], nodes.used[name]) for name in asked if name in nodes.capacity]
    names = [name for name in asked if name in nodes.capacity]
    scores: dict[tuple[int, ...], tuple[bool, int]] = {}

    def rank(join: int) -> tuple[bool, int, bool, int, int]:
        row = nodes.rows[join]
        left = tuple([max(0, capacity[row] - used[row]) for capacity, used in columns])
        score = scores.get(left)
        if score is None:
            free = dict(zip(names, left, strict=True))
            score = scores[left] = (not is_exact(asked, free), -node_score(asked, free))
        known, when = _expected_free(p, row)
        return (*score, not known, when, join)

    return sorted(joins, key=rank)


def _expected_free(p: Partition, row: int) -> tuple[bool, Micros]:
    """Whether it is known when all that runs on a node will have ended, and when that is."""
    latest = p.now
    for allocation in p.nodes.allocations[row].values():
        end = end_of(allocation, p.now)
        if end is None:
            return False, 0
        latest = max(latest, end)
    return True, latest
