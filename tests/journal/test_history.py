"""The history: rows that SQLite cannot take, a thread that ends, a disk that fails, a bounded size."""

from __future__ import annotations

import fnmatch
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from fairlead.history.filter import JobFilter
from fairlead.history.recorder import AttemptRow, JobRow, ResultRow
from fairlead.history.store import History, Used
from fairlead.history.transfer import copy_history
from fairlead.history.usage_report import waste_of
from fairlead.wire.agent_messages import Tasks
from tests.until import until

SECONDS = 30.0  # the longest wait of a test; no result depends on it


def job(number: int, **more: object) -> JobRow:
    tasks = {"succeeded": 1}
    row = ("default", number, f"j{number}", "name", "ann", "root", "succeeded", "", number, number, tasks, {}, "", ())
    return JobRow(*(more.get(name, value) for name, value in zip(JobRow.__struct_fields__, row, strict=True)))


def attempt(number: int, exit_code: int = 0, reason: str = "") -> AttemptRow:
    return AttemptRow("default", number, "main", (0, 1), 1, "failed", "n1", exit_code, reason, None, number)


def used(number: int, memory: int = 1, cpu: int = 1, index: int = 0) -> Used:
    return Used("default", number, "main", index, 1, 0, 1, cpu, memory)


def test_filters_of_finished_jobs(place: str) -> None:
    history = History(place)
    history.put(
        [
            job(1, name="train-1", queue="root.ml", labels={"team": "a", "x.y": "1"}),
            job(2, name="train-20", queue="root.ml.big", user="bob", state="failed"),
            job(3, name="test", queue="root.mlx", labels={"team": "b"}),
            job(4, name="[x]", labels={"team": "a"}),
        ],
        [attempt(2), attempt(2), attempt(3)],
    )
    history.flush()
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [4, 3, 2, 1]),
        ({"user": "bob"}, [2]),
        ({"queue": "root.ml"}, [2, 1]),
        ({"queue": "root"}, [4, 3, 2, 1]),
        ({"queue": "root.m"}, []),
        ({"state": "failed"}, [2]),
        ({"name": "train-*"}, [2, 1]),
        ({"name": "t?st"}, [3]),
        ({"name": "train"}, []),
        ({"name": "[[]x]"}, [4]),
        ({"name": "*".join("t" * 30)}, []),
        ({"label": ("team", "a")}, [4, 1]),
        ({"label": ("x.y", "1")}, [1]),
        ({"label": ("team", "A")}, []),
        ({"since": 2, "until": 4}, [3, 2]),
        ({"node": "n1"}, [3, 2]),
        ({"node": "n2"}, []),
        ({"node": "n1", "user": "ann"}, [3]),
    ]
    for wanted, numbers in cases:
        assert [row.number for row in history.jobs("default", JobFilter(**wanted))] == numbers, wanted
    assert [row.number for row in history.jobs("default", JobFilter(queue="root.ml"), before=2)] == [1]
    assert history.jobs("other", JobFilter()) == []
    assert history.jobs("default", JobFilter(label=("team", "b")))[0].labels == {"team": "b"}
    history.close()


def test_logs_that_were_not_copied_are_found_after_a_restart(place: str) -> None:
    def ended(number: int, node: str, indices: tuple[int, ...]) -> AttemptRow:
        return AttemptRow("default", number, "main", indices, 2, "lost", node, None, "", None, 9, f"j{number}", "ann")

    def tasks(number: int, *indices: int) -> Tasks:
        return Tasks(f"j{number}", number, "main", 2, indices)

    history = History(place)
    history.put(
        [], [ended(1, "p1", (0, 700)), ended(1, "p2", (700, 900)), ended(2, "p1", (0, 1)), ended(3, "gone", (0, 1))]
    )
    history.flush()
    history.mark_copied("default", "p1", tasks(1, 0, 500))
    history.mark_copied("default", "p1", tasks(1, 600, 650))
    history.mark_copied("default", "p1", tasks(1, 0, 500))
    history.mark_copied("default", "p2", tasks(1, 700, 900))
    history.mark_copied("default", "gone", tasks(3, 0, 1))
    history.close()
    history = History(place)
    for _ in range(2):
        left = history.not_copied("default", ["p1", "p2", "p3"])
        assert left == [("p1", tasks(1, 500, 600, 650, 700)), ("p1", tasks(2, 0, 1))]
    assert history.not_copied("other", ["p1"]) == [] == history.not_copied("default", [])
    with history._tables.session() as db:
        assert list(db.run("SELECT count(*) FROM copied")) == [(0,)]  # marks of nodes that are gone are removed
    history.close()


