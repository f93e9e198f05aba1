"""Builds the items of an update that add the job of a unit, ask for its new pods, and remove it."""

from __future__ import annotations

from collections import Counter

from fairlead.kubernetes.adapter_state import Document, State
from fairlead.kubernetes.groups import Group, group_of
from fairlead.kubernetes.pods import Needs
from fairlead.kubernetes.units import Member, Task, Unit

ONE_BY_ONE: Document = {"scaling": "partial"}
"""Makes pods that are added to a job later start one by one, not together."""

SENT_AGAIN_AFTER = 1.0
"""Seconds after which a gang whose size has changed is sent again."""


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
    if unit.sent and (unit.why[1] or _has_changed(unit)) and not unit.live() and not state.dirty_nodes:
        unit.forget_tasks()  # an incomplete gang waits for its other pods
        unit.waiting_since = 0.0
        if not unit.why[1]:  # it is sent again a little later, when no event about the removed job can come
            unit.retry_at = state.clock() + SENT_AGAIN_AFTER
            state.dirty_units[unit.key] = None
        return remove
    added = _added(state, unit)
    if not added:
        state.count_unbooked(unit)
    return removed + added


def _has_changed(unit: Unit) -> bool:
    """True if the gang size, the queue or the user of a unit has changed since its job was sent."""
    group = unit.group
    if group is None:
        return False
    if any(unit.owner) and unit.owner != (group.queue, group.user):
        return True
    if not any(least > 1 for least in unit.minimum.values()):
        return False
    counts = Counter(member.ask for member in unit.members.values() if member.ask)
    return any(unit.minimum.get(ask, least) != least for ask, least in group.minimum(counts).items())


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
    unit.owner = (group.queue, group.user)
    unit.minimum = {stage["name"]: stage["min"] for stage in stages}
    whole = len(stages) > 1 and not bound and group.is_gang
    return {**group.job_item(), "stages": stages, **({"gang": "job"} if whole else {})}


def _grow(state: State, unit: Unit) -> None:
    """Give tasks to pods without one: a task that has ended, or a new one."""
    known = set(unit.slots)
    grown: dict[str, None] = {}
    bound: list[Member] = []
    for member in unit.members.values():
        if member.index >= 0 or not member.can_be_asked_for:
            continue
        index = _slot_for(state, unit, member.ask)
        if index is None:
            continue  # the next update asks for it, once the release of a free task is answered
        is_new = index == len(unit.slots[member.ask])
        unit.give(member, index)
        if is_new:
            grown[member.ask] = None
        elif not member.bound:
            state.out.asks.append(member.task.item())
        if member.bound:
            bound.append(member)
    keys = {ask: _stage_keys(unit, ask) for ask in grown if ask not in known}
    for member in bound:  # recoveries come before asks, so they bring the keys of a new ask, which has started
        if member.ask in keys:
            keys[member.ask]["min"] = 1
    for member in bound:
        state.recover(member.task, member.bound, **keys.get(member.ask, {}))
    for ask in grown:
        count = len(unit.slots[ask])
        state.out.asks.append({"job": unit.job, "ask": ask, "count": count, **keys.get(ask, {})})


def _slot_for(state: State, unit: Unit, ask: str) -> int | None:
    """Return the index of a task that has ended, or of a new one; None if those that have ended are still released."""
    slots = unit.slots.setdefault(ask, [])
    free = [at for at, other in enumerate(slots) if other is None]
    if not free:
        return len(slots)
    return next((at for at in free if Task(unit.job, ask, at) not in state.ending), None)


def _stage_keys(unit: Unit, ask: str) -> Document:
    """Return the keys of a new ask as a stage, without its count."""
    assert unit.group is not None
    (stage,) = unit.group.stages({ask: len(unit.slots[ask])})
    del stage["name"], stage["count"]
    return {**stage, **ONE_BY_ONE}
