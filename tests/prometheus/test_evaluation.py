"""A real Prometheus asks a server and evaluates the dashboard and the alert rules.

The tests are marked `prometheus`, and only `make test-prometheus` runs them.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live import SECONDS, Up
from tests.prometheus.programs import program
from tests.test_dashboards import DEPLOY, USED, alerts, targets, variables

pytestmark = pytest.mark.prometheus

RULES = DEPLOY / "prometheus" / "alerts.yaml"
PARTITION = "default"
"""The partition that is chosen in the dashboard. `.*` would also match series without the label."""
NONE_HERE = ("fairlead_pool_", "fairlead_provider_", "fairlead_queue_use_", "fairlead_queue_loan_")
"""Metrics of pools and of shares, which the server does not have."""
NONE_NOW = ("fairlead_hold_age_seconds", "fairlead_tasks_not_stopping")
"""Metrics of trouble that the server does not have."""


class Prometheus:
    """A Prometheus that has the alert rules and asks a server for its metrics."""

    def __init__(self, folder: Path, up: Up) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{found.getsockname()[1]}"
        server = {"job_name": "fairlead", "static_configs": [{"targets": [up.url.removeprefix("http://")]}]}
        config = {
            "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
            "rule_files": [str(RULES)],
            "scrape_configs": [{**server, "authorization": {"credentials": up.token}}],
        }
        (folder / "prometheus.yaml").write_text(json.dumps(config))
        options = {"config.file": "prometheus.yaml", "storage.tsdb.path": "series", "web.listen-address": address}
        self._log = folder / "prometheus.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [program(), *[f"--{name}={value}" for name, value in options.items()]],
                cwd=folder,
                stdout=log,
                stderr=log,
            )
        self._client = httpx.Client(base_url=f"http://{address}/api/v1")

    def until(self, path: str, done: str, **query: str) -> Any:
        """Ask until the answer has `done`, a regular expression, and return its data."""
        deadline = time.monotonic() + SECONDS
        told = "no answer"
        while time.monotonic() < deadline:
            assert self._process.poll() is None, f"Prometheus ended: {self._log.read_text()}"
            try:
                answer = self._client.get(path, params=query)
            except httpx.TransportError:
                time.sleep(0.05)
                continue
            told = answer.text
            assert answer.status_code not in (400, 422), (query, told)
            if answer.is_success and re.search(done, told):
                return answer.json()["data"]
            time.sleep(0.05)
        raise AssertionError((path, query, told))

    def close(self) -> None:
        self._client.close()
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Yield a Prometheus that asks a server with a job that runs, one that waits and one that has ended."""
    folder = tmp_path_factory.mktemp("prometheus")
    up = Up(folder / "data")
    try:
        up.run("submit", "--name", "works", "--cpu", "1", "--", "sleep", "600")
        up.run("submit", "--name", "waits", "--cpu", "4", "--", "true")
        up.run("run", "--name", "ends", "--", "true")
        running = Prometheus(folder, up)
        try:
            yield running
        finally:
            running.close()
    finally:
        up.close()


def test_variables_of_the_dashboard_have_values(prometheus: Prometheus) -> None:
    for variable in variables():
        found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable)
        assert found, variable
        prometheus.until(f"/label/{found[2]}/values", '"data":\\["', **{"match[]": found[1]})


def test_panels_of_the_dashboard_have_values(prometheus: Prometheus) -> None:
    for target in targets():
        expression = target["expr"]
        expected = '"result"' if any(name in expression for name in NONE_HERE) else '"value"'
        data = prometheus.until("/query", expected, query=expression.replace("$partition", PARTITION))
        legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        for series in data["result"]:
            assert legend <= series["metric"].keys(), target


def test_alert_rules_are_evaluated(prometheus: Prometheus) -> None:
    for expression in alerts():
        for name, conditions in USED.findall(expression):
            if not name.startswith(NONE_HERE + NONE_NOW):
                prometheus.until("/query", '"value"', query=f"{name}{{{conditions}}}")
        prometheus.until("/query", '"result"', query=expression)
    groups = prometheus.until("/rules", '"rules":(?!.*"unknown")', type="alert")["groups"]
    health = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
    assert len(health) == len(alerts())
    assert set(health.values()) == {"ok"}, health
