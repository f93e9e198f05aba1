"""Handles decisions of the partition: tasks to start, tasks to stop, and jobs that were killed."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.kubernetes.actions import Target
from fairlead.kubernetes.adapter_state import State
from fairlead.kubernetes.in_flight import begin
from fairlead.kubernetes.units import Member, Task, Unit, expand
from fairlead.wire import api as wire


def take_events(state: State, events: Iterable[wire.ManagerEvent]) -> None:
    for event in events:
        if event.what == "ended":
            unit = state.jobs.get(event.job)
            if unit is not None and unit.sent:
                unit.ended = True
                _delete_waiting(state, unit)
        elif event.what in ("allocated", "release"):
            for index in expand(event.indices):
                member = _pod_of(state, Task(event.job, event.ask, index))
                if member is None:
                    continue
                if event.what == "allocated":
                    _allocated(state, member, event.node)
                else:
                    stop(state, member, event.reason)


def _pod_of(state: State, task: Task) -> Member | None:
    """Return the pod of a task. A task without a pod is released."""
    unit = state.jobs.get(task.job)
    member = unit.at(task.ask, task.index) if unit is not None and unit.sent else None
    if member is None and task not in state.ending:
        state.release(task)
    return member


def _allocated(state: State, member: Member, node: str) -> None:
    if member.fixed:
        if member.fixed == node:
            member.placed = node
            if member.bound:
                state.booked(member)
    elif not (member.placed == node and member.action is not None):
        member.placed = node
        member.stopping = False
        begin(state, member, "pin" if member.gated else "bind")


def stop(state: State, member: Member, cause: str) -> None:
    """Stop the task of a pod: evict the pod, or cancel its binding if that was not sent."""
    action = member.action
    if not member.fixed and isinstance(action, Target) and action.verb in ("bind", "pin") and not action.begun:
        action.cancelled = True
        action = member.action = None
    if not member.fixed and action is None:
        member.placed = ""
        state.out.releases.append(member.task.item())
        state.changed.set()
        return
    member.stopping = True
    if action is None:
        begin(state, member, "delete" if cause == "kill" else "evict")


def _delete_waiting(state: State, unit: Unit) -> None:
    """Delete the waiting pods of a job that has ended. They would be asked for again as a new job."""
    for member in unit.members.values():
        member.stopping = True
        if not member.live and member.action is None:
            begin(state, member, "delete")
