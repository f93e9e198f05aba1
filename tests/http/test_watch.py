"""Watching and resource managers: streams that resume where they were cut."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from fairlead.control.feed import Feed, Missed
from fairlead.wire.api import Event
from tests.http.serving import JOB, SECONDS, Serving, serving, submit

News = tuple[str, str, dict[str, Any]]


@contextmanager
def watching(client: httpx.Client, path: str = "watch", last: str = "", **params: Any) -> Iterator[Iterator[News]]:
    """Watch a path; events are (id, kind, data)."""
    headers = {"Last-Event-ID": last} if last else {}
    with client.stream("GET", f"/api/v1/{path}", params=params, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        lines = answer.iter_lines()
        assert next(lines) == "retry: 1000"

        def events() -> Iterator[News]:
            fields: dict[str, str] = {}
            for line in lines:
                if line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                elif "event" in fields:
                    yield fields.get("id", ""), fields["event"], json.loads(fields["data"])
                    fields = {}

        yield events()


def take(events: Iterator[News], count: int) -> list[News]:
    return [next(events) for _ in range(count)]


def test_the_story_of_a_job(site: Serving) -> None:
    with watching(site.as_owner) as events:
        site.node("n1")
        name = submit(site.as_owner)
        site.report(name, "running")
        site.report(name, "succeeded", exit_code=0)
        found = take(events, 6)
    assert [(kind, data["state"]) for _, kind, data in found] == [
        ("node", "up"),
        ("submitted", "pending"),
        ("placed", ""),
        ("running", ""),
        ("ended", "succeeded"),
        ("state", "succeeded"),
    ]
    assert [data["job"] for _, _, data in found] == ["", *[name] * 5]
    # The last event of a record has its number.
    assert [bool(number) for number, _, _ in found] == [True, False, True, True, False, True]


def test_the_end_of_a_killed_job_is_that_of_its_last_process(site: Serving) -> None:
    site.node("n1")
    with watching(site.as_owner) as events:
        name = submit(site.as_owner)
        site.report(name, "running")
        site.as_owner.post(f"/api/v1/jobs/{name}/kill")
        site.report(name, "stopped")
        found = take(events, 7)
    assert [(kind, data["state"]) for _, kind, data in found[3:]] == [
        ("state", "stopping"),
        ("stopping", ""),
        ("ended", "killed"),
        ("state", "killed"),
    ]


def test_to_go_on_after_a_cut(site: Serving) -> None:
    with watching(site.as_owner) as events:
        first = submit(site.as_owner)
        number, _, data = next(events)
        assert data["job"] == first
    missed = [submit(site.as_owner) for _ in range(5)]
    for where in ({"last": number}, {"after": int(number)}):
        with watching(site.as_owner, **where) as events:
            assert [data["job"] for _, _, data in take(events, 5)] == missed


def test_only_one_job(site: Serving) -> None:
    with watching(site.as_owner, job="b") as events:
        for name in ("a", "b"):
            submit(site.as_owner, {"id": name, **JOB})
        assert next(events)[2]["job"] == "b"


def test_users_get_events_of_their_own_jobs(site: Serving) -> None:
    ann, bob = site.as_user("ann"), site.as_user("bob")
    with watching(ann) as events:
        submit(bob, {"id": "his", **JOB})
        submit(ann, {"id": "hers", **JOB})
        site.node("n1")
        found = take(events, 3)
    assert "his" not in {data["job"] for _, _, data in found}


def test_a_watcher_that_missed_too_much_gets_a_reset(tmp_path: Path) -> None:
    with serving(tmp_path) as site, watching(site.as_owner) as events:
        submit(site.as_owner)
        number = next(events)[0]
    with serving(tmp_path) as site:
        submit(site.as_owner)
        with watching(site.as_owner, last=number) as events:  # no event was missed
            assert next(events)[1] == "submitted"
        with watching(site.as_owner, after=0) as events:
            assert next(events)[1] == "reset"
        with watching(site.as_owner, after=10**9) as events:
            assert next(events)[1] == "reset"
            submit(site.as_owner)
            assert next(events)[1] == "submitted"
    assert site.as_owner.is_closed


def test_a_feed_keeps_a_bounded_number_of_batches() -> None:
    async def story() -> None:
        feed = Feed(10, kept=3)
        news = [Event(what="x", at=float(number)) for number in range(6)]
        feed.add(11, ())
        for number, each in enumerate(news):
            feed.add(12 + number, (each,))
        assert [batch.seq for batch in feed.after(14)] == [15, 16, 17]
        assert feed.after(17) == []
        for wrong in (13, 18):
            try:
                feed.after(wrong)
            except Missed as missed:
                assert missed.seq == 17
            else:
                raise AssertionError

    import asyncio

    asyncio.run(story())


# -- resource managers -------------------------------------------------------------------------------------------


def update(site: Serving, **items: Any) -> list[tuple[str, str, bool]]:
    answer = site.as_owner.post("/api/v1/managers/k8s/updates", json=items)
    assert answer.status_code == 200, answer.text
    return [(item["what"], item["name"], item["accepted"]) for item in answer.json()["items"]]


def test_a_small_resource_manager(tmp_path: Path) -> None:
    ask = {"job": "app", "ask": "exec", "count": 2, "min": 1, "resources": {"cpu": 1}}
    nodes = [{"name": "k1", "resources": {"cpu": 4}}]
    jobs = [{"job": "app", "queue": "root.default"}]
    with serving(tmp_path) as site:
        assert site.as_owner.post("/api/v1/managers/k8s/updates", json={}).status_code == 404
        assert site.as_owner.get("/api/v1/managers/k8s/events").status_code == 404
        assert site.as_owner.post("/api/v1/managers/k8s").json() == {"note": ""}
        with watching(site.as_owner, "managers/k8s/events") as events:
            done = update(site, nodes=nodes, jobs=jobs, asks=[ask, {"job": "none", "ask": "x"}])
            assert done == [
                ("node", "k1", True),
                ("job", "app", True),
                ("ask", "app/exec", True),
                ("ask", "none/x", False),
            ]
            (node, allocated) = take(events, 2)
            assert (node[1], allocated[1], allocated[2]["indices"]) == ("node", "allocated", [0, 2])
            assert update(site, releases=[{"job": "app", "ask": "exec", "index": 0}]) == [("release", "app/exec", True)]
            assert next(events)[1:] == (
                "released",
                {**allocated[2], "what": "released", "indices": [0, 1], "reason": "released"},
            )
            # More than the node has: the rest waits, and is withdrawn.
            update(site, asks=[{"job": "app", "ask": "more", "count": 9, "min": 1, "resources": {"cpu": 1}}])
            number, kind, data = next(events)
            assert (kind, data["indices"]) == ("allocated", [0, 3])
            update(site, asks=[{"job": "app", "ask": "more", "withdraw": True}])
        with watching(site.as_owner, "managers/k8s/events", last=number) as events:
            update(site, releases=[{"job": "app", "ask": "more", "index": 1}])
            assert next(events)[1] == "released"
        (known,) = site.as_owner.get("/api/v1/managers").json()["managers"]
        assert (known["name"], known["nodes"]) == ("k8s", 1)
        assert site.as_owner.post("/api/v1/managers/k8s/updates", json={"nodes": {}}).status_code == 422
    # The server restarts. The manager replays what it knows, and recovers what runs.
    with serving(tmp_path) as site:
        assert not site.client().get("/readyz").is_success
        site.as_owner.post("/api/v1/managers/k8s")
        recover = [{"job": "app", "ask": "exec", "node": "k1", "index": 1, "resources": {"cpu": 1}}]
        assert all(accepted for _, _, accepted in update(site, nodes=nodes, jobs=jobs, recover=recover))
        assert site.client().get("/readyz").is_success
        found = site.as_owner.get("/api/v1/nodes/k1").json()
        assert (found["manager"], found["used"]) == ("k8s", {"cpu": 3})
        update(site, jobs=[{"job": "app", "remove": True}])
        assert site.as_owner.get("/api/v1/nodes/k1").json()["used"] == {}
        # The manager is gone for good.
        update(site, jobs=[{"job": "app2", "queue": "root.default"}], asks=[{**ask, "job": "app2"}])
        (entry,) = site.as_owner.get("/api/v1/managers").json()["managers"]
        assert (entry["nodes"], entry["jobs"], entry["reported"]) == (1, 1, True)
        assert site.as_owner.delete("/api/v1/managers/k9s").status_code == 404
        with watching(site.as_owner, "managers/k8s/events") as events:
            assert site.as_owner.delete("/api/v1/managers/k8s").json() == {"note": ""}
            assert {kind for _, kind, _ in events} <= {"release", "released", "ended", "node"}  # the stream ends
        assert site.as_owner.get("/api/v1/managers").json() == {"managers": []}
        assert site.as_owner.get("/api/v1/jobs/app2").json()["state"] == "killed"
        assert site.as_owner.get("/api/v1/nodes/k1").status_code == 404
    with serving(tmp_path) as site:  # no manager is waited for
        deadline = time.monotonic() + SECONDS
        while not site.client().get("/readyz").is_success:
            assert time.monotonic() < deadline


def test_the_example_of_a_resource_manager(site: Serving) -> None:
    script = Path(__file__).parent.parent.parent / "examples" / "live" / "resource_manager.py"
    environment = {**os.environ, "FAIRLEAD_URL": site.url, "FAIRLEAD_TOKEN": site.owner}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    shown = script.read_text().partition("Prints:\n")[2].partition('"""')[0]
    assert done.stdout == textwrap.dedent(shown)


def test_news_of_an_earlier_owner_of_an_id(tmp_path: Path) -> None:
    with serving(tmp_path, {"partitions": {"default": {"keep_ended": "10ms"}}}) as site:
        ann, bob = site.as_user("ann"), site.as_user("bob")
        start = site.control.find("").feed.seq
        submit(ann, {"id": "x", **JOB})
        ann.post("/api/v1/jobs/x/kill")
        deadline = time.monotonic() + SECONDS
        while (found := site.as_owner.get("/api/v1/jobs/x")).status_code != 404 and not found.json()["forgotten"]:
            assert time.monotonic() < deadline
        submit(bob, {"id": "x", **JOB})
        with watching(bob, after=start, job="x") as events:
            assert [kind for _, kind, _ in take(events, 1)] == ["submitted"]
            bob.post("/api/v1/jobs/x/kill")
            assert next(events)[2]["state"] == "killed"
        with watching(site.as_owner, after=start, job="x") as events:
            numbers = [data["number"] for _, _, data in take(events, 4)]
            assert numbers == [1, 1, 2, 2]
