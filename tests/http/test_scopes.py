"""Tokens with a scope: read-only, for one queue, with a budget, with confirmations. The server enforces them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.http.scopes import OF_JOBS, WITH_A_BUDGET
from fairlead.identity.tokens import Tokens
from fairlead.wire.operation import row_of
from fairlead.wire.operations import rows
from tests.http.serving import JOB, Serving, serving, submit
from tests.http.test_access import LEAST, MAY, ask, operations

QUEUES = {"root": {"order": "priority", "ml": {"order": "priority"}, "ads": {"order": "priority"}}}
TIMED = {"stages": [{"command": ["x"], "resources": {"cpu": 1}, "time_limit": "30min"}]}


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path, {"partitions": {"default": {"queues": QUEUES}}}) as site:
        yield site


def create(site: Serving, **fields: Any) -> httpx.Client:
    made = site.as_owner.post("/api/v1/tokens", json={"role": "user", "user": "ann", **fields})
    assert made.status_code == 201, made.text
    return site.client(made.json()["secret"])


def problem(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["detail"]


CHANGES = {row.operation_id for row in rows() if row.route.changes}
# What tokens with a scope may do, of all that changes something.
ALLOWED = {
    "read_only": set(),
    "queue": {row_of(operation).operation_id for operation in OF_JOBS},
    "budget": {row_of(operation).operation_id for operation in WITH_A_BUDGET},
}


@pytest.mark.parametrize("scope", ALLOWED)
def test_every_route_in_each_scope(site: Serving, scope: str) -> None:
    value: Any = {"read_only": True, "queue": "root.default", "budget": {"cpu": "1h"}}[scope]
    client = create(site, **{scope: value})
    for operation, method, path in operations(site):
        if LEAST[operation] in ("public", "user"):
            allowed = operation not in CHANGES or operation in ALLOWED[scope]
            assert (ask(client, method, path) != 403) == allowed, (operation, path)


def test_a_read_only_operator_asks_but_changes_nothing(site: Serving) -> None:
    client = create(site, role="operator", user="eve", read_only=True)
    for operation, method, path in operations(site):
        if LEAST[operation] in MAY["operator"]:
            assert (ask(client, method, path) == 403) == (operation in CHANGES), operation
    assert client.get("/api/v1/whoami").json()["scope"]["read_only"] is True


def test_questions_that_are_posted_change_nothing() -> None:
    """A row with `asks` must not change anything: this list is read by people when it grows."""
    assert {row.operation_id for row in rows() if row.route.asks} == set(
        "sentences tryPriority dryRun etas whatIf validateConfig login logout managerWaiting".split()
    )


def test_a_token_for_one_queue(queues: Serving) -> None:
    queues.node("n1", cpu=4)
    client = create(queues, queue="root.ml")
    everywhere = queues.as_user("ann")
    elsewhere = submit(everywhere, {"queue": "root.ads", **JOB})
    # Without a queue, the job goes to the token's.
    name = submit(client, JOB)
    assert client.get(f"/api/v1/jobs/{name}").json()["queue"] == "root.ml"
    told = "this token is only for root.ml and may not submit jobs to root.ads; use another token"
    for path, body in (
        ("jobs", {"queue": "root.ads", **JOB}),
        ("jobs/dry-run", {"queue": "root.ads", **JOB}),
        ("pipelines", {"jobs": [{"name": "a", "queue": "root.ads", **JOB}]}),
        (f"jobs/{name}/update", {"queue": "root.ads"}),
    ):
        assert problem(client.post(f"/api/v1/{path}", json=body)) == (403, told), path
    batch = client.post("/api/v1/jobs/batch", json={"jobs": [{"queue": "root.ads", **JOB}]}).json()["items"]
    assert batch[0]["problem"]["detail"] == told
    for verb, body in (
        ("kill", None),
        ("hold", None),
        ("release", None),
        ("requeue", None),
        ("scale", {"count": 2}),
        ("priority", {"priority": -1}),
        ("update", {"labels": {"a": "b"}}),
        ("tasks/kill", {"indices": [0]}),
    ):
        status, detail = problem(client.post(f"/api/v1/jobs/{elsewhere}/{verb}", json=body))
        assert (status, detail.partition(";")[0]) == (
            403,
            "this token is only for root.ml and may not change jobs of root.ads",
        ), verb
    assert client.get(f"/api/v1/jobs/{elsewhere}").status_code == 200  # it reads what its user may read
    assert client.post(f"/api/v1/jobs/{name}/kill").status_code == 200


def test_a_budget_is_charged_and_survives(queues: Serving, tmp_path: Path) -> None:
    queues.node("n1", cpu=4)
    client = create(queues, queue="root.ml", budget={"cpu": "1h"})
    status, detail = problem(client.post("/api/v1/jobs", json=JOB))
    assert (status, detail) == (
        422,
        "missing, and this token has a budget of cpu hours; write the longest run time",
    )
    # A refused job and a dry run cost nothing.
    assert client.post("/api/v1/jobs", json={"queue": "root.ads", **TIMED}).status_code == 403
    assert client.post("/api/v1/jobs/dry-run", json=TIMED).status_code == 200
    assert client.get("/api/v1/whoami").json()["scope"]["left"] == {"cpu": 1.0}
    submit(client, TIMED)
    submit(client, TIMED)
    told = "it may use 0.5 cpu hours, and the budget of this token has 0 left"
    for path, body in (("jobs", TIMED), ("jobs/dry-run", TIMED), ("pipelines", {"jobs": [{"name": "a", **TIMED}]})):
        status, detail = problem(client.post(f"/api/v1/{path}", json=body))
        assert (status, detail.partition(";")[0]) == (403, told), path
    listed = [token for token in queues.as_owner.get("/api/v1/tokens").json()["tokens"] if token["scope"]["budget"]]
    assert listed[0]["scope"]["left"] == {"cpu": 0.0}
    again = Tokens(tmp_path / "tokens")  # as after a restart
    assert [token.left() for token in again.all() if token.budget] == [{"cpu": 0}]


@pytest.mark.parametrize("stage", [{"count": 3}, {"tries": 3}, {"resources": {"cpu": 3}}, {"time_limit": "90min"}])
def test_all_that_a_job_may_use_counts(queues: Serving, stage: dict[str, Any]) -> None:
    client = create(queues, queue="root.ml", budget={"cpu": "1h"})
    answer = client.post("/api/v1/jobs", json={"stages": [{**TIMED["stages"][0], **stage}]})
    assert problem(answer)[1].startswith("it may use 1.5 cpu hours, and the budget of this token has 1 left")


def test_tasks_of_a_scoped_token_get_no_token(queues: Serving) -> None:
    """A task's token has all rights of its user, which would lead around the scope."""
    queues.node("n1", cpu=4)
    client = create(queues, queue="root.ml")
    name = submit(client, {"stages": [{"command": ["x"], "environment": {"A": "b", "FAIRLEAD_TOKEN": "own"}}]})
    found = queues.control.find("default").partition.jobs[name].spec.stages[0].environment
    assert found == (("A", "b"), ("FAIRLEAD_TOKEN", ""))
    submitted = queues.as_user("ann")
    waits = submit(submitted, {"queue": "root.ml", "stages": [{"command": ["x"], "resources": {"cpu": 99}}]})
    assert submitted.post(f"/api/v1/jobs/{waits}/kill").status_code == 200
    again = client.post(f"/api/v1/jobs/{waits}/rerun", json={"environment": {"FAIRLEAD_TOKEN": "x"}})
    assert again.status_code == 201, again.text
    spec = queues.control.find("default").partition.jobs[again.json()["job"]].spec
    assert dict(spec.stages[0].environment)["FAIRLEAD_TOKEN"] == ""


