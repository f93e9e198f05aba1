"""Builds the items of an update that add the job of a unit, grow it with its pods, and remove it."""

from __future__ import annotations

from fairlead.kubernetes.adapter_state import Document, State
from fairlead.kubernetes.groups import Group, group_of
from fairlead.kubernetes.pods import Needs, needs_of
from fairlead.kubernetes.units import Unit

ONE_BY_ONE: Document = {"scaling": "partial"}
"""Pods added after the first of a group start one by one as capacity allows, not together."""


def job_items(state: State, unit: Unit) -> list[Document]:
    """Return the items that bring the job of a unit up to date. Also queues its asks and recoveries."""
    if not unit.members:
        if any(job == unit.job for job, _, _ in state.ending):
            return []  # the loss of its last task is sent first
        del state.units[unit.key]
        del state.jobs[unit.job]
        return [{"job": unit.job, "remove": True}] if unit.sent else []
    removed: list[Document] = []
    if unit.ended:
        if any(member.live or member.stopping for member in unit.members.values()):
            return []  # later pods become a new job when the old pods are gone
        unit.forget_tasks()
        removed = [{"job": unit.job, "remove": True}]
    shape(state, unit)
    if state.dirty_nodes:  # send nodes first, if one of the ports is new to them
        state.dirty_units[unit.key] = None
        state.count_unbooked(unit)
        return removed
    if unit.sent and unit.why[1] and not unit.live():
        unit.forget_tasks()  # an incomplete gang waits for its other pods
        unit.waiting_since = 0.0
        return [{"job": unit.job, "remove": True}]
    if unit.sent:
        _grow(state, unit)
        state.count_unbooked(unit)
        return []
    if unit.why[1] or unit.group is None or not any(member.can_be_asked_for for member in unit.members.values()):
        state.count_unbooked(unit)
        return removed
    return [*removed, _new_job(state, unit, unit.group)]


def shape(state: State, unit: Unit) -> None:
    """Determine the group of a unit and the asks of its pods. `unit.why` says why it cannot be asked for."""
    pods = unit.pods()
    group = unit.group
    if group is None or len(pods) == len(unit.members):  # objects of bound pods are not kept
        first = next(iter(unit.members.values()))
        group = unit.group = group_of(first.membership, pods, state.objects, state.rules)
    unit.why = ("GangIncomplete", group.waits_for) if group.waits_for and not unit.live() else ("", "")
    for member in unit.members.values():
        if member.ask or member.pod is None:
            continue
        needs = needs_of(member.pod, group, member.gated)
        if not isinstance(needs, Needs):
            unit.why = ("NotHonoured", "; ".join(map(str, needs)))
            continue
        controller = member.pod.metadata.controller
        if member.gated and controller is not None:
            needs = state.refusals.apply(controller.uid, needs)
        member.ask = group.ask(member.membership, needs)
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
            state.out.recover.append({"job": unit.job, "ask": member.ask, "index": index, "node": member.bound})
    unit.sent = True
    unit.waiting_since = state.clock()
    stages = [{**stage, **ONE_BY_ONE} for stage in group.stages(counts)]
    whole = len(stages) > 1 and not bound and group.is_gang
    return {**group.job_item(), "stages": stages, **({"gang": "job"} if whole else {})}


def _grow(state: State, unit: Unit) -> None:
    """Assign tasks to pods without one: a task that has ended, or a new one."""
    grown: dict[str, bool] = {}
    for member in unit.members.values():
        if member.index >= 0 or not member.can_be_asked_for:
            continue
        known = member.ask in unit.slots
        slots = unit.slots.setdefault(member.ask, [])
        free = [at for at, other in enumerate(slots) if other is None]
        index = next((at for at in free if (unit.job, member.ask, at) not in state.ending), None)
        if index is None and free:
            continue  # the next update asks for it, once its release is answered
        if index is None:
            index = len(slots)
            grown.setdefault(member.ask, known)
        elif not member.bound:
            state.out.asks.append({"job": unit.job, "ask": member.ask, "index": index})
        unit.give(member, index)
        if member.bound:
            state.out.recover.append({"job": unit.job, "ask": member.ask, "index": index, "node": member.bound})
    for ask, known in grown.items():
        count = len(unit.slots[ask])
        if known:
            state.out.asks.append({"job": unit.job, "ask": ask, "count": count})
        elif unit.group is not None:
            (stage,) = unit.group.stages({ask: count})
            del stage["name"]
            state.out.asks.append({"job": unit.job, "ask": ask, **stage, **ONE_BY_ONE})
