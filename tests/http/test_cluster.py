"""Nodes, queues, lanes, partitions, configuration over HTTP; and a control plane whose journal fails."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from fairlead.core.commands import DisconnectNodes
from fairlead.journal import NotWritten, SqliteJournal
from fairlead.wire.api import Role
from tests.http.serving import JOB, SECONDS, Serving, serving, submit
from tests.until import until


def get(site: Serving, path: str, **params: Any) -> dict[str, Any]:
    answer = site.as_owner.get(f"/api/v1/{path}", params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_nodes(site: Serving) -> None:
    for number in range(5):
        site.node(f"n{number}", labels={"rack": "r1"})
    name = submit(site.as_owner)
    site.report(name, "running")
    found = get(site, "nodes")["nodes"]
    assert [node["name"] for node in found] == [f"n{number}" for number in range(5)]
    busy = get(site, "nodes/n0")
    assert (busy["resources"], busy["used"], busy["tasks"]) == ({"cpu": 4, "memory": 8 * 2**30}, {"cpu": 1}, 1)
    page = get(site, "nodes", limit=2)
    rest = get(site, "nodes", cursor=page["next"])
    assert [node["name"] for node in page["nodes"] + rest["nodes"]] == [node["name"] for node in found]
    assert site.as_owner.post("/api/v1/nodes/n0/drain").json() == {"note": ""}
    assert site.as_owner.post("/api/v1/nodes/n1/disable").json() == {"note": ""}
    assert [node["name"] for node in get(site, "nodes", state="draining")["nodes"]] == ["n0"]
    assert site.as_owner.post("/api/v1/nodes/n1/enable").json() == {"note": ""}
    assert get(site, "nodes/n1")["state"] == "up"
    assert site.as_owner.delete("/api/v1/nodes/n4").json() == {"note": ""}
    assert site.as_owner.get("/api/v1/nodes/n4").status_code == 404
    assert site.as_owner.post("/api/v1/nodes/n4/drain").status_code == 404
    assert site.as_owner.delete("/api/v1/nodes/n4").status_code == 404
    assert site.as_owner.post("/api/v1/nodes/n0/explode").status_code == 400


def test_queues(site: Serving) -> None:
    site.node("n1")
    submit(site.as_owner)
    found = {queue["path"]: queue for queue in get(site, "queues")["queues"]}
    assert set(found) == {"root", "root.default"}
    assert (found["root"]["used"], found["root"]["leaf"], found["root.default"]["running"]) == ({"cpu": 1}, False, 1)
    assert site.as_owner.post("/api/v1/queues/root.default/stop").json() == {"note": ""}
    assert get(site, "queues/root.default")["state"] == "stopped"
    assert site.as_owner.post("/api/v1/jobs", json=JOB).status_code == 409
    assert site.as_owner.post("/api/v1/queues/root.default/start").json() == {"note": ""}
    assert site.as_owner.post("/api/v1/queues/root.none/stop").status_code == 404
    assert site.as_owner.get("/api/v1/queues/root.none").status_code == 404


def test_lanes(site: Serving) -> None:
    site.node("n1", cpu=1)
    names = [submit(site.as_owner) for _ in range(4)]
    answer = get(site, "lanes", first=2)
    assert answer["ready"]
    (lane,) = answer["lanes"]
    assert (lane["queue"], lane["shape"], lane["asks"], lane["tasks"]) == ("root.default", "cpu=1", 3, 3)
    assert [each["job"] for each in lane["first"]] == names[1:3]
    front = site.as_owner.post("/api/v1/lanes/front", json={"job": names[3], "stage": "main"})
    assert front.status_code == 200
    assert get(site, "lanes", first=1)["lanes"][0]["first"][0]["job"] == names[3]
    reset = {"queue": "root.default", "job": names[3]}
    assert site.as_owner.post("/api/v1/lanes/reset", json=reset).json() == {"note": ""}
    assert get(site, "lanes", first=9)["lanes"][0]["first"][-1]["job"] == names[3]
    assert site.as_owner.post("/api/v1/lanes/cancel", json={"job": names[1], "stage": "main"}).json() == {"note": ""}
    assert get(site, f"jobs/{names[1]}")["state"] == "killed"
    assert get(site, "lanes")["lanes"][0]["tasks"] == 2
    assert site.as_owner.post("/api/v1/lanes/front", json={"job": "none", "stage": "main"}).status_code == 404


def test_holds(tmp_path: Path) -> None:
    config = {"partitions": {"default": {"starving_after": "1ms", "hold_for": "1h"}}}
    with serving(tmp_path, config) as site:
        site.node("n1", cpu=1)
        first, second = submit(site.as_owner), submit(site.as_owner)
        (hold,) = until(lambda: get(site, "holds")["holds"])
        assert (hold["job"], hold["stage"], hold["tasks"], hold["nodes"]) == (second, "main", 1, ["n1"])
        assert hold["held"] == {"n1": get(site, "nodes/n1")["held"]} == {"n1": {"cpu": 1}}
        assert hold["until"] == hold["since"] + 3600
        assert get(site, "nodes/n1")["held_for"] == [second] and get(site, "nodes")["nodes"][0]["held_for"] == [second]
        site.as_owner.post("/api/v1/jobs", json={**JOB, "priority": 1})
        wanted = {"starving_after": "1h", "hold_for": "1h"}
        assert site.as_owner.put("/api/v1/partitions/default", json=wanted).status_code == 200
        release = site.as_owner.post("/api/v1/holds/release", json={"job": second, "stage": "main"})
        assert (release.status_code, release.json()) == (200, {"note": ""})
        assert get(site, "holds")["holds"] == []
        again = site.as_owner.post("/api/v1/holds/release", json={"job": second})
        assert again.json() == {"note": "no nodes are held for it"}
        assert site.as_owner.post("/api/v1/holds/release", json={"job": "none"}).status_code == 404
        assert get(site, f"jobs/{first}")["state"] == "running"


def test_promises(site: Serving) -> None:
    site.node("n1", cpu=1)
    low = submit(site.as_owner)
    high = site.as_owner.post("/api/v1/jobs", json={**JOB, "priority": 1}).json()["job"]
    answer = get(site, "holds")
    (promise,) = answer["promises"]
    assert answer["holds"] == [] and promise.pop("since") > 0
    expected = {"job": high, "stage": "main", "tasks": 1, "nodes": ["n1"], "stopping": 1, "ordered": False}
    assert promise == {**expected, "held": {"n1": {"cpu": 1}}}
    assert get(site, "nodes/n1")["held_for"] == [high]
    (task,) = get(site, f"jobs/{low}/tasks")["tasks"]
    assert (task["state"], task["note"]) == ("stopping", f"stops for job {high}")


def test_metrics_of_nodes_jobs_and_the_inbox(site: Serving) -> None:
    site.node("n1", cpu=1)
    submit(site.as_owner)
    submit(site.as_owner)
    text = site.as_owner.get("/metrics").text
    for line in (
        'fairlead_nodes{partition="default",state="up"} 1.0',
        'fairlead_jobs{partition="default",state="waiting"} 1.0',
        'fairlead_jobs{partition="default",state="running"} 1.0',
        'fairlead_queue_running_tasks{partition="default",queue="root.default"} 1.0',
        'fairlead_inbox_messages{kind="commands",partition="default"} 0.0',
        'fairlead_inbox_refused_total{kind="commands",partition="default"} 0.0',
    ):
        assert line in text, line


def test_lanes_before_readiness(tmp_path: Path) -> None:
    with serving(tmp_path) as site:
        site.node("n1", cpu=1)
    with serving(tmp_path) as site:
        submit(site.as_owner)
        answer = get(site, "lanes")
        assert (answer["ready"], answer["lanes"][0]["tasks"]) == (False, 1)
        site.as_owner.post("/api/v1/partitions/default/ready")
        assert get(site, "lanes")["ready"]


def test_configuration(site: Serving) -> None:
    site.node("n1")
    before = get(site, "config")
    assert before["partitions"]["default"]["queues"]["root"] == {"default": {"share": 100, "order": "fair"}}
    wanted = {"partitions": {"default": {"chain": "1s", "queues": {"root": {"default": {}, "ml": {"share": 60}}}}}}
    would = site.as_owner.post("/api/v1/config/validate", json=wanted).json()
    assert would["differences"] == [
        {"key": "default.queues.root.default.share", "before": 100, "after": None, "what": "setting"},
        {"key": "default.queues.root.default.order", "before": "fair", "after": None, "what": "setting"},
        {"key": "default.queues.root.ml", "before": None, "after": {"share": 60}, "what": "queue"},
        {"key": "default.chain", "before": None, "after": "1s", "what": "setting"},
    ]
    assert get(site, "config") == before
    done = site.as_owner.put("/api/v1/config", json=wanted)
    assert done.json() == {
        "version": before["version"] + 1,
        "differences": would["differences"],
        "losses": [],
        "machines": [],
    }
    assert "root.ml" in [queue["path"] for queue in get(site, "queues")["queues"]]
    assert site.as_owner.put("/api/v1/config", json=wanted).json()["differences"] == []
    wrong = site.as_owner.put("/api/v1/config", json={"partitions": {"default": {"chian": 1}}})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "partitions.default.chian")
    submit(site.as_owner, {"queue": "root.ml", **JOB})
    below = {"partitions": {"default": {"queues": {"root": {"default": {}, "ml": {"deep": {}}}}}}}
    conflict = site.as_owner.put("/api/v1/config", json=below)
    assert (conflict.status_code, conflict.json()["field"]) == (409, "partitions.default.queues.root.ml.deep")


def test_shares(site: Serving) -> None:
    site.node("n1")
    queues = {"root": {"ml": {"share": 60, "limit": {"cpu": 3}}, "ci": {"share": 40}}}
    site.as_owner.put("/api/v1/config", json={"partitions": {"default": {"queues": queues}}})
    submit(site.as_owner, {"queue": "root.ml", "stages": [{"resources": {"cpu": 3}}]})
    ml = get(site, "queues/root.ml")
    assert (ml["entitlement_percent"], ml["use_percent"], round(ml["loan_percent"], 6)) == (60.0, 75.0, 15.0)
    found = get(site, "shares")
    assert (found["shares"], found["requestors"]) == ({"root.ml": 60, "root.ci": 40}, [])
    wanted = {
        "shares": {"root.ml": 30},
        "requestors": [{"match": "^ci-", "queue": "root.ci"}],
        "rebalance_threshold": 20,
        "rebalance_after": "90s",
    }
    done = site.as_owner.put("/api/v1/shares", json=wanted)
    assert {difference["key"] for difference in done.json()["differences"]} == {
        "default.queues.root.ml.share",
        "default.requestors",
        "default.rebalance_threshold",
        "default.rebalance_after",
    }
    assert get(site, "shares") == {
        "shares": {"root.ml": 30, "root.ci": 40},
        "requestors": [{"match": "^ci-", "queue": "root.ci"}],
        "rebalance_threshold": 20,
        "rebalance_after": 90.0,
    }
    assert get(site, "queues/root.ml")["limit"] == {"cpu": 3}  # what was not named stays
    chosen, named = submit(site.as_owner, {**JOB, "user": "ci-1"}), submit(site.as_owner, {**JOB, "queue": "root.ml"})
    assert [(each["queue"], each["matched"]) for each in (get(site, f"jobs/{chosen}"), get(site, f"jobs/{named}"))] == [
        ("root.ci", "^ci-"),
        ("root.ml", None),
    ]
    for wrong, field in (
        ({"shares": {"root.mi": 1}}, "shares.root.mi"),
        ({"shares": {"root.ml": -1}}, "queues.root.ml.share"),
        ({"requestors": [{"match": "(", "queue": "root.ci"}]}, "requestors[0].match"),
        ({"more": 1}, "more"),
    ):
        answer = site.as_owner.put("/api/v1/shares", json=wrong)
        assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text


def test_secrets(site: Serving) -> None:
    ann, bob = site.as_user("ann"), site.as_user("bob")
    named = {"stages": [{"command": ["true"], "secrets": {"PASSWORD": "db"}, "resources": {"cpu": 1}}]}
    refused = ann.post("/api/v1/jobs", json=named)
    assert (refused.status_code, refused.json()["field"]) == (422, "stages[0].secrets.PASSWORD")
    assert ann.put("/api/v1/secrets/db", json={"value": "hidden-value"}).status_code == 200
    assert ann.get("/api/v1/secrets").json() == {"secrets": ["db"]}
    assert bob.get("/api/v1/secrets").json() == {"secrets": []}
    assert bob.post("/api/v1/jobs", json=named).status_code == 422
    name = submit(ann, named)
    assert "hidden-value" not in ann.get(f"/api/v1/jobs/{name}").text
    assert b"hidden-value" not in (site.folder / "journal-wal").read_bytes()
    assert b"hidden-value" not in (site.folder / "secrets").read_bytes()
    assert site.secrets.values("ann", ("db", "other")) == {"db": "hidden-value"}
    assert ann.put("/api/v1/secrets/brief", json={"value": "x", "expires_in": "1us"}).status_code == 200
    assert ann.get("/api/v1/secrets").json() == {"secrets": ["db"]}
    assert ann.delete("/api/v1/secrets/db").status_code == 200
    assert ann.delete("/api/v1/secrets/db").status_code == 404
    assert ann.put("/api/v1/secrets/b d", json={"value": "x"}).status_code == 422


def test_secrets_have_bounds(site: Serving) -> None:
    ann, bob = site.as_user("ann"), site.as_user("bob")
    for value in ("x" * 65_537, "ü" * 32_769):
        refused = ann.put("/api/v1/secrets/s0", json={"value": value})
        assert (refused.status_code, refused.json()["field"]) == (422, "value")
        assert "a secret has at most 65,536" in refused.json()["detail"]
    for at in range(16):
        assert ann.put(f"/api/v1/secrets/s{at}", json={"value": "ü" * 32_768}).status_code == 200
    refused = ann.put("/api/v1/secrets/s16", json={"value": "x"})
    assert (refused.status_code, refused.json()["field"]) == (409, "value")
    assert "all secrets of a user have at most 1,048,576" in refused.json()["detail"]
    assert ann.put("/api/v1/secrets/s0", json={"value": "x" * 65_536}).status_code == 200
    assert bob.put("/api/v1/secrets/s0", json={"value": "x"}).status_code == 200
    assert ann.delete("/api/v1/secrets/s0").status_code == 200
    assert ann.put("/api/v1/secrets/s16", json={"value": "x"}).status_code == 200


@pytest.mark.parametrize("role", ["user", "operator", "admin"])
def test_a_job_in_the_name_of_another_user_gets_no_secrets(site: Serving, role: Role) -> None:
    """The job's command could print them."""
    ann, other = site.as_user("ann"), site.as_user("olga", role)
    assert ann.put("/api/v1/secrets/db", json={"value": "hidden-value"}).status_code == 200
    for name in ("db", "none"):  # the answer does not say which secrets ann has
        stage = {"command": ["env"], "secrets": {"PASSWORD": name}, "resources": {"cpu": 1}}
        document = {"user": "ann", "stages": [{"command": ["true"], "resources": {"cpu": 1}, "name": "a"}, stage]}
        refused = other.post("/api/v1/jobs", json=document)
        assert refused.status_code == 403
        assert refused.json()["field"] == "stages[1].secrets.PASSWORD"
        assert "olga submits this job in the name of ann" in refused.json()["detail"]
        (item,) = other.post("/api/v1/jobs/batch", json={"jobs": [document]}).json()["items"]
        assert item["problem"]["detail"] == refused.json()["detail"]
    assert not site.as_owner.get("/api/v1/jobs").json()["jobs"]


