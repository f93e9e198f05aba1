"""Builds updates for the partition, and applies its answers."""

from __future__ import annotations

import msgspec

from fairlead.kubernetes.adapter_state import OURS, Document, Outbox, State
from fairlead.kubernetes.job_items import job_items
from fairlead.kubernetes.nodes import node_items
from fairlead.kubernetes.partition_link import Items
from fairlead.kubernetes.units import Unit
from fairlead.wire import api as wire

MOST_ITEMS = 1_000
"""Most items of one update. More are sent in several updates."""
RETRY_REFUSED = 10.0
"""Seconds after which a refused job is sent again, because its queue may exist by then."""


def update(state: State) -> Items | None:
    """Return the next update, or None if there is nothing to send."""
    state.changed.clear()
    if not state.adopted:
        return None
    out, now = state.out, state.clock()
    for uid in list(state.dirty_nodes):
        if len(out.nodes) >= MOST_ITEMS:
            break
        del state.dirty_nodes[uid]
        out.nodes += _node_items(state, uid)
    first = bool(state.unbooked)
    if not state.dirty_nodes:  # send all nodes before the first job
        for key in list(state.unbooked or state.dirty_units):
            if len(out.jobs) + len(out.asks) + len(out.recover) >= MOST_ITEMS or state.dirty_nodes:
                break
            unit = state.units.get(key)
            state.unbooked.pop(key, None)
            if unit is not None and unit.retry_at > now:
                state.count_unbooked(unit)
                continue
            state.dirty_units.pop(key, None)
            if unit is not None:
                out.jobs += job_items(state, unit)
    state.out = Outbox()
    state.answering = list(state.ending)
    items: Items = {key: value for key, value in msgspec.structs.asdict(out).items() if value}
    # Units that are retried later do not delay readiness; bound pods that may be refused do.
    more = (
        first
        or bool(state.dirty_nodes)
        or any(key in state.units and state.units[key].retry_at <= now for key in state.dirty_units)
    )
    if more:
        items["more"] = True
        state.changed.set()
    if not items and not state.starting:
        return None
    state.starting = state.starting and more
    return items


def _node_items(state: State, uid: str) -> list[Document]:
    known = state.nodes.get(uid)
    if known is None:
        return []
    used = state.others.used(known.node.metadata.name)
    items = node_items(known.node, used, state.ports, known.sent)
    for item in items:
        if item.get("reason"):
            item["reason"] = OURS + item["reason"]
    if items == known.sent:
        return []
    known.sent = items
    return items


def answered(state: State, items: Items, answers: list[wire.UpdateItem]) -> list[str]:
    """Apply the answers to an update; return the problems for the log."""
    for task in state.answering:
        state.ending.pop(task, None)
        unit = state.jobs.get(task.job)
        if unit is not None and (not unit.members or any(member.index < 0 for member in unit.members.values())):
            state.touch_units((unit.key,))
    state.answering = []
    problems: list[str] = []
    recoveries = iter(items.get("recover", ()))
    for answer in answers:
        recovery = next(recoveries, None) if answer.what == "recover" else None
        if answer.accepted:
            continue
        if recovery is not None:
            _not_recovered(state, recovery)
        problems.append(f"{answer.what} {answer.name}: {answer.reason}")
        unit = state.jobs.get(answer.name.partition("/")[0]) if answer.what != "node" else None
        if unit is not None and answer.what in ("job", "recover", "ask"):
            _refused_job(state, unit, answer)
    return problems


def _not_recovered(state: State, recovery: Document) -> None:
    """Take the task from a bound pod that the partition does not book. The pod gets one when it is sent again."""
    unit = state.jobs.get(recovery["job"])
    member = unit.at(recovery["ask"], recovery["index"]) if unit is not None and unit.sent else None
    if unit is not None and member is not None:
        state.withdraw(member.task)
        unit.take(member)


def _refused_job(state: State, unit: Unit, answer: wire.UpdateItem) -> None:
    if answer.what == "job" and unit.sent:
        unit.forget_tasks()
    # Nodes that an autoscaler buys later may have a resource that no node has now.
    unit.why = ("Unschedulable" if "no node or pool offers" in answer.reason else "Refused", answer.reason)
    unit.retry_at = state.clock() + RETRY_REFUSED
    state.dirty_units[unit.key] = None
    state.count_unbooked(unit)
