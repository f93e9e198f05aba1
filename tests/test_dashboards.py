"""The dashboard and the alert rules use metrics, labels and values that a server really exposes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

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


def dashboard() -> Any:
    return json.loads((DEPLOY / "grafana" / "fairlead.json").read_text())


def variables() -> list[str]:
    """Return the queries of the dashboard's variables."""
    return [entry["query"]["query"] for entry in dashboard()["templating"]["list"] if entry["type"] == "query"]


def targets() -> list[dict[str, str]]:
    """Return the queries of the dashboard's panels."""
    return [target for panel in dashboard()["panels"] for target in panel["targets"]]


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


@pytest.mark.parametrize("expression", [*variables(), *(target["expr"] for target in targets()), *alerts()])
def test_expressions_use_what_there_is(expression: str) -> None:
    assert problems(expression) == []


def test_panels_have_ids_of_their_own() -> None:
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)


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
