"""Explains why an ask waits: what nodes lack for it now, and what it will wait for once it is first in its lane.

Match notes a reason in the cycle that tries an ask. When a user asks later, the reason is computed again from the
present state, because other tasks may have started or ended since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from msgspec.structs import replace

from fairlead.core.admission import refusal
from fairlead.core.ahead.whatif import WhatIf
from fairlead.core.asks import gang_size, minimum_by_stage
from fairlead.core.holds.earmarks import ends_at, nodes_with_task
from fairlead.core.model import Ask, Hold, Job, Micros, Promise, Stage
from fairlead.core.node_fit import fitting_now, may_take
from fairlead.core.policy.fit import choose_devices
from fairlead.core.pools.sizes import grows, nodes_left, takes
from fairlead.core.ranges import count
from fairlead.core.resources import GPU
from fairlead.core.shape import SOFT, Shape
from fairlead.core.state import Partition
from fairlead.core.why import reasons
from fairlead.core.why.never import could_take, never_fits, never_whole, why_never
from fairlead.core.why.reasons import HeldFor, NeverFits, NoCapacity, NoShare, NotStopping, Reason, WouldDelay

NAMED = 5
"""An explanation names at most this number of holds, of overdue stops, and of nodes."""
LOOKED_AT = 1_000
"""At most this number of nodes with some free capacity are compared."""
PASSING = (
    reasons.OverLimit,
    reasons.TooManyJobs,
    reasons.ShareSpent,
    reasons.StillStopping,
    reasons.NotActive,
    reasons.Throttled,
)
"""Reasons of admission. The present state may give another one."""


def why_now(partition: Partition, stage: Stage, kind: int, reason: Reason | None, now: Micros) -> Reason | None:
    """Return why an ask waits now: `reason`, which match noted in an earlier cycle, updated from the present state."""
    ask = stage.asks[kind]
    if ask is not None and isinstance(reason, PASSING):
        return refusal(partition, ask) or reason
    if ask is not None and isinstance(reason, WouldDelay) and not ask.whole:
        wanted = gang_size(ask)
        own = [] if partition.earmark_of(ask.seq) is None else [ask.seq]
        if _Nodes(partition, stage, own).fitting(WhatIf(partition), wanted) < wanted:
            reason = NoCapacity(wanted, 0)  # the capacity has been used since
    if isinstance(reason, NoCapacity):
        return why_no_capacity(partition, stage, reason, now)
    return why_never(partition, stage, reason) if isinstance(reason, NeverFits) else reason


# -- missing capacity ----------------------------------------------------------------------------------------------


def why_no_capacity(partition: Partition, stage: Stage, reason: NoCapacity, now: Micros) -> NoCapacity:
    """Return the reason with details: how many tasks fit now, how many nodes lack what, and which node lacks the least.

    `now` is the time when the user asks; the state has only the time of its last change.
    """
    if reason.failed:
        return reason
    wanted, whatif = reason.wanted, WhatIf(partition)
    if reason.stages:
        reason, whatif = _recounted(partition, stage.job, reason)
        name, wanted, _ = reason.stages[-1]
        stage = stage.job.stage(name) or stage  # the stage for which the others wait
    own = [ask.seq for ask in stage.asks if ask is not None and partition.earmark_of(ask.seq) is not None]
    nodes = _Nodes(partition, stage, own)
    return replace(
        _with_count(reason, nodes.fitting(whatif, wanted)),
        **nodes.details(whatif),
        **_coming(partition, stage, own),
        **_pools(partition, stage, now),
        closed=_held_for_others(partition, stage, own, now),
        stuck=_not_stopping(partition, stage),
        without_share=without_share(partition, stage.job),
    )


class _Nodes:
    """The nodes of a stage's manager, sorted by the first thing that each lacks for one task."""

    def __init__(self, partition: Partition, stage: Stage, own: Collection[int]) -> None:
        self.partition = partition
        self.stage = stage
        self.free: list[int] = []
        """Nodes on which a task fits."""
        self.full: list[tuple[int, int]] = []
        """The missing part of the request, in thousandths, and the node: nodes that accept tasks but are too full."""
        self.lacks: dict[str, int] = {}
        """The first thing that nodes lack → the number of nodes."""
        nodes = partition.nodes
        for row in nodes.in_order():
            if nodes.manager[row] == stage.job.manager:
                lacks, short = _lacks(partition, stage, row, own)
                self.lacks[lacks or reasons.NOT_FOR_ALL] = self.lacks.get(lacks or reasons.NOT_FOR_ALL, 0) + 1
                if not lacks:
                    self.free.append(nodes.node_id[row])
                elif short:
                    self.full.append((short, nodes.node_id[row]))

    def fitting(self, whatif: WhatIf, wanted: int) -> int:
        """Return the number of tasks, up to `wanted`, that fit on the nodes."""
        shape, fitting = self.stage.shape, 0
        for node_id in self.free:
            if fitting < wanted:
                fitting += whatif.slots(node_id, shape, 1 if shape.key.apart else wanted - fitting)
        return fitting

    def details(self, whatif: WhatIf) -> dict[str, Any]:
        """Return the fields of `NoCapacity` that describe nodes; `whatif` has their free capacity."""
        names, stage = self.partition.nodes.name, self.stage
        nearest = min(self.full, key=lambda entry: entry[0], default=None)
        failed = tuple(sorted(self.lacks.items(), key=lambda item: (-item[1], item[0])))
        missing = self._missing([what for what, _ in failed])
        holders = self.free or [node_id for _, node_id in self.full]
        unused = [max(0, whatif.free_on(node_id).get(missing, 0)) for node_id in holders] if missing else []
        return {
            "failed": failed,
            "nearest": "" if nearest is None else names[self.partition.nodes.rows[nearest[1]]],
            "lacks": missing,
            "asked": dict(stage.shape.amounts).get(missing, 0),
            "free": tuple(_with_fitting(self.partition, stage, self.free[:NAMED])),
            "free_nodes": len(self.free),
            "unused": sum(unused),
            "largest": max(unused, default=0),
            "taking": len(self.free) + len(self.full),
            "nodes": sum(self.lacks.values()),
        }

    def _missing(self, lacks: list[str]) -> str:
        """Return the resource that is short on most nodes; `lacks` are sorted by the number of nodes."""
        full = [what.removeprefix(reasons.MISSING) for what in lacks if what.startswith(reasons.MISSING)]
        small = [what.removeprefix(reasons.SMALL) for what in lacks if what.startswith(reasons.SMALL)]
        return next(filter(None, [*full, _scarcest(self.partition, self.stage.shape, self.free), *small]), "")