def test_partitions_come_and_go(site: Serving) -> None:
    site.node("n1")
    kept = submit(site.as_owner)
    assert site.as_owner.put("/api/v1/partitions/night", json={"queues": {"root": {"q": {}}}}).status_code == 200
    assert [partition["name"] for partition in get(site, "partitions")["partitions"]] == ["default", "night"]
    site.node("x1", partition="night")
    name = submit(site.as_owner, partition="night")
    assert get(site, f"jobs/{name}", partition="night")["state"] == "running"
    assert get(site, f"jobs/{kept}")["state"] == "running"  # without a name it is the one called default
    assert site.as_owner.get("/api/v1/jobs", params={"partition": "nigth"}).status_code == 404
    gone = site.as_owner.delete("/api/v1/partitions/night")
    assert gone.status_code == 200, gone.text
    assert [partition["name"] for partition in get(site, "partitions")["partitions"]] == ["default"]
    assert any(message.stops for message in site.orders.messages if message.node == "x1")
    assert site.as_owner.delete("/api/v1/partitions/night").status_code == 404
    assert site.as_owner.delete("/api/v1/partitions/default").status_code == 409
    assert site.as_owner.put("/api/v1/partitions/bad name", json={}).status_code == 422


def test_what_a_configuration_without_a_partition_or_a_pool_loses(site: Serving) -> None:
    pool = {"pools": {"spare": {"node": {"cpu": 4}}}}
    before = {"partitions": {"default": pool, "empty": {}, "night": {}}}
    assert site.as_owner.put("/api/v1/config", json=before).json()["losses"] == []
    site.node("n1", pool="spare")
    site.node("x1", partition="night")
    submit(site.as_owner, partition="night")
    ended = submit(site.as_owner, partition="night")
    site.as_owner.post(f"/api/v1/jobs/{ended}/kill", params={"partition": "night"})
    after = {"partitions": {"default": {}}}
    losses = [
        {"key": "default.pools.spare", "jobs": 0, "nodes": 1},
        {"key": "night", "jobs": 1, "nodes": 1},
    ]
    assert site.as_owner.post("/api/v1/config/validate", json=after).json()["losses"] == losses
    assert site.as_owner.put("/api/v1/config", json=after).json()["losses"] == losses


