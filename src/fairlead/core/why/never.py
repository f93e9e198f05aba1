"""Decides whether tasks and jobs can ever run: counts the tasks that fit on all nodes and pools if they were empty.

The count is cached until nodes or pools change, because match uses it to pass over asks that never fit. What is missing
is computed only when a user asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from fairlead.core.admission import is_unpreemptible
from fairlead.core.asks import Needs, asked_for
from fairlead.core.expressions import accepts, format_where
from fairlead.core.model import NEW, SCALE, Job, Stage
from fairlead.core.node_fit import may_take
from fairlead.core.policy.fit import count_fitting
from fairlead.core.policy.limits import allowed, may_run
from fairlead.core.reader import nearest_name
from fairlead.core.resources import GPU, Vector, add
from fairlead.core.shape import SOFT, WHOLE_DEVICE, Shape
from fairlead.core.state import Partition
from fairlead.core.why.obstacles import (
    AllTogether,
    Closed,
    Lack,
    Nearest,
    NoLabel,
    NoNodes,
    NoPool,
    NotInPool,
    NotWhere,
    Obstacle,
    TooFew,
    TooSmall,
)
from fairlead.core.why.reasons import NeverFits, NoNodeYet, Reason, ShareSpent

MANY = 2**40
"""More tasks than can exist. This number fits if tasks request nothing."""

EARLIER = 100
"""At most this number of jobs is examined along chains of `after`."""

NAMED = 5
"""An explanation names at most this number of values of a label, and of causes why nodes are closed."""


def most_ever(partition: Partition, shape: Shape, manager: str, enough: int) -> int:
    """Return the number of tasks of a shape that fit on all nodes and pools if they were empty, up to `enough`."""
    nodes = partition.nodes
    cached = shape.ever
    if (
        cached is not None
        and cached[0] == (nodes.version, partition.derived.pools_version, manager)
        and (cached[1] >= enough or cached[2])
    ):
        return cached[1]
    most, counted_all = 0, True
    for row in nodes.rows.values():
        if most >= enough:
            counted_all = False
            break
        if may_take(nodes, row, shape):
            most += _slots({name: column[row] for name, column in nodes.capacity.items()}, shape)
    for pool in partition.pools.values() if not manager else ():
        settings = pool.settings
        if shape.accepts(dict(settings.labels), settings.taints, pool.name):
            per_node = _slots(dict(settings.node), shape)
            most += per_node * (enough if settings.max is None else settings.max)
    shape.ever = ((nodes.version, partition.derived.pools_version, manager), most, counted_all)
    return most


def never_fits(partition: Partition, stage: Stage, wanted: int) -> NeverFits | None:
    """Return why a number of tasks of a stage can never run at once; None if they can."""
    most = most_ever(partition, stage.shape, stage.job.manager, wanted)
    return None if most >= wanted else _lacking(partition)(wanted, most)


def _lacking(partition: Partition) -> type[NeverFits]:
    return NeverFits if partition.nodes.rows or partition.pools else NoNodeYet


def is_known_to_fit(partition: Partition, stage: Stage, wanted: int) -> bool:
    """True if the cached count shows that a number of tasks of a stage can run at once. Quick: counts no nodes."""
    cached, version = stage.shape.ever, (partition.nodes.version, partition.derived.pools_version, stage.job.manager)
    return cached is not None and cached[0] == version and cached[1] >= wanted


def never_whole(partition: Partition, needs: Needs) -> NeverFits | None:
    """Return why stages can never start together; None if that is unknown.

    The tasks of each shape are counted, and the sum of each resource over all stages.
    """
    by_shape: dict[tuple[Shape, int | None], list[tuple[Stage, int]]] = {}
    asked: Vector = {}
    for stage, needed in needs:
        # `apart` separates tasks of one stage only: tasks of another stage may share their nodes.
        alone = stage.position if stage.shape.key.apart else None
        by_shape.setdefault((stage.shape, alone), []).append((stage, needed))
        add(asked, stage.shape.resources, needed)
    short: list[tuple[str, int, int]] = []
    total = could = 0
    for (shape, _), stages in by_shape.items():
        wanted = sum(needed for _, needed in stages)
        most = most_ever(partition, shape, stages[0][0].job.manager, wanted)
        if most < wanted:
            short.append((" and ".join(stage.name for stage, _ in stages), wanted, most))
        total += wanted
        could += min(most, wanted)
    if short:
        return _lacking(partition)(total, could, tuple(short))
    capacity = capacity_ever(partition, needs[0][0].job.manager)
    missing = next((name for name in sorted(asked) if asked[name] > capacity.get(name, 0)), "")
    return NeverFits(total, could, missing=missing) if missing else None


def capacity_ever(partition: Partition, manager: str) -> Vector:
    """Return the capacity of a manager's nodes; for "", of nodes without a manager and of full pools (cached)."""
    version = (partition.nodes.version, partition.derived.pools_version, manager)
    if partition.memory.ever is None or partition.memory.ever[0] != version:
        total: Vector = {}
        for row in partition.nodes.rows.values():
            if partition.nodes.manager[row] == manager:
                add(total, partition.nodes.capacity_of(row))
        for pool in partition.pools.values() if not manager else ():
            most = pool.settings.max
            add(total, dict(pool.settings.node), MANY if most is None else most)
        partition.memory.ever = (version, total)
    return partition.memory.ever[1]


