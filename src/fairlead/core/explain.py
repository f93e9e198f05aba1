"""Explains why a job waits: what nodes lack for it now, what will hold it up later, and whether it can ever run.

Match notes a reason in the cycle that tries an ask. When a user asks later, the reason is computed again from the
present state, because other tasks may have started or ended since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from fairlead.core.admission import is_unpreemptible, refusal
from fairlead.core.asks import Needs, asked_for, minimum_by_stage
from fairlead.core.holds.room import ends_at, may_take, room_now
from fairlead.core.model import NEW, SCALE, Ask, Job, Micros, Stage
from fairlead.core.never import is_known_to_fit, never_fits, never_whole, why_never
from fairlead.core.policy.fit import choose_devices
from fairlead.core.policy.limits import allowed, may_run
from fairlead.core.pools.sizes import grows, nodes_left, takes
from fairlead.core.ranges import count
from fairlead.core.reasons import (
    MISSING,
    NONE,
    NOT_FOR_ALL,
    SMALL,
    TAINT,
    HeldFor,
    NeverFits,
    NoNodeYet,
    NoRoom,
    NoShare,
    NotActive,
    NotStopping,
    OverLimit,
    Reason,
    ShareSpent,
    StillStopping,
    TooManyJobs,
)
from fairlead.core.resources import GPU
from fairlead.core.shape import SOFT, Shape
from fairlead.core.state import Partition
from fairlead.core.whatif import WhatIf

NAMED = 5
"""An explanation names at most this number of holds, of overdue stops, and of nodes."""
LOOKED_AT = 1_000
"""At most this number of nodes with some free capacity are compared."""
EARLIER = 100
"""At most this number of jobs is followed through `after`."""


def why_now(partition: Partition, stage: Stage, kind: int, reason: Reason | None, now: Micros) -> Reason | None:
    """Return why an ask waits now: `reason`, which match noted in an earlier cycle, updated from the present state."""
    ask = stage.asks[kind]
    if ask is not None and isinstance(reason, OverLimit | TooManyJobs | ShareSpent | StillStopping | NotActive):
        return refusal(partition, ask) or reason
    if isinstance(reason, NoRoom):
        return why_no_room(partition, stage, reason, now)
    return why_never(partition, stage, reason) if isinstance(reason, NeverFits) else reason


def why_no_room(partition: Partition, stage: Stage, reason: NoRoom, now: Micros) -> NoRoom:
    """Return the reason with details: how many tasks fit now, how many nodes lack what, and which node lacks the least.

    `now` is the time when the user asks; the state has only the time of its last change.
    """
    if reason.failed:
        return reason
    wanted, before = reason.wanted, WhatIf(partition)
    if reason.stages:
        name, wanted, _ = reason.stages[-1]
        stage = stage.job.stage(name) or stage  # the stage for which the others wait
        _pack(partition, stage.job, reason, before)
    own = [ask.seq for ask in stage.asks if ask is not None and partition.earmark_of(ask.seq) is not None]
    failed: dict[str, int] = {}
    free: list[int] = []
    nearest: tuple[int, int, str] | None = None
    full: list[int] = []
    room = nodes = 0
    for row in partition.nodes.in_order():
        if partition.nodes.manager[row] != stage.job.manager:
            continue
        node_id = partition.nodes.node_id[row]
        lacks, short = _lacks(partition, stage, row, own)
        nodes += 1
        if not lacks:
            lacks = NOT_FOR_ALL
            free.append(node_id)
            if room < wanted:
                room += before.slots(node_id, stage.shape, 1 if stage.shape.key.apart else wanted - room)
        elif short:
            full.append(node_id)
        failed[lacks] = failed.get(lacks, 0) + 1
        if short and (nearest is None or short < nearest[0]):
            nearest = (short, node_id, partition.nodes.name[row])
    counted = tuple(sorted(failed.items(), key=lambda item: (-item[1], item[0])))
    missing = next((what.removeprefix(MISSING) for what, _ in counted if what.startswith(MISSING)), "")
    missing = missing or _scarcest(partition, stage.shape, free)
    missing = missing or next((what.removeprefix(SMALL) for what, _ in counted if what.startswith(SMALL)), "")
    unused = _unused(partition, missing, free or full)
    held = sum(len(partition.holds[seq].nodes) for seq in own if seq in partition.holds)
    coming = sum(
        number in partition.allocations
        for seq in own
        if seq in partition.promises
        for number in partition.promises[seq].victims
    )
    orders = max((ask.failed_orders for ask in stage.asks if ask is not None), default=0)
    pools = [pool for _, pool in sorted(partition.pools.items()) if pool.elastic and takes(pool, stage.shape)]
    return msgspec.structs.replace(
        _with_room_now(reason, room),
        failed=counted,
        nearest=nearest[2] if nearest else "",
        held=held,
        coming=coming,
        ordered=_ordered_for(partition, stage),
        failed_orders=orders,
        given_up=orders >= partition.settings.max_orders,
        problem=next((pool.problem for _, pool in sorted(partition.pools.items()) if orders and pool.problem), ""),
        full=tuple(pool.name for pool in pools if nodes_left(partition, pool) == 0),
        paused=tuple(pool.name for pool in pools if not grows(partition, pool, now)),
        closed=_held_for_others(partition, stage, own, now),
        stuck=_not_stopping(partition, stage),
        without_share=without_share(partition, stage.job),
        lacks=missing,
        asked=dict(stage.shape.amounts).get(missing, 0),
        free=tuple(_with_room(partition, stage, free[:NAMED])),
        free_nodes=len(free),
        unused=sum(unused),
        largest=max(unused, default=0),
        taking=len(free) + len(full),
        nodes=nodes,
    )


def _with_room_now(reason: NoRoom, room: int) -> NoRoom:
    """Return the reason with `room`, the number of tasks that fit now of the stage that lacks capacity.

    If all tasks would fit by `room`, which is a simple count, the reason keeps the more exact count of the core.
    """
    if not reason.stages:
        return msgspec.structs.replace(reason, room=room) if room < reason.wanted else reason
    *first, (name, wanted, before) = reason.stages
    if room >= wanted:
        return reason
    stages = (*first, (name, wanted, room))
    return msgspec.structs.replace(reason, stages=stages, room=reason.room - before + room)


def _pack(partition: Partition, job: Job, reason: NoRoom, whatif: WhatIf) -> None:
    """Place all stages of a whole job but the last, which does not fit, so that the last is counted beside them."""
    for name, _, left in reason.stages[:-1]:
        stage = job.stage(name)
        assert stage is not None
        for node_id in partition.nodes.rows:
            left = left - whatif.pack(node_id, stage.shape, left) if left else 0  # noqa: PLW2901


def _unused(partition: Partition, resource: str, node_ids: Sequence[int]) -> list[int]:
    """Return the free amounts of a resource on nodes."""
    nodes = partition.nodes
    if resource not in nodes.capacity:
        return []
    rows = [nodes.rows[node_id] for node_id in node_ids]
    return [max(0, nodes.capacity[resource][row] - nodes.used[resource][row]) for row in rows]


def _scarcest(partition: Partition, shape: Shape, node_ids: list[int]) -> str:
    """Return the scarcest resource: the one that lets the fewest tasks fit on nodes with some free capacity."""
    nodes = partition.nodes
    rows = [nodes.rows[node_id] for node_id in node_ids[:LOOKED_AT]]
    fitting = {
        name: sum((nodes.capacity[name][row] - nodes.used[name][row]) // amount for row in rows)
        for name, amount in shape.amounts
        if rows and name in nodes.capacity and not shape.key.apart
    }
    return min(fitting, key=lambda name: (fitting[name], name != GPU), default="")


def _with_room(partition: Partition, stage: Stage, node_ids: list[int]) -> Iterator[tuple[str, int]]:
    """Yield the names of nodes on which tasks of a stage fit, each with the number of tasks."""
    nodes = partition.nodes
    for node_id in node_ids:
        most = 1 if stage.shape.key.apart else stage.count
        yield nodes.name[nodes.rows[node_id]], room_now(nodes, node_id, stage.shape, most)[0]


def _accepts(partition: Partition, stage: Stage, node_id: int) -> bool:
    """True if a node accepts tasks of a stage when it has capacity for them."""
    return may_take(partition.nodes, partition.nodes.rows[node_id], stage.shape)


def _held_for_others(partition: Partition, stage: Stage, own: Collection[int], now: Micros) -> tuple[HeldFor, ...]:
    """Return the holds that keep tasks of a stage off nodes, the largest first."""
    holds: list[HeldFor] = []
    for seq, hold in sorted(partition.holds.items()) if stage.shape.amounts else ():
        nodes = [
            partition.nodes.name[partition.nodes.rows[node_id]]
            for node_id in hold.nodes
            if _accepts(partition, stage, node_id)
            and not any(own_seq in partition.nodes.held[node_id] for own_seq in own)
        ]
        if nodes and seq not in own:
            holder = partition.jobs[hold.job].stages[hold.stage]
            ask = partition.ask_of_earmark(hold)
            waited = 0 if ask is None else now - ask.waiting_since
            until = ends_at(partition, hold, now)
            holds.append(HeldFor(hold.job, holder.name, len(nodes), until, tuple(nodes[:NAMED]), waited))
    return tuple(sorted(holds, key=lambda hold: -hold.nodes)[:NAMED])


def _not_stopping(partition: Partition, stage: Stage) -> tuple[NotStopping, ...]:
    """Return the overdue stops on nodes that accept tasks of a stage, the oldest first."""
    late = [
        allocation for allocation in partition.derived.overdue.values() if _accepts(partition, stage, allocation.node)
    ]
    late.sort(key=lambda allocation: (allocation.since, allocation.id))
    return tuple(
        NotStopping(
            allocation.stage.job.id,
            allocation.stage.name,
            count(allocation.indices),
            partition.nodes.name[partition.nodes.rows[allocation.node]],
            allocation.since,
        )
        for allocation in late[:NAMED]
    )


def _ordered_for(partition: Partition, stage: Stage) -> int:
    """Return the number of ordered nodes that are meant for tasks of a stage, also if shared with other tasks."""
    wanted = (stage.job.id, stage.position)
    return sum(
        any(asked[:2] == wanted for asked in meant)
        for order in partition.orders.values()
        for meant in order.coming.values()
    )


def _lacks(partition: Partition, stage: Stage, row: int, own: Collection[int]) -> tuple[str, int]:
    """Return the first thing that a node lacks for one task, and how much of that request is missing, in thousandths.

    The second value is 0 for a node that would not take the task even if it were empty.
    """
    nodes, shape = partition.nodes, stage.shape
    if nodes.state[row] != "up":
        return nodes.state[row], 0
    if nodes.node_id[row] in nodes.disconnected:
        return "disconnected", 0
    if nodes.node_id[row] in nodes.avoided:
        return "backed off", 0
    if shape.key.pool not in ("", nodes.pool[row]):
        return "another pool", 0
    if not shape.accepts(nodes.labels[row], (), nodes.pool[row]):
        return "selector", 0
    if not shape.accepts(nodes.labels[row], nodes.taints[row], nodes.pool[row]):
        taints = [taint for taint in nodes.taints[row] if not taint.endswith(SOFT) and not shape.tolerates(taint)]
        return TAINT + min(taints), 0
    if not may_take(nodes, row, shape):
        return "for other users", 0
    if not nodes.placeable(row):
        return "over its capacity", 0
    holders = nodes.held.get(nodes.node_id[row])
    if holders and shape.amounts and not any(seq in holders for seq in own):
        return "promised" if any(seq in partition.promises for seq in holders) else "held", 0
    for name, amount in shape.amounts:
        capacity = nodes.capacity[name][row] if name in nodes.capacity else 0
        if capacity < amount:
            return f"{SMALL if capacity else NONE}{name}", 0
    if shape.key.apart and any(live.node == nodes.node_id[row] for live in (stage.live or {}).values()):
        return "apart", 0
    for name, amount in shape.amounts:
        free = nodes.capacity[name][row] - nodes.used[name][row]
        if free < amount:
            return f"{MISSING}{name}", max(1, (amount - free) * 1000 // amount)
    if shape.devices and not _devices(partition, shape, row):
        return "split gpu", 1
    return "", 0


def _devices(partition: Partition, shape: Shape, row: int) -> tuple[int, ...]:
    return choose_devices(
        partition.nodes.devices[row], partition.nodes.device_count(row), shape.devices, shape.device_milli, 1
    )


# -- later, and never --------------------------------------------------------------------------------------------


def why_later(partition: Partition, ask: Ask) -> Reason | None:
    """Return why an ask will wait once it is first in its lane, as far as that is known now."""
    needs = minimum_by_stage(ask)
    never = never_whole(partition, needs) if ask.whole else never_fits(partition, *needs[0])
    if never is not None:
        return why_never(partition, ask.stage, never)
    queue = without_share(partition, ask.stage.job)
    return refusal(partition, ask) or (NoShare(queue) if queue else None)


def without_share(partition: Partition, job: Job) -> str:
    """Return the first queue of a job that has a share of 0 while tasks of its siblings run; empty for none."""
    rights = partition.entitlements()
    for queue in job.queue.line()[1:]:
        assert queue.parent is not None
        if not rights.share(queue) and queue.parent.account.tasks > queue.account.tasks:
            return queue.path
    return ""


def never_runs(partition: Partition, job: Job, of: Stage | None = None) -> Reason | None:
    """Return why waiting tasks of a job can never start with the present nodes, pools and settings, or None.

    With `of`, judge only tasks of that stage and those that must start with them. A partition without nodes and pools
    gives the reason `NoNodeYet`.
    """
    starts = [needs for needs in _starts(job) if of is None or any(stage is of for stage, _ in needs)]
    new = any(stage.pending[kind] is not None for needs in starts for stage, _ in needs for kind in (SCALE, NEW))
    if new and is_unpreemptible(partition, job) and partition.nodes.up_count:
        rights = partition.entitlements()
        for queue in job.queue.line()[1:]:
            if not rights.share(queue):
                return ShareSpent(queue.path, zero=True)
    for needs in starts:
        never = never_whole(partition, needs) if job.whole else never_fits(partition, *needs[0])
        if never is not None:
            return why_never(partition, needs[0][0], never)
        reason = _over_limit(job, needs)
        if reason is not None:
            return reason
    return None


def never_before(partition: Partition, job: Job) -> str:
    """Return the first job in `after` that can never run, directly or because of its own `after`; empty for none."""
    before = [(name, name) for name in partition.unmet(job)]
    seen = {name for name, _ in before}
    for at, (name, first) in enumerate(before):  # the list grows during the loop
        earlier = partition.jobs[name]
        if at == EARLIER:
            break
        never = None if earlier.over else never_runs(partition, earlier)
        if never is not None and not isinstance(never, NoNodeYet):
            return first
        more = [other for other in partition.unmet(earlier) if other not in seen]
        seen.update(more)
        before += [(other, first) for other in more]
    return ""


def may_never_run(partition: Partition, job: Job) -> bool:
    """True if `never_runs` might return a reason; False if it certainly returns None. Quick: counts no nodes.

    Alters nothing, so it can be called while a cycle runs.
    """
    if not any(stage.waiting() for stage in job.stages):
        return False
    firm = not job.preemptible or not all(queue.settings.preemptible for queue in job.queue.line())
    if firm or job.whole or any(stage.ended for stage in job.stages):
        return True
    return any(
        _over_limit(job, needs) is not None or not is_known_to_fit(partition, *needs[0]) for needs in _starts(job)
    )


def _over_limit(job: Job, needs: Needs) -> Reason | None:
    """Return the limit that would refuse these tasks even if no other job ran."""
    reason = allowed([(account.name, account.limit, {}) for account in job.accounts], asked_for(needs))
    if reason is None and not job.allocations:
        return may_run([(account.name, account.max_jobs, 0) for account in job.accounts])
    return reason


def _starts(job: Job) -> list[Needs]:
    """Return the waiting tasks of a job in groups. The tasks of a group must start together."""
    if job.whole and not job.stages[0].started:
        return [[(stage, stage.needed) for stage in job.stages if stage.needed]]
    return [[(stage, 1 if stage.started else max(1, stage.needed))] for stage in job.stages if stage.waiting() > 0]
