"""The paths of slurmrestd that Airflow and Prefect use: what they send, and what they read."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.live import PROGRAM
from tests.slurm.cluster import Cluster
from tests.until import SECONDS, until


class Restd:
    """`fairlead slurm restd` beside a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        environment = {**cluster.up.environment, "FAIRLEAD_URL": cluster.up.url, "FAIRLEAD_TOKEN": "none"}
        words = [PROGRAM, "slurm", "restd", "--port", "0"]
        self._process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().split()[-1]
        self.token = cluster.run("scontrol", "token").strip().removeprefix("SLURM_JWT=")

    def ask(self, method: str, path: str, body: object = None, token: str | None = None) -> tuple[int, dict[str, Any]]:
        headers = {"X-SLURM-USER-TOKEN": self.token if token is None else token}
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, headers, method=method)
        try:
            with urlopen(request, timeout=SECONDS) as answer:
                return answer.status, json.load(answer)
        except HTTPError as problem:
            return problem.code, json.load(problem)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(SECONDS)
        self.cluster.close()


@pytest.fixture(scope="module")
def restd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restd]:
    restd = Restd(Cluster(tmp_path_factory.mktemp("restd")))
    try:
        yield restd
    finally:
        restd.close()


def test_jobs_are_submitted_read_and_cancelled(restd: Restd) -> None:
    folder: Path = restd.cluster.work
    job = {
        "name": "rest", "partition": "ml", "tasks": 1, "cpus_per_task": 2, "comment": "from afar",
        "time_limit": {"set": True, "number": 5}, "memory_per_node": {"set": True, "number": 64},
        "current_working_directory": str(folder), "standard_output": "rest-%j.txt",
        "environment": ["PATH=/usr/bin:/bin", "MINE=yes"],
    }  # fmt: skip
    script = "#!/bin/sh\necho $MINE $SLURM_JOB_NAME $SLURM_CPUS_PER_TASK; exec sleep ${LONG:-0}\n"
    status, submitted = restd.ask("POST", "/slurm/v0.0.40/job/submit", {"script": script, "job": job})
    assert status == 200 and not submitted["errors"], submitted
    number = submitted["job_id"]
    until(lambda: restd.ask("GET", f"/slurm/v0.0.41/job/{number}")[1]["jobs"][0]["job_state"] == ["COMPLETED"])
    [found] = restd.ask("GET", f"/slurm/v0.0.42/job/{number}")[1]["jobs"]
    assert found["time_limit"] == {"set": True, "infinite": False, "number": 5}
    assert (found["partition"], found["comment"], found["exit_code"]["status"]) == ("ml", "from afar", ["SUCCESS"])
    assert (folder / f"rest-{number}.txt").read_text() == "yes rest 2\n"
    long = {**job, "script": script, "environment": {"PATH": "/usr/bin:/bin", "LONG": "600"}}
    number = restd.ask("POST", "/slurm/v0.0.42/job/submit", {"job": long})[1]["job_id"]
    jobs = restd.ask("GET", "/slurm/v0.0.40/jobs?job_id=1")[1]["jobs"]
    assert number in [each["job_id"] for each in jobs]
    assert restd.ask("DELETE", f"/slurm/v0.0.40/job/{number}")[0] == 200
    assert restd.cluster.ended(str(number)) == "CANCELLED"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "problem"),
    [
        ("GET", "/slurm/v0.0.40/ping", None, 200, ""),
        ("GET", "/openapi/v3", None, 200, ""),
        ("GET", "/slurm/v0.0.40/nodes", None, 404, "is not served"),
        ("PUT", "/slurm/v0.0.40/jobs", None, 501, ""),
        ("GET", "/slurm/v0.0.40/job/99999", None, 404, "Invalid job id specified"),
        ("POST", "/slurm/v0.0.40/job/submit", {"script": "x", "job": {}}, 400, "script: it has to begin with #!"),
        ("POST", "/slurm/v0.0.40/job/submit", {"script": "#!/bin/sh", "job": {}}, 400, "current_working_directory"),
        ("POST", "/slurm/v0.0.40/job/submit", [], 400, "the body is not a job"),
        (
            "POST",
            "/slurm/v0.0.40/job/submit",
            {"script": "#!/bin/sh", "job": {"current_working_directory": "/", "contiguous": True}},
            400,
            "job.contiguous is not supported",
        ),
    ],
)
def test_what_is_not_served_is_refused(
    restd: Restd, method: str, path: str, body: object, status: int, problem: str
) -> None:
    if method == "PUT":
        with pytest.raises(json.JSONDecodeError):
            restd.ask(method, path)
        return
    found, answered = restd.ask(method, path, body)
    assert found == status and problem in str(answered["errors"]), answered


def test_a_token_is_needed(restd: Restd) -> None:
    assert restd.ask("GET", "/slurm/v0.0.40/jobs", token="")[0] == 401
    assert restd.ask("GET", "/slurm/v0.0.40/jobs", token="wrong")[0] == 401
