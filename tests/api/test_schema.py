"""schemathesis against the description of the API: whatever is sent, the server keeps to what the description says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.api.gate import Bounds
from tests.api.serving import serving, submit

# What the description allows can still contradict the state, such as a queue that there is not.
LEFT_OUT = "positive_data_acceptance"
ENDLESS = "watch|events"


@pytest.mark.parametrize(
    ("examples", "phases"),
    [(5, "examples,fuzzing"), pytest.param(200, "examples,coverage,fuzzing", marks=pytest.mark.long)],
)
def test_the_server_keeps_to_its_description(tmp_path: Path, examples: int, phases: str) -> None:
    bounds = Bounds(failures=1e6, failures_burst=1e6, requests=1e6, burst=1e6)
    with serving(tmp_path, bounds=bounds) as site:
        site.node("n1")
        pool = {"node": {"cpu": 1}, "max": 8, "provider": {"local": {}}}
        assert site.as_owner.put("/api/v1/partitions/default", json={"pools": {"gpu": pool}}).is_success
        site.as_owner.post("/api/v1/managers/k8s")
        for _ in range(3):
            submit(site.as_owner)
        (tmp_path / "openapi.json").write_text(json.dumps(site.as_owner.get("/api/v1/openapi.json").json()))
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("schemathesis")),
                *("run", str(tmp_path / "openapi.json"), "--url", site.url),
                *("-H", f"Authorization: Bearer {site.owner}"),
                *("--max-examples", str(examples), "--phases", phases),
                *("--exclude-checks", LEFT_OUT, "--exclude-path-regex", ENDLESS),
                *("--seed", "1", "--no-color"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=1_500,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-20_000:]
