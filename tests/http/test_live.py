"""The changes of the map: read once for all pages, complete, and without data of other users."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.http import board
from tests.http.serving import Serving, serving, submit


@contextmanager
def following(client: httpx.Client, after: str) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
    """Yield the events of the stream, by kind and document."""
    with client.stream("GET", "/api/v1/live", params={"after": after}) as stream:

        def events() -> Iterator[tuple[str, dict[str, Any]]]:
            kind = ""
            for line in stream.iter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                if line.startswith("data: "):
                    yield kind, json.loads(line.removeprefix("data: "))

        yield events()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "PAUSE", 0.02)


def test_a_change_has_the_rows_and_queues_that_changed(site: Serving) -> None:
    site.node("n1")
    site.node("n2")
    with site.as_user("ann") as ann:
        at = ann.get("/api/v1/map").json()["at"]
        with following(ann, at) as events:
            job = submit(site.as_owner, {"name": "hidden", "stages": [{"resources": {"cpu": 4}}]})
            kind, change = next(events)
            assert kind == "change"
            assert [row[2:5] for _, row in change["rows"]] == [[100, 0, 1]]
            assert "root" in [queue["path"] for queue in change["queues"]]
            assert "hidden" not in json.dumps(change)
            site.report(job, "running")
            site.report(job, "succeeded", exit_code=0)
            while change["rows"][0][1][2] != 0:
                _, change = next(events)


def test_new_nodes_and_unknown_places_reset_a_page(site: Serving) -> None:
    site.node("n1")
    at = site.as_owner.get("/api/v1/map").json()["at"]
    with following(site.as_owner, at) as events:
        site.node("n2")
        assert next(events)[0] == "reset"
    for place in ("other-1", "", f"{at.partition('-')[0]}-99", "x-x"):
        with following(site.as_owner, place) as events:
            assert next(events)[0] == "reset"
    assert len(site.as_owner.get("/api/v1/map").json()["names"]) == 2


def test_a_drained_node_and_a_held_one_are_shown(site: Serving) -> None:
    site.node("n1")
    at = site.as_owner.get("/api/v1/map").json()["at"]
    with following(site.as_owner, at) as events:
        site.as_owner.post("/api/v1/nodes/n1/drain").raise_for_status()
        kind, change = next(events)
        assert kind == "change" and change["rows"][0][1][0] == 2


def test_many_pages_are_served_by_one_look(site: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    site.node("n1")
    looks: list[int] = []
    read = board.Board._read

    def counted(self: board.Board, *arguments: Any) -> Any:
        looks.append(1)
        return read(self, *arguments)

    monkeypatch.setattr(board.Board, "_read", counted)
    at = site.as_owner.get("/api/v1/map").json()["at"]
    looks.clear()
    seen: list[str] = []

    def page() -> None:
        with site.as_user("ann") as ann, following(ann, at) as events:
            seen.append(next(events)[0])

    pages = [threading.Thread(target=page) for _ in range(10)]
    for each in pages:
        each.start()
    submit(site.as_owner)
    for each in pages:
        each.join(30)
    assert seen == ["change"] * 10
    assert len(looks) <= 5


def test_the_timeline_has_what_ran_and_hides_other_users(site: Serving) -> None:
    site.node("n1")
    with site.as_user("ann") as ann, site.as_user("bob") as bob:
        done, running = (submit(ann, {"name": name, "stages": [{"resources": {"cpu": 1}}]}) for name in ("a", "b"))
        for job in (done, running):
            site.report(job, "running")
        site.report(done, "succeeded", exit_code=0)
        bars = ann.get("/api/v1/timeline").json()["bars"]
        assert [(bar["job"], bar["name"], bar["node"], bar["ended"] is None) for bar in bars] == [
            (running, "b", "n1", True),
            (done, "a", "n1", False),
        ]
        assert bob.get("/api/v1/timeline").json()["bars"] == []
        assert len(site.as_owner.get("/api/v1/timeline").json()["bars"]) == 2


def test_ended_tasks_of_a_job_that_runs_have_its_name(site: Serving) -> None:
    site.node("n1", cpu=1)
    job = submit(site.as_owner, {"name": "sweep", "stages": [{"array": 2, "resources": {"cpu": 1}}]})
    site.report(job, "running")
    site.report(job, "succeeded", exit_code=0)
    bars = site.as_owner.get("/api/v1/timeline").json()["bars"]
    assert [(bar["name"], bar["outcome"]) for bar in bars if bar["ended"] is not None] == [("sweep", "succeeded")]


def test_the_tasks_of_nodes_are_named_for_those_who_may_see_them(site: Serving) -> None:
    site.node("n1", cpu=4, labels={"rack": "a"})
    site.node("n2", cpu=4, labels={"rack": "b"})
    stages = [{"name": "work", "array": 3, "resources": {"cpu": 1}, "estimate": "10min", "selectors": {"rack": "a"}}]
    with site.as_user("ann") as ann, site.as_user("bob") as bob:
        job = submit(ann, {"name": "sweep", "stages": stages})
        site.report(job, "running", stage="work")
        asked = {"node": ["n1", "n2", "n3"]}
        for client in (ann, site.as_owner):
            [block] = client.get("/api/v1/map/tasks", params=asked).json()["tasks"]
            assert (block["node"], block["job"], block["name"], block["user"]) == ("n1", job, "sweep", "ann")
            assert (block["stage"], block["state"], block["tasks"]) == ("work", "running", 3)
            assert block["indices"] == [0, 1, 2] and block["resources"] == {"cpu": 1}
            assert round(block["ends"] - block["since"]) == 600
        [hidden] = bob.get("/api/v1/map/tasks", params=asked).json()["tasks"]
        assert (hidden["node"], hidden["tasks"], hidden["resources"]) == ("n1", 3, {"cpu": 1})
        assert [hidden[key] for key in ("job", "name", "stage", "user", "indices", "ends")] == [
            "",
            "",
            "",
            "",
            [],
            None,
        ]
        refused = ann.get("/api/v1/map/tasks", params={"node": ["n1"] * 301})
        assert refused.status_code == 400 and refused.json()["field"] == "node"


def test_loans_return_when_their_tasks_are_expected_to_end(tmp_path: Path) -> None:
    queues = {"root": {"a": {"share": 50}, "b": {"share": 50}}}
    with serving(tmp_path, {"partitions": {"default": {"queues": queues}}}) as site:
        site.node("n1", cpu=10)

        def loans() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = site.as_owner.get("/api/v1/loans").json()["loans"]
            return found

        assert loans() == []
        for tasks, more in ((1, {"estimate": "10min"}), (2, {"time_limit": "1h"}), (6, {})):
            stage = {"array": tasks, "resources": {"cpu": 1}, **more}
            job = submit(site.as_owner, {"queue": "root.a", "stages": [stage]})
            site.report(job, "running")
        now = site.as_owner.get("/api/v1/map").json()["now"]
        [loan] = loans()
        assert (loan["queue"], loan["percent"], loan["unknown_percent"]) == ("root.a", 40, 10)
        assert [(round((step["at"] - now) / 60), step["percent"]) for step in loan["returns"]] == [(10, 10), (60, 30)]


def test_several_jobs_are_explained_in_a_sentence_each(site: Serving) -> None:
    site.node("n1", cpu=1)
    with site.as_user("ann") as ann, site.as_user("bob") as bob:
        jobs = [submit(ann, {"name": name, "stages": [{"resources": {"cpu": 1}}]}) for name in ("a", "b", "c")]
        found = ann.post("/api/v1/explain", json={"jobs": [*jobs, "unknown"]}).json()["sentences"]
        for job in jobs:
            assert found[job] == ann.get(f"/api/v1/jobs/{job}/explain").json()["sentence"]
        assert sorted(found) == sorted(jobs)
        assert bob.post("/api/v1/explain", json={"jobs": jobs}).json() == {"sentences": {}}
        assert ann.post("/api/v1/explain", json={"jobs": []}).json()["field"] == "jobs"


def test_the_map_and_the_queues_of_the_past_are_replayed_from_the_journal(site: Serving) -> None:
    site.node("n1")
    before = site.as_owner.get("/api/v1/map").json()["now"]
    time.sleep(0.02)
    job = submit(site.as_owner, {"name": "a", "stages": [{"resources": {"cpu": 2}}]})
    site.report(job, "running")
    site.node("n2")
    now = site.as_owner.get("/api/v1/map").json()
    past = site.as_owner.get("/api/v1/map/past", params={"until": before}).json()
    assert past["since"] <= before and past["map"]["names"] == ["n1"]
    assert [row[2] for row in past["map"]["rows"]] == [0] and [row[2] for row in now["rows"]] == [50, 0]
    latest = site.as_owner.get("/api/v1/map/past").json()["map"]
    assert (latest["names"], latest["rows"]) == (now["names"], now["rows"])
    assert [queue["path"] for queue in latest["queues"]] == [queue["path"] for queue in now["queues"]]
    early = site.as_owner.get("/api/v1/map/past", params={"until": past["since"] - 60}).json()
    assert early["map"] is None and early["since"] == past["since"]
    queues = site.as_owner.get("/api/v1/map/queues", params={"since": before, "points": 5}).json()
    root = queues["queues"]["root"]
    assert root["times"] == sorted(root["times"]) and len(root["times"]) == 5
    assert root["use"][0] == 0 and root["use"][-1] == 25 and root["loan"][-1] == 0
