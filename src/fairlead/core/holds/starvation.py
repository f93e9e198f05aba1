"""Holds: keep nodes free of new work for a starving ask. Without a hold, small tasks could overtake a gang forever.

After match, starving asks get holds in the order of priority. An ask gets enough nodes to start whole, or none.
`core/holds/release.py` ends holds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import msgspec

from fairlead.core.admission import refusal
from fairlead.core.ahead.easy import planned_before
from fairlead.core.ahead.expected_ends import end_of
from fairlead.core.asks import gang_size, minimum_by_stage
from fairlead.core.changes import Held, Placed, SinglesPlaced
from fairlead.core.holds.candidates import Candidates, Claims, Offer, gather, offers, suffice
from fairlead.core.holds.earmarks import nodes_with_task
from fairlead.core.holds.release import end_short_holds, release_obsolete, starving_holds
from fairlead.core.lanes import Lane
from fairlead.core.model import FAR, NEW, Ask, Micros, Place
from fairlead.core.outcomes import live_of, recall
from fairlead.core.plan import Plan
from fairlead.core.policy.fit import HOLD_SCORES, may_be_held
from fairlead.core.ranges import count
from fairlead.core.shape import Shape
from fairlead.core.state import Partition

MAX_HEADS = 10
"""At most this number of asks get holds in one cycle, because each hold ranks all nodes. The next cycle continues."""


def hold_nodes(plan: Plan) -> None:
    """Hold nodes for starving asks, by priority.

    An ask gets no hold in a cycle that placed tasks of a higher priority than its own.
    """
    partition = plan.partition
    release_obsolete(plan)
    if (
        not partition.readiness.ready
        or plan.more
        or not partition.settings.hold_for
        or not (partition.memory.unheld_starving or partition.memory.next_starving_at <= partition.now)
    ):
        return
    end_short_holds(plan)
    starving: list[tuple[Lane, Ask]] = []
    partition.memory.next_starving_at = FAR
    for lane, ask in _waiting(partition):
        when = starves_at(partition, ask)
        if when <= partition.now:
            starving.append((lane, ask))
        else:
            partition.memory.next_starving_at = min(partition.memory.next_starving_at, when)
    _hold_in_order(plan, sorted(starving, key=lambda pair: in_turn(pair[1])))
    partition.memory.unheld_starving = any(ask.seq not in partition.holds for _, ask in starving)


def _hold_in_order(plan: Plan, starving: list[tuple[Lane, Ask]]) -> None:
    partition = plan.partition
    placed = _highest_placed(plan) if starving else None
    candidates: Candidates | None = None
    before = len(partition.holds)
    for lane, ask in starving:
        if len(partition.holds) >= before + MAX_HEADS:
            plan.more = True
            return
        if any(held.large for held in partition.holds.values()):
            return
        if placed is not None and placed > ask.stage.job.priority:
            plan.more = True
            return
        if refusal(partition, ask) is not None:
            continue
        versions = _versions(partition, ask)
        attempt = lane.memory.hold_attempt
        if attempt is None or attempt[0] != versions:
            if candidates is None or candidates.version != partition.derived.holds_version:
                candidates = Candidates(partition)
            attempt = lane.memory.hold_attempt = (versions, _waits_alone(plan, ask, candidates))
        if attempt[1]:
            return


def _versions(partition: Partition, ask: Ask) -> object:
    """Return the part of the state that decides whether an ask gets a hold. If it is unchanged, so is the result."""
    needs = minimum_by_stage(ask)
    wanted = tuple([needed for _, needed in needs])
    # With several shapes, the nodes that are left for the last ones depend on the tasks that run there now.
    starts = (partition.now, partition.derived.openings, partition.counters.allocation) if len(needs) > 1 else None
    own = _own_capacity(ask)
    versions = (partition.nodes.version, partition.derived.holds_version, partition.settings)
    return (ask.seq, wanted, own, starts, planned_before(partition, ask), *versions)


def _waits_alone(plan: Plan, ask: Ask, candidates: Candidates) -> bool:
    """Hold nodes for an ask if there are enough. True if it waits for a large hold, so that no other ask gets one."""
    partition = plan.partition
    places = _find(partition, ask, candidates, partition.settings.held_nodes_percent)
    large = places is None and partition.settings.hold_large
    if large:
        places = _find(partition, ask, Candidates(partition, alone=True) if partition.holds else candidates, None)
    if places is None:
        return False
    if large and starving_holds(partition):
        return True
    hold(plan, ask, places, large)
    return False


def hold(plan: Plan, ask: Ask, places: tuple[Place, ...], large: bool = False, recalled: bool = False) -> None:
    """Hold nodes for an ask, and recall the tasks that wait in chains on these nodes."""
    partition, stage = plan.partition, ask.stage
    plan.do(Held(stage.job.id, stage.position, ask.kind, places, large, recalled))
    for node_id in sorted({node_id: None for node_id, _, _ in places}):
        # Tasks sent ahead in a chain that have not started count as new work.
        allocations = partition.nodes.allocations[partition.nodes.rows[node_id]]
        recall(plan, [allocations[number] for number in sorted(allocations) if allocations[number].slots])


def starves_at(partition: Partition, ask: Ask) -> Micros:
    """Return the time from which an ask without capacity counts as starving."""
    pause = partition.readiness.pause_ends(ask.unheld_until, partition.settings.starving_after)
    return max(ask.waiting_since + partition.settings.starving_after + 1, pause)


def starving_due(partition: Partition) -> Micros:
    """Return the next time at which an ask may begin to starve, if no event comes before; now if that is unknown."""
    return max(partition.memory.next_starving_at, partition.now) if partition.settings.hold_for else FAR


def _waiting(partition: Partition) -> Iterator[tuple[Lane, Ask]]:
    for lane in partition.lanes.values():
        ask = lane.no_capacity()
        if ask is not None and may_starve(partition, lane, ask):
            yield lane, ask


def may_starve(partition: Partition, lane: Lane, ask: Ask) -> bool:
    """True if an ask found no capacity, has no earmarked nodes, and its job cannot work without these tasks."""
    stage, kind = ask.stage, ask.kind
    if lane.memory.verdict is None or partition.earmark_of(ask.seq) or stage.asks[kind] is not ask:
        return False
    if kind == NEW:
        return not stage.started
    # Growth by single tasks is not urgent for a stage with enough workers.
    return stage.short_since is not None or gang_size(ask) > 1


def in_turn(ask: Ask) -> tuple[int, int, int]:
    """Return the sort key of an ask for holds: by priority, then by age."""
    return (-ask.stage.job.priority, ask.waiting_since, ask.seq)


def _highest_placed(plan: Plan) -> int | None:
    """Return the highest priority of the tasks placed in this cycle."""
    names: dict[str, None] = {}
    for change, _ in plan.done:
        if isinstance(change, Placed):
            names[change.job] = None
        elif isinstance(change, SinglesPlaced):
            names.update(dict.fromkeys(name for name, _ in change.tasks))
    return max([plan.partition.jobs[name].priority for name in names], default=None)


class HoldChance(msgspec.Struct, frozen=True):
    """True if a starving ask can get a hold; otherwise, what prevents the hold."""

    possible: bool
    holders: tuple[str, ...] = ()
    """The jobs whose holds have to end before the ask can get one."""
    percent: int | None = None
    """The least `held_nodes_percent` with which the ask could get a hold; None if no value is enough."""


def hold_chance(partition: Partition, ask: Ask) -> HoldChance:
    """Return whether an ask could get a hold now if it were starving."""
    settings = partition.settings
    allowed = settings.held_nodes_percent
    large = any(hold.large for hold in partition.holds.values())
    if not large and _find(partition, ask, Candidates(partition), allowed) is not None:
        return HoldChance(True)
    alone = Candidates(partition, alone=True)
    if _find(partition, ask, alone, None if settings.hold_large else allowed) is not None:
        others = tuple(dict.fromkeys(hold.job for hold in starving_holds(partition)))
        return HoldChance(not others, others)
    if settings.hold_large or _find(partition, ask, alone, 100) is None:
        return HoldChance(False)
    enough = bisect_left(range(101), True, key=lambda percent: _find(partition, ask, alone, percent) is not None)
    return HoldChance(False, percent=enough)


# -- which nodes -------------------------------------------------------------------------------------------------


def _find(partition: Partition, ask: Ask, candidates: Candidates, percent: int | None) -> tuple[Place, ...] | None:
    """Find nodes with capacity, beside existing claims, for all tasks that must start together; None if there are none.

    `percent` limits this hold to a percentage of the nodes that fit a task, and all holds together to the same
    percentage of all nodes. With backfill, nodes on which asks with an earlier turn are planned are left out.
    """
    own, planned = _own_capacity(ask), planned_before(partition, ask)
    most_held_nodes = may_be_held(100 if percent is None else percent, len(partition.nodes))
    claims, counted = dict(candidates.claims), dict(candidates.counted)
    places: list[Place] = []
    for stage, needed in minimum_by_stage(ask):
        apart = nodes_with_task(stage)
        alike = not (own or places or apart)
        groups = candidates.groups(planned) if alike else gather(partition, claims, counted, own, {*apart, *planned})
        node_offers = offers(partition, stage.shape, groups, stage.count)
        if sum(min(offer.alone, needed) * len(offer.group.node_ids) for offer in node_offers) < needed:
            return None
        most_nodes = sum(len(offer.group.node_ids) for offer in node_offers)
        if percent is not None:
            most_nodes = may_be_held(percent, most_nodes)
        most_new = most_held_nodes - len(counted)
        if not suffice(node_offers, needed, most_nodes, most_new):
            return None
        for node_id, tasks in _take(partition, stage.shape, needed, node_offers, most_nodes, most_new):
            claims[node_id] = [*claims.get(node_id, []), (stage.shape, tasks)]
            counted[node_id] = None
            places.append((node_id, stage.position, tasks))
    return tuple(places)


def _take(
    partition: Partition, shape: Shape, needed: int, node_offers: list[Offer], most_nodes: int, most_new: int
) -> list[tuple[int, int]]:
    """Return nodes with the number of tasks that each is held for: the best nodes, or else those with most capacity."""
    offered = {
        node_id: (offer.beside, offer.group.counted) for offer in node_offers for node_id in offer.group.node_ids
    }
    best = _ranked(partition, shape, list(offered))
    largest = sorted(best, key=lambda node_id: -offered[node_id][0])
    return _keep(needed, best[:most_nodes], offered, most_nodes, most_new) or _keep(
        needed, largest, offered, most_nodes, most_new
    )


def _keep(
    needed: int, order: list[int], offered: dict[int, tuple[int, bool]], most_nodes: int, most_new: int
) -> list[tuple[int, int]]:
    """Assign tasks to nodes in the given order. Returns an empty list if not all tasks fit."""
    chosen: list[tuple[int, int]] = []
    for node_id in order:
        tasks, is_counted = offered[node_id]
        if not tasks or (not is_counted and most_new <= 0):
            continue
        most_new -= not is_counted
        chosen.append((node_id, min(tasks, needed)))
        needed -= min(tasks, needed)
        if not needed:
            return chosen
        if len(chosen) == most_nodes:
            break
    return []


def _own_capacity(ask: Ask) -> Claims:
    """Return the running tasks of the ask's gang by node. They keep their capacity when the ask starts.

    Tasks of other stages are left out. Like tasks of other jobs, they are expected to end.
    """
    own: Claims = {}
    for stage in ask.stage.gang() if ask.stage.job.allocations else ():
        for allocation in live_of(stage):
            if allocation.state != "stopping":
                own.setdefault(allocation.node, []).append((stage.shape, count(allocation.indices)))
    return own


def _ranked(partition: Partition, shape: Shape, node_ids: list[int]) -> list[int]:
    """Sort nodes by score, the best first. Ties: the node expected to be free soonest, then the first to join."""
    nodes, asked = partition.nodes, shape.resources
    columns = [(nodes.capacity[name], nodes.used[name]) for name in asked if name in nodes.capacity]
    names = [name for name in asked if name in nodes.capacity]
    score_of = HOLD_SCORES[partition.settings.hold_score]
    scores: dict[tuple[int, ...], tuple[int, ...]] = {}

    def rank(node_id: int) -> tuple[tuple[int, ...], bool, int, int]:
        row = nodes.rows[node_id]
        left = tuple([max(0, capacity[row] - used[row]) for capacity, used in columns])
        score = scores.get(left)
        if score is None:
            score = scores[left] = score_of(asked, dict(zip(names, left, strict=True)))
        is_known, when = _expected_free(partition, row)
        return score, not is_known, when, node_id

    return sorted(node_ids, key=rank)


def _expected_free(partition: Partition, row: int) -> tuple[bool, Micros]:
    """Return True and the time when all tasks on a node are expected to have ended; False and 0 if it is unknown."""
    latest = partition.now
    for allocation in partition.nodes.allocations[row].values():
        end = end_of(allocation, partition.now)
        if end is None:
            return False, 0
        latest = max(latest, end)
    return True, latest
