"""A change that only this file knows: it is planned, journaled, recovered, undone, and seen by every observer."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import pytest

from fairlead.core import cycle
from fairlead.core.changes import Change, Line, Names, News, TaskNews
from fairlead.core.changes.stages import give_back, take
from fairlead.core.dump import dump
from fairlead.core.invariants import check_all
from fairlead.core.model import NEW, Ask, Stage
from fairlead.core.plan import Plan
from fairlead.core.ranges import Ranges, count
from fairlead.core.state import Partition
from fairlead.history.recorder import AttemptRow, HistoryRecorder, JobRow
from fairlead.journal import MemoryJournal
from fairlead.journal.codec import decode, encode, restore
from fairlead.server.logfile import logger_to
from fairlead.testing import World
from fairlead.views.decision_log import Logs
from fairlead.views.events import events_of
from fairlead.views.metrics.metrics import Metrics
from fairlead.writer.writer import Observer


class SkippedUndo(msgspec.Struct, frozen=True, gc=False):
    stage: Stage
    cancelled: Ask | None


class Skipped(Change[SkippedUndo], frozen=True, tag="skipped"):
    """New tasks that need not run, because their result exists: they have succeeded."""

    job: str
    stage: int
    indices: tuple[int, ...]

    def apply(self, partition: Partition) -> SkippedUndo:
        stage = partition.jobs[self.job].stages[self.stage]
        cancelled = take(partition, stage, NEW, self.indices)
        stage.ended = {"succeeded": Ranges(self.indices)}
        partition.touched.jobs[self.job] = None
        return SkippedUndo(stage, cancelled)

    def undo(self, partition: Partition, before: SkippedUndo) -> None:
        before.stage.ended = None
        give_back(partition, before.stage, NEW, self.indices, before.cancelled)

    def news(self, partition: Partition, before: SkippedUndo) -> Iterable[News]:
        return (TaskNews("ended", before.stage, self.indices, 0, -1, "succeeded", "skipped"),)

    def demand(self, before: SkippedUndo) -> Iterable[tuple[Stage, int]]:
        return ((before.stage, -count(self.indices)),)

    def counts(self, partition: Partition, before: SkippedUndo) -> Iterable[tuple[str, int]]:
        return (("succeeded", count(self.indices)), ("never heard of", 1))

    def lines(self, names: Names, before: SkippedUndo) -> Iterator[Line]:
        yield Line("info", "tasks skipped", {"job": self.job, "tasks": count(self.indices)})


class Silent(Change[int], frozen=True, tag="silent"):
    """A change without log lines and counts."""

    version: int

    def apply(self, partition: Partition) -> int:
        before, partition.config_version = partition.config_version, self.version
        return before

    def undo(self, partition: Partition, before: int) -> None:
        partition.config_version = before


class Seen(Observer):
    """An observer that remembers what it got."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, list[int], str]] = []

    def cycle(self, decided: cycle.Cycle, seconds: Mapping[str, float]) -> None:
        self.events += [(event.what, event.job, list(event.indices), event.state) for event in events_of(decided)]


class Rows:
    """A store of the history that remembers the rows of attempts."""

    def __init__(self) -> None:
        self.rows: list[AttemptRow] = []

    def put(self, jobs: list[JobRow], attempts: list[AttemptRow], reached: tuple[str, int] | None = None) -> None:
        self.rows += attempts

    def flush(self) -> None:
        pass

    def reached(self, partition: str, last: int) -> int | None:
        return last

    def counted(self, partition: str) -> dict[int, dict[str, int]]:
        return {}

    def attempts(self, partition: str, number: int) -> list[AttemptRow]:
        return []


def waiting(observers: Iterable[Any] = (), journal: MemoryJournal | None = None) -> tuple[World, str]:
    """A world with a job of four tasks that wait."""
    w = World(observers=list(observers), journal=journal)
    job = w.submit(stages=[{"name": "w", "count": 4, "min": 1, "resources": {"cpu": 1}}])
    w.cycle()
    return w, job


def test_undo_and_the_journal() -> None:
    w, job = waiting()
    partition = w.partition()
    before = dump(partition)
    plan = Plan(partition, partition.now)
    changes = [Skipped(job, 0, (0, 1, 2, 4)), Silent(7)]
    for change in changes:
        plan.do(change)
    after = dump(partition)
    assert after != before
    check_all(partition)
    plan.rollback(0)
    assert dump(partition) == before
    assert decode(encode(partition.now, changes), "here") == (partition.now, changes)
    for change in changes:
        change.apply(partition)
    assert dump(partition) == after


def test_what_a_cycle_does_is_recovered_and_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    out, seen, rows, metrics, journal = io.StringIO(), Seen(), Rows(), Metrics(), MemoryJournal()
    w, job = waiting([Logs(logger_to(out, "json", "info")), metrics, seen, HistoryRecorder(rows)], journal)
    figures = metrics.lanes("default")
    assert figures.most(1) == {("root.default", "cpu=1"): (1, 4)}
    seen.events.clear()

    match = cycle.match

    def skip(plan: Plan) -> None:
        plan.do(Skipped(job, 0, (0, 1, 2, 4)))
        plan.do(Silent(7))
        match(plan)

    monkeypatch.setattr(cycle, "match", skip)
    w.cycle()

    restored, _ = restore(journal, "default")
    assert dump(restored) == w.dump() and restored.config_version == 7
    assert restored.jobs[job].stages[0].waiting() == 1
    last = json.loads(out.getvalue().splitlines()[-1])
    assert (last["event"], last["job"], last["tasks"]) == ("tasks skipped", job, 3)
    assert 'fairlead_attempts_ended_total{outcome="succeeded",partition="default"} 3.0' in metrics.text(w.now)
    assert figures.most(1) == {("root.default", "cpu=1"): (1, 1)}
    assert seen.events == [("ended", job, [0, 1, 2, 4], "succeeded")]
    assert [(row.stage, row.outcome, row.reason, row.node) for row in rows.rows] == [("w", "succeeded", "skipped", "")]