def test_a_restart_waits_for_its_nodes(tmp_path: Path) -> None:
    with serving(tmp_path) as site:
        site.node("n1")
        submit(site.as_owner, {"id": "first", **JOB})
    with serving(tmp_path) as site:
        assert site.client().get("/readyz").status_code == 503
        assert get(site, "partitions")["partitions"][0]["waiting_for"] == ["n1"]
        assert get(site, "usage") == {
            "partition": "default",
            "ready": False,
            "pools": {},
            "without_pool": None,
        }
        second = submit(site.as_owner, {"id": "second", **JOB})
        assert get(site, f"jobs/{second}/explain")["waiting"][0]["code"] == "not ready"
        assert site.as_owner.post("/api/v1/partitions/default/ready").json() == {"note": ""}
        assert site.client().get("/readyz").status_code == 200
        # The node has no agent yet.
        assert get(site, "jobs/second")["state"] == "pending"
        assert "1 node is disconnected" in get(site, f"jobs/{second}/explain")["waiting"][0]["reason"]
        site.node("n1")
        assert get(site, "jobs/second")["state"] == "running"
        assert ("first", "main", 1) in site.orders.launches  # sent again, because the agent may not have received it


class Failing(SqliteJournal):
    """A journal that fails once, when `fail` is set."""

    fail = False

    def append(self, stream: str, epoch: int, seq: int, payload: bytes) -> None:
        if Failing.fail:
            Failing.fail = False
            raise NotWritten("no space left")
        super().append(stream, epoch, seq, payload)


