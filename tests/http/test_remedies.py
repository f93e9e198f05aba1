"""Remedies and dry runs over HTTP: found on a copy of the state, in a second process, for what the caller may see."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fairlead import Client
from fairlead.cli.main import app
from fairlead.http.routes import jobs
from tests.http.serving import JOB, Serving, serving, submit
from tests.http.test_strangers import leaks, others_job

TWO: dict[str, Any] = {"stages": [{"name": "main", "command": ["true"], "count": 2}]}


def explained(site: Serving, user: str, job: str, **parameters: str) -> dict[str, Any]:
    answer: dict[str, Any] = site.as_user(user).get(f"/api/v1/jobs/{job}/explain", params=parameters).json()
    return answer


def test_remedies_name_no_jobs_of_other_users(site: Serving) -> None:
    site.node("n1", cpu=1)
    submit(site.as_user("xann"), others_job())
    job = submit(site.as_user("eve"), JOB)
    answer = site.as_user("eve").get(f"/api/v1/jobs/{job}/explain")
    tried = site.as_user("eve").post("/api/v1/jobs/dry-run", json=JOB)
    assert leaks({"explain": answer.text, "dry run": tried.text}) == []
    remedy = answer.json()["waiting"][0]["remedies"][0]
    assert remedy["text"] == "1 task of another user's job on n1 ends"
    (step,) = remedy["steps"]
    assert (step["code"], step["node"], step["tasks"], step["jobs"]) == ("end tasks", "n1", 1, [])
    seen = site.as_owner.get(f"/api/v1/jobs/{job}/explain").json()["waiting"][0]["remedies"][0]
    assert seen["text"] == "1 task of job xjob, stage xstage on n1 ends"
    assert seen["steps"][0]["jobs"] == ["xjob"]


def test_what_a_remedy_says_is_enough(site: Serving) -> None:
    site.node("n1", cpu=1)
    job = submit(site.as_owner, TWO)
    (waiting,) = explained(site, "owner", job)["waiting"]
    texts = {remedy["text"]: remedy["steps"] for remedy in waiting["remedies"]}
    assert texts["a node with 1 CPU is added"][0]["resources"] == {"cpu": 1}
    site.node("n2", cpu=1)
    assert site.as_owner.get(f"/api/v1/jobs/{job}").json()["stages"][0]["assigned"] == 2


def test_without_remedies_no_second_process_is_started(site: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    site.node("n1", cpu=1)
    job = submit(site.as_user("eve"), TWO)
    with monkeypatch.context() as patch:
        patch.delattr(os, "fork")
        (waiting,) = explained(site, "eve", job, remedies="false")["waiting"]
    assert (waiting["code"], waiting["remedies"]) == ("never fits", [])
    assert explained(site, "eve", job)["waiting"][0]["remedies"]


@pytest.mark.parametrize("fault", ["fails", "hangs"])
def test_a_search_that_fails_leaves_the_explanation(site: Serving, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    site.node("n1", cpu=1)
    job = submit(site.as_user("eve"), TWO)

    def search(*_: object) -> Any:
        if fault == "hangs":
            time.sleep(60)
        raise RuntimeError("a fault on the copy")

    monkeypatch.setattr(jobs, "remedies_of", search)
    monkeypatch.setattr(jobs, "SEARCHING", 0.1)
    answer = explained(site, "eve", job)
    assert answer["sentence"].startswith(f"job {job} can never run")
    assert answer["waiting"][0]["remedies"] == []
    assert site.as_user("eve").get("/readyz").status_code == 200


def test_a_dry_run_stores_nothing(site: Serving) -> None:
    site.node("n1", cpu=2)
    eve = site.as_user("eve")

    def tried(document: dict[str, Any]) -> dict[str, Any]:
        answer = eve.post("/api/v1/jobs/dry-run", json=document)
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    starts = tried(TWO)
    assert starts["starts"] and starts["placements"] == [{"stage": "main", "node": "n1", "tasks": 2}]
    assert not starts["waiting"]
    assert not eve.get("/api/v1/jobs").json()["jobs"]
    first = submit(eve, TWO)
    assert first == "1"  # no number was used
    waits = tried(TWO)
    assert (waits["starts"], waits["never"]) == (False, "")
    assert waits["sentence"] == "submitted now, it waits for 2 CPUs at once (2 tasks with 1 each): no CPU is free"
    assert waits["waiting"][0]["remedies"][0]["text"] == "2 tasks of job 1 on n1 end"
    never = tried({"stages": [{"name": "main", "command": ["true"], "resources": {"gpu": 1}}]})
    assert never["never"].startswith("can never run: no node has a GPU")
    assert [job["id"] for job in eve.get("/api/v1/jobs").json()["jobs"]] == ["1"]


def test_a_dry_run_is_refused_as_the_submission_would_be(site: Serving) -> None:
    site.node("n1", cpu=2)
    submit(site.as_user("xann"), others_job())
    eve = site.as_user("eve")
    for document in (
        {**JOB, "queue": "root.nowhere"},
        {**JOB, "priority": 7},
        {**JOB, "user": "bob"},
        {**JOB, "after": ["xjob"]},
        {**JOB, "colour": "red"},
        {"stages": []},
    ):
        real, dry = eve.post("/api/v1/jobs", json=document), eve.post("/api/v1/jobs/dry-run", json=document)
        assert real.status_code >= 400
        assert (dry.status_code, dry.json()) == (real.status_code, real.json())


def test_dry_runs_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path) as site:
        site.node("n1", cpu=1)
        monkeypatch.setenv("FAIRLEAD_URL", site.url)
        monkeypatch.setenv("FAIRLEAD_TOKEN", site.owner)
        monkeypatch.setenv("COLUMNS", "300")

        def run(*arguments: str) -> tuple[int, list[str]]:
            done = CliRunner().invoke(app, ["submit", "--dry-run", *arguments])
            return done.exit_code, done.output.splitlines()

        assert run("true") == (0, ["submitted now, it starts at once on n1", "main: 1 task on n1"])
        submit(site.as_owner, JOB)
        code, (*lines, when) = run("true")
        assert (code, lines) == (
            0,
            [
                "submitted now, it waits for 1 CPU: no CPU is free",
                "1 task waits, first in queue root.default; 0 of 1 fit now: 1 node has too few CPUs free",
                "  comes by itself: if it still waits in 10min (starving_after), nodes are held for it; "
                "until then smaller tasks that fit may start before it",
                "  would start if: 1 task of job 1 on n1 ends",
                "  would start if: a node with 1 CPU is added",
            ],
        )
        assert when.startswith("its start cannot be predicted: 1 running task has no known end")
        code, lines = run("--cpu", "9", "true")
        assert (code, lines[0].split(":")[0]) == (1, "it can never run as the cluster is now")
        assert run("--wait", "true")[0] == 2
        with Client(site.url, site.owner) as client:
            assert len(list(client.jobs())) == 1