def test_a_row_that_cannot_be_written_costs_no_other(place: str) -> None:
    notes: list[str] = []
    history = History(place, note=notes.append)
    history.put([job(1), job(2, ended=2**70), job(3)], [attempt(1), attempt(2, reason="\ud800"), attempt(3, 2**64)])
    history.put_used([used(1), used(2, memory=2**64 - 1), used(3)])
    history.flush()
    history.put([job(4)], [])
    history.flush()
    assert [row.number for row in history.jobs("default")] == [4, 3, 1]
    assert [len(history.attempts("default", number)) for number in (1, 2, 3)] == [1, 0, 0]
    assert list(history.used("default", 2)) == [] and list(history.used("default", 3)) == ["main"]
    assert not history.failing and notes == ["4 rows of the history were left out"]
    history.close()


def test_use_that_is_reported_again_is_taken_once_and_from_the_node_of_the_task(place: str) -> None:
    history = History(place)
    history.put([], [attempt(1), attempt(2)])
    history.put_used([used(2, cpu=5)])
    again = [
        Used("default", number, "main", 0, 1, 0, 7, 3, 1, node) for number, node in ((1, "n2"), (1, "n1"), (2, "n1"))
    ]
    history.put_used([*again, Used("default", 3, "main", 0, 1, 0, 7, 3, 1, "n1")])
    history.flush()
    assert history.used("default", 1) == {"main": (3, 7, 1, 1)}
    assert history.used("default", 2) == {"main": (5, 1, 1, 1)}
    assert history.used("default", 3) == {}
    history.close()


def test_result_files_of_the_last_attempt_are_found(place: str) -> None:
    history = History(place)
    first, last = (ResultRow("main", 3, attempt, ((f"out{attempt}", 5),), "") for attempt in (1, 2))
    other = ResultRow("tail", 0, 1, (), "no file matches *.csv")
    for row in (first, last, other):
        assert history.put_results("default", 7, [row])
    assert not history.put_results("default", 7, [msgspec.structs.replace(last, files=())], replace=False)
    assert history.results("default", 7) == [last, other]
    assert history.results("default", 7, skip=1, limit=1) == [other]
    assert history.results("default", 7, "main", 3, attempt=1) == [first]
    assert history.results("default", 8) == []
    longer = msgspec.structs.replace(last, files=(("out2", 6),))
    assert history.put_results("default", 7, [longer])
    assert history.results("default", 7, "main") == [longer]
    history.close()


