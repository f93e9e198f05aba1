"""Handles decisions of the partition: tasks to start, tasks to stop, and jobs that were killed."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.kubernetes.actions import Target
from fairlead.kubernetes.adapter_state import State
from fairlead.kubernetes.in_flight import begin
from fairlead.kubernetes.units import Unit, expand
from fairlead.wire import api as wire


def take_events(state: State, events: Iterable[wire.ManagerEvent]) -> None:
    for event in events:
        if event.what == "node":
            continue
        unit = state.jobs.get(event.job)
        if event.what == "ended":
            if unit is not None and unit.sent:
                unit.ended = True
                _killed(state, unit)
        elif event.what == "allocated":
            for index in expand(event.indices):
                _allocated(state, unit, event.job, event.ask, index, event.node)
        elif event.what == "release":
            for index in expand(event.indices):
                stop(state, unit, event.job, event.ask, index, event.reason)


def _allocated(state: State, unit: Unit | None, job: str, ask: str, index: int, node: str) -> None:
    member = unit.at(ask, index) if unit is not None and unit.sent else None
    if member is None:
        if (job, ask, index) not in state.ending:
            state.release(job, ask, index)
        return
    if member.fixed:
        if member.fixed == node:
            member.placed = node
            if member.bound:
                state.booked(member)
    elif not (member.placed == node and member.action is not None):
        member.placed = node
        member.stopping = False
        begin(state, member, "pin" if member.gated else "bind")


def stop(state: State, unit: Unit | None, job: str, ask: str, index: int, cause: str) -> None:
    """Stop a task: evict its pod, or cancel a binding that was not sent."""
    member = unit.at(ask, index) if unit is not None and unit.sent else None
    if member is None:
        if (job, ask, index) not in state.ending:
            state.release(job, ask, index)
        return
    action = member.action
    if not member.fixed and isinstance(action, Target) and action.verb in ("bind", "pin") and not action.begun:
        action.cancelled = True
        action = member.action = None
    if not member.fixed and action is None:
        member.placed = ""
        state.out.releases.append({"job": job, "ask": ask, "index": index})
        state.changed.set()
        return
    member.stopping = True
    if action is None:
        begin(state, member, "delete" if cause == "kill" else "evict")


def _killed(state: State, unit: Unit) -> None:
    """Delete the pods of a killed job, which would otherwise be asked for again."""
    for member in unit.members.values():
        member.stopping = True
        if not member.live and member.action is None:
            begin(state, member, "delete")
