"""Pools over HTTP: what each role sees of them, and scaling, pausing and resuming."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.http.serving import SECONDS, Serving, serving, submit

POOL = {"node": {"cpu": 4, "memory": "8Gi"}, "max": 4, "idle_for": "1h", "provider": {"command": ["true"]}}
PARTITION = {
    "ready_after": 0,
    "pool_pause": "1h",
    "pools": {"w": POOL, "own": {"node": {"gpu": 1}, "labels": {"a": "b"}}},
}
CONFIG = {"partitions": {"default": PARTITION}}


def get(site: Serving, path: str) -> dict[str, Any]:
    deadline = time.monotonic() + SECONDS
    while not site.as_owner.get("/readyz").is_success:
        assert time.monotonic() < deadline
    found: dict[str, Any] = site.as_owner.get(f"/api/v1/{path}").json()
    return found


def wants(count: int) -> dict[str, Any]:
    return {"stages": [{"count": count, "min": 1, "command": ["true"], "resources": {"cpu": 4}, "pool": "w"}]}


def test_pools(tmp_path: Path) -> None:
    with serving(tmp_path, CONFIG) as site:
        found = get(site, "pools")
        assert found["partition"] == "default"
        own, w = found["pools"]
        assert (own["name"], own["provider"], own["resources"], own["labels"]) == ("own", "", {"gpu": 1}, {"a": "b"})
        assert (w["provider"], w["resources"], w["max"], w["idle_for"]) == (
            "command",
            {"cpu": 4, "memory": 2**33},
            4,
            3600,
        )
        assert w["use"] == get(site, "usage")["pools"]["w"]
        assert get(site, "pools/w") == w
        missing = site.as_owner.get("/api/v1/pools/v")
        assert missing.status_code == 404 and "`fairlead pool list` shows them" in missing.json()["detail"]
        assert site.as_owner.post("/api/v1/pools/v/pause").status_code == 404
        assert site.as_owner.post("/api/v1/pools/v/scale", json={"nodes": 1}).status_code == 404
        assert site.as_owner.post("/api/v1/pools/w/explode").status_code == 400


def test_steering(tmp_path: Path) -> None:
    with serving(tmp_path, CONFIG) as site:
        get(site, "pools")
        assert site.as_owner.post("/api/v1/pools/w/pause").json() == {"note": ""}
        assert site.as_owner.post("/api/v1/pools/w/pause").json() == {"note": "no change"}
        submit(site.as_owner, wants(2))
        found = get(site, "pools/w")
        assert found["paused"] and found["orders"] == [] and found["use"]["pending"] == 2
        assert site.as_owner.post("/api/v1/pools/w/resume").json() == {"note": ""}
        assert not get(site, "pools/w")["paused"]
        for document, field in (
            ({"nodes": 9}, "nodes"),
            ({"nodes": -1}, "nodes"),
            ({}, "nodes"),
            ({"node": 1}, "nodes"),
        ):
            answer = site.as_owner.post("/api/v1/pools/w/scale", json=document)
            assert (answer.status_code, answer.json()["field"]) == (422, field), document
        assert site.as_owner.post("/api/v1/pools/own/scale", json={"nodes": 1}).status_code == 409


def test_the_jobs_of_an_order_are_shown_only_to_users_that_may_see_them(tmp_path: Path) -> None:
    with serving(tmp_path, CONFIG) as site:
        get(site, "pools")
        ann, bob = site.as_user("ann"), site.as_user("bob")
        site.as_owner.post("/api/v1/pools/w/pause")
        job = submit(ann, wants(3))
        assert site.as_owner.post("/api/v1/pools/w/scale", json={"nodes": 1}).json() == {"note": "nodes ordered: 1"}
        site.as_owner.post("/api/v1/pools/w/resume")
        for client, knows in ((ann, True), (bob, False)):
            for order in client.get("/api/v1/pools/w").json()["orders"]:
                if order["cause"] == "demand":
                    tasks = order["tasks"]
                    assert tasks in (2, 3), "the order by hand is for one of them, unless it has failed by now"
                    assert order["jobs"] == ([{"job": job, "stage": "main", "tasks": tasks}] if knows else [])


def test_usage_is_without_figures_before_ready_and_leaves_a_line(tmp_path: Path) -> None:
    config = {"partitions": {"default": {**PARTITION, "ready_after": "1h"}}}
    with serving(tmp_path, config) as site:
        site.node("w1", pool="w")
    with serving(tmp_path, config) as site:
        assert site.as_owner.get("/api/v1/usage").json() == {
            "partition": "default",
            "ready": False,
            "pools": {},
            "without_pool": None,
        }
        assert site.as_owner.get("/api/v1/pools/w").json()["use"] is None
        site.as_owner.post("/api/v1/partitions/default/ready")
        found = site.as_owner.get("/api/v1/usage").json()
        # The node has no agent yet.
        figures = {"total": 1, "available": 0, "pending": 0, "idle": 0, "ordered": 0, "disabled": 0}
        assert found["ready"] and found["pools"]["w"] == {"ready": True, **figures}
        assert [event for event, _ in site.log] == ["usage", "usage"]
        assert site.log[-1][1] == found


def test_usage_of_nodes_without_a_pool(tmp_path: Path) -> None:
    with serving(tmp_path, CONFIG) as site:
        get(site, "pools")
        site.node("a")
        site.node("b")
        submit(site.as_owner)
        without = get(site, "usage")["without_pool"]
        assert (without["total"], without["available"], without["pending"]) == (2, 1, 0)
        assert list(get(site, "usage")["pools"]) == ["own", "w"]


def test_a_provider_that_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as site:
        bad = {"pools": {"w": {**POOL, "provider": {"cloud": 1}}}}
        for answer in (
            site.as_owner.put("/api/v1/partitions/default", json=bad),
            site.as_owner.put("/api/v1/config", json={"partitions": {"default": bad}}),
            site.as_owner.post("/api/v1/config/validate", json={"partitions": {"default": bad}}),
        ):
            assert (answer.status_code, answer.json()["field"]) == (422, "partitions.default.pools.w.provider")
