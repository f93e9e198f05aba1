"""Match: heads of lanes are tried on the nodes, a gang whole or not at all.

Queues go by path and lanes by the text of their shape; every node is looked at for every try. That is the whole
policy so far: shares, turns and an index of nodes take its place.
"""

from __future__ import annotations

from fairlead.core.changes import Part, Placed
from fairlead.core.lanes import Lane
from fairlead.core.model import NEW, SCALE, Reservation, Stage
from fairlead.core.plan import Plan
from fairlead.core.policy.fit import choose_devices, room
from fairlead.core.policy.limits import allowed, may_run
from fairlead.core.ranges import split
from fairlead.core.reasons import NoRoom, NotActive, NotReady, Reason
from fairlead.core.resources import GPU, scale


def match(plan: Plan) -> None:
    p = plan.partition
    lanes = sorted(p.lanes.values(), key=lambda lane: (lane.queue.path, lane.shape.text))
    for lane in lanes:
        _drain_lane(plan, lane)


def _drain_lane(plan: Plan, lane: Lane) -> None:
    """Serve a lane until no head can be placed. One that is not allowed is passed over, with its place kept."""
    if not plan.partition.reign.ready:
        head = lane.head()
        if head is not None:
            _say(plan, head, NotReady())
        return
    for reservation in list(lane):
        reason = _serve(plan, reservation)
        if reason is not None:
            _say(plan, reservation, reason)
            if isinstance(reason, NoRoom):
                return


def _serve(plan: Plan, reservation: Reservation) -> Reason | None:
    """Place what is wanted together, then the rest as far as it goes. Returns why something is left, or nothing."""
    stage = reservation.stage
    together = _together(reservation)
    while stage.reservations[reservation.kind] is reservation:
        wanted = len(stage.wanted(reservation.kind)) if together == 1 else together
        if len(stage.wanted(reservation.kind)) < together or (stage.running() and not stage.started):
            return NoRoom(together, 0, (("members of the gang still stop", 1),))
        reason = _place(plan, reservation, together, wanted)
        if reason is not None:
            return reason
        together = 1
    return None


def _together(reservation: Reservation) -> int:
    stage = reservation.stage
    if reservation.kind == NEW:
        return 1 if stage.started else stage.min
    if reservation.kind == SCALE and stage.spec.scaling == "strict" and not stage.spec.min:
        return len(stage.wanted(SCALE))
    return 1


def _place(plan: Plan, reservation: Reservation, least: int, most: int) -> Reason | None:
    """Place at least `least` and at most `most` tasks, or nothing."""
    stage = reservation.stage
    job = stage.job
    for queue in job.queue.line():
        if queue.state == "stopped":
            return NotActive(queue.path)
    if not job.allocations:
        reason: Reason | None = may_run((each.name, each.max_jobs, each.running) for each in job.accounts)
        if reason is not None:
            return reason
    accounts = [(each.name, each.limit, each.used) for each in job.accounts]
    reason = allowed(accounts, scale(stage.shape.resources, least))
    if reason is not None:
        return reason
    while most > least and allowed(accounts, scale(stage.shape.resources, most)) is not None:
        most = max(least, most // 2)
    parts = _choose(plan, stage, stage.wanted(reservation.kind).first(most))
    placed = sum(count for count, _ in parts)
    if placed < least:
        return NoRoom(least, placed)
    block = stage.wanted(reservation.kind).first(placed)
    plan.do(
        Placed(
            job.id,
            stage.position,
            reservation.kind,
            stage.next_attempt(block),
            plan.partition.counters.allocation,
            tuple(part for _, part in parts),
            together=least > 1,
        )
    )
    return None


def _choose(plan: Plan, stage: Stage, block: tuple[int, ...]) -> list[tuple[int, Part]]:
    """Nodes for as many tasks of a block as fit, by join number."""
    nodes = plan.partition.nodes
    shape = stage.shape
    parts: list[tuple[int, Part]] = []
    left = sum(block[at + 1] - block[at] for at in range(0, len(block), 2))
    for row in nodes.in_order():
        if not left:
            break
        if nodes.manager[row] != stage.job.spec.manager or not nodes.placeable(row):
            continue
        if not shape.accepts(nodes.labels[row], nodes.taints[row], nodes.pool[row]):
            continue
        count = room(
            [
                (nodes.capacity[name][row] - nodes.used[name][row] if name in nodes.used else 0, amount)
                for name, amount in shape.amounts
                if name != GPU
            ],
            left,
        )
        devices: tuple[int, ...] = ()
        if shape.devices:
            devices = choose_devices(
                nodes.devices[row], nodes.device_count(row), shape.devices, shape.device_milli, count
            )
            count = len(devices) // shape.devices
        if count:
            taken, block = split(block, count)
            parts.append((count, Part(nodes.join[row], taken, devices)))
            left -= count
    return parts


def _say(plan: Plan, reservation: Reservation, reason: Reason) -> None:
    plan.reasons[reservation.stage.job.id, reservation.stage.name, reservation.kind] = reason
