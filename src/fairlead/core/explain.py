"""Why not here: count the nodes by what they lack for a shape, and find out whether it could ever fit.

Match only notes that there was no capacity. The details are worked out when a user asks for them, from the same state.
Whether a shape could ever fit is cached until nodes or pools change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from fairlead.core.holds.room import ends_at, may_take
from fairlead.core.model import Micros, Stage
from fairlead.core.policy.fit import choose_devices, room
from fairlead.core.pools.sizes import grows, nodes_left, takes
from fairlead.core.ranges import count
from fairlead.core.reasons import HeldFor, NeverFits, NoRoom, NotStopping
from fairlead.core.resources import GPU, Vector, add
from fairlead.core.shape import WHOLE_DEVICE, Shape
from fairlead.core.state import Partition

MANY = 2**40
"""More tasks than can exist: the number of tasks that fit if they ask for nothing."""

NAMED = 5
"""An explanation names at most this number of holds, and of overdue stops."""


def why_no_room(partition: Partition, stage: Stage, reason: NoRoom, now: Micros) -> NoRoom:
    """Return the reason with details: counts of nodes by what they lack, and the node that misses least.

    `now` is the time of the question; the state knows only the time of its last change.
    """
    if reason.failed:
        return reason
    if reason.stages:
        stage = stage.job.stage(reason.stages[-1][0]) or stage  # the stage for which the others wait
    own = [ask.seq for ask in stage.asks if ask is not None and partition.earmark_of(ask.seq) is not None]
    failed: dict[str, int] = {}
    nearest: tuple[int, int, str] | None = None
    for row in partition.nodes.in_order():
        if partition.nodes.manager[row] != stage.job.manager:
            continue
        lacks, short = _lacks(partition, stage.shape, row, own)
        if not lacks:
            lacks = "not for all"
        failed[lacks] = failed.get(lacks, 0) + 1
        if short and (nearest is None or short < nearest[0]):
            nearest = (short, partition.nodes.node_id[row], partition.nodes.name[row])
    counted = tuple(sorted(failed.items(), key=lambda item: (-item[1], item[0])))
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
        reason,
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
    )


def _accepts(partition: Partition, stage: Stage, node_id: int) -> bool:
    """True if a node takes tasks of a stage when it has capacity for them."""
    return may_take(partition.nodes, partition.nodes.rows[node_id], stage.shape)


def _held_for_others(partition: Partition, stage: Stage, own: Collection[int], now: Micros) -> tuple[HeldFor, ...]:
    """Return the holds that keep tasks of a stage out, the largest first."""
    holds: list[HeldFor] = []
    for seq, hold in sorted(partition.holds.items()) if stage.shape.amounts else ():
        nodes = sum(
            _accepts(partition, stage, node_id) and not any(own_seq in partition.nodes.held[node_id] for own_seq in own)
            for node_id in hold.nodes
        )
        if nodes and seq not in own:
            name = partition.jobs[hold.job].stages[hold.stage].name
            holds.append(HeldFor(hold.job, name, nodes, ends_at(partition, hold, now)))
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
    """Return the number of ordered nodes that are meant for tasks of a stage, perhaps among other tasks."""
    wanted = (stage.job.id, stage.position)
    return sum(
        any(asked[:2] == wanted for asked in meant)
        for order in partition.orders.values()
        for meant in order.coming.values()
    )


def _lacks(partition: Partition, shape: Shape, row: int, own: Collection[int]) -> tuple[str, int]:
    """Return the first thing that a node lacks for one task, and the missing part of that request in thousandths."""
    nodes = partition.nodes
    if nodes.state[row] != "up":
        return nodes.state[row], 0
    if nodes.node_id[row] in nodes.avoided:
        return "backed off", 0
    if not shape.accepts(nodes.labels[row], (), nodes.pool[row]):
        return "selector", 0
    if not shape.accepts(nodes.labels[row], nodes.taints[row], nodes.pool[row]):
        return "taint", 0
    if not may_take(nodes, row, shape):
        return "for other users", 0
    if not nodes.placeable(row):
        return "over its capacity", 0
    holders = nodes.held.get(nodes.node_id[row])
    if holders and shape.amounts and not any(seq in holders for seq in own):
        return "promised" if any(seq in partition.promises for seq in holders) else "held", 0
    for name, amount in shape.amounts:
        free = nodes.capacity[name][row] - nodes.used[name][row] if name in nodes.capacity else 0
        if free < amount:
            return f"missing {name}", (amount - free) * 1000 // amount
    if shape.devices and not _devices(partition, shape, row):
        return "split gpu", 1
    return "", 0


def _devices(partition: Partition, shape: Shape, row: int) -> tuple[int, ...]:
    return choose_devices(
        partition.nodes.devices[row], partition.nodes.device_count(row), shape.devices, shape.device_milli, 1
    )


def closed_to(partition: Partition, shape: Shape) -> str:
    """Return the user of a shape if nodes would accept it but are reserved for other users; else an empty string."""
    nodes = partition.nodes
    closed = nodes.restricted and any(
        shape.key.user not in nodes.users[row] and shape.accepts(nodes.labels[row], nodes.taints[row], nodes.pool[row])
        for row in nodes.rows.values()
        if nodes.users[row]
    )
    return shape.key.user if closed else ""


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


def never_whole(partition: Partition, needs: Sequence[tuple[Stage, int]]) -> NeverFits | None:
    """Return why stages can never start together, judged by sums: per shape, and per resource over all stages."""
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
        most = most_ever(partition, shape, "", wanted)
        if most < wanted:
            short.append((" and ".join(stage.name for stage, _ in stages), wanted, most))
        total += wanted
        could += min(most, wanted)
    if short:
        return NeverFits(total, could, tuple(short))
    capacity = capacity_ever(partition)
    missing = next((name for name in sorted(asked) if asked[name] > capacity.get(name, 0)), "")
    return NeverFits(total, could, missing=missing) if missing else None


def capacity_ever(partition: Partition) -> Vector:
    """Return the total capacity of our own nodes and of pools at full size. Cached until a node or pool changes."""
    version = (partition.nodes.version, partition.derived.pools_version)
    if partition.memory.ever is None or partition.memory.ever[0] != version:
        total: Vector = {}
        for row in partition.nodes.rows.values():
            if not partition.nodes.manager[row]:
                add(total, partition.nodes.capacity_of(row))
        for pool in partition.pools.values():
            most = pool.settings.max
            add(total, dict(pool.settings.node), MANY if most is None else most)
        partition.memory.ever = (version, total)
    return partition.memory.ever[1]


def _slots(capacity: Mapping[str, int], shape: Shape) -> int:
    fitting = room([(capacity.get(name, 0), amount) for name, amount in shape.amounts if name != GPU], MANY)
    if shape.devices:
        count = capacity.get(GPU, 0) // WHOLE_DEVICE
        per_device = WHOLE_DEVICE // shape.device_milli
        fitting = min(fitting, count // shape.devices if shape.devices > 1 else count * per_device)
    return min(fitting, 1) if shape.key.apart else fitting
