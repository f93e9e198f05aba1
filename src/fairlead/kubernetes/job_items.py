"""Builds the items of an update that add the job of a unit, ask for its new pods, and remove it."""

from __future__ import annotations

from fairlead.kubernetes.adapter_state import Document, State
from fairlead.kubernetes.groups import Group, group_of
from fairlead.kubernetes.pods import Needs
from fairlead.kubernetes.units import Task, Unit

ONE_BY_ONE: Document = {"scaling": "partial"}
"""Makes pods that are added to a job later start one by one, not together."""


def job_items(state: State, unit: Unit) -> list[Document]:
    """Return the items that add the job of a unit or remove it. Queues also its asks and recoveries."""
    remove: list[Document] = [{"job": unit.job, "remove": True}]
    if not unit.members:
        if any(task.job == unit.job for task in state.ending):
            return []  # the loss of its last task is sent first
        del state.units[unit.key]
        del state.jobs[unit.job]
        return remove if unit.sent else []
    removed: list[Document] = []
    if unit.ended:
        if any(member.live or member.stopping for member in unit.members.values()):
            return []  # later pods become a new job when the old pods are gone
        unit.forget_tasks()
        removed = remove
    shape(state, unit)
    if unit.sent and unit.why[1] and not unit.live() and not state.dirty_nodes:
        unit.forget_tasks()  # an incomplete gang waits for its other pods
        unit.waiting_since = 0.0
        return remove
    added = _added(state, unit)
    if not added:
        state.count_unbooked(unit)
    return removed + added


def _added(state: State, unit: Unit) -> list[Document]:
    """Return the item that adds the job of a unit, if the partition has no such job. Otherwise queue its asks."""
    if state.dirty_nodes:  # a host port is new to the nodes: they are sent first
        state.dirty_units[unit.key] = None
    elif unit.sent:
        _grow(state, unit)
    elif unit.group is not None and not unit.why[1] and any(each.can_be_asked_for for each in unit.members.values()):
        return [_new_job(state, unit, unit.group)]
    return []


def shape(state: State, unit: Unit) -> None:
    """Determine the group of a unit and the ask of each pod. `unit.why` gets the reason if the job cannot be sent."""
    pods = unit.pods()
    group = unit.group
    if group is None or len(pods) == len(unit.members):  # objects of bound pods are not kept
        first = next(iter(unit.members.values()))
        group = unit.group = group_of(first.membership, pods, state.objects, state.rules)
    unit.why = ("GangIncomplete", group.waits_for) if group.waits_for and not unit.live() else ("", "")
    for member in unit.members.values():
        if member.ask or member.pod is None:
            continue
        needs = group.needs_of(member.pod, member.gated)
        if not isinstance(needs, Needs):
            unit.why = ("NotHonoured", "; ".join(map(str, needs)))
            continue
        controller = member.pod.metadata.controller
        if member.gated and controller is not None:
            needs = state.refusals.apply(controller.uid, needs)
        member.ask = state.objects.ask(member.membership.part, needs)
        for port in needs.ports:
            if port not in state.ports:  # every node offers one of each port that pods ask for
                state.ports[port] = None
                state.dirty_nodes = dict.fromkeys(state.nodes)


def _new_job(state: State, unit: Unit, group: Group) -> Document:
    counts: dict[str, int] = {}
    bound = False
    for member in unit.members.values():
        if not member.can_be_asked_for:
            continue
        index = counts.get(member.ask, 0)
        counts[member.ask] = index + 1
        unit.give(member, index)
        if member.bound:
            bound = True
            state.recover(member.task, member.bound)
    unit.sent = True
    unit.waiting_since = state.clock()
    stages = [{**stage, **ONE_BY_ONE} for stage in group.stages(counts)]
    whole = len(stages) > 1 and not bound and group.is_gang
    return {**group.job_item(), "stages": stages, **({"gang": "job"} if whole else {})}


def _grow(state: State, unit: Unit) -> None:
    """Give tasks to pods without one: a task that has ended, or a new one."""
    known = set(unit.slots)
    grown: dict[str, None] = {}
    for member in unit.members.values():
        if member.index >= 0 or not member.can_be_asked_for:
            continue
        slots = unit.slots.setdefault(member.ask, [])
        free = [at for at, other in enumerate(slots) if other is None]
        index = next((at for at in free if Task(unit.job, member.ask, at) not in state.ending), None)
        if index is None and free:
            continue  # the next update asks for it, once the release of a free task is answered
        unit.give(member, len(slots) if index is None else index)
        if index is None:
            grown[member.ask] = None
        elif not member.bound:
            state.out.asks.append(member.task.item())
        if member.bound:
            state.recover(member.task, member.bound)
    for ask in grown:
        state.out.asks.append(_larger(unit, ask, ask in known))


def _larger(unit: Unit, ask: str, known: bool) -> Document:
    """Return the item that asks for all tasks of an ask. If the ask is new, the item has the keys of a stage."""
    count = len(unit.slots[ask])
    if known:
        return {"job": unit.job, "ask": ask, "count": count}
    assert unit.group is not None
    (stage,) = unit.group.stages({ask: count})
    del stage["name"]
    return {"job": unit.job, "ask": ask, **stage, **ONE_BY_ONE}
