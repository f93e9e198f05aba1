"""Explains why an ask waits: what nodes lack for it now, and what will hold it up once it is first in its lane.

Match notes a reason in the cycle that tries an ask. When a user asks later, the reason is computed again from the
present state, because other tasks may have started or ended since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from fairlead.core.admission import refusal
from fairlead.core.ahead.whatif import WhatIf
from fairlead.core.asks import minimum_by_stage
from fairlead.core.fitting import fitting_now, may_take
from fairlead.core.holds.earmarks import ends_at
from fairlead.core.model import Ask, Job, Micros, Stage
from fairlead.core.policy.fit import choose_devices
from fairlead.core.pools.sizes import grows, nodes_left, takes
from fairlead.core.ranges import count
from fairlead.core.resources import GPU
from fairlead.core.shape import SOFT, Shape
from fairlead.core.state import Partition
from fairlead.core.why.never import never_fits, never_whole, why_never
from fairlead.core.why.reasons import (
    MISSING,
    NONE,
    NOT_FOR_ALL,
    SMALL,
    TAINT,
    HeldFor,
    NeverFits,
    NoCapacity,
    NoShare,
    NotActive,
    NotStopping,
    OverLimit,
    Reason,
    ShareSpent,
    StillStopping,
    TooManyJobs,
)

NAMED = 5
"""An explanation names at most this number of holds, of overdue stops, and of nodes."""
LOOKED_AT = 1_000
"""At most this number of nodes with some free capacity are compared."""


def why_now(partition: Partition, stage: Stage, kind: int, reason: Reason | None, now: Micros) -> Reason | None:
    """Return why an ask waits now: `reason`, which match noted in an earlier cycle, updated from the present state."""
    ask = stage.asks[kind]
    if ask is not None and isinstance(reason, OverLimit | TooManyJobs | ShareSpent | StillStopping | NotActive):
        return refusal(partition, ask) or reason
    if isinstance(reason, NoCapacity):
        return why_no_capacity(partition, stage, reason, now)
    return why_never(partition, stage, reason) if isinstance(reason, NeverFits) else reason


def why_no_capacity(partition: Partition, stage: Stage, reason: NoCapacity, now: Micros) -> NoCapacity:
    """Return the reason with details: how many tasks fit now, how many nodes lack what, and which node lacks the least.

    `now` is the time when the user asks; the state has only the time of its last change.
    """
    if reason.failed:
        return reason
    wanted, before = reason.wanted, WhatIf(partition)
    if reason.stages:
        reason, before = _recounted(partition, stage.job, reason)
        name, wanted, _ = reason.stages[-1]
        stage = stage.job.stage(name) or stage  # the stage for which the others wait
    own = [ask.seq for ask in stage.asks if ask is not None and partition.earmark_of(ask.seq) is not None]
    failed: dict[str, int] = {}
    free: list[int] = []
    nearest: tuple[int, int, str] | None = None
    full: list[int] = []
    fitting = nodes = 0
    for row in partition.nodes.in_order():
        if partition.nodes.manager[row] != stage.job.manager:
            continue
        node_id = partition.nodes.node_id[row]
        lacks, short = _lacks(partition, stage, row, own)
        nodes += 1
        if not lacks:
            lacks = NOT_FOR_ALL
            free.append(node_id)
            if fitting < wanted:
                fitting += before.slots(node_id, stage.shape, 1 if stage.shape.key.apart else wanted - fitting)
        elif short:
            full.append(node_id)
        failed[lacks] = failed.get(lacks, 0) + 1
        if short and (nearest is None or short < nearest[0]):
            nearest = (short, node_id, partition.nodes.name[row])
    counted = tuple(sorted(failed.items(), key=lambda item: (-item[1], item[0])))
    missing = next((what.removeprefix(MISSING) for what, _ in counted if what.startswith(MISSING)), "")
    missing = missing or _scarcest(partition, stage.shape, free)
    missing = missing or next((what.removeprefix(SMALL) for what, _ in counted if what.startswith(SMALL)), "")
    unused = [max(0, before.free_on(node_id).get(missing, 0)) for node_id in free or full] if missing else []
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
        _with_count(reason, fitting),
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
        free=tuple(_with_fitting(partition, stage, free[:NAMED])),
        free_nodes=len(free),
        unused=sum(unused),
        largest=max(unused, default=0),
        taking=len(free) + len(full),
        nodes=nodes,
    )


def _with_count(reason: NoCapacity, fitting: int) -> NoCapacity:
    """Return the reason with `fitting`, the number of tasks that fit now of the stage that lacks capacity.

    If all tasks would fit by `fitting`, which is a simple count, the reason keeps the more exact count of the core.
    """
    if not reason.stages:
        return msgspec.structs.replace(reason, fitting=fitting) if fitting < reason.wanted else reason
    *first, (name, wanted, before) = reason.stages
    if fitting >= wanted:
        return reason
    stages = (*first, (name, wanted, fitting))
    return msgspec.structs.replace(reason, stages=stages, fitting=reason.fitting - before + fitting)


def _recounted(partition: Partition, job: Job, reason: NoCapacity) -> tuple[NoCapacity, WhatIf]:
    """Return a whole job's reason up to the first stage that does not fit now, and the capacity left for that stage."""
    whatif = WhatIf(partition)
    for at, (name, wanted, _) in enumerate(reason.stages[:-1]):
        beside, left, stage = whatif.copy(), wanted, job.stage(name)
        assert stage is not None
        for node_id in partition.nodes.rows:
            left -= whatif.pack(node_id, stage.shape, left) if left else 0
        if left:
            stages = (*((*tried[:2], tried[1]) for tried in reason.stages[:at]), (name, wanted, wanted - left))
            return msgspec.structs.replace(
                reason, stages=stages, fitting=sum(fitting for _, _, fitting in stages)
            ), beside
    return reason, whatif


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