def test_a_journal_that_fails(tmp_path: Path) -> None:
    with serving(tmp_path, open_journal=lambda: Failing(tmp_path / "journal", synchronous="off")) as site:
        site.node("n1")
        before = submit(site.as_owner)
        Failing.fail = True
        answer = site.as_owner.post("/api/v1/jobs", json={"id": "lost", **JOB})
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert "nothing was done" in answer.json()["detail"]
        until(lambda: not site.client().get("/healthz").json()["problem"])
        assert get(site, f"jobs/{before}")["state"] == "running"
        assert site.as_owner.get("/api/v1/jobs/lost").status_code == 404
        submit(site.as_owner, {"id": "lost", **JOB})
        assert "no space left" in site.notes[0]


def test_any_fault_at_a_new_beginning_is_tried_again(tmp_path: Path) -> None:
    faults = [RuntimeError("odd"), OSError(5, "Input/output error"), MemoryError()]

    class Failing(SqliteJournal):
        def append(self, stream: str, epoch: int, seq: int, payload: bytes) -> None:
            if faults and len(faults) == 3 and seq > 2:
                raise faults.pop()
            super().append(stream, epoch, seq, payload)

    def open_journal() -> SqliteJournal:
        if 0 < len(faults) < 3:
            raise faults.pop()
        return Failing(tmp_path / "journal", synchronous="off")

    with serving(tmp_path, open_journal=open_journal) as site:
        deadline = time.monotonic() + SECONDS
        while faults:
            site.as_owner.post("/api/v1/jobs", json=JOB)
            assert time.monotonic() < deadline
        while site.as_owner.get("/readyz").status_code != 200:
            assert time.monotonic() < deadline
        submit(site.as_owner)
        assert any("works again" in note for note in site.notes)


def test_a_disconnected_node_is_listed_as_such(site: Serving) -> None:
    site.node("n1")
    site.node("n2")
    site.tell(DisconnectNodes(names=("n2",), operator=True))
    listed = site.as_owner.get("/api/v1/nodes").json()["nodes"]
    assert [(node["name"], node["state"], node["disconnected"] is None) for node in listed] == [
        ("n1", "up", True),
        ("n2", "disconnected", False),
    ]
    away = site.as_owner.get("/api/v1/nodes", params={"state": "disconnected"}).json()["nodes"]
    assert [node["name"] for node in away] == ["n2"]
    assert [node["name"] for node in site.as_owner.get("/api/v1/nodes?state=up").json()["nodes"]] == ["n1"]
