"""What a user learns of the jobs of others: numbers, never ids, names or users. Operators see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.serving import JOB, Serving, serving, submit
from tests.until import until

MARKS = ("xann", "xjob", "xname", "xstage", "xlabel", "xcommand")
"""Words of another user's job: its user, id, name, stage, label and command."""


def others_job(**more: Any) -> dict[str, Any]:
    stage = {"name": "xstage", "command": ["xcommand"], "resources": {"cpu": 1}}
    return {"id": "xjob", "name": "xname", "labels": {"xlabel": "xlabel"}, "stages": [stage], **more}


def everything(client: httpx.Client, *own: str) -> dict[str, str]:
    """Return the answers to all requests that list or show something, by path. `own` are jobs of the caller."""
    paths = [
        "/metrics",
        "/healthz",
        "/readyz",
        "/api/v1/map/tasks?node=n1",
        *(
            f"/api/v1/{path}"
            for path in "nodes nodes/n1 queues queues/root.default lanes holds pools usage map".split()
        ),
        *(
            f"/api/v1/{path}"
            for path in "usage/report?by=user,queue,job jobs history partitions config timeline loans".split()
        ),
        *(
            f"/api/v1/jobs/{job}{part}"
            for job in own
            for part in ("", "/tasks", "/explain", "/eta", "/story", "/attempts")
        ),
    ]
    answers = {path: client.get(path).text for path in paths}
    with client.stream("GET", "/api/v1/watch", params={"after": 0}) as stream:
        events = ""
        for text in stream.iter_text():
            events += text
            if all(f'"job":"{job}"' in events for job in own) or "reset" in events:
                break
    return {**answers, "/api/v1/watch": events}


def leaks(answers: dict[str, str]) -> list[tuple[str, str]]:
    """Return paths with the marks that their answers contain."""
    return [(path, mark) for path, text in answers.items() for mark in MARKS if mark in text]


def waited_for(client: httpx.Client, path: str, text: str) -> None:
    until(lambda: text in client.get(path).text)


@pytest.mark.parametrize("sees", [False, True])
def test_a_hold_for_another_user(tmp_path: Path, sees: bool) -> None:
    config = {"partitions": {"default": {"starving_after": "1ms", "hold_for": "1h"}}}
    with serving(tmp_path, config) as site:
        site.node("n1", cpu=1)
        first = submit(site.as_user("eve"))
        submit(site.as_user("xann"), others_job())
        waited_for(site.as_owner, "/api/v1/holds", "xjob")
        stage = {"name": "main", "command": ["true"], "resources": {"cpu": 1, "memory": "1Gi"}}
        last = submit(site.as_user("eve"), {"stages": [stage]})  # in a lane of its own, so that it is tried
        waited_for(site.as_owner, f"/api/v1/jobs/{last}/explain", "xjob")
        if sees:
            seen = everything(site.as_user("boss", "operator"), last)
            assert {"/metrics", "/api/v1/nodes/n1", f"/api/v1/jobs/{last}/explain"} <= {path for path, _ in leaks(seen)}
            return
        eve = site.as_user("eve")
        seen = everything(eve, first, last)
        assert leaks(seen) == []
        (waiting,) = eve.get(f"/api/v1/jobs/{last}/explain").json()["waiting"]
        assert "1 node is held for another user's job (until " in waiting["text"]
        node = eve.get("/api/v1/nodes/n1").json()
        assert (node["held_for"], node["held_for_others"], node["held"]) == ([], 1, {"cpu": 1})
        assert 'fairlead_held_nodes{partition="default"} 1.0' in seen["/metrics"]


