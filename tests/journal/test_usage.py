"""Reports of use: whole numbers that agree with a count of the events, whatever ended, runs or was preempted."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fairlead.core.changes import TaskNews
from fairlead.core.cycle import Cycle
from fairlead.core.errors import Refused
from fairlead.core.ranges import indices
from fairlead.core.resources import HOUR, SECOND
from fairlead.history.recorder import AttemptRow, HistoryRecorder
from fairlead.history.store import History, Used
from fairlead.history.usage_report import UsageReport, running
from fairlead.testing import World
from fairlead.writer.writer import Observer

CONFIG = {
    "partitions": {
        "default": {
            "queues": {"root": {"a": {"guarantee": {"cpu": 4}}, "b": {}}},
            "preempt": "priority",
        }
    }
}


class Counter(Observer):
    """Counts use from the events of tasks, task by task. It shares no code with the history."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, str, int, int], tuple[str, str, dict[str, int], int]] = {}
        self.spans: list[tuple[str, str, dict[str, int], int, int]] = []
        self.preempted = 0

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        now = decided.plan.partition.now
        for news in decided.plan.news():
            if not isinstance(news, TaskNews):
                continue
            job = news.stage.job
            for index in indices(news.indices):
                key = (job.id, news.stage.name, index, news.attempt)
                if news.what == "running":
                    self.runs[key] = (job.spec.user, job.queue.path, dict(news.stage.spec.resources), now)
                elif news.what == "ended" and key in self.runs:
                    user, queue, amounts, since = self.runs.pop(key)
                    self.spans.append((user, queue, amounts, since, now))
                    self.preempted += news.outcome == "preempted"

    def sums(self, now: int, since: int = 0, until: int = 2**62) -> dict[tuple[str, str], dict[str, int]]:
        sums: dict[tuple[str, str], dict[str, int]] = {}
        for user, queue, amounts, start, end in [*self.spans, *((*run, now) for run in self.runs.values())]:
            length = min(end, until) - max(start, since)
            for name, amount in amounts.items():
                if length > 0:
                    row = sums.setdefault((user, queue), {})
                    row[name] = row.get(name, 0) + amount * length
        return sums


def busy(seed: int, observers: list[Any]) -> World:
    """A world in which jobs of several users run, fail, are killed, preempted and lost."""
    chance = random.Random(seed)
    w = World(observers=observers, config=CONFIG)
    w.nodes(3, cpu=4, memory="8Gi", gpu=2)
    jobs: list[str] = []
    for step in range(60):
        if chance.random() < 0.5:
            resources: dict[str, Any] = {"cpu": chance.choice(["500m", 1, 2]), "memory": f"{chance.randint(1, 2000)}Mi"}
            if chance.random() < 0.3:
                resources["gpu"] = chance.choice([0.5, 1])
            stage = {"count": chance.randint(1, 3), "resources": resources, "tries": 2}
            user, queue = chance.choice("xyz"), f"root.{chance.choice('ab')}"
            jobs.append(w.submit(user=user, queue=queue, priority=chance.choice((0, 0, 5)), stages=[stage]))
        w.cycle()
        for job in jobs:
            for (stage_name, index), _ in list(w.placements(job).items()):
                if chance.random() < 0.2:
                    w.finish(job, stage=stage_name, index=index, exit_code=chance.choice((0, 0, 1)))
        if chance.random() < 0.1 and jobs:
            w.kill(chance.choice(jobs))
        if step == 40:
            w.fail_node("n1")
        w.advance(chance.randint(1, 90) + chance.random())
    return w


def report(history: History, w: World, *by: Any, **more: Any) -> UsageReport:
    asked = UsageReport(by, **more)
    partition = w.partition()
    asked.add_running(running(partition, partition.now))
    history.flush()
    history.usage(asked)
    return asked


