"""Jobs over HTTP: submit, find, scale, kill and wait for jobs; refusals name the field and the remedy."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.cli.output import state_of
from fairlead.client import Client, Problem
from fairlead.http.routes import jobs
from fairlead.wire import api as wire
from tests.http.serving import JOB, Serving, submit


def job(site: Serving, name: str, **params: Any) -> dict[str, Any]:
    answer = site.as_owner.get(f"/api/v1/jobs/{name}", params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_job_from_submit_to_end(site: Serving) -> None:
    site.node("n1")
    name = submit(site.as_owner, {"name": "hello", "labels": {"team": "a"}, **JOB})
    found = job(site, name)
    assert (found["name"], found["user"], found["queue"], found["state"]) == (
        "hello",
        "owner",
        "root.default",
        "running",
    )
    assert found["labels"] == {"team": "a"}
    assert found["stages"][0]["resources"] == {"cpu": 1}
    assert (found["stages"][0]["assigned"], found["stages"][0]["running"]) == (1, 0)
    assert state_of(msgspec.convert(found, wire.Job)) == "assigned"
    site.report(name, "running")
    found = job(site, name)
    assert (found["stages"][0]["assigned"], found["stages"][0]["running"]) == (0, 1)
    assert state_of(msgspec.convert(found, wire.Job)) == "running"
    task = site.as_owner.get(f"/api/v1/jobs/{name}/tasks").json()["tasks"][0]
    assert (task["state"], task["node"], task["attempt"]) == ("running", "n1", 1)
    site.report(name, "succeeded", exit_code=0)
    found = job(site, name)
    assert (found["state"], found["stages"][0]["ended"]) == ("succeeded", {"succeeded": 1})
    assert found["ended"] >= found["submitted"] > 1_600_000_000


def test_what_is_wrong_is_said_with_field_and_remedy(site: Serving) -> None:
    answer = site.as_owner.post("/api/v1/jobs", json={"stages": [{"comand": ["true"]}]})
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    problem = answer.json()
    assert (problem["status"], problem["field"], problem["code"]) == (422, "stages[0].comand", "invalid")
    assert "did you mean command?" in problem["detail"]


def test_an_idempotency_key_makes_one_job(site: Serving) -> None:
    headers = {"Idempotency-Key": "k1"}
    first, again = (site.as_owner.post("/api/v1/jobs", json=JOB, headers=headers) for _ in range(2))
    assert first.json() == again.json()
    other = site.as_owner.post("/api/v1/jobs", json={"name": "other", **JOB}, headers=headers)
    assert (other.status_code, other.json()["field"]) == (409, "key")
    assert len(site.as_owner.get("/api/v1/jobs").json()["jobs"]) == 1


def test_many_jobs_in_one_call(site: Serving) -> None:
    documents = [{"name": f"j{number}", **JOB} for number in range(700)]
    documents[3] = {"name": "bad name", **JOB}
    answer = site.as_owner.post("/api/v1/jobs/batch", json={"jobs": documents}, headers={"Idempotency-Key": "b"})
    items = answer.json()["items"]
    assert [at for at, item in enumerate(items) if item["problem"]] == [3]
    assert items[3]["problem"]["field"] == "jobs[3].name"
    assert job(site, items[699]["job"])["name"] == "j699"
    again = site.as_owner.post("/api/v1/jobs/batch", json={"jobs": documents}, headers={"Idempotency-Key": "b"})
    assert again.json() == answer.json()


def test_equal_jobs_of_a_batch_stand_for_themselves(site: Serving) -> None:
    good, bad = {"name": "same", **JOB}, {"name": "bad name", **JOB}
    answer = site.as_owner.post("/api/v1/jobs/batch", json={"jobs": [good, bad, good, {**good, "id": "own"}, bad]})
    items = answer.json()["items"]
    assert [item["problem"] and item["problem"]["field"] for item in items] == [
        None,
        "jobs[1].name",
        None,
        None,
        "jobs[4].name",
    ]
    names = [item["job"] for item in items if item["job"]]
    assert len(set(names)) == 3 and "own" in names
    assert [job(site, name)["name"] for name in names] == ["same"] * 3


def test_pages_and_filters(site: Serving) -> None:
    ann, bob = site.as_user("ann"), site.as_user("bob")
    for number in range(7):
        submit(ann, {"name": f"a{number}", "labels": {"n": str(number % 2)}, **JOB})
        submit(bob, {"name": f"b{number}", **JOB})
    submit(bob, {"name": "once", **JOB})

    def names(**params: Any) -> list[str]:
        found: list[str] = []
        cursor = ""
        while True:
            page = site.as_owner.get("/api/v1/jobs", params={**params, "cursor": cursor, "limit": 3}).json()
            assert len(page["jobs"]) <= 3
            found += [each["name"] for each in page["jobs"]]
            cursor = page["next"]
            if not cursor:
                return found

    assert len(names()) == 15
    assert names()[0] == "once"  # the newest first
    assert names(user="ann") == [f"a{number}" for number in (6, 5, 4, 3, 2, 1, 0)]
    assert names(label="n=1") == ["a5", "a3", "a1"]
    assert names(name="once") == ["once"]
    assert names(state="running") == []
    assert len(names(state=["pending", "running"])) == 15
    assert names(queue="root") == names()
    assert names(queue="root.other") == []
    assert site.as_owner.get("/api/v1/jobs", params={"state": "odd"}).status_code == 422
    assert site.as_owner.get("/api/v1/jobs", params={"cursor": "x"}).status_code == 422
    assert site.as_owner.get("/api/v1/jobs", params={"limit": 1001}).status_code == 400


def test_a_parameter_that_a_request_does_not_have_is_refused(site: Serving) -> None:
    for path, name, remedy in (
        ("jobs?usr=ann", "usr", "did you mean user?"),
        (
            "jobs?job_id=7",
            "job_id",
            "it has cursor, id, label, limit, min_revision, name, partition, queue, ",
        ),
        ("history?stat=failed", "stat", "did you mean state?"),
        ("whoami?verbose=1", "verbose", "leave it out"),
    ):
        answer = site.as_owner.get(f"/api/v1/{path}")
        assert (answer.status_code, answer.json()["field"]) == (422, name)
        assert remedy in answer.json()["detail"]
    with Client(site.url, site.owner) as client, pytest.raises(TypeError, match="'usr'"):
        list(client.jobs(usr="ann"))  # type: ignore[call-arg]  # mypy refuses it too


def test_tasks_in_pages(site: Serving) -> None:
    stages = [{"name": "a", "count": 5}, {"name": "b", "count": 4}]
    name = submit(site.as_owner, {"stages": stages})
    found = []
    cursor = ""
    while True:
        page = site.as_owner.get(f"/api/v1/jobs/{name}/tasks", params={"cursor": cursor, "limit": 2}).json()
        found += [(task["stage"], task["index"]) for task in page["tasks"]]
        cursor = page["next"]
        if not cursor:
            break
    assert found == [("a", index) for index in range(5)] + [("b", index) for index in range(4)]
    only = site.as_owner.get(f"/api/v1/jobs/{name}/tasks", params={"stage": "b"}).json()["tasks"]
    assert [task["index"] for task in only] == [0, 1, 2, 3]
    assert site.as_owner.get(f"/api/v1/jobs/{name}/tasks", params={"stage": "c"}).status_code == 404


def test_scale_and_kill(site: Serving) -> None:
    site.node("n1")
    name = submit(site.as_owner, {"stages": [{"name": "w", "count": 2, "min": 1, "resources": {"cpu": 1}}]})
    assert site.as_owner.post(f"/api/v1/jobs/{name}/scale", json={"count": 3}).json() == {"note": ""}
    assert job(site, name)["stages"][0]["count"] == 3
    again = site.as_owner.post(f"/api/v1/jobs/{name}/scale", json={"stage": "w", "count": 3})
    assert again.json() == {"note": "no change"}
    odd = site.as_owner.post(f"/api/v1/jobs/{name}/scale", json={"stage": "x", "count": 3})
    assert (odd.status_code, odd.json()["field"]) == (422, "stage")
    assert site.as_owner.post(f"/api/v1/jobs/{name}/kill").json() == {"note": ""}
    assert job(site, name)["state"] == "stopping"
    assert site.as_owner.post("/api/v1/jobs/nothing/kill").status_code == 404


def test_a_killed_job_is_stopping_until_its_last_task_has_ended(site: Serving) -> None:
    site.node("n1")
    name = submit(site.as_owner, JOB)
    site.report(name, "running")
    site.as_owner.post(f"/api/v1/jobs/{name}/kill")
    found = job(site, name, wait=0.05)
    assert (found["state"], found["ended"], found["stages"][0]["stopping"]) == ("stopping", None, 1)
    assert [each["id"] for each in site.as_owner.get("/api/v1/jobs?state=stopping").json()["jobs"]] == [name]
    assert site.as_owner.get("/api/v1/jobs?state=killed").json()["jobs"] == []
    answers: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: answers.append(job(site, name, wait=30)))
    waiting.start()
    site.report(name, "stopped")
    waiting.join(30)
    assert answers[0]["state"] == "killed" and answers[0]["ended"] is not None


def test_priority(site: Serving) -> None:
    ann = site.as_user("ann")
    name = submit(ann)
    assert ann.post(f"/api/v1/jobs/{name}/priority", json={"priority": -5}).status_code == 200
    assert ann.post(f"/api/v1/jobs/{name}/priority", json={"priority": 0}).status_code == 200
    assert ann.post(f"/api/v1/jobs/{name}/priority", json={"priority": 5}).status_code == 403
    assert site.as_owner.post(f"/api/v1/jobs/{name}/priority", json={"priority": 5}).status_code == 200
    assert job(site, name)["priority"] == 5


def test_a_priority_above_the_limit_is_refused_by_every_interface(
    site: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detail = (
        "5 is above 0, the max_priority of user ann in root.default; write at most 0, or ask an operator for a higher "
        "max_priority"
    )
    ann = site.as_user("ann")
    refused = ann.post("/api/v1/jobs", json={"priority": 5, **JOB})
    assert (refused.status_code, refused.json()["field"], refused.json()["detail"]) == (403, "priority", detail)
    batch = ann.post("/api/v1/jobs/batch", json={"jobs": [{"priority": 5, **JOB}, JOB]}).json()["items"]
    assert [item["problem"] and item["problem"]["status"] for item in batch] == [403, None]
    secret = site.token("user", "ann")
    with Client(site.url, secret) as client, pytest.raises(Problem, match="the max_priority of user ann"):
        client.submit(["true"], priority=5)
    monkeypatch.setenv("FAIRLEAD_URL", site.url)
    monkeypatch.setenv("FAIRLEAD_TOKEN", secret)
    (tmp_path / "job.yaml").write_text("priority: 5\nstages: [{command: ['true']}]\n")
    for arguments in (["--priority=5", "--", "true"], [f"--file={tmp_path / 'job.yaml'}"]):
        done = CliRunner().invoke(app, ["submit", *arguments])
        assert done.exit_code != 0 and detail in " ".join(done.output.split())
    assert submit(site.as_owner, {"priority": 5, "user": "ann", **JOB})


def test_explain(site: Serving) -> None:
    site.node("n1", cpu=2)
    name = submit(site.as_owner, {"stages": [{"name": "w", "count": 2, "resources": {"cpu": 2}}]})
    answer = site.as_owner.get(f"/api/v1/jobs/{name}/explain").json()
    assert answer["waiting"][0]["code"] == "never fits"
    site.node("n2", cpu=2)
    big = submit(site.as_owner, {"stages": [{"name": "w", "resources": {"cpu": 2}}]})
    waiting = site.as_owner.get(f"/api/v1/jobs/{big}/explain").json()["waiting"][0]
    assert (waiting["code"], waiting["position"], waiting["stage"]) == ("no capacity", 0, "w")
    assert waiting["reason"] == "0 of 1 fit now: 2 nodes have too few CPUs free"


def test_waiting_for_the_end(site: Serving) -> None:
    site.node("n1")
    name = submit(site.as_owner)
    assert job(site, name, wait=0.01)["state"] == "running"
    site.report(name, "running")
    ended: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: ended.append(job(site, name, wait=30)))
    waiting.start()
    site.report(name, "succeeded", exit_code=0)
    waiting.join(30)
    assert ended[0]["state"] == "succeeded"
    assert job(site, name, wait=30)["state"] == "succeeded"  # at once
    assert site.as_owner.get(f"/api/v1/jobs/{name}", params={"wait": 61}).status_code == 400


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"", 400, "body"),
        (b"{", 400, "body"),
        (b'"text"', 422, "job"),
        (b"[" * 100_000, 400, "body"),
        (b'{"stages": [{"count": 1e400}]}', 400, "body"),
        (b'{"stages": [{"count": 123456789012345678901234567890}]}', 422, "stages[0].count"),
        (b"\xff\xfe", 400, "body"),
        (b'{"id": 5, "stages": [{}]}', 422, "id"),
        (b'{"stages": [{"resources": {"cpu": NaN}}]}', 400, "body"),
    ],
)
def test_odd_bodies(site: Serving, body: bytes, status: int, field: str) -> None:
    answer = site.as_owner.post("/api/v1/jobs", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["field"]) == (status, field), answer.text


def test_a_page_ends_by_its_own_size(site: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Characters that are one byte in a specification may be six in an answer."""
    monkeypatch.setattr(jobs, "PAGE_BYTES", 100_000)
    stage = {"command": ["true", "\x01" * 10_000], "resources": {"cpu": 1}}
    made = [submit(site.as_owner, {"stages": [stage]}) for _ in range(8)]
    found: list[str] = []
    cursor = ""
    while cursor or not found:
        answer = site.as_owner.get("/api/v1/jobs", params={"cursor": cursor})
        assert len(answer.content) < 200_000
        found += [each["id"] for each in answer.json()["jobs"]]
        cursor = answer.json()["next"]
    assert found == made[::-1]


def test_jobs_are_searched_by_a_part_of_their_name_or_user(site: Serving) -> None:
    with site.as_user("ann") as ann, site.as_user("bob") as bob:
        first, second = submit(ann, {**JOB, "name": "resnet-sweep"}), submit(bob, {**JOB, "name": "tokenize"})

    def found(text: str) -> list[str]:
        return [job["id"] for job in site.as_owner.get("/api/v1/jobs", params={"search": text}).json()["jobs"]]

    assert found("net-s") == [first] and found("bo") == [second]
    assert found("e") == [second, first] and found("none") == []