def test_figures_whose_sum_is_beyond_64_bits(place: str) -> None:
    history = History(place)
    history.put_used([used(1, cpu=2**62, index=index) for index in range(10)])
    history.flush()
    assert history.used("default", 1)["main"] == (10 * 2**62, 10, 1, 10)
    history.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_is_noticed_and_started_again(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    before = set(threading.enumerate())
    history = History(place, note=notes.append)

    def end(db: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(history, "_write", end)
        history.put([job(1)], [])
        until(lambda: history.failing)
    history.put([job(2)], [])
    history.flush()
    assert [row.number for row in history.jobs("default")] == [2, 1]
    assert not history.failing and "started again" in notes[0]
    history.close()
    assert "history" not in [each.name for each in threading.enumerate() if each not in before]


def test_a_write_that_fails_is_tried_again_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.history.store.RETRY", 0.02)
    notes: list[str] = []
    history = History(tmp_path / "history", note=notes.append)
    faults: list[Exception] = [sqlite3.OperationalError("disk full"), OSError(5, "broken"), sqlite3.DatabaseError("x")]
    real = history._write_on

    def failing(db: Any) -> None:
        if faults:
            raise faults.pop()
        real(db)

    monkeypatch.setattr(history, "_write_on", failing)
    lock = sqlite3.connect(tmp_path / "history", isolation_level=None)
    lock.execute("ALTER TABLE used RENAME TO away")  # the next write of the thread fails
    history.put([job(1)], [attempt(1)])
    until(lambda: history.failing and not faults)
    lock.execute("ALTER TABLE away RENAME TO used")
    lock.close()
    until(lambda: not history.failing)
    assert [row.number for row in history.jobs("default")] == [1]
    assert len(history.attempts("default", 1)) == 1  # once, though it was tried several times
    assert "not written" in notes[0] and notes[-1] == "the history is written again"
    history.close()


def test_rows_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.history.store.WAITING", 10)
    notes: list[str] = []
    history = History(tmp_path / "history", note=notes.append)
    history.put([job(number) for number in range(11)], [])
    history.put([job(1)], [])
    history.flush()
    until(lambda: notes == ["11 rows of the history were left out"])
    history.close()


def test_the_oldest_jobs_go_when_it_is_too_large(tmp_path: Path) -> None:
    size = 1_000_000
    history = History(tmp_path / "history", size=size)
    most = 0
    for start in range(0, 10_000, 1_000):
        numbers = range(start, start + 1_000)
        reason = "x" * 200
        history.put([job(number) for number in numbers], [attempt(number, reason=reason) for number in numbers])
        history.put_used([used(number) for number in numbers])
        history.flush()
        most = max(most, os.path.getsize(tmp_path / "history"))
    history.close()
    assert most < 2 * size
    kept = [row.number for row in history.jobs("default", limit=-1)]
    assert 500 < len(kept) < 5_000 and kept == list(range(9_999, 9_999 - len(kept), -1))
    db = sqlite3.connect(tmp_path / "history")
    for table in ("attempts", "used"):
        assert db.execute(f"SELECT count(*), min(number) FROM {table}").fetchone() == (len(kept), kept[-1])
    db.close()


def test_old_jobs_go_by_their_age(place: str) -> None:
    history = History(place)
    numbers = range(1_000)
    history.put([job(number, ended=number) for number in numbers], [attempt(number) for number in numbers])
    history.flush()
    assert history.drop_before(700) == 700 and history.drop_before(700) == 0
    assert [row.number for row in history.jobs("default", limit=1_000)] == list(range(999, 699, -1))
    assert not history.attempts("default", 699) and history.attempts("default", 700)
    history.close()


# PostgreSQL only


def test_the_oldest_jobs_go_on_postgresql(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.history.pgsession.CHECKED_EVERY", 0.0)
    history = History(database, size=500_000)
    for start in range(0, 3_000, 500):
        numbers = range(start, start + 500)
        rows = [attempt(number, reason="x" * 200) for number in numbers]
        history.put([job(number, ended=number) for number in numbers], rows)
        history.flush()
    history.close()
    kept = [row.number for row in history.jobs("default", limit=10_000)]
    assert 300 < len(kept) < 2_000 and kept == list(range(2_999, 2_999 - len(kept), -1))
    assert history.attempts("default", 0) == [] and len(history.attempts("default", 2_999)) == 1


def test_an_attempt_of_two_servers_is_stored_once(database: str) -> None:
    """A deposed server may write late what its successor has found in the journal."""
    for _ in range(2):
        history = History(database)
        history.put([job(1)], [attempt(1)])
        history.close()
    assert len(history.attempts("default", 1)) == 1


def test_lost_connections_of_the_history(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.history.store.RETRY", 0.02)
    history = History(database)
    history.put([job(1)], [])
    history.flush()
    assert len(history.jobs("default")) == 1
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'fairlead history'")
    assert len(history.jobs("default")) == 1
    history.put([job(2)], [])
    history.flush()
    until(lambda: len(history.jobs("default")) == 2)
    history.close()


@pytest.mark.parametrize(
    "pattern",
    ["a*", "*b", "a?c", "[ab]*", "[!a]*", "[!]a]*", "a.c", "[", "[a", "a]", "x[]]y", "(", "a+", "[a-c]x", "é*"],
)
def test_patterns_mean_the_same_on_postgresql(history_of_names: History, pattern: str) -> None:
    found = {row.name for row in history_of_names.jobs("default", JobFilter(name=pattern))}
    assert found == {name for name in NAMES if fnmatch.fnmatchcase(name, pattern)}


NAMES = ["a", "b", "abc", "a.c", "aab", "x]y", "[", "[a", "a]", "(", "a+", "bx", "ax", "élan", "a\nb", "-x"]


@pytest.fixture
def history_of_names(database: str) -> Iterator[History]:
    history = History(database)
    history.put([job(number, name=name) for number, name in enumerate(NAMES)], [])
    history.flush()
    yield history
    history.close()


@pytest.mark.parametrize(
    ("amounts", "cpu", "memory", "said"),
    [
        ({"cpu": 8_000}, 1.1, 0, "it asks for 8 CPUs a task and uses 1.1 on average; --cpu 2 would be enough"),
        ({"cpu": 8_000}, 4.1, 0, ""),
        ({"cpu": 1_000}, 0.1, 0, ""),
        (
            {"cpu": 1_000, "memory": 64 * 2**30},
            1.0,
            3 * 2**30,
            "it asks for 64Gi memory a task and uses 3Gi at most; --memory 4Gi would be enough",
        ),
        ({"memory": 4 * 2**30}, 1.0, 2**30, ""),
    ],
)
def test_waste_is_named(amounts: dict[str, int], cpu: float, memory: int, said: str) -> None:
    ran = 3600 * 10**6
    assert waste_of(amounts, int(cpu * ran), ran, memory) == said
    assert waste_of(amounts, int(cpu * 10**6), 10**6, memory) == ""


def test_ends_are_told_once_also_after_a_copy(place: str, tmp_path: Path) -> None:
    history = History(place)
    history.put([job(1, notify=("https://x/1",)), job(2, notify=("https://x/2",)), job(3)], [])
    history.flush()
    assert [row.notify for row in history.untold("default", 10)] == [("https://x/1",), ("https://x/2",)]
    assert [row.number for row in history.untold("default", 1)] == [1] and not history.untold("other", 10)
    history.mark_told("default", 1)
    history.put([job(1, notify=("https://x/1",), ended=9)], [])  # as when a new leader writes it again
    history.flush()
    assert [row.number for row in history.untold("default", 10)] == [2]
    history.close()
    copy_history(place, tmp_path / "copy", lambda *_: None, {"default": 100}, 100, {})
    copied = History(tmp_path / "copy")
    assert [row.number for row in copied.untold("default", 10)] == [2]
    copied.close()
