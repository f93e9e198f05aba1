"""Builds updates for the partition, applies its answers, and checks from time to time what was refused."""

from __future__ import annotations

import re

import msgspec

from fairlead.kubernetes.adapter_state import MOST_ASKS, OURS, Document, Outbox, State
from fairlead.kubernetes.in_flight import begin
from fairlead.kubernetes.job_items import job_items
from fairlead.kubernetes.nodes import FreeCapacity, node_items
from fairlead.kubernetes.partition_link import Items
from fairlead.kubernetes.units import Member, Unit
from fairlead.wire import api as wire

MOST_ITEMS = 1_000
"""Most nodes, and most items of jobs, in one update. The rest follows in further updates."""
RETRY_REFUSED = 10.0
"""Seconds after which a refused job is sent again. Its queue may exist by then."""


def update(state: State) -> Items | None:
    """Return the next update, or None if there is nothing to send."""
    state.changed.clear()
    if not state.adopted:
        return None
    first = bool(state.unbooked)
    _queue_nodes(state)
    _queue_jobs(state)
    items: Items = {key: value for key, value in msgspec.structs.asdict(state.out).items() if value}
    if state.budgets_changed:
        state.budgets_changed = False
        spared = state.budgets.spared(state.members.values())
        if spared != state.spared:
            items["spare"] = state.spared = spared
    state.out = Outbox()
    state.answering = list(state.ending)
    more = first or _has_more(state)
    if more:
        items["more"] = True
        state.changed.set()
    if not items and not state.starting:
        return None
    state.starting = state.starting and more
    return items


def _queue_nodes(state: State) -> None:
    for uid in list(state.dirty_nodes):
        if len(state.out.nodes) >= MOST_ITEMS:
            break
        del state.dirty_nodes[uid]
        state.out.nodes += _node_items(state, uid)


def _queue_jobs(state: State) -> None:
    """Queue the items of units once all nodes are sent: those with bound pods first, the others in a later update."""
    out = state.out
    for key in list(state.unbooked or state.dirty_units):
        # The items of a unit may mark nodes to be sent before further units.
        if state.dirty_nodes or len(out.jobs) + len(out.asks) + len(out.recover) >= MOST_ITEMS:
            break
        state.unbooked.pop(key, None)
        unit = state.units.get(key)
        if unit is not None and unit.retry_at > state.clock():
            state.count_unbooked(unit)
            continue
        state.dirty_units.pop(key, None)
        if unit is not None:
            out.jobs += job_items(state, unit)


def _has_more(state: State) -> bool:
    """True if there is more to send. Units that are retried later do not count, so they do not delay readiness."""
    now = state.clock()
    waits = (key in state.units and state.units[key].retry_at <= now for key in state.dirty_units)
    return bool(state.dirty_nodes) or any(waits)


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
    """Apply the answers to an update. Return the problems for the log."""
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
    elif not unit.sent:
        return  # it follows from the refusal of the job
    # Nodes that an autoscaler buys later may have a resource that no node has now.
    unit.why = ("Unschedulable" if "no node or pool offers" in answer.reason else "Refused", _for_users(answer.reason))
    unit.retry_at = state.clock() + RETRY_REFUSED
    state.dirty_units[unit.key] = None
    state.count_unbooked(unit)


_FIELD = re.compile(r"^(job|ask|recover)\[[0-9]+\]\.")
_QUEUES = re.compile(r"( \(did you mean [^)]*\))?; name one of .*", re.DOTALL)


def _for_users(reason: str) -> str:
    """Return a refusal without the place of its item in the update, and without the names of other queues."""
    return _QUEUES.sub("", _FIELD.sub("", reason))


# -- changes driven by time ------------------------------------------------------------------------------------

NOMINATED_WITHIN = 30.0
"""Seconds after which users are told that a nominated pod is refused by its scheduler."""
RESERVED_WITHIN = 300.0
"""Seconds after which the room of a refused pod that starts alone is given to others. The pod is booked when bound."""


def retry(state: State) -> None:
    """Check refused units and nominated pods again. Called from time to time."""
    now = state.clock()
    _forget_asks(state)
    for member in list(state.nominated.values()):
        if now - member.nominated_at > NOMINATED_WITHIN and not member.stopping and member.action is None:
            _note_refusal(state, member, now - member.nominated_at > RESERVED_WITHIN)
    _undo_overbooking(state)
    if state.budgets.spared(state.members.values()) != state.spared:
        state.look_at_budgets()
    if any(key in state.units and 0 < state.units[key].retry_at <= now for key in state.dirty_units):
        state.changed.set()


def _note_refusal(state: State, member: Member, for_long: bool) -> None:
    """Record why the scheduler of a nominated pod does not bind it. Give up its room if that lasts and it is no part of
    a gang: the room of a gang is reserved until all of it is bound."""
    pod, unit = member.pod, member.unit
    if pod is None:
        return
    problem = pod.refused(state.node_names.get(member.nominated, ""))
    member.refused = f"{pod.spec.scheduler_name} does not bind it: {problem}" if problem else ""
    if problem and for_long and unit.sent and member.index >= 0 and unit.group is not None and not unit.group.is_gang:
        state.release(member.task)
        unit.take(member)
        member.placed = ""


def _undo_overbooking(state: State) -> None:
    """Evict pods from nodes that two schedulers filled at the same moment: the pod that came unexpectedly if Fairlead
    schedules it, else the last one that Fairlead bound there."""
    suspects, state.suspects = state.suspects, {}
    if not suspects:
        return
    here: dict[str, list[Member]] = {name: [] for name in suspects}
    for member in state.members.values():
        if member.bound in here:
            here[member.bound].append(member)
    for name, uid in suspects.items():
        node = state.node(state.node_names.get(name, ""))
        members = [member for member in here[name] if not member.stopping and member.action is None]
        if node is None or not members:
            continue
        if problem := FreeCapacity(here[name], (name,), state.objects, state.others).overbooked(node):
            member = state.members.get(uid, members[-1])
            if member in members:
                member.lost = problem
                begin(state, member, "evict")


def _forget_asks(state: State) -> None:
    """Forget asks and host ports of removed pods if many asks are known."""
    if len(state.objects.asks) < state.most_asks:
        return
    state.objects.keep_asks({member.ask for member in state.members.values()})
    state.most_asks = max(MOST_ASKS, 2 * len(state.objects.asks))
    ports = {port: None for _, needs in state.objects.asks.values() for port in needs.ports}
    if ports != state.ports:
        state.ports = ports
        state.dirty_nodes = dict.fromkeys(state.nodes)
        state.changed.set()
