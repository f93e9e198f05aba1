"""The history of ended jobs: over HTTP, after the state forgot them, and after a crash before it was written."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fairlead.core.dump import dump
from fairlead.history.recorder import AttemptRow, HistoryRecorder, JobRow
from fairlead.history.store import History, Used
from fairlead.journal import MemoryJournal
from fairlead.server.output_collection import resume
from fairlead.testing import World
from fairlead.wire.agent_messages import LogPart, LogRequest, Tasks
from fairlead.writer.writer import Writer
from tests.http.serving import JOB, Serving, serving, submit


def end(site: Serving, client: Any, **document: Any) -> str:
    name = submit(client, {**JOB, **document})
    site.report(name, "running")
    site.report(name, "succeeded", exit_code=0)
    return name


def test_over_http(site: Serving) -> None:
    site.node("n1")
    ann, bob = site.as_user("ann"), site.as_user("bob")
    names = [end(site, ann) for _ in range(5)]
    killed = submit(bob)
    bob.post(f"/api/v1/jobs/{killed}/kill")
    site.history.flush()
    assert bob.get("/api/v1/history").json()["jobs"] == []  # its process has not ended
    site.report(killed, "stopped")
    site.history.flush()

    def past(client: Any, **params: Any) -> list[str]:
        found: list[str] = []
        cursor = ""
        while True:
            page = client.get("/api/v1/history", params={"limit": 2, "cursor": cursor, **params}).json()
            found += [job["id"] for job in page["jobs"]]
            cursor = page["next"]
            if not cursor:
                return found

    assert past(site.as_owner) == [killed, *names[::-1]]
    assert past(ann) == names[::-1]
    assert past(ann, user="bob") == []
    assert past(site.as_owner, state="killed") == [killed] == past(site.as_owner, user="bob")
    (attempt,) = ann.get(f"/api/v1/jobs/{names[0]}/attempts").json()["attempts"]
    assert (attempt["outcome"], attempt["node"], attempt["indices"], attempt["attempt"]) == (
        "succeeded",
        "n1",
        [0, 1],
        1,
    )
    assert bob.get(f"/api/v1/jobs/{names[0]}/attempts").status_code == 404
    site.history.put_used([Used("default", 1, "main", 0, 1, 0, 1_000_000, 250_000, 2**20)])
    site.history.flush()
    used = ann.get(f"/api/v1/jobs/{names[0]}/attempts").json()["used"]
    use = {
        "attempts": 1,
        "cpu_seconds": 0.25,
        "most_memory": 2**20,
        "ran_seconds": 1.0,
        "asked": {"cpu": 1.0},
        "hint": "",
    }
    assert used == {"main": use}


def test_a_task_that_was_over_before_it_was_told_to_run(site: Serving) -> None:
    site.node("n1")
    name = submit(site.as_owner, JOB)
    site.report(name, "succeeded", exit_code=0)
    site.history.put_used([Used("default", 1, "main", 0, 1, 0, 1_500_000, 0, 0)])
    (attempt,) = site.as_owner.get(f"/api/v1/jobs/{name}/attempts").json()["attempts"]
    assert attempt["ended"] - attempt["started"] == pytest.approx(1.5)


def test_logs_that_are_not_there(site: Serving) -> None:
    site.node("n1")
    waits = submit(site.as_owner, {"stages": [{"resources": {"cpu": 99}}]})
    ended = end(site, site.as_owner)
    site.history.flush()
    for name, params, status in (
        (waits, {}, 404),
        (waits, {"stage": "none"}, 404),
        (waits, {"index": 1}, 404),
        (waits, {"index": -1}, 400),
        (waits, {"stream": "in"}, 400),
        ("none", {}, 404),
        ("..%2f..%2fetc", {}, 404),
        (ended, {"attempt": 1}, 409),
        (ended, {"attempt": 2}, 404),
        (ended, {"attempt": 0}, 400),
        (ended, {"after": 1}, 404),
        (ended, {"after": 1, "follow": True}, 404),
        (ended, {"attempt": 1, "after": 1}, 422),
        (ended, {}, 409),  # no agent is connected for that node
    ):
        answer = site.as_owner.get(f"/api/v1/jobs/{name}/log", params=params)
        assert answer.status_code == status, (name, params, answer.text)
    assert site.as_user("bob").get(f"/api/v1/jobs/{ended}/log").status_code == 404


def rows(history: History, number: int) -> list[tuple[str, tuple[int, ...], int, str, str]]:
    history.flush()
    found = [
        (row.stage, row.indices, row.attempt, row.outcome, row.node) for row in history.attempts("default", number)
    ]
    return sorted(found)


def story(w: World) -> None:
    w.nodes(2, cpu=4)
    w.submit(name="array", stages=[{"name": "a", "count": 6, "min": 1, "tries": 2, "resources": {"cpu": 1}}])
    w.submit(name="single", stages=[{"name": "s", "resources": {"cpu": 1}}])
    w.cycle()
    w.finish("array", stage="a", index=0, exit_code=0)
    w.finish("array", stage="a", index=1, exit_code=3)
    w.cycle()
    w.finish("single", stage="s", index=0, exit_code=0)
    w.cycle()
    for index in range(1, 5):
        w.finish("array", stage="a", index=index, exit_code=0)
    w.cycle()
    w.kill("array")
    w.cycle()
    w.advance(10)


def test_rows_of_a_story(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    w = World(observers=[HistoryRecorder(history)])
    story(w)
    found = rows(history, 1)
    assert [(row[3], row[2]) for row in found if row[1][0] == 1] == [("failed", 1), ("succeeded", 2)]
    assert rows(history, 2) == [("s", (0, 1), 1, "succeeded", "n1")]
    job = history.job("default", "array")
    assert job is not None and (job.state, job.tasks) == ("killed", {"killed": 1, "succeeded": 5})
    last = history.task_attempts("default", 1, "a", 1)[-1]
    assert isinstance(last, AttemptRow) and (last.attempt, last.outcome) == (2, "succeeded")
    assert history.task_attempts("default", 1, "a", 7) == []
    history.close()
    again = History(tmp_path / "history")
    assert len(rows(again, 1)) == len(found)
    again.close()


def test_rows_that_a_crash_kept_from_being_written_are_added_later(tmp_path: Path) -> None:
    w = World()
    story(w)
    history = History(tmp_path / "history")
    past = HistoryRecorder(history)

    def recover() -> None:
        past.reached("default", 9)
        past.began(w.partition())

    recover()
    made_up = rows(history, 1)
    assert [(row[3], row[2]) for row in made_up if row[1] == (1, 2)] == [("succeeded", 2)]
    assert len(made_up) == 6
    recover()
    assert rows(history, 1) == made_up  # once
    job = history.job("default", "single")
    assert job is not None and job.tasks == {"succeeded": 1}


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("written", range(12))
def test_rows_of_replayed_records_are_whole(tmp_path: Path, written: int, snapshots: bool) -> None:
    """The server is killed when only some rows are written: the others have their nodes and times all the same.

    A snapshot may have been made after the last row. Sometimes rows are written, and the note of them is not.
    """

    class Cut(History):
        left = written

        def put(self, jobs: list[JobRow], attempts: list[AttemptRow], reached: tuple[str, int] | None = None) -> None:
            if self.left >= 0:
                super().put(jobs, attempts, reached if self.left % 3 else None)
            self.left -= len(attempts)

    whole, cut = History(tmp_path / "whole"), Cut(tmp_path / "cut")
    journal = MemoryJournal()
    world = World(observers=[HistoryRecorder(whole), HistoryRecorder(cut)], journal=journal)
    story(world)
    if snapshots:
        journal.save_snapshot("partition/default", journal.last("partition/default"), dump(world.partition()))
    for left in (2, 1_000_000, 1_000_000):  # it is killed again while it recovers
        cut.left = left
        Writer(journal, "default", [HistoryRecorder(cut)])
        cut.flush()
    whole.flush()
    assert cut.reached("default", 999) == whole.reached("default", 999) == journal.last("partition/default")
    for number in (1, 2):
        found = cut.attempts("default", number)
        assert sorted(map(repr, found)) == sorted(map(repr, whole.attempts("default", number)))
    assert cut.jobs("default") == whole.jobs("default")
    whole.close()
    cut.close()


def test_a_log_is_found_though_its_node_is_not_known(site: Serving) -> None:
    site.node("n1")
    job = end(site, site.as_owner)
    site.history.flush()
    with closing(sqlite3.connect(site.folder / "history")) as db, db:
        db.execute("UPDATE attempts SET node = ''")

    class Nodes:
        """The hub, with a log on one of its nodes."""

        def __init__(self) -> None:
            self.asked: list[str] = []

        def connected(self, partition: str) -> dict[str, float]:
            return {f"n{number}": 0.0 for number in range(200)}

        async def log(self, partition: str, node: str, asked: LogRequest) -> AsyncIterator[LogPart]:
            self.asked.append(node)
            if node == "n150":
                yield LogPart(0, 0, b"hello\n")
            yield LogPart(0, 0, b"", True, "" if node == "n150" else "nothing is kept of this task here")

    nodes = Nodes()
    site.node("n150")
    site.node("n151", users=["bob"])
    site.site.hub = nodes  # type: ignore[assignment]
    answer = site.as_owner.get(f"/api/v1/jobs/{job}/log")
    assert (answer.status_code, answer.text) == (200, "hello\n")
    assert "n151" not in nodes.asked  # no task of this user runs there


def test_a_cursor_beyond_64_bits(site: Serving) -> None:
    job = submit(site.as_owner)
    for path in ("jobs", "history", "nodes", f"jobs/{job}/tasks", f"jobs/{job}/attempts"):
        for cursor in (2**63, 10**20 - 1):
            answer = site.as_owner.get(f"/api/v1/{path}", params={"cursor": str(cursor)})
            assert (answer.status_code, answer.json()["field"]) == (422, "cursor"), (path, answer.text)
        assert site.as_owner.get(f"/api/v1/{path}", params={"cursor": str(2**63 - 1)}).status_code == 200
    for headers, after in (({}, 10**30), ({"Last-Event-ID": "9" * 20}, None)):
        params = {} if after is None else {"after": str(after)}
        with site.as_owner.stream("GET", "/api/v1/watch", params=params, headers=headers) as answer:
            assert answer.status_code < 500


def test_a_server_that_starts_has_the_logs_copied_that_were_left(tmp_path: Path) -> None:
    pool = {"node": {"cpu": 4}, "max": 4, "provider": {"local": {}}}
    copying: list[tuple[tuple[str, str], Tasks]] = []

    class Copying:
        def add(self, node: tuple[str, str], tasks: Tasks) -> None:
            copying.append((node, tasks))

    with serving(tmp_path, {"partitions": {"default": {"pools": {"p": pool}}}}) as site:
        site.node("p-1", pool="p")
        job = end(site, site.as_owner)
        site.do(resume(site.control, "default", site.history, Copying()))  # type: ignore[arg-type]
        assert copying == [(("default", "p-1"), Tasks(job, 1, "main", 1, (0, 1)))]
        site.history.mark_copied("default", "p-1", copying.pop()[1])
        site.do(resume(site.control, "default", site.history, Copying()))  # type: ignore[arg-type]
        assert not copying