def _slots(capacity: Mapping[str, int], shape: Shape) -> int:
    fitting = count_fitting([(capacity.get(name, 0), amount) for name, amount in shape.amounts if name != GPU], MANY)
    if shape.devices:
        count = capacity.get(GPU, 0) // WHOLE_DEVICE
        per_device = WHOLE_DEVICE // shape.device_milli
        fitting = min(fitting, count // shape.devices if shape.devices > 1 else count * per_device)
    return min(fitting, 1) if shape.key.apart else fitting


def could_take(partition: Partition, row: int, shape: Shape) -> bool:
    """True if a node takes tasks of a shape and, if it were empty, has enough for one."""
    nodes = partition.nodes
    capacity = {name: column[row] for name, column in nodes.capacity.items()}
    return may_take(nodes, row, shape) and _slots(capacity, shape) > 0


# -- jobs ------------------------------------------------------------------------------------------------------


def never_runs(partition: Partition, job: Job, of: Stage | None = None) -> Reason | None:
    """Return why waiting tasks of a job can never start with the present nodes, pools and settings; None if they can.

    With `of`, only tasks of that stage count, and tasks that must start with them. In a partition without nodes and
    pools the reason is `NoNodeYet`.
    """
    starts = [needs for needs in _starts(job) if of is None or any(stage is of for stage, _ in needs)]
    stages = [stage for needs in starts for stage, _ in needs]
    new = any(stage.pending[kind] is not None for stage in stages for kind in (SCALE, NEW))
    if new and is_unpreemptible(partition, job) and partition.nodes.up_count:
        without = _queue_without_share(partition, job)
        if without:
            return ShareSpent(without, zero=True)
    return next(filter(None, (_never_starts(partition, job, needs) for needs in starts)), None)


def _queue_without_share(partition: Partition, job: Job) -> str:
    share = partition.entitlements().share
    return next((queue.path for queue in job.queue.line()[1:] if not share(queue)), "")


def _never_starts(partition: Partition, job: Job, needs: Needs) -> Reason | None:
    """Return why tasks that must start together can never start."""
    never = never_whole(partition, needs) if job.whole else never_fits(partition, *needs[0])
    return _over_limit(job, needs) if never is None else why_never(partition, needs[0][0], never)


def never_before(partition: Partition, job: Job) -> str:
    """Return the first job in `after` that can never run, also because of its own `after`; empty if there is none."""
    before = [(name, name) for name, _ in partition.unmet(job)]
    seen = {name for name, _ in before}
    for at, (name, first) in enumerate(before):  # the list grows during the loop
        earlier = partition.jobs[name]
        if at == EARLIER:
            break
        never = None if earlier.over else never_runs(partition, earlier)
        if never is not None and not isinstance(never, NoNodeYet):
            return first
        more = [other for other, _ in partition.unmet(earlier) if other not in seen]
        seen.update(more)
        before += [(other, first) for other in more]
    return ""


def may_never_run(partition: Partition, job: Job) -> bool:
    """True if `never_runs` might return a reason; False if it returns None. Quick: counts no nodes.

    Can be called while a cycle runs, because it changes nothing.
    """
    if not any(stage.unstarted() for stage in job.stages):
        return False
    firm = not job.preemptible or not all(queue.settings.preemptible for queue in job.queue.line())
    if firm or job.whole or any(stage.ended for stage in job.stages):
        return True
    return any(
        _over_limit(job, needs) is not None or not is_known_to_fit(partition, *needs[0]) for needs in _starts(job)
    )


def _over_limit(job: Job, needs: Needs) -> Reason | None:
    """Return the reason if a limit would refuse these tasks even without other jobs."""
    reason = allowed([(account.name, account.limit, {}) for account in job.accounts], asked_for(needs))
    if reason is None and not job.allocations:
        return may_run([(account.name, account.max_jobs, 0) for account in job.accounts])
    return reason


def _starts(job: Job) -> list[Needs]:
    """Return the waiting tasks of a job in groups of tasks that must start together."""
    if job.whole and not job.stages[0].started:
        return [[(stage, stage.needed) for stage in job.stages if stage.needed]]
    return [[(stage, 1 if stage.started else max(1, stage.needed))] for stage in job.stages if stage.unstarted() > 0]


# -- what is missing ---------------------------------------------------------------------------------------------


class Candidate(msgspec.Struct, frozen=True):
    """An empty node: a present node in any state, or a node that a pool would bring."""

    name: str
    capacity: Mapping[str, int]
    labels: Mapping[str, str]
    taints: tuple[str, ...]
    pool: str
    users: tuple[str, ...] = ()
    brought: bool = False
    """True for a node that a pool would bring."""
    empty: bool = False
    """True for a pool with `max: 0`."""


def why_never(partition: Partition, stage: Stage, reason: NeverFits) -> NeverFits:
    """Return the reason with the obstacles for a task, or for each stage of a whole job that does not fit."""
    if reason.obstacles or isinstance(reason, NoNodeYet):
        return reason
    job = stage.job
    if reason.missing:
        asked = sum(other.shape.resources.get(reason.missing, 0) * other.needed for other in job.stages)
        together = AllTogether(reason.missing, asked, capacity_ever(partition, job.manager).get(reason.missing, 0))
        return replace(reason, obstacles=(together,))
    short = [(stage, reason.wanted, reason.most)]
    if reason.stages:
        # Stages of one shape have one entry, such as "b and c". The first of them has that shape.
        named = [(job.stage(names.split(" and ")[0]), wanted, most) for names, wanted, most in reason.stages]
        short = [(first, wanted, most) for first, wanted, most in named if first is not None]
    obstacles: dict[Obstacle, None] = {}
    for first, wanted, most in short:
        obstacles |= dict.fromkeys(_obstacles(partition, first, wanted, most))
    pools_last = sorted(obstacles, key=lambda obstacle: isinstance(obstacle, NoPool))
    return replace(reason, obstacles=tuple(pools_last))


def _obstacles(partition: Partition, stage: Stage, wanted: int, most: int) -> list[Obstacle]:
    """Return what keeps tasks of a stage off nodes. `most` of the wanted tasks fit on nodes that accept them.

    If no node with enough for a task refuses it, there are too few nodes.
    """
    shape = stage.shape
    candidates = list(_candidates(partition, shape.key.manager))
    suitable = [candidate for candidate in candidates if not _lacks(candidate, shape)]
    closed = _closed(suitable, stage)
    if most:
        return list(closed) or [TooFew(wanted - most, shape.amounts, shape.key.apart)]
    if len(closed) == 0 < len(suitable):
        return []  # nodes have changed since the reason was found
    obstacles: list[Obstacle] = []
    if all(candidate.brought for candidate in candidates):
        obstacles.append(NoNodes(shape.key.manager))
    if candidates and not suitable:
        obstacles += _lacked_by_all(candidates, shape) or [_nearest(candidates, shape)]
    obstacles += closed
    if partition.pools and not shape.key.manager:
        obstacles.append(NoPool())
    return obstacles


def _candidates(partition: Partition, manager: str) -> Iterator[Candidate]:
    nodes = partition.nodes
    for row in nodes.in_order():
        if nodes.manager[row] == manager:
            capacity = {name: column[row] for name, column in nodes.capacity.items()}
            labels, taints, pool = nodes.labels[row], nodes.taints[row], nodes.pool[row]
            yield Candidate(nodes.name[row], capacity, labels, taints, pool, nodes.users[row])
    for name, configured in sorted(partition.pools.items()) if not manager else ():
        settings = configured.settings
        node, has = dict(settings.node), dict(settings.labels)
        yield Candidate(name, node, has, settings.taints, name, brought=True, empty=settings.max == 0)


def _lacks(candidate: Candidate, shape: Shape) -> tuple[Lack, ...]:
    """Return what a candidate lacks for one task, apart from taints and users."""
    lacks: list[Lack] = []
    for name, amount in shape.amounts:
        has = candidate.capacity.get(name, 0)
        if has < amount or (name == GPU and has // WHOLE_DEVICE < shape.devices):
            lacks.append(
                TooSmall(name, amount, has, f"one of pool {candidate.name}" if candidate.brought else candidate.name)
            )
    for label, values in shape.key.selectors:
        value = candidate.labels.get(label)
        if value is None or not ("*" in values or value in values):
            lacks.append(NoLabel(label, values, () if value is None else (value,)))
    if not accepts(shape.key.where, candidate.labels):
        lacks.append(NotWhere(format_where(shape.key.where)))
    if shape.key.pool not in ("", candidate.pool):
        lacks.append(NotInPool(shape.key.pool))
    return tuple(lacks)


def _lacked_by_all(candidates: Sequence[Candidate], shape: Shape) -> list[Obstacle]:
    """Return what no candidate has."""
    lacking: dict[tuple[type[Lack], str], list[Lack]] = {}
    for candidate in candidates:
        for lack in _lacks(candidate, shape):
            which = lack.resource if isinstance(lack, TooSmall) else lack.label if isinstance(lack, NoLabel) else ""
            lacking.setdefault((type(lack), which), []).append(lack)
    # A candidate lists its lacks in one order, and what all lack is in the list of the first candidate.
    return [_lacked(lacks, candidates) for lacks in lacking.values() if len(lacks) == len(candidates)]


def _lacked(lacks: Sequence[Lack], candidates: Sequence[Candidate]) -> Obstacle:
    """Return the lacks of all candidates as one obstacle: with the largest amount, or with names that exist."""
    first = lacks[0]
    if isinstance(first, TooSmall):
        largest = max([lack for lack in lacks if isinstance(lack, TooSmall)], key=lambda lack: lack.most)
        return largest if largest.most else replace(largest, largest="")
    if isinstance(first, NoLabel):
        present = sorted({value: None for lack in lacks if isinstance(lack, NoLabel) for value in lack.present})
        return NoLabel(first.label, first.values, tuple(present[:NAMED]), _meant(first.label, first.values, candidates))
    if isinstance(first, NotInPool):
        pools = sorted({candidate.pool: None for candidate in candidates if candidate.pool})
        return NotInPool(first.pool, nearest_name(first.pool, pools))
    return first


def _meant(label: str, values: Sequence[str], candidates: Sequence[Candidate]) -> str:
    """Return the existing label, with its value, that is most like the requested one; empty if none is like it."""
    present: dict[str, dict[str, None]] = {}
    for candidate in candidates:
        for name, value in candidate.labels.items():
            present.setdefault(name, {})[value] = None
    near = label if label in present else nearest_name(label, present)
    if not near or (near == label and "*" in values):
        return ""
    if "*" in values:
        return near
    value = next((value for wanted in values if (value := nearest_name(wanted, present[near]))), "")
    if value:
        return f"{near}={value}"
    if near == label:
        return ""
    return f"{near}={next(iter(present[near]))}" if len(present[near]) == 1 else near


def _nearest(candidates: Sequence[Candidate], shape: Shape) -> Nearest:
    lacks = [(candidate, _lacks(candidate, shape)) for candidate in candidates]
    nearest, missing = min(lacks, key=lambda pair: len(pair[1]))
    return Nearest(nearest.name, nearest.brought, missing)


def _closed(suitable: Sequence[Candidate], stage: Stage) -> list[Closed]:
    """Return groups of candidates that have enough capacity but refuse the tasks, by cause, the largest group first."""
    key = stage.shape.key
    groups: dict[tuple[str, tuple[str, ...], str, bool], list[Candidate]] = {}
    for candidate in suitable:
        taints = tuple(
            sorted(taint for taint in candidate.taints if not taint.endswith(SOFT) and not stage.shape.tolerates(taint))
        )
        user = stage.job.user if candidate.users and key.user not in candidate.users else ""
        if taints or user or candidate.empty:
            pool = candidate.name if candidate.brought else ""
            groups.setdefault((pool, taints, user, candidate.empty), []).append(candidate)
    closed = [
        Closed(alike[0].name, 0 if pool else len(alike), taints, user, empty)
        for (pool, taints, user, empty), alike in groups.items()
    ]
    return sorted(closed, key=lambda group: -group.nodes)[:NAMED]