def test_others_work_is_stopped_after_a_confirmation(queues: Serving) -> None:
    queues.node("n1", cpu=1)
    bob, eve = queues.as_user("bob"), create(queues, role="operator", user="eve", confirm=True)
    his = submit(bob, {"queue": "root.ml", **JOB})
    first = eve.post(f"/api/v1/jobs/{his}/kill")
    asked = first.json()
    assert (first.status_code, asked["code"]) == (409, "unconfirmed")
    assert asked["detail"].startswith(f"kill would change job {his} of bob; to do it, send the request again")
    assert bob.get(f"/api/v1/jobs/{his}").json()["state"] != "killed"
    # The code is for this change of this caller only.
    header = {"Fairlead-Confirm": asked["confirm"]}
    assert eve.post(f"/api/v1/jobs/{his}/hold", headers=header).status_code == 409
    other = create(queues, role="operator", user="mia", confirm=True)
    assert other.post(f"/api/v1/jobs/{his}/kill", headers=header).status_code == 409
    assert eve.post("/api/v1/nodes/n1/drain", headers=header).status_code == 409
    assert eve.post(f"/api/v1/jobs/{his}/kill", headers=header).status_code == 200
    assert bob.get(f"/api/v1/jobs/{his}").json()["state"] in ("stopping", "killed")
    # Her own work needs none.
    hers = submit(eve, {"queue": "root.ml", **JOB})
    assert eve.post(f"/api/v1/jobs/{hers}/kill").status_code == 200


