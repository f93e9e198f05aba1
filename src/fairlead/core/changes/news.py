"""News of changes: tasks, jobs and nodes that changed state, for resource managers, watchers, history and quotas."""

from __future__ import annotations

from typing import Literal

import msgspec

from fairlead.core.model import Job, JobState, Micros, NodeState, Outcome, Stage


class TaskNews(msgspec.Struct, frozen=True, gc=False):
    """Tasks of a stage that changed state, all on one node and under one attempt."""

    what: Literal["placed", "running", "stopping", "ended"]
    stage: Stage
    indices: tuple[int, ...]
    attempt: int
    node: int
    """The node id."""
    outcome: Outcome | Literal["", "pending"] = ""
    """The outcome of the attempts; `pending` if the launch was taken back."""
    reason: str = ""
    exit_code: int | None = None
    started: Micros | None = None
    """When tasks that ended had started to run."""
    devices: tuple[int, ...] = ()
    """The devices of placed tasks."""
    ran: Micros = 0
    """Average run time of tasks that ended, as their node measured it; 0 if that is not known."""


class JobNews(msgspec.Struct, frozen=True, gc=False):
    """A job that was submitted, changed state, was held or was released."""

    what: Literal["submitted", "state", "held", "released"]
    job: Job
    state: JobState
    reason: str = ""


class NodeNews(msgspec.Struct, frozen=True, gc=False):
    """A node that joined, changed state, disconnected or was removed."""

    name: str
    """Empty if the node was removed in the same cycle."""
    state: NodeState | Literal["disconnected", "removed"]


News = TaskNews | JobNews | NodeNews