def _with_fitting(partition: Partition, stage: Stage, node_ids: list[int]) -> Iterator[tuple[str, int]]:
    """Yield the names of nodes on which tasks of a stage fit, each with the number of tasks."""
    nodes = partition.nodes
    for node_id in node_ids:
        most = 1 if stage.shape.key.apart else stage.count
        yield nodes.name[nodes.rows[node_id]], fitting_now(nodes, node_id, stage.shape, most)[0]


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
    closed = _closed_because(partition, shape, row, own)
    if closed:
        return closed, 0
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


def _closed_because(partition: Partition, shape: Shape, row: int, own: Collection[int]) -> str:
    """Return why a node takes no tasks of a shape, whatever is free there; empty if it takes them."""
    nodes, node_id = partition.nodes, partition.nodes.node_id[row]
    if nodes.state[row] != "up":
        return nodes.state[row]
    if node_id in nodes.disconnected or node_id in nodes.avoided:
        return "disconnected" if node_id in nodes.disconnected else "backed off"
    if shape.key.pool not in ("", nodes.pool[row]):
        return "another pool"
    if not shape.accepts(nodes.labels[row], (), nodes.pool[row]):
        return "selector"
    if not shape.accepts(nodes.labels[row], nodes.taints[row], nodes.pool[row]):
        taints = [taint for taint in nodes.taints[row] if not taint.endswith(SOFT) and not shape.tolerates(taint)]
        return TAINT + min(taints)
    if not may_take(nodes, row, shape):
        return "for other users"
    if not nodes.placeable(row):
        return "over its capacity"
    holders = nodes.held.get(node_id)
    if holders and shape.amounts and not any(seq in holders for seq in own):
        return "promised" if any(seq in partition.promises for seq in holders) else "held"
    return ""


def _devices(partition: Partition, shape: Shape, row: int) -> tuple[int, ...]:
    return choose_devices(partition.nodes.devices[row], partition.nodes.gpus[row], shape.devices, shape.device_milli, 1)


# -- later -----------------------------------------------------------------------------------------------------


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