def test_a_priority_that_stops_others_is_confirmed(queues: Serving) -> None:
    queues.node("n1", cpu=1)
    bob, eve = queues.as_user("bob"), queues.as_user("eve", "operator")
    his = submit(bob, {"queue": "root.ml", **JOB})
    queues.report(his, "running")
    ask_first = {"Fairlead-Confirm": "ask"}
    for path, body in (
        ("jobs", {"queue": "root.ml", "priority": 9, **JOB}),
        ("jobs/batch", {"jobs": [{"queue": "root.ml", "priority": 9, **JOB}]}),
    ):
        asked = eve.post(f"/api/v1/{path}", json=body, headers=ask_first)
        assert asked.json()["detail"].partition(";")[0] == f"it would stop tasks of job {his} of bob", asked.text
    # Many jobs are not tried one by one.
    many = eve.post("/api/v1/jobs/batch", json={"jobs": [{"queue": "root.ml", **JOB}] * 21}, headers=ask_first)
    assert (many.status_code, many.json()["detail"].partition(",")[0]) == (409, "it would submit 21 jobs")
    waits = submit(eve, {"queue": "root.ml", **JOB})
    asked = eve.post(f"/api/v1/jobs/{waits}/priority", json={"priority": 9}, headers=ask_first)
    assert asked.json()["detail"].partition(";")[0] == f"it would stop tasks of job {his} of bob"
    done = eve.post(
        f"/api/v1/jobs/{waits}/priority", json={"priority": 9}, headers={"Fairlead-Confirm": asked.json()["confirm"]}
    )
    assert done.status_code == 200


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"role": "operator", "queue": "root.ml"}, "queue"),
        ({"role": "admin", "budget": {"gpu": "1h"}}, "budget"),
        ({"budget": {"memory": "1h"}}, "budget.memory"),
        ({"budget": {"gpu": "long"}}, "budget.gpu"),
        ({"budget": ["gpu"]}, "budget"),
        ({"queue": "ml"}, "queue"),
        ({"read_only": "yes"}, "read_only"),
        ({"read_only": True, "budget": {"gpu": "1h"}}, "read_only"),
    ],
)
def test_scopes_that_make_no_sense_are_refused(site: Serving, fields: dict[str, Any], field: str) -> None:
    made = site.as_owner.post("/api/v1/tokens", json={"role": "user", "user": "ann", **fields})
    assert (made.status_code, made.json()["field"]) == (422, field), made.text
