"""Why jobs wait, over HTTP, in the client and on the command line: the same words at every door."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fairlead import AsyncClient, Client, NeverRuns
from fairlead.cli.main import app
from fairlead.core.state import Partition
from fairlead.core.why import explain, never
from fairlead.views import summaries
from tests.http.serving import JOB, Serving, serving, submit

NO_GPU = "no node has a GPU (asked: 1)"
WARNING = f"it can never run as the cluster is now: {NO_GPU}"
GPU_JOB = {"stages": [{"name": "main", "command": ["true"], "resources": {"gpu": 1}}]}


def command(site: Serving, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[str, str]:
    """Run a command against the server, and return what it prints to standard output and to standard error."""
    monkeypatch.setenv("FAIRLEAD_URL", site.url)
    monkeypatch.setenv("FAIRLEAD_TOKEN", site.owner)
    monkeypatch.setenv("COLUMNS", "300")
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


def test_the_words_are_the_same_at_every_door(site: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    site.node("n0", cpu=2)
    gang = {"stages": [{"name": "main", "command": ["true"], "count": 2}]}
    running, head = submit(site.as_owner, gang), submit(site.as_owner, gang)
    last, lost = submit(site.as_owner, JOB), submit(site.as_owner, GPU_JOB)
    said = {
        running: [f"job {running} is starting on n0"],
        head: [
            f"job {head} waits for 2 CPUs at once (2 tasks with 1 each): no CPU is free",
            "2 tasks wait, first in queue root.default; 0 of 2 fit now: 1 node has too few CPUs free",
            "  comes by itself: if it still waits in 10min (starving_after), nodes are held for it; "
            "until then smaller tasks that fit may start before it",
            f"  would start if: 2 tasks of job {running} on n0 end",
            "  would start if: a node with 2 CPUs is added",
        ],
        last: [
            f"job {last} waits behind 1 job (2 tasks) in queue root.default",
            "1 task waits behind 1 job (2 tasks) in queue root.default",
            f"  would start if: 1 task of job {running} on n0 ends and this job is brought to the front of its queue",
            "  would start if: this job is brought to the front of its queue and a node with 1 CPU is added",
        ],
        lost: [
            f"job {lost} can never run as the cluster is now: {NO_GPU}",
            f"1 task waits; other jobs of queue root.default may go first; can never run: {NO_GPU}",
            "  would start if: a node with 1 GPU is added",
        ],
    }
    with Client(site.url, site.owner) as client:
        for job, lines in said.items():
            printed = command(site, monkeypatch, "explain", job)[0].splitlines()
            assert printed == lines
            explained = client.explain(job)
            assert explained.sentence == lines[0]
            assert [ask.text for ask in explained.waiting] == ([] if job == running else [lines[1]])
            told = [f"  comes by itself: {text}" for ask in explained.waiting for text in ask.comes]
            told += [f"  would start if: {remedy.text}" for ask in explained.waiting for remedy in ask.remedies]
            assert told == lines[2:]
            assert not any(ask.remedies for ask in client.explain(job, remedies=False).waiting)
        waiting = client.explain(last).waiting[0]
    assert (waiting.jobs_ahead, waiting.tasks_ahead, waiting.code, waiting.then) == (1, 2, "", "")
    listed = command(site, monkeypatch, "ps")[0].splitlines()
    column = listed[0].index("REASON")
    assert [line[column:] for line in listed[1:]] == [
        "can never run",
        "behind other jobs",
        "no free capacity for 2 tasks at once",
        "",
    ]
    site.as_owner.post(f"/api/v1/jobs/{lost}/kill")
    listed = command(site, monkeypatch, "ps", "--all")[0].splitlines()
    assert listed[1][listed[0].index("REASON") :] == "killed by owner"


def test_what_comes_after_those_ahead_has_a_code(site: Serving) -> None:
    site.node("n0", cpu=2)
    submit(site.as_owner, GPU_JOB)
    last = submit(site.as_owner, GPU_JOB)
    (waiting,) = site.as_owner.get(f"/api/v1/jobs/{last}/explain").json()["waiting"]
    assert (waiting["code"], waiting["then_code"]) == ("", "never fits")
    assert waiting["then"] == f"can never run: {NO_GPU}"
    assert waiting["text"].endswith(
        f"behind 1 job (1 task) in queue root.default; even then it can never run: {NO_GPU}"
    )


def test_a_submission_that_can_never_run_is_accepted_with_a_warning(
    site: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.node("n0", cpu=2)
    answer = site.as_owner.post("/api/v1/jobs", json=GPU_JOB)
    assert (answer.status_code, answer.json()["warning"]) == (201, WARNING)
    assert site.as_owner.get(f"/api/v1/jobs/{answer.json()['job']}").json()["state"] == "pending"
    for fine in (JOB, {"stages": [{"name": "main", "command": ["true"], "count": 2}]}):
        assert site.as_owner.post("/api/v1/jobs", json=fine).json()["warning"] == ""
    batch = site.as_owner.post("/api/v1/jobs/batch", json={"jobs": [JOB, {"stages": 5}, GPU_JOB, GPU_JOB]})
    assert [item["warning"] for item in batch.json()["items"]] == ["", "", WARNING, WARNING]
    out, err = command(site, monkeypatch, "submit", "--gpu", "1", "--cpu", "1", "--", "true")
    assert err == f"fairlead: warning: job {out.strip()}: {WARNING}\n"
    (tmp_path / "job.yaml").write_text("command: ['true']\nresources: {gpu: 1}\n")
    out, err = command(site, monkeypatch, "submit", "--json", f"--file={tmp_path / 'job.yaml'}")
    assert WARNING in err and WARNING in out
    assert command(site, monkeypatch, "submit", "--", "true")[1] == ""


def test_the_clients_issue_a_warning(site: Serving) -> None:
    site.node("n0", cpu=2)

    async def submit_there() -> str:
        async with AsyncClient(site.url, site.owner) as client:
            return await client.submit(document=GPU_JOB)

    with Client(site.url, site.owner) as client:
        with pytest.warns(NeverRuns, match="no node has a GPU") as caught:
            job = client.submit(["true"], resources={"gpu": 1})
        assert str(caught[0].message) == f"job {job}: {WARNING}" and caught[0].filename == __file__
        with pytest.warns(NeverRuns, match="no node has a GPU"):
            asyncio.run(submit_there())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert client.submit(["true"])
            assert [item.warning for item in client.submit_many([GPU_JOB, JOB])] == [WARNING, ""]


def test_a_pool_that_can_bring_nodes_and_each_partition_count(tmp_path: Path) -> None:
    provider = {"command": {"program": "true"}}
    pools = {"gpus": {"node": {"cpu": 4, "gpu": 1}, "max": 2, "provider": provider}}
    with serving(tmp_path, {"partitions": {"plain": {}, "elastic": {"pools": pools}}}) as site:
        site.node("n0", partition="plain")

        def warning(partition: str, document: dict[str, Any]) -> str:
            answer = site.as_owner.post("/api/v1/jobs", json=document, params={"partition": partition})
            assert answer.status_code == 201, answer.text
            said: str = answer.json()["warning"]
            return said

        assert warning("plain", GPU_JOB) == WARNING
        assert warning("elastic", GPU_JOB) == ""
        gang = {"stages": [{"name": "main", "command": ["true"], "count": 3, "resources": {"gpu": 1}}]}
        assert warning("elastic", gang).endswith(
            "is now: all nodes and pools together take 2 of 3 tasks (missing: capacity for 1 more with 1 GPU)"
        )


def test_lists_of_jobs_look_at_no_nodes_and_walk_through_no_lane(
    site: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.node("n0", cpu=1)
    site.as_owner.post("/api/v1/jobs/batch", json={"jobs": [*[JOB] * 30, *[GPU_JOB] * 30]})
    calls: list[str] = []

    def refuse(name: str) -> Any:
        return lambda *arguments: calls.append(name)

    for module in (explain, never, summaries):
        for name in ("why_no_capacity", "why_never", "why_later", "most_ever", "never_runs", "_ahead"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, refuse(name))
    listed = site.as_owner.get("/api/v1/jobs", params={"limit": 100}).json()["jobs"]
    assert not calls
    assert [job["waits_for"] for job in listed] == [
        *["behind other jobs"] * 29,
        "can never run",
        *["behind other jobs"] * 28,
        "no free capacity",
        "",
    ]


def test_a_submission_that_fits_counts_no_nodes(site: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """The count is cached with the shape; a job that starts at once needs none."""
    site.node("n0", cpu=1)
    submit(site.as_owner, JOB)
    submit(site.as_owner, JOB)
    calls: list[str] = []

    def counted(partition: Partition, job: Any) -> None:
        calls.append(job.id)

    monkeypatch.setattr("fairlead.http.routes.jobs.never_runs", counted)
    for _ in range(3):
        submit(site.as_owner, JOB)
    assert not calls


def test_the_nearest_job_by_name_and_node_are_named(site: Serving) -> None:
    site.node("box", cpu=2)
    job = submit(site.as_user("eve"), {**JOB, "name": "sweep"})
    for said in (
        site.as_user("eve").get("/api/v1/jobs/swep"),
        site.as_user("eve").get("/api/v1/jobs/swep/explain"),
        site.as_user("eve").post("/api/v1/jobs/swep/kill"),
    ):
        assert (said.status_code, f"(did you mean job {job}, sweep?)" in said.text) == (404, True), said.text
    for path in ("jobs/swep", "jobs/swep/explain"):
        assert "did you mean" not in site.as_user("bob").get(f"/api/v1/{path}").text  # it is not shown to bob
    assert "did you mean" not in site.as_user("bob").post("/api/v1/jobs/swep/kill").text
    assert "(did you mean box?)" in site.as_owner.get("/api/v1/nodes/bx").text
