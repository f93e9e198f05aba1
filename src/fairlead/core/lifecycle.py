"""Legal state transitions, one table per kind of record. All other transitions are refused.

Callers do not check a transition from a state to itself.
"""

from __future__ import annotations

from collections.abc import Mapping


class IllegalTransition(Exception):
    """The transition is not in the table."""


class Lifecycle:
    """The legal transitions of one kind of record."""

    def __init__(self, record: str, table: Mapping[str, tuple[str, ...]]) -> None:
        self.record = record
        self.table = table

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(self.table)

    def terminal(self, state: str) -> bool:
        """True if no other state can follow this one."""
        return not self.table[state]

    def allows(self, before: str, after: str) -> bool:
        return after in self.table[before]

    def check(self, before: str, after: str) -> None:
        if after not in self.table[before]:
            raise IllegalTransition(f"a {self.record} cannot go from {before} to {after}")


# A running job returns to pending when all its launches were taken back.
JOB = Lifecycle(
    "job",
    {
        "pending": ("running", "succeeded", "failed", "killed"),
        "running": ("pending", "succeeded", "failed", "killed"),
        "succeeded": (),
        "failed": (),
        "killed": (),
    },
)

# An attempt ends as lost, preempted or failed; its task may then be pending again.
TASK = Lifecycle(
    "task",
    {
        "pending": ("assigned", "failed", "killed"),
        "assigned": ("running", "stopping", "pending", "succeeded", "failed", "lost", "killed"),
        "running": ("stopping", "succeeded", "failed", "lost", "killed"),
        "stopping": ("killed", "preempted", "succeeded", "failed", "lost"),
        "succeeded": (),
        "failed": ("pending",),
        "lost": ("pending",),
        "preempted": ("pending",),
        "killed": (),
    },
)

NODE = Lifecycle(
    "node",
    {
        "up": ("draining", "disabled", "lost"),
        "draining": ("up", "disabled", "lost"),
        "disabled": ("up", "draining", "lost"),
        "lost": ("up", "draining", "disabled"),
    },
)

# A stopped queue must be started before it can be removed, a draining one before it can be stopped.
QUEUE = Lifecycle("queue", {"active": ("draining", "stopped"), "draining": ("active",), "stopped": ("active",)})
