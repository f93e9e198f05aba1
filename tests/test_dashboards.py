"""The dashboard and the alert rules use metrics, labels and values that a server really exposes."""

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.live import SECONDS, Up

DEPLOY = Path(__file__).parent.parent / "deploy"
METRICS = Path(__file__).parent.parent / "docs" / "metrics.md"
USED = re.compile(r"(fairlead_[a-z_]+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"by \(([^)]*)\)")
OF_HISTOGRAMS = ("_bucket", "_count", "_sum")
ALWAYS = {"partition", "le", "job", "instance"}


def documented() -> dict[str, tuple[str, set[str]]]:
    """Return the metrics of docs/metrics.md with kind and labels. `tests/test_docs.py` compares them with a server."""
    rows = re.findall(r"^\| `(fairlead_\w+)` \| (\w+) \| ([^|]*) \|", METRICS.read_text(), re.M)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def dashboard() -> list[str]:
    document = json.loads((DEPLOY / "grafana" / "fairlead.json").read_text())
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])
    variables = [entry["query"]["query"] for entry in document["templating"]["list"] if entry["type"] == "query"]
    return [*variables, *(target["expr"] for panel in document["panels"] for target in panel["targets"])]


def alerts() -> list[str]:
    document: Any = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    assert all(rule.keys() <= {"alert", "expr", "for", "labels", "annotations"} for rule in rules)
    assert all({"summary", "remedy"} == rule["annotations"].keys() for rule in rules)
    return [rule["expr"] for rule in rules]


def problems(expression: str) -> list[str]:
    """Return what in an expression no server exposes."""
    known = documented()
    found = []
    if expression.count("(") != expression.count(")"):
        found.append("parentheses")
    labels = set(ALWAYS)
    for name, conditions in USED.findall(expression):
        base = next((name.removesuffix(end) for end in OF_HISTOGRAMS if name.endswith(end)), name)
        kind, own = known.get(name) or known.get(base) or ("", set())
        if (
            not kind
            or (name != base and name not in known and kind != "histogram")
            or (name == base and kind == "histogram")
        ):
            found.append(name)
        labels |= own
        found += [key for key in re.findall(r"(\w+)\s*(?:=~|!=|=)", conditions) if key not in own | ALWAYS]
    for group in GROUPED.findall(expression):
        found += [label for label in map(str.strip, group.split(",")) if label not in labels]
    return found


@pytest.mark.parametrize("expression", [*dashboard(), *alerts()])
def test_expressions_use_what_there_is(expression: str) -> None:
    assert problems(expression) == []


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool; Debian: apt install prometheus")
def test_prometheus_takes_all_expressions(tmp_path: Path) -> None:
    rules = [
        {"record": f"r{at}", "expr": expression.replace("$partition", ".*")}
        for at, expression in enumerate(dashboard()[1:])
    ]
    file = tmp_path / "dashboard.yaml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    for rule_file in (file, DEPLOY / "prometheus" / "alerts.yaml"):
        checked = subprocess.run(["promtool", "check", "rules", rule_file], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[httpx.Client]:
    """Yield a client of a Prometheus that has the alert rules and asks a server that runs a job."""
    if shutil.which("prometheus") is None:
        pytest.skip("there is no prometheus; Debian: apt install prometheus")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    up = Up(tmp_path / "data")
    up.run("submit", "--name", "works", "--cpu", "1", "--", "sleep", "600")
    up.run("submit", "--name", "waits", "--cpu", "4", "--", "true")
    up.run("run", "--name", "ends", "--", "true")
    server = {"job_name": "fairlead", "static_configs": [{"targets": [up.url.removeprefix("http://")]}]}
    config = {
        "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
        "rule_files": [str(DEPLOY / "prometheus" / "alerts.yaml")],
        "scrape_configs": [{**server, "authorization": {"credentials": up.token}}],
    }
    (tmp_path / "prometheus.yaml").write_text(json.dumps(config))
    options = {"config.file": "prometheus.yaml", "storage.tsdb.path": "series", "web.listen-address": address}
    process = subprocess.Popen(
        ["prometheus", *[f"--{name}={value}" for name, value in options.items()]],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with httpx.Client(base_url=f"http://{address}/api/v1", transport=httpx.HTTPTransport(retries=8)) as client:
            yield client
    finally:
        process.kill()
        process.wait()
        up.close()


def test_prometheus_evaluates_the_dashboard_and_the_alerts(prometheus: httpx.Client) -> None:
    deadline = time.monotonic() + SECONDS

    def until(path: str, done: str, **query: str) -> Any:
        while True:
            answer = prometheus.get(path, params=query)
            assert answer.status_code not in (400, 422), (query, answer.text)
            if answer.is_success and re.search(done, answer.text):
                return answer.json()["data"]
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.05)

    for expression in dashboard()[1:]:
        missing = ("fairlead_pool_", "fairlead_queue_use_", "fairlead_queue_loan_")  # there are no pools and no shares
        found = '"result"' if any(name in expression for name in missing) else '"value"'
        until("/query", found, query=expression.replace("$partition", ".*"))
    for expression in alerts():  # the server has given all its metrics by now
        until("/query", '"result"', query=expression)
    groups = until("/rules", '"lastEvaluation":"2', type="alert")["groups"]
    assert sum(len(group["rules"]) for group in groups) == len(alerts())


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("sum(fairlead_nothing)", ["fairlead_nothing"]),
        ("sum by (colour) (fairlead_nodes)", ["colour"]),
        ('fairlead_nodes{colour="red"}', ["colour"]),
        ("rate(fairlead_nodes_bucket[5m])", ["fairlead_nodes_bucket"]),
        ("rate(fairlead_cycle_seconds[5m])", ["fairlead_cycle_seconds"]),
        ("sum(fairlead_nodes", ["parentheses"]),
    ],
)
def test_wrong_expressions_are_found(expression: str, wrong: list[str]) -> None:
    assert problems(expression) == wrong