def _coming(partition: Partition, stage: Stage, own: Collection[int]) -> dict[str, Any]:
    """Return the fields of `NoCapacity` on capacity that is held, freed or ordered for the stage."""
    earmarks = [earmark for seq in own if (earmark := partition.earmark_of(seq)) is not None]
    victims = [number for promise in earmarks if isinstance(promise, Promise) for number in promise.victims]
    orders = max((ask.failed_orders for ask in stage.asks if ask is not None), default=0)
    problems = [pool.problem for _, pool in sorted(partition.pools.items()) if pool.problem]
    return {
        "held": sum(len(hold.nodes) for hold in earmarks if isinstance(hold, Hold)),
        "coming": sum(number in partition.allocations for number in victims),
        "ordered": ordered_for(partition, stage),
        "failed_orders": orders,
        "given_up": orders >= partition.settings.max_orders,
        "problem": problems[0] if orders and problems else "",
    }


def ordered_for(partition: Partition, stage: Stage) -> int:
    """Return the number of ordered nodes that are meant for tasks of a stage, also if shared with other tasks."""
    wanted = (stage.job.id, stage.position)
    meant = [tasks for order in partition.orders.values() for tasks in order.coming.values()]
    return sum(any(asked[:2] == wanted for asked in tasks) for tasks in meant)


def _pools(partition: Partition, stage: Stage, now: Micros) -> dict[str, Any]:
    """Return the fields of `NoCapacity` on pools that order no nodes for the stage."""
    pools = [pool for _, pool in sorted(partition.pools.items()) if pool.elastic and takes(pool, stage.shape)]
    return {
        "full": tuple(pool.name for pool in pools if nodes_left(partition, pool) == 0),
        "paused": tuple(pool.name for pool in pools if not grows(partition, pool, now)),
    }


def _with_count(reason: NoCapacity, fitting: int) -> NoCapacity:
    """Return the reason with `fitting`: how many tasks fit now of the stage that lacks capacity.

    `fitting` is a simple count. If by this count all tasks would fit, the reason keeps the core's more exact count.
    """
    if not reason.stages:
        return replace(reason, fitting=fitting) if fitting < reason.wanted else reason
    *first, (name, wanted, before) = reason.stages
    if fitting >= wanted:
        return reason
    return replace(reason, stages=(*first, (name, wanted, fitting)), fitting=reason.fitting - before + fitting)


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
            return replace(reason, stages=stages, fitting=sum(fitting for _, _, fitting in stages)), beside
    return reason, whatif


