"""News of changes: tasks, jobs and nodes that moved. Resource managers, watchers, history and quotas follow them."""

from __future__ import annotations

from typing import Literal

import msgspec

from fairlead.core.model import Job, JobState, Micros, NodeState, Outcome, Stage


class TaskNews(msgspec.Struct, frozen=True, gc=False):
    """Tasks of a stage that moved on, all on one node and under one attempt."""

    what: Literal["placed", "running", "stopping", "ended"]
    stage: Stage
    indices: tuple[int, ...]
    attempt: int
    node: int
    """The node's join number."""
    outcome: Outcome | Literal["", "pending"] = ""
    """How they ended; `pending` if their launch was taken back."""
    reason: str = ""
    exit_code: int | None = None
    started: Micros | None = None
    """When tasks that ended began to run."""
    devices: tuple[int, ...] = ()
    """Of tasks that were placed."""


class JobNews(msgspec.Struct, frozen=True, gc=False):
    """A job that was submitted, or got another state."""

    what: Literal["submitted", "state"]
    job: Job
    state: JobState
    reason: str = ""


class NodeNews(msgspec.Struct, frozen=True, gc=False):
    """A node that joined, moved or left."""

    name: str
    """Empty if it left in the same cycle."""
    state: NodeState | Literal["removed"]


News = TaskNews | JobNews | NodeNews
