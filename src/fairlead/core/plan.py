"""The plan: the open decisions of a cycle, and the only handle that may alter state.

Changes take effect as they are done, so that later decisions see earlier ones; a mark and a rollback take a whole
gang, or a refused command, back. Sealing ends the plan: its changes are what the journal gets.
"""

from __future__ import annotations

from typing import Any, Literal

from fairlead.core.changes import Change, News
from fairlead.core.effects import Stop
from fairlead.core.lanes import LaneKey
from fairlead.core.model import Ask, Micros
from fairlead.core.reasons import Reason
from fairlead.core.state import Partition, Touched

Note = Literal[
    "stale report",
    "unknown attempt",
    "foreign report",
    "launch refused",
    "launch not acknowledged",
    "sent to the tail",
    "asked for again",
    "backfilled",
    "claimed",
    "rebalanced",
    "rebalance victims",
]
"""What changes do not tell, or do not tell apart. What is asked for again was known already and altered nothing."""


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
        """What happened beside the changes, counted: for metrics, never for decisions."""
        self.reasons: dict[tuple[str, str, int], Reason] = {}
        """Why the head of a lane was not placed, by job, stage and kind."""
        self.strays: list[tuple[str, Stop]] = []
        """Attempts that run on a node though they were given up: its agent is told to stop them."""
        self.looked: set[LaneKey] = set()
        """The lanes that were looked at: what was said of them before does not hold any more."""
        self.lent: dict[int, Micros] = {}
        """With backfill, the held nodes that take others' tasks too, if these will be over by some time."""
        self.planned: tuple[str, int, Micros | None] | None = None
        """With backfill, the job and kind of the first ask without room, and when it is planned to start."""
        self.spreads: dict[str, int] = {}
        """Queue → how far those below it are from their shares, where that was looked at."""
        self.placed_from = partition.counters.allocation
        """What this cycle places is numbered from here: it is not stopped in it."""
        self.unclaimed: dict[int, tuple[tuple[int, ...], Micros]] = {}
        """The asks for which too little could be stopped: the state then, but for starts, and when to look again."""
        self.unsettled = False
        """True if match stopped tasks or released nodes after other asks had had their turn."""
        self.more = False
        """Whether work was left that another cycle at the same time can do."""
        partition.now = now
        partition.touched = Touched()

    @property
    def done(self) -> list[tuple[Change[Any], Any]]:
        """The changes in order, each with what its `apply` returned."""
        return self._done

    def __len__(self) -> int:
        return len(self._done)

    def do(self, change: Change[Any]) -> None:
        """Make a change. It may refuse by raising; then it has altered nothing."""
        if self._sealed:
            raise RuntimeError("the plan is sealed")
        self._done.append((change, change.apply(self.partition)))

    def say(self, ask: Ask, reason: Reason) -> None:
        """Why an ask was not placed."""
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

    def seal(self) -> list[Change[Any]]:
        """End the plan. The state keeps what was done."""
        self._sealed = True
        return [change for change, _ in self._done]

    def news(self) -> list[News]:
        """Return the tasks, jobs and nodes that a sealed plan moved, in order."""
        if self._news is None:
            self._news = [news for change, before in self._done for news in change.news(self.partition, before)]
        return self._news

    def abandon(self) -> None:
        """Take the whole plan back, sealed or not: it certainly did not reach the journal."""
        self._sealed = False
        if self._done:
            # It was looked at with what is taken back now.
            self.partition.scaling.dirty = True
            self.partition.backfilled = None
        self.rollback(0)
        self.partition.now = self.before
