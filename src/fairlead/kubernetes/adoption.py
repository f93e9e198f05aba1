"""The start of the adapter: compares the state of the partition with the cluster, and queues the differences."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.kubernetes.adapter_state import OURS, Outbox, State
from fairlead.kubernetes.free_capacity import Rooms
from fairlead.kubernetes.in_flight import begin, lose
from fairlead.kubernetes.job_items import shape
from fairlead.kubernetes.partition_events import stop
from fairlead.kubernetes.units import Member, Unit, pair
from fairlead.wire import api as wire


def adopt(state: State, told: wire.ManagerState) -> None:
    """Compare the state of the partition with the cluster, and queue the differences. Call it when all lists are
    complete, and again after each new connection to the partition."""
    state.out = Outbox()
    # The partition may not know of losses. Tasks of an ask are equal, so any task of it without a pod is lost.
    losses: dict[tuple[str, str], list[str]] = {}
    for (job_name, ask, _), reason in state.ending.items():
        if reason:
            losses.setdefault((job_name, ask), []).append(reason)
    state.ending.clear()
    state.answering.clear()
    state.dirty_units = dict.fromkeys(state.units)
    state.unbooked = {}
    state.starting = True
    names = {known.name for known in state.nodes.values()}
    states = {node.name: node for node in told.nodes}
    state.out.nodes += [{"name": name, "action": "remove"} for name in states if name not in names]
    for uid, known in state.nodes.items():
        before = states.get(known.name)
        mine = before is not None and before.state != "up" and before.reason.startswith(OURS)
        known.sent = [{"action": "drain"}] if mine else None
        state.dirty_nodes[uid] = None
    for unit in state.units.values():
        unit.forget_tasks()
    for job in told.jobs:
        known_unit = state.jobs.get(job.job)
        if known_unit is None or not known_unit.members:
            _drop_job(state, job)
        else:
            _adopt_job(state, known_unit, job, losses)
    # Tasks that wait in the partition can be placed at any moment.
    waits = any(ask.waiting for job in told.jobs for ask in job.asks)
    for unit in state.units.values():
        if any(member.bound and not member.placed for member in unit.members.values()):
            state.unbooked[unit.key] = None
            if waits:
                state.count_unbooked(unit)
    _start_again(state)
    state.adopted = True
    state.changed.set()


def _drop_job(state: State, job: wire.ManagerJob) -> None:
    if job.over:
        state.out.releases.append({"job": job.job, "withdraw": True})
    else:
        state.out.jobs.append({"job": job.job, "remove": True})


def _adopt_job(state: State, unit: Unit, job: wire.ManagerJob, losses: Mapping[tuple[str, str], list[str]]) -> None:
    shape(state, unit)
    unit.sent = True
    unit.ended = job.over
    by_ask: dict[str, list[Member]] = {}
    for member in unit.members.values():
        by_ask.setdefault(member.ask, []).append(member)
    for ask in job.asks:
        unit.slots[ask.ask] = [None] * ask.count
        pairing = pair(ask, by_ask.pop(ask.ask, []))
        for member, index, node in pairing.running:
            unit.give(member, index)
            member.placed = node
            if member.bound:
                state.booked(member)
            elif not member.pinned and member.action is None:
                state.unstarted.append(member)
        for member, index, node in pairing.stopping:
            unit.give(member, index)
            member.placed = node
            stop(state, unit, unit.job, ask.ask, index, "")
        for member, index in pairing.recover:
            unit.give(member, index)
            node = member.fixed or member.placed
            state.out.recover.append({"job": unit.job, "ask": ask.ask, "index": index, "node": node})
        for member, index in pairing.waiting:
            unit.give(member, index)
            member.placed = ""
        for index in pairing.free:
            lost = losses.get((unit.job, ask.ask))
            state.release(unit.job, ask.ask, index, lost.pop() if lost else "")
        for index in pairing.surplus:
            state.out.asks.append({"job": unit.job, "ask": ask.ask, "index": index, "withdraw": True})
            state.ending[unit.job, ask.ask, index] = ""


def _start_again(state: State) -> None:
    """Bind or pin pods that the partition placed before. The cluster may have changed since, so their nodes are checked
    again; a task that no longer fits is lost."""
    unstarted, state.unstarted = state.unstarted, []
    rooms = Rooms(state.members.values(), {member.placed for member in unstarted}, state.objects, state.others)
    for member in unstarted:
        known = state.nodes.get(state.others.node_of.get(state.node_names.get(member.placed, ""), ""))
        problem = rooms.take(member, known.node) if known is not None else ""
        if problem:
            lose(state, member, problem)
        else:
            begin(state, member, "pin" if member.gated else "bind")
