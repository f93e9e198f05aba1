"""Holds: nodes are kept free of new work for a gang that small tasks keep walking past, until it can start.

After match, those that starve are taken by priority. A gang gets enough nodes to start whole, by their capacity, or
none. What becomes of them is in `core/holds/release.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.core.admission import refusal
from fairlead.core.asks import gang_size, minimum_by_stage
from fairlead.core.changes import Held, Placed, SinglesPlaced
from fairlead.core.forecast import end_of
from fairlead.core.holds.candidates import Candidates, Claims, Offer, gather, offers, suffice
from fairlead.core.holds.release import end_short_holds, most_held, release_obsolete
from fairlead.core.lanes import Lane
from fairlead.core.model import NEW, Ask, Micros, Place
from fairlead.core.outcomes import call_back, live_of
from fairlead.core.plan import Plan
from fairlead.core.policy.score import is_exact, may_be_held, node_score
from fairlead.core.ranges import count
from fairlead.core.shape import Shape
from fairlead.core.state import FAR, Partition

MAX_HEADS = 10
"""So many get nodes in one cycle, for which all nodes are ranked; the next cycle goes on."""

# -- those who starve --------------------------------------------------------------------------------------------


def hold_nodes(plan: Plan) -> None:
    """Hold nodes for those who starve, by priority. Nobody gets any in a cycle in which higher priority was placed."""
    partition = plan.partition
    release_obsolete(plan)
    if (
        not partition.reign.ready
        or plan.more
        or not partition.settings.hold_for
        or not (partition.unheld_starving or partition.next_starving_at <= partition.now)
    ):
        return
    end_short_holds(plan)
    starving: list[tuple[Lane, Ask]] = []
    partition.next_starving_at = FAR
    for lane, ask in _waiting(partition):
        when = starves_at(partition, ask)
        if when <= partition.now:
            starving.append((lane, ask))
        else:
            partition.next_starving_at = min(partition.next_starving_at, when)
    _hold_in_order(plan, sorted(starving, key=lambda each: _place_of(each[1])))
    partition.unheld_starving = any(ask.seq not in partition.holds for _, ask in starving)


def _hold_in_order(plan: Plan, starving: list[tuple[Lane, Ask]]) -> None:
    partition = plan.partition
    placed = _highest_placed(plan) if starving else None
    grounds: Candidates | None = None
    before = len(partition.holds)
    for lane, ask in starving:
        if len(partition.holds) >= before + MAX_HEADS:
            plan.more = True
            return
        if any(each.large for each in partition.holds.values()):
            return
        if placed is not None and placed > ask.stage.job.priority:
            plan.more = True
            return
        if refusal(partition, ask) is not None:
            continue
        seen = _seen(partition, ask)
        if lane.unheld is None or lane.unheld[0] != seen:
            if grounds is None or grounds.version != partition.holds_version:
                grounds = Candidates(partition)
            lane.unheld = (seen, _waits_alone(plan, ask, grounds))
        if lane.unheld[1]:
            return


def _seen(partition: Partition, ask: Ask) -> object:
    """All that decides whether there are nodes for an ask: while it is the same, there is no use in looking."""
    needs = minimum_by_stage(ask)
    wanted = tuple([needed for _, needed in needs])
    # Of several shapes the first ones take what is best by now, and the others what they leave.
    use = (partition.now, partition.openings, partition.counters.allocation) if len(needs) > 1 else None
    own = _own_room(ask)
    return (ask.seq, wanted, own, use, partition.nodes.version, partition.holds_version, partition.settings)


def _waits_alone(plan: Plan, ask: Ask, grounds: Candidates) -> bool:
    """Hold nodes for an ask. Returns whether it needs so many that nobody else may have any new ones before."""
    partition = plan.partition
    places = _find(partition, ask, grounds, partition.settings.held_nodes_percent)
    large = places is None and partition.settings.hold_large
    if large:
        places = _find(partition, ask, Candidates(partition, alone=True) if partition.holds else grounds, None)
    if places is None:
        return False
    if large and partition.holds:
        return True
    _hold(plan, ask, places, large)
    return False


def _hold(plan: Plan, ask: Ask, places: tuple[Place, ...], large: bool) -> None:
    partition, stage = plan.partition, ask.stage
    plan.do(Held(stage.job.id, stage.position, ask.kind, places, large))
    for node_id in sorted({node_id: None for node_id, _, _ in places}):
        # What was sent there ahead and has not begun is new work.
        known = partition.nodes.allocations[partition.nodes.rows[node_id]]
        call_back(plan, [known[number] for number in sorted(known) if known[number].rooms])


def starves_at(partition: Partition, ask: Ask) -> Micros:
    """From when on an ask that finds no room starves: it has waited for longer than it should."""
    pause = partition.reign.pause_ends(ask.unheld_until, partition.settings.starving_after)
    return max(ask.waiting_since + partition.settings.starving_after + 1, pause)


def starving_due(partition: Partition) -> Micros:
    """When somebody may begin to starve, if nothing happens before. After a start that is not known yet."""
    return max(partition.next_starving_at, partition.now) if partition.settings.hold_for else FAR


def _waiting(partition: Partition) -> Iterator[tuple[Lane, Ask]]:
    for lane in partition.lanes.values():
        ask = lane.no_room
        if ask is not None and _may_starve(partition, lane, ask):
            yield lane, ask


def _may_starve(partition: Partition, lane: Lane, ask: Ask) -> bool:
    """Whether it found no room, has not got nodes, and its job cannot do its work without it."""
    stage, kind = ask.stage, ask.kind
    if lane.asleep_at is None or partition.kept(ask.seq) or stage.asks[kind] is not ask:
        return False
    if kind == NEW:
        return not stage.started
    # What a stage that has enough grows by one by one may take its time.
    return stage.short_since is not None or gang_size(ask) > 1


def _place_of(ask: Ask) -> tuple[int, int, int]:
    return (-ask.stage.job.priority, ask.waiting_since, ask.seq)


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


def _find(partition: Partition, ask: Ask, grounds: Candidates, percent: int | None) -> tuple[Place, ...] | None:
    """Nodes whose capacity, beside what others claim there already, takes all that has to start at once; or None.

    With a percentage, only so many of those that could take a task are used, and so many of all may be held.
    """
    own = _own_room(ask)
    most = len(partition.nodes) if percent is None else most_held(partition)
    claims = dict(grounds.claims)
    places: list[Place] = []
    for stage, needed in minimum_by_stage(ask):
        apart = {each.node: None for each in (stage.live or {}).values()} if stage.shape.key.apart else {}
        first = not (own or places or apart)
        kinds = grounds.kinds() if first else gather(partition, claims, own, apart)
        found = offers(partition, stage.shape, kinds, stage.count)
        if sum(min(each.alone, needed) * len(each.kind.joins) for each in found) < needed:
            return None
        many = sum(len(each.kind.joins) for each in found)
        if percent is not None:
            many = may_be_held(percent, many)
        if not suffice(found, needed, many, most - len(claims)):
            return None
        for node_id, tasks in _take(partition, stage.shape, needed, found, many, most - len(claims)):
            claims[node_id] = [*claims.get(node_id, []), (stage.shape, tasks)]
            places.append((node_id, stage.position, tasks))
    return tuple(places)


def _take(
    partition: Partition, shape: Shape, needed: int, found: list[Offer], many: int, new: int
) -> list[tuple[int, int]]:
    """Nodes, and how many tasks each is kept for: the best so many, or those with most room if these do not do."""
    rooms = {node_id: (each.beside, each.kind.held) for each in found for node_id in each.kind.joins}
    ranked = _ranked(partition, shape, list(rooms))
    return _keep(needed, ranked[:many], rooms, many, new) or _keep(
        needed, sorted(ranked, key=lambda node_id: -rooms[node_id][0]), rooms, many, new
    )


def _keep(
    needed: int, order: list[int], rooms: dict[int, tuple[int, bool]], many: int, new: int
) -> list[tuple[int, int]]:
    """Keep as much as there is of each node in turn, until all tasks have a place; nothing if they do not get one."""
    kept: list[tuple[int, int]] = []
    for node_id in order:
        room, held = rooms[node_id]
        if not room or (not held and new <= 0):
            continue
        new -= not held
        kept.append((node_id, min(room, needed)))
        needed -= min(room, needed)
        if not needed:
            return kept
        if len(kept) == many:
            break
    return []


def _own_room(ask: Ask) -> Claims:
    """What the gang of an ask uses already, by node: these tasks go on beside those that it asks for.

    Tasks of other stages end by themselves, as those of other jobs do.
    """
    own: Claims = {}
    for stage in ask.stage.gang() if ask.stage.job.allocations else ():
        for allocation in live_of(stage):
            if allocation.state != "stopping":
                own.setdefault(allocation.node, []).append((stage.shape, count(allocation.indices)))
    return own


def _ranked(partition: Partition, shape: Shape, joins: list[int]) -> list[int]:
    """The best nodes first: by their score, then who is expected to be free first, then who joined first."""
    nodes, asked = partition.nodes, shape.resources
    columns = [(nodes.capacity[name], nodes.used[name]) for name in asked if name in nodes.capacity]
    names = [name for name in asked if name in nodes.capacity]
    scores: dict[tuple[int, ...], tuple[bool, int]] = {}

    def rank(node_id: int) -> tuple[bool, int, bool, int, int]:
        row = nodes.rows[node_id]
        left = tuple([max(0, capacity[row] - used[row]) for capacity, used in columns])
        score = scores.get(left)
        if score is None:
            free = dict(zip(names, left, strict=True))
            score = scores[left] = (not is_exact(asked, free), -node_score(asked, free))
        known, when = _expected_free(partition, row)
        return (*score, not known, when, node_id)

    return sorted(joins, key=rank)


def _expected_free(partition: Partition, row: int) -> tuple[bool, Micros]:
    """Whether it is known when all that runs on a node will have ended, and when that is."""
    latest = partition.now
    for allocation in partition.nodes.allocations[row].values():
        end = end_of(allocation, partition.now)
        if end is None:
            return False, 0
        latest = max(latest, end)
    return True, latest
