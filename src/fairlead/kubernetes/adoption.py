"""The start of the adapter: compares the state of the partition with the cluster, and queues the differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairlead.kubernetes.adapter_state import OURS, Outbox, State
from fairlead.kubernetes.handlers import stop
from fairlead.kubernetes.in_flight import begin, lose
from fairlead.kubernetes.job_items import shape
from fairlead.kubernetes.nodes import FreeCapacity
from fairlead.kubernetes.units import Member, Task, Unit, pair
from fairlead.wire import api as wire

Losses = Mapping[tuple[str, str], list[str]]
"""Job and ask → why tasks of the ask were lost. Its tasks are equal, so any without a pod count as lost."""


def adopt(state: State, told: wire.ManagerState) -> None:
    """Compare the state of the partition with the cluster, and queue the differences. Call it when all lists are
    complete, and again after each new connection to the partition."""
    losses = _forget_sent(state)
    _adopt_nodes(state, told.nodes)
    unstarted: list[Member] = []
    for job in told.jobs:
        unit = state.jobs.get(job.job)
        if unit is not None and unit.members:
            unstarted += _adopt_job(state, unit, job, losses)
        elif job.over:
            state.out.releases.append({"job": job.job, "withdraw": True})
        else:
            state.out.jobs.append({"job": job.job, "remove": True})
    # Tasks that wait in the partition can be placed at any moment, so the use of bound pods has to be known before.
    waits = any(ask.waiting for job in told.jobs for ask in job.asks)
    for unit in state.units.values():
        if any(member.bound and not member.placed for member in unit.members.values()):
            state.unbooked[unit.key] = None
            if waits:
                state.count_unbooked(unit)
    _start_again(state, unstarted)
    state.adopted = True
    state.changed.set()


def _forget_sent(state: State) -> Losses:
    """Forget what was sent, and mark everything to be sent again. Return losses that the partition may not know of."""
    losses: dict[tuple[str, str], list[str]] = {}
    for task, reason in state.ending.items():
        if reason:
            losses.setdefault((task.job, task.ask), []).append(reason)
    state.out = Outbox()
    state.spared, state.budgets_changed = None, True
    state.ending.clear()
    state.answering.clear()
    state.dirty_units = dict.fromkeys(state.units)
    state.unbooked = {}
    state.starting = True
    for unit in state.units.values():
        unit.forget_tasks()
    return losses


def _adopt_nodes(state: State, nodes: Iterable[wire.ManagerNode]) -> None:
    told = {node.name: node for node in nodes}
    state.closed = {name: None for name, node in told.items() if node.state != "up"}
    names = {known.name for known in state.nodes.values()}
    state.out.nodes += [{"name": name, "action": "remove"} for name in told if name not in names]
    for uid, known in state.nodes.items():
        before = told.get(known.name)
        mine = before is not None and before.state != "up" and before.reason.startswith(OURS)
        known.sent = [{"action": "drain"}] if mine else None
        state.dirty_nodes[uid] = None


def _adopt_job(state: State, unit: Unit, job: wire.ManagerJob, losses: Losses) -> list[Member]:
    """Give the pods of a unit their tasks. Return the pods that have a node and are neither bound nor nominated."""
    shape(state, unit)
    unit.sent = True
    unit.ended = job.over
    unit.minimum = {}
    unstarted: list[Member] = []
    by_ask: dict[str, list[Member]] = {}
    for member in unit.members.values():
        by_ask.setdefault(member.ask, []).append(member)
    for ask in job.asks:
        unit.slots[ask.ask] = [None] * ask.count
        unit.minimum[ask.ask] = ask.min
        pairing = pair(ask, by_ask.pop(ask.ask, []))
        for member, index, node, stops in pairing.live:
            unit.give(member, index)
            member.placed = node
            if stops:
                stop(state, member, "")
            elif member.bound:
                state.booked(member)
            elif not member.nominated and member.action is None:
                unstarted.append(member)
        for member, index in pairing.recover:
            unit.give(member, index)
            state.recover(member.task, member.fixed or member.placed)
        for member, index in pairing.waiting:
            unit.give(member, index)
            member.placed = ""
        for index in pairing.free:
            lost = losses.get((unit.job, ask.ask))
            state.release(Task(unit.job, ask.ask, index), lost.pop() if lost else "")
        for index in pairing.surplus:
            state.withdraw(Task(unit.job, ask.ask, index))
    return unstarted


def _start_again(state: State, unstarted: list[Member]) -> None:
    """Bind or admit pods that the partition placed before. The cluster may have changed since, so their nodes are
    checked again; a task that no longer fits is lost."""
    free = FreeCapacity(state.members.values(), {member.placed for member in unstarted}, state.objects, state.others)
    for member in unstarted:
        node = state.node(state.node_names.get(member.placed, ""))
        problem = free.take(member, node) if node is not None else ""
        if problem:
            lose(state, member, problem)
        else:
            begin(state, member, "admit" if member.gated else "bind")
