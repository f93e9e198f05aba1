"""schemathesis against the OpenAPI description: whatever is sent, the server answers as described."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead.http.middleware import Bounds
from fairlead.identity.tokens import ROLES
from tests.http.serving import JOB, Serving, serving, submit

# A request that the description allows can still contradict the state, such as an unknown queue.
LEFT_OUT = "positive_data_acceptance"
ENDLESS = "watch|events|live"


def schemathesis(folder: Path, site: Serving, secret: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Send requests made from the description, except those of endless streams."""
    document = site.as_owner.get("/api/v1/openapi.json").json()
    for operations in document["paths"].values():
        for operation in operations.values():
            kept = [each for each in operation.get("parameters", ()) if each.get("name") != "follow"]
            operation["parameters"] = kept  # a log that is followed ends with its job
    description = folder / "openapi.json"
    description.write_text(json.dumps(document))
    return subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            *("run", str(description), "--url", site.url, "-H", f"Authorization: Bearer {secret}"),
            *("--exclude-path-regex", ENDLESS, "--request-timeout", "60", "--seed", "1", "--no-color", *options),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=1_500,
        check=False,
    )


@contextmanager
def described(folder: Path) -> Iterator[Serving]:
    """A server with something of each kind."""
    bounds = Bounds(failures=1e6, failures_burst=1e6, requests=1e6, burst=1e6, poll_seconds=0.1)
    with serving(folder, bounds=bounds) as site:
        site.node("n1")
        pool = {"node": {"cpu": 1}, "max": 8, "provider": {"local": {}}}
        assert site.as_owner.put("/api/v1/partitions/default", json={"pools": {"gpu": pool}}).is_success
        site.as_owner.post("/api/v1/managers/k8s")
        for _ in range(3):
            submit(site.as_owner)
        yield site


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("examples", "phases"),
    [(5, "examples,fuzzing"), pytest.param(200, "examples,coverage,fuzzing", marks=pytest.mark.long)],
)
def test_the_server_keeps_to_its_description(tmp_path: Path, examples: int, phases: str) -> None:
    with described(tmp_path) as site:
        bounds = ("--max-examples", str(examples), "--phases", phases)
        done = schemathesis(tmp_path, site, site.owner, *bounds, "--exclude-checks", LEFT_OUT)
        assert done.returncode == 0, done.stdout[-20_000:]


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("role", [*ROLES, "stranger"])
def test_no_role_gets_a_fault_of_the_server(tmp_path: Path, role: Any) -> None:
    with described(tmp_path) as site:
        secret = "fl_wrong" if role == "stranger" else site.token(role, "ann")
        with site.client(secret) as client:
            client.post("/api/v1/jobs", json=JOB)
        bounds = ("--max-examples", "50", "--phases", "examples,coverage,fuzzing")
        done = schemathesis(tmp_path, site, secret, *bounds, "--checks", "not_a_server_error")
        assert done.returncode == 0, done.stdout[-20_000:]
