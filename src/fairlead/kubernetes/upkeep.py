"""Periodic work: sends refused jobs again, takes back pinned pods, and forgets what is unused."""

from __future__ import annotations

from fairlead.kubernetes.adapter_state import MOST_ASKS, State
from fairlead.kubernetes.in_flight import begin
from fairlead.kubernetes.units import Member

PINNED_WITHIN = 30.0
"""Seconds that a scheduler may refuse a pinned pod before the pod is taken back."""


def retry(state: State) -> None:
    """Check refused units and pinned pods again. Called from time to time."""
    now = state.clock()
    _forget_asks(state)
    _forget_refusals(state, now)
    for member in list(state.pinned.values()):
        if now - member.pinned_at > PINNED_WITHIN and not member.stopping and member.action is None:
            _take_back(state, member)
    if any(key in state.units and 0 < state.units[key].retry_at <= now for key in state.dirty_units):
        state.changed.set()


def _take_back(state: State, member: Member) -> None:
    """Evict a pinned pod that its scheduler refuses, if its controller makes another one."""
    pod = member.pod
    if pod is None:
        return
    problem = pod.refused if member.pinned in state.node_names else f"node {member.pinned} is gone"
    if not problem:
        member.lost = ""
    elif not member.lost:
        member.lost = f"{pod.spec.scheduler_name} does not bind it to {member.pinned}: {problem}"
        if pod.metadata.controller is not None:
            if member.pinned in state.node_names:
                state.refusals.add(pod.metadata.controller.uid, state.node_names[member.pinned], state.clock())
            begin(state, member, "evict")


def _forget_refusals(state: State, now: float) -> None:
    """Ask anew for waiting pods that may again use a node that was refused before."""
    over = state.refusals.expire(now)
    for member in state.members.values() if over else ():
        controller = member.pod.metadata.controller if member.pod is not None else None
        if member.gated and not member.live and controller is not None and controller.uid in over:
            if member.unit.sent and member.index >= 0:
                task = {"job": member.unit.job, "ask": member.ask, "index": member.index}
                state.out.asks.append({**task, "withdraw": True})
                state.ending[member.unit.job, member.ask, member.index] = ""
            member.unit.take(member)
            member.ask = ""
            state.touch_units((member.unit.key,))


def _forget_asks(state: State) -> None:
    """Forget asks and host ports of removed pods, when many asks are known."""
    if len(state.objects.asks) < state.most_asks:
        return
    state.objects.keep_asks({member.ask for member in state.members.values()})
    state.most_asks = max(MOST_ASKS, 2 * len(state.objects.asks))
    ports = {port: None for _, needs in state.objects.asks.values() for port in needs.ports}
    if ports != state.ports:
        state.ports = ports
        state.dirty_nodes = dict.fromkeys(state.nodes)
        state.changed.set()
