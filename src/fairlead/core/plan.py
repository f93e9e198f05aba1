"""The plan: the changes that a cycle has decided, and the only way to alter the state.

A change takes effect at once, so that later decisions see it. A rollback to a mark undoes a gang that does not fit, or
a refused command. A sealed plan is complete, and its changes go to the journal.
"""

from __future__ import annotations

from typing import Any, Literal

from fairlead.core.changes import Change, News
from fairlead.core.effects import Stop
from fairlead.core.lanes import LaneKey
from fairlead.core.model import Ask, Micros
from fairlead.core.state import Partition, Touched
from fairlead.core.why.reasons import Reason

Note = Literal[
    "stale report",
    "unknown attempt",
    "foreign report",
    "launch refused",
    "launch not acknowledged",
    "sent to the tail",
    "asked for again",
    "jobs requeued",
    "backfilled",
    "claimed",
    "rebalanced",
    "rebalance victims",
]
"""Events for metrics that cannot be read from the changes.

"asked for again" counts submissions and scalings that repeat an earlier command and change nothing. "jobs requeued"
counts requeues that stopped at least one task.
"""


class Plan:
    def __init__(self, partition: Partition, now: Micros) -> None:
        if now < partition.now:
            raise ValueError(f"time would step back from {partition.now} to {now}")
        self.partition = partition
        self.now = now
        self.before = partition.now
        """The time of the last journaled cycle."""
        self._done: list[tuple[Change[Any], Any]] = []
        self._sealed = False
        self._news: list[News] | None = None
        self.notes: dict[Note, int] = {}
        """Counts of events, for metrics only."""
        self.reasons: dict[tuple[str, str, int], Reason] = {}
        """Job, stage and kind → why the head of a lane was not placed."""
        self.strays: list[tuple[str, Stop]] = []
        """Node name and stop, for tasks that run on a node although their attempt was given up."""
        self.looked: set[LaneKey] = set()
        """The lanes that were tried. Reasons of earlier cycles for their asks are outdated."""
        self.lent: dict[int, Micros] = {}
        """Held node that also takes other tasks → the time by which these tasks must end."""
        self.planned: tuple[str, int, Micros | None] | None = None
        """With backfill, the job and kind of the first ask without capacity, and its planned start."""
        self.spreads: dict[str, int] = {}
        """Queue → how far its children are from their shares, if it was measured in this cycle."""
        self.unclaimed: dict[int, tuple[tuple[int, ...], Micros]] = {}
        """Ask for which too few tasks could be stopped → the state versions before the cycle's starts, and when to try
        again."""
        self.unsettled = False
        """True if match stopped tasks or released nodes after the turns of other asks."""
        self.more = False
        """True if another cycle at the same time can do more."""
        partition.now = now
        partition.touched = Touched()

    @property
    def done(self) -> list[tuple[Change[Any], Any]]:
        """Return the changes in order, each with the undo data that `apply` returned."""
        return self._done

    def __len__(self) -> int:
        return len(self._done)

    def do(self, change: Change[Any]) -> None:
        """Apply a change. A change that raises has altered nothing."""
        if self._sealed:
            raise RuntimeError("the plan is sealed")
        self._done.append((change, change.apply(self.partition)))

    def note_reason(self, ask: Ask, reason: Reason) -> None:
        for stage in ask.stages:
            self.reasons[stage.job.id, stage.terms.name, ask.kind] = reason

    def note(self, what: Note, times: int = 1) -> None:
        self.notes[what] = self.notes.get(what, 0) + times

    def mark(self) -> int:
        return len(self._done)

    def rollback(self, mark: int) -> None:
        """Undo everything since the mark, the newest first."""
        if self._sealed:
            raise RuntimeError("the plan is sealed")
        while len(self._done) > mark:
            change, before = self._done.pop()
            change.undo(self.partition, before)

    def undo_tried(self, mark: int, openings: int) -> None:
        """Undo starts that were only tried, and reset `openings`: their capacity was free before, so no lane wakes."""
        self.rollback(mark)
        self.partition.derived.openings = openings

    def seal(self) -> list[Change[Any]]:
        """End the plan and return its changes."""
        self._sealed = True
        return [change for change, _ in self._done]

    def news(self) -> list[News]:
        """Return the news of all changes in order."""
        if self._news is None:
            self._news = [news for change, before in self._done for news in change.news(self.partition, before)]
        return self._news

    def abandon(self) -> None:
        """Undo the whole plan, sealed or not. Only for a plan that certainly did not reach the journal."""
        self._sealed = False
        if self._done:
            self.rollback(0)
            self.partition.forget()
        self.partition.now = self.before
