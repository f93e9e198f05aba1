"""Why not here: what each node lacks for a shape, counted; and whether it could ever fit at all.

Matching only notes that there was no room. The detail is worked out when somebody asks, from the same state; whether
a shape could ever fit is counted once and again only after nodes or pools changed.
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
"""More tasks than there can be: what asks for nothing fits that often."""

NAMED = 5
"""How many holds, and how many overdue stops, an explanation names."""


def why_no_room(partition: Partition, stage: Stage, found: NoRoom, now: Micros) -> NoRoom:
    """The same reason with what failed on how many nodes, most frequent first, and the node that misses least.

    `now` is the time of the look: the state knows only that of its last change.
    """
    if found.failed:
        return found
    if found.stages:
        stage = stage.job.stage(found.stages[-1][0]) or stage  # the one that keeps the others back
    own = [each.seq for each in stage.asks if each is not None and partition.kept(each.seq) is not None]
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
    orders = max((each.orders for each in stage.asks if each is not None), default=0)
    pools = [pool for _, pool in sorted(partition.pools.items()) if pool.elastic and takes(pool, stage.shape)]
    return msgspec.structs.replace(
        found,
        failed=counted,
        nearest=nearest[2] if nearest else "",
        held=held,
        coming=coming,
        ordered=_ordered_for(partition, stage),
        vain=orders,
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
    """The holds that keep tasks of a stage out, the largest first."""
    found: list[HeldFor] = []
    for seq, hold in sorted(partition.holds.items()) if stage.shape.amounts else ():
        nodes = sum(
            _accepts(partition, stage, node_id) and not any(each in partition.nodes.held[node_id] for each in own)
            for node_id in hold.nodes
        )
        if nodes and seq not in own:
            name = partition.jobs[hold.job].stages[hold.stage].name
            found.append(HeldFor(hold.job, name, nodes, ends_at(partition, hold, now)))
    return tuple(sorted(found, key=lambda each: -each.nodes)[:NAMED])


def _not_stopping(partition: Partition, stage: Stage) -> tuple[NotStopping, ...]:
    """The overdue stops on nodes that accept tasks of a stage, the oldest first."""
    late = [each for each in partition.overdue.values() if _accepts(partition, stage, each.node)]
    late.sort(key=lambda each: (each.since, each.id))
    return tuple(
        NotStopping(
            each.stage.job.id,
            each.stage.name,
            count(each.indices),
            partition.nodes.name[partition.nodes.rows[each.node]],
            each.since,
        )
        for each in late[:NAMED]
    )


def _ordered_for(partition: Partition, stage: Stage) -> int:
    """How many nodes that are coming are meant for tasks of a stage, among others."""
    whom = (stage.job.id, stage.position)
    return sum(
        any(each[:2] == whom for each in meant)
        for order in partition.orders.values()
        for meant in order.coming.values()
    )


def _lacks(partition: Partition, shape: Shape, row: int, own: Collection[int]) -> tuple[str, int]:
    """What a node lacks first for one task, and how much of what is asked for it misses, in thousandths."""
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
    """The user of a shape, if there are nodes that would take it if they were not for other users; empty otherwise."""
    nodes = partition.nodes
    closed = nodes.restricted and any(
        shape.key.user not in nodes.users[row] and shape.accepts(nodes.labels[row], nodes.taints[row], nodes.pool[row])
        for row in nodes.rows.values()
        if nodes.users[row]
    )
    return shape.key.user if closed else ""


def most_ever(partition: Partition, shape: Shape, manager: str, enough: int) -> int:
    """How many tasks of a shape all nodes and pools could take if they were empty; counted up to `enough`."""
    nodes = partition.nodes
    known = shape.ever
    if (
        known is not None
        and known[0] == (nodes.version, partition.pools_version, manager)
        and (known[1] >= enough or known[2])
    ):
        return known[1]
    most, whole = 0, True
    for row in nodes.rows.values():
        if most >= enough:
            whole = False
            break
        if may_take(nodes, row, shape):
            most += _slots({name: column[row] for name, column in nodes.capacity.items()}, shape)
    for pool in partition.pools.values() if not manager else ():
        settings = pool.settings
        if shape.accepts(dict(settings.labels), settings.taints, pool.name):
            each = _slots(dict(settings.node), shape)
            most += each * (enough if settings.max is None else settings.max)
    shape.ever = ((nodes.version, partition.pools_version, manager), most, whole)
    return most


def never_whole(partition: Partition, needs: Sequence[tuple[Stage, int]]) -> NeverFits | None:
    """Why stages can never start together, as far as sums tell: by shape, and by resource over all of them."""
    by_shape: dict[tuple[Shape, int | None], list[tuple[Stage, int]]] = {}
    asked: Vector = {}
    for stage, needed in needs:
        # Tasks that stay apart do so within their stage; those of another may share a node with them.
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
    there = capacity_ever(partition)
    missing = next((name for name in sorted(asked) if asked[name] > there.get(name, 0)), "")
    return NeverFits(total, could, missing=missing) if missing else None


def capacity_ever(partition: Partition) -> Vector:
    """What our own nodes and pools have together if all of them were there; counted anew after one changed."""
    version = (partition.nodes.version, partition.pools_version)
    if partition.ever is None or partition.ever[0] != version:
        there: Vector = {}
        for row in partition.nodes.rows.values():
            if not partition.nodes.manager[row]:
                add(there, partition.nodes.capacity_of(row))
        for pool in partition.pools.values():
            most = pool.settings.max
            add(there, dict(pool.settings.node), MANY if most is None else most)
        partition.ever = (version, there)
    return partition.ever[1]


def _slots(capacity: Mapping[str, int], shape: Shape) -> int:
    fitting = room([(capacity.get(name, 0), amount) for name, amount in shape.amounts if name != GPU], MANY)
    if shape.devices:
        count = capacity.get(GPU, 0) // WHOLE_DEVICE
        per_device = WHOLE_DEVICE // shape.device_milli
        fitting = min(fitting, count // shape.devices if shape.devices > 1 else count * per_device)
    return min(fitting, 1) if shape.key.apart else fitting
