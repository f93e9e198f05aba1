"""Holds: nodes are kept free of new work for a gang that small tasks keep walking past, until it can start.

After match, those that starve are taken by priority. A gang gets enough nodes to start whole, by their capacity, or
none. What becomes of them is in `phases/kept.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.core.changes import Held, Placed, SinglesPlaced
from fairlead.core.forecast import end_of
from fairlead.core.holding import claimed_on, may_take, room_beside
from fairlead.core.lanes import Lane
from fairlead.core.model import NEW, Job, Micros, Place, Reservation, Stage
from fairlead.core.outcomes import call_back, live_of
from fairlead.core.phases.kept import end_kept, held_nodes, most_held
from fairlead.core.phases.turn import barred, needs_of, together_of
from fairlead.core.plan import Plan
from fairlead.core.policy.score import is_exact, may_be_held, node_score
from fairlead.core.ranges import count
from fairlead.core.shape import Shape
from fairlead.core.state import FAR, Partition

Claims = dict[int, list[tuple[Shape, int]]]
"""A node by its join number → the shapes, and how many tasks of each, that claim room there."""

# -- those who starve --------------------------------------------------------------------------------------------


def hold_nodes(plan: Plan) -> None:
    """Hold nodes for those who starve, by priority. Nobody gets any in a cycle in which higher priority was placed."""
    p = plan.partition
    end_kept(plan)
    if not p.reign.ready or plan.more or not p.settings.hold_for or not (p.starving or p.hungry <= p.now):
        return
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
    for lane, reservation in starving:
        if any(each.large for each in p.holds.values()):
            return
        if placed is not None and placed > reservation.stage.job.priority:
            plan.more = True
            return
        if barred(p, reservation):
            continue
        seen = (reservation.seq, p.nodes.version, p.holds_version, p.settings)
        if lane.unheld is None or lane.unheld[0] != seen:
            lane.unheld = (seen, _waits_alone(plan, reservation))
        if lane.unheld[1]:
            return


def _waits_alone(plan: Plan, reservation: Reservation) -> bool:
    """Hold nodes for a reservation. Returns whether it needs so many that nobody else may have any new ones before."""
    p = plan.partition
    places = _find(p, reservation, p.settings.held_nodes_percent)
    large = places is None and p.settings.hold_large
    if large:
        places = _find(p, reservation, None)
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
    return max(reservation.waiting_since + p.settings.starving_after + 1, reservation.unheld_until)


def starving_due(p: Partition) -> Iterator[Micros]:
    """When somebody may begin to starve, if nothing happens before."""
    if p.settings.hold_for and p.now < p.hungry < FAR:
        yield p.hungry


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


def _find(p: Partition, reservation: Reservation, percent: int | None) -> tuple[Place, ...] | None:
    """Nodes whose capacity, beside what others claim there already, takes all that has to start at once; or None.

    With a percentage, only so many of those that could take a task are looked at, and so many of all may be held. With
    none, it is as if nobody else had any.
    """
    own = _own_room(reservation.stage.job)
    kept: Claims = {}
    if percent is not None:
        kept = {join: claimed_on(p, join) + own.get(join, []) for join in held_nodes(p)}
    most = len(p.nodes) if percent is None else most_held(p)
    places: list[Place] = []
    for stage, needed in needs_of(reservation):
        candidates = _candidates(p, stage, own)
        if sum(min(room, needed) for _, room in candidates) < needed:
            return None
        ranked = _ranked(p, stage.shape, [join for join, _ in candidates])
        if percent is not None:
            ranked = ranked[: may_be_held(percent, len(ranked))]
        found = _take(p, stage, needed, ranked, kept, own, most)
        if found is None:
            return None
        places += found
    return tuple(places)


def _take(
    p: Partition, stage: Stage, needed: int, ranked: list[int], kept: Claims, own: Claims, most: int
) -> list[Place] | None:
    """Keep as much as there is of each node in turn, until all tasks have a place. `most` nodes may be kept."""
    places: list[Place] = []
    for join in ranked:
        if join not in kept and len(kept) >= most:
            continue
        beside = kept[join] if join in kept else own.get(join, [])
        room = room_beside(p.nodes, join, beside, stage.shape, 1 if stage.shape.key.apart else needed)
        if room > 0:
            kept[join] = [*beside, (stage.shape, room)]
            places.append((join, stage.position, room))
            needed -= room
        if not needed:
            return places
    return None


def _own_room(job: Job) -> Claims:
    """What a job uses already, by node: that does not end before it does."""
    own: Claims = {}
    for stage in job.stages:
        for allocation in live_of(stage):
            own.setdefault(allocation.node, []).append((stage.shape, count(allocation.indices)))
    return own


def _candidates(p: Partition, stage: Stage, own: Claims) -> list[tuple[int, int]]:
    """The nodes that could take a task of a stage if nobody else were there, and how many of them."""
    nodes, shape = p.nodes, stage.shape
    taken = {each.node for each in (stage.live or {}).values()} if shape.key.apart else ()
    found: list[tuple[int, int]] = []
    for join in sorted(nodes.rows):
        row = nodes.rows[join]
        if join in taken or any(seq in p.promises for seq in nodes.held.get(join, ())):
            continue
        if nodes.placeable(row) and may_take(nodes, row, shape):
            room = room_beside(nodes, join, own.get(join, ()), shape, 1 if shape.key.apart else stage.count)
            if room > 0:
                found.append((join, room))
    return found


def _ranked(p: Partition, shape: Shape, joins: list[int]) -> list[int]:
    """The best nodes first: by their score, then who is expected to be free first, then who joined first."""
    nodes, asked = p.nodes, shape.resources

    def rank(join: int) -> tuple[int, int, int, int, int]:
        row = nodes.rows[join]
        free = nodes.free(row)
        known, when = _expected_free(p, row)
        return (not is_exact(asked, free), -node_score(asked, free), not known, when, join)

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