def test_a_claim_of_another_user(site: Serving) -> None:
    site.node("n1", cpu=1)
    low = submit(site.as_user("eve"))
    submit(site.as_owner, others_job(user="xann", priority=1))
    last = submit(site.as_user("eve"))
    eve = site.as_user("eve")
    assert leaks(everything(eve, low, last)) == []
    (task,) = eve.get(f"/api/v1/jobs/{low}/tasks").json()["tasks"]
    assert (task["state"], task["note"]) == ("stopping", "stops for a job of root.default")
    site.report(low, "stopped")
    waited_for(eve, f"/api/v1/jobs/{low}/tasks", "preempted for a job of root.default")
    assert leaks(everything(eve, low, last)) == []


def test_a_task_of_another_user_that_does_not_stop(tmp_path: Path) -> None:
    with serving(tmp_path, {"partitions": {"default": {"preempt_grace": "1ms"}}}) as site:
        site.node("n1", cpu=1)
        submit(site.as_user("xann"), others_job())
        waited_for(site.as_owner, "/api/v1/nodes/n1", '"tasks":1')
        assert site.as_user("xann").post("/api/v1/jobs/xjob/kill").status_code == 200
        last = submit(site.as_user("eve"))
        waited_for(site.as_owner, "/metrics", "fairlead_tasks_not_stopping{")
        waited_for(site.as_owner, f"/api/v1/jobs/{last}/explain", "xjob")
        eve = site.as_user("eve")
        assert leaks(everything(eve, last)) == []
        (waiting,) = eve.get(f"/api/v1/jobs/{last}/explain").json()["waiting"]
        assert "1 task of another user's job on n1, told to stop" in waiting["text"]


def test_a_planned_start_of_another_user(tmp_path: Path) -> None:
    with serving(tmp_path, {"partitions": {"default": {"backfill": "easy"}}}) as site:
        site.node("n1", cpu=2)
        stage = {"name": "main", "command": ["true"], "resources": {"cpu": 1}, "estimate": "1h"}
        first = submit(site.as_user("eve"), {"stages": [stage]})
        wide = {"name": "xstage", "command": ["xcommand"], "resources": {"cpu": 2}, "estimate": "1h"}
        submit(site.as_user("xann"), others_job(stages=[wide]))
        late = submit(site.as_user("eve"), {"stages": [{**stage, "estimate": "9h"}]})
        waited_for(site.as_owner, f"/api/v1/jobs/{late}/explain", "it would delay job xjob")
        eve = site.as_user("eve")
        assert leaks(everything(eve, first, late)) == []
        (waiting,) = eve.get(f"/api/v1/jobs/{late}/explain").json()["waiting"]
        assert "it would delay another user's job, which is planned to start at " in waiting["text"]
        assert eve.get(f"/api/v1/jobs/{late}").json()["waits_for"] == "would delay another user's job"


def test_an_administrator_of_the_queue_sees_its_jobs(tmp_path: Path) -> None:
    queues = {"root": {"default": {"admin": ["eve"]}}}
    settings = {"starving_after": "1ms", "hold_for": "1h", "queues": queues}
    with serving(tmp_path, {"partitions": {"default": settings}}) as site:
        site.node("n1", cpu=1)
        submit(site.as_user("eve"), JOB)
        submit(site.as_user("xann"), others_job())
        eve = site.as_user("eve")
        waited_for(eve, "/api/v1/holds", "xjob")
        assert eve.get("/api/v1/nodes/n1").json()["held_for"] == ["xjob"]


def test_lanes_show_each_user_its_own_asks(site: Serving) -> None:
    """While a node takes only jobs of one user, the lanes of users are apart, and are shown under one name."""
    site.node("n1", cpu=1, users=["nobody"])
    own = {user: submit(site.as_user(user), JOB) for user in ("ann", "bob")}
    for user, job in own.items():
        (lane,) = site.as_user(user).get("/api/v1/lanes").json()["lanes"]
        assert (lane["asks"], [ask["job"] for ask in lane["first"]]) == (2, [job])
    (lane,) = site.as_owner.get("/api/v1/lanes").json()["lanes"]
    assert [ask["job"] for ask in lane["first"]] == list(own.values())
