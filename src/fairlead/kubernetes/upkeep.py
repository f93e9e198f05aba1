"""Periodic work: sends refused jobs again, evicts pinned pods that no scheduler binds, and forgets unused asks."""

from __future__ import annotations

from fairlead.kubernetes.adapter_state import MOST_ASKS, State
from fairlead.kubernetes.in_flight import begin
from fairlead.kubernetes.units import Member

PINNED_WITHIN = 30.0
"""Seconds after which a pinned pod that its scheduler refuses is evicted."""


def retry(state: State) -> None:
    """Check refused units and pinned pods again. Called from time to time."""
    now = state.clock()
    _forget_asks(state)
    _forget_refusals(state, now)
    for member in list(state.pinned.values()):
        if now - member.pinned_at > PINNED_WITHIN and not member.stopping and member.action is None:
            _evict_refused(state, member)
    if any(key in state.units and 0 < state.units[key].retry_at <= now for key in state.dirty_units):
        state.changed.set()


def _evict_refused(state: State, member: Member) -> None:
    """Evict a pinned pod if its scheduler refuses it and its controller makes another one."""
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
    """Ask again for waiting pods whose refused nodes may be used again."""
    over = state.refusals.expire(now)
    for member in state.members.values() if over else ():
        controller = member.pod.metadata.controller if member.pod is not None else None
        if member.gated and not member.live and controller is not None and controller.uid in over:
            if member.unit.sent and member.index >= 0:
                state.withdraw(member.task)
            member.unit.take(member)
            member.ask = ""
            state.touch_units((member.unit.key,))


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