def _scarcest(partition: Partition, shape: Shape, node_ids: list[int]) -> str:
    """Return the resource of which the nodes have capacity for the fewest tasks; empty if that is unknown."""
    nodes = partition.nodes
    rows = [nodes.rows[node_id] for node_id in node_ids[:LOOKED_AT]]
    fitting = {
        name: sum((nodes.capacity[name][row] - nodes.used[name][row]) // amount for row in rows)
        for name, amount in shape.amounts
        if rows and name in nodes.capacity and not shape.key.apart
    }
    return min(fitting, key=lambda name: (fitting[name], name != GPU), default="")


def _with_fitting(partition: Partition, stage: Stage, node_ids: list[int]) -> Iterator[tuple[str, int]]:
    """Yield the names of nodes, each with the number of tasks of a stage that fit there."""
    nodes = partition.nodes
    for node_id in node_ids:
        most = 1 if stage.shape.key.apart else stage.count
        yield nodes.name[nodes.rows[node_id]], fitting_now(nodes, node_id, stage.shape, most)[0]


def _held_for_others(partition: Partition, stage: Stage, own: Collection[int], now: Micros) -> tuple[HeldFor, ...]:
    """Return the holds that keep tasks of a stage off nodes, the largest first."""
    nodes = partition.nodes
    holds: list[HeldFor] = []
    for seq, hold in sorted(partition.holds.items()) if stage.shape.amounts else ():
        names = [
            nodes.name[nodes.rows[node_id]]
            for node_id in hold.nodes
            if could_take(partition, nodes.rows[node_id], stage.shape)
            and not any(own_seq in nodes.held[node_id] for own_seq in own)
        ]
        if names and seq not in own:
            holder = partition.jobs[hold.job].stages[hold.stage]
            ask = partition.ask_of_earmark(hold)
            waited = 0 if ask is None else now - ask.waiting_since
            until = ends_at(partition, hold, now)
            holds.append(HeldFor(hold.job, holder.name, len(names), until, tuple(names[:NAMED]), waited))
    return tuple(sorted(holds, key=lambda hold: -hold.nodes)[:NAMED])


def _not_stopping(partition: Partition, stage: Stage) -> tuple[NotStopping, ...]:
    nodes = partition.nodes
    overdue = sorted(partition.derived.overdue.values(), key=lambda allocation: (allocation.since, allocation.id))
    late = [
        NotStopping(
            allocation.stage.job.id,
            allocation.stage.name,
            count(allocation.indices),
            nodes.name[nodes.rows[allocation.node]],
            allocation.since,
        )
        for allocation in overdue
        if may_take(nodes, nodes.rows[allocation.node], stage.shape)
    ]
    return tuple(late[:NAMED])


def _lacks(partition: Partition, stage: Stage, row: int, own: Collection[int]) -> tuple[str, int]:
    """Return the first thing that a node lacks for one task, and how much of that request is missing, in thousandths.

    The second value is 0 for a node that would not take the task even if it were empty.
    """
    nodes, shape = partition.nodes, stage.shape
    closed = _out_of_use(partition, row) or _refuses(partition, shape, row) or _too_small(partition, shape, row)
    closed = closed or kept(partition, shape, row, own)
    if closed:
        return closed, 0
    if nodes.node_id[row] in nodes_with_task(stage):
        return "apart", 0
    for name, amount in shape.amounts:
        free = nodes.capacity[name][row] - nodes.used[name][row]
        if free < amount:
            return f"{reasons.MISSING}{name}", max(1, (amount - free) * 1000 // amount)
    devices, gpus = nodes.devices[row], nodes.gpus[row]
    if shape.devices and not choose_devices(devices, gpus, shape.devices, shape.device_milli, 1):
        return "split gpu", 1
    return "", 0


def _too_small(partition: Partition, shape: Shape, row: int) -> str:
    nodes = partition.nodes
    for name, amount in shape.amounts:
        capacity = nodes.capacity[name][row] if name in nodes.capacity else 0
        if capacity < amount:
            return f"{reasons.SMALL if capacity else reasons.NONE}{name}"
    return ""


def _out_of_use(partition: Partition, row: int) -> str:
    """Return why a node takes no tasks at all now; empty if it takes some."""
    nodes, node_id = partition.nodes, partition.nodes.node_id[row]
    if nodes.takes_until(row):
        return "closing"
    if nodes.state[row] != "up":
        return nodes.state[row]
    if node_id in nodes.disconnected:
        return "disconnected"
    return "backed off" if node_id in nodes.avoided else ""


def _refuses(partition: Partition, shape: Shape, row: int) -> str:
    """Return why a node that is in use accepts no tasks of a shape, whatever is free there; empty if it does."""
    nodes = partition.nodes
    if shape.key.pool not in ("", nodes.pool[row]):
        return "another pool"
    if not shape.accepts(nodes.labels[row], (), nodes.pool[row]):
        return "selector"
    if not shape.accepts(nodes.labels[row], nodes.taints[row], nodes.pool[row]):
        taints = [taint for taint in nodes.taints[row] if not taint.endswith(SOFT) and not shape.tolerates(taint)]
        return reasons.TAINT + min(taints)
    if not may_take(nodes, row, shape):
        return "for other users"
    return "" if nodes.placeable(row) else "over its capacity"


def kept(partition: Partition, shape: Shape, row: int, own: Collection[int]) -> str:
    """Return "held" or "promised" for a node that is kept for other asks; else an empty text."""
    holders = partition.nodes.held.get(partition.nodes.node_id[row])
    if not holders or not shape.amounts or any(seq in holders for seq in own):
        return ""
    return "promised" if any(seq in partition.promises for seq in holders) else "held"


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