@pytest.mark.parametrize("seed", range(6))
def test_a_report_is_equal_to_a_count_of_the_events(place: str, seed: int) -> None:
    history, counter = History(place), Counter()
    w = busy(seed, [HistoryRecorder(history), counter])
    now = w.partition().now
    spans = [(0, 2**62), (now // 3, 2 * now // 3), (now // 2, 2**62), (0, now // 2), (now + 1, 2**62)]
    for since, until in spans:
        told = report(history, w, "user", "queue", since=since, until=until)
        rows = {key: use.amounts for key, use in told.rows.items() if any(use.amounts.values())}
        rows = {key: {name: amount for name, amount in row.items() if amount} for key, row in rows.items()}
        assert rows == counter.sums(now, since, until)
        for by in (("user",), ("queue",), ("job",), ("partition", "user"), ()):
            grouped = report(history, w, *by, since=since, until=until)
            assert grouped.total.amounts == told.total.amounts
            for figure in ("jobs", "attempts", "preempted"):
                total = getattr(told.total, figure)
                assert sum(getattr(use, figure) for use in grouped.rows.values()) == total, (by, figure)
                assert getattr(grouped.total, figure) == total
            for name, amount in grouped.total.amounts.items():
                assert sum(use.amounts.get(name, 0) for use in grouped.rows.values()) == amount
    whole = report(history, w)
    assert whole.total.attempts == len(counter.spans) + len(counter.runs)
    assert whole.total.preempted == counter.preempted
    # Parts of the time add up to the whole.
    first, second = report(history, w, until=now // 3), report(history, w, since=now // 3)
    for name, amount in whole.total.amounts.items():
        assert first.total.amounts.get(name, 0) + second.total.amounts.get(name, 0) == amount
    history.close()


def test_the_busy_world_has_what_is_counted(tmp_path: Path) -> None:
    counters = [Counter() for _ in range(6)]
    worlds = [busy(seed, [counter]) for seed, counter in enumerate(counters)]
    assert sum(counter.preempted for counter in counters) > 0
    assert all(counter.runs for counter in counters) and len(worlds) == 6


def row(number: int, began: int | None, ended: int, submitted: int = 0, **more: Any) -> AttemptRow:
    fields = {"stage": "main", "indices": (0, 1), "attempt": 1, "outcome": "succeeded", "node": "n1", "exit_code": 0}
    owner = {"job": str(number), "user": "ann", "queue": "root.a", "amounts": (("cpu", 1000),)}
    times = {"started": began, "ended": ended, "submitted": submitted}
    return AttemptRow(**{"partition": "default", "number": number, **fields, "reason": "", **owner, **times, **more})


def told(history: History, *by: Any, **more: Any) -> UsageReport:
    history.flush()
    asked = UsageReport(by, **more)
    history.usage(asked)
    return asked


def test_waits_are_those_of_jobs_until_their_first_task_starts(place: str) -> None:
    history = History(place)
    history.put([], [row(number, 100 + number, 500, 100) for number in range(1, 101)])
    history.put([], [row(1, 600, 700, 100, attempt=2), row(200, 50, 99, 10, user="bob")])
    ann = told(history, "user").rows[("ann",)]
    assert (ann.jobs, ann.attempts, ann.waits_of(50, 95), ann.mean_wait()) == (100, 101, [50, 95], 50.5)
    late = told(history, since=550).total
    assert (late.jobs, late.attempts, late.waits_of(50), late.mean_wait()) == (1, 1, [None], None)
    assert told(history, user="bob").total.waits_of(50, 95) == [40, 40]
    history.close()


def test_tasks_that_end_before_their_start_is_reported(place: str) -> None:
    """Each of them counts with its own run time, and never from before the submission of its job."""
    history = History(place)
    history.put(
        [], [row(1, None, 1000, indices=(0, 2, 5, 6)), row(1, None, 1000, indices=(2, 5)), row(2, None, 1000, 900)]
    )
    ran = [(1, index, 10 * (index + 1)) for index in range(6)] + [(2, 0, 10**9)]
    history.put_used([Used("default", number, "main", index, 1, 0, micros, 0, 0) for number, index, micros in ran])
    by_job = told(history, "job").rows
    assert by_job[("1",)].amounts == {"cpu": 1000 * (10 + 20 + 30 + 40 + 50 + 60)} and by_job[("1",)].attempts == 6
    assert by_job[("2",)].amounts == {"cpu": 1000 * 100}
    history.close()


def test_sums_beyond_64_bits(place: str) -> None:
    history = History(place)
    amounts = (("memory", 2**50),)
    rows = [row(number, 0, 2**55, indices=(0, 100), amounts=amounts) for number in range(200)]
    history.put([], rows)
    assert told(history).total.amounts == {"memory": 200 * 100 * 2**55 * 2**50}
    history.close()


def test_a_report_has_a_largest_number_of_rows(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.history.usage_report.MOST_ROWS", 3)
    history = History(place)
    history.put([], [row(number, 0, 5) for number in range(3)])
    assert len(told(history, "job").rows) == 3
    history.put([], [row(7, 0, 5)])
    with pytest.raises(Refused, match="more than 3 rows; choose a shorter time or group by less"):
        told(history, "job")
    assert told(history, "user").total.jobs == 4
    history.close()


def test_a_file_of_an_earlier_version(tmp_path: Path) -> None:
    """It gets the new columns. Its attempts have no resources, so no report counts them."""
    history = History(tmp_path / "history")
    history.put([], [row(1, 0, HOUR)])
    history.close()
    with closing(sqlite3.connect(tmp_path / "history")) as db, db:
        for column in ("job", "user", "queue", "amounts", "submitted", "tasks"):
            db.execute(f"ALTER TABLE attempts DROP COLUMN {column}")
        db.execute("ALTER TABLE jobs DROP COLUMN labels")
    history = History(tmp_path / "history")
    history.put([], [row(2, 0, SECOND)])
    assert told(history).total.amounts == {"cpu": 1000 * SECOND}
    assert [attempt.number for attempt in history.attempts("default", 1)] == [1]
    history.close()


def test_tasks_count_for_the_time_that_they_ran_also_if_the_server_hears_of_it_late(place: str) -> None:
    history = History(place)
    history.put([], [row(1, 100, 9_000, ran=50), row(2, None, 9_000, ran=70), row(3, 100, 130, ran=500)])
    history.put([], [row(4, None, 9_000, submitted=8_990, ran=70), row(5, 100, 200, indices=(0, 4), ran=40)])
    use = {key[0]: use.amounts["cpu"] // 1000 for key, use in told(history, "job").rows.items()}
    assert use == {"1": 50, "2": 70, "3": 30, "4": 10, "5": 160}
    history.close()


def test_the_run_time_of_a_task_is_in_the_journal(tmp_path: Path) -> None:
    """A task ends while no server leads, and is reported much later: quick, in a block, failed, or stopped."""
    history = History(tmp_path / "history")
    w = World(observers=[HistoryRecorder(history)])
    w.nodes(3, cpu=4)
    for name, count in (("single", 1), ("block", 3), ("failed", 1), ("killed", 1)):
        w.submit(name=name, stages=[{"name": "s", "count": count, "resources": {"cpu": 1}}])
    w.cycle()
    w.ignore_stops("killed")
    w.kill("killed")
    w.cycle()
    w.advance(100)
    states = {"single": "succeeded", "block": "succeeded", "failed": "failed", "killed": "stopped"}
    for name, state in states.items():
        for index in range(3 if name == "block" else 1):
            w.report(name, "s", index, state=state, attempt=1, ran=2)
    w.cycle()
    use = {key[0]: use.amounts["cpu"] // 1000 / SECOND for key, use in report(history, w, "job").rows.items()}
    assert use == {"single": 2.0, "block": 6.0, "failed": 2.0, "killed": 2.0}
    history.close()
