"""The dashboard and the alert rules use metrics, labels and values that a server really exposes.

The dashboard is also held against Grafana's own models: fields, kinds of panels, units and other values.
"""

import json
import re
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.cog.runtime import UnknownDataquery, panelcfg_config
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel

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


# -- Grafana -----------------------------------------------------------------------------------------------------

UNITS = {value for value in vars(units).values() if isinstance(value, str)}


def lost(given: Any, kept: Any, path: str) -> list[str]:
    """Return the paths of what is given and does not come back from Grafana's models."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return [found for key in given for found in lost(given[key], kept.get(key, ...), f"{path}.{key}")]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        pairs = enumerate(zip(given, kept, strict=True))
        return [found for at, (one, other) in pairs for found in lost(one, other, f"{path}[{at}]")]
    return [] if given == kept else [path]


def invalid(model: object, path: str) -> list[str]:
    """Return the paths of values in one of Grafana's models that do not have the type which it gives them."""
    found = []
    hints = get_type_hints(type(model))
    for name, value in vars(model).items():
        here = f"{path}.{name.removesuffix('_val')}"
        parts = value if isinstance(value, list) else [value]
        models = [(at, part) for at, part in enumerate(parts) if hasattr(part, "to_json")]
        for at, part in models:
            found += invalid(part, f"{here}[{at}]" if parts is value else here)
        if value not in (None, []) and not models:
            try:
                msgspec.convert(value, hints[name])
            except msgspec.ValidationError:
                found.append(here)
    return found


def unknown(document: dict[str, Any]) -> list[str]:
    """Return the paths of fields and values in a dashboard that Grafana does not know."""
    register_default_plugins()
    model = Dashboard.from_json(document)
    found = lost(document, json.loads(json.dumps(model, cls=JSONEncoder)), "dashboard") + invalid(model, "dashboard")
    for at, panel in enumerate(model.panels or []):
        path = f"dashboard.panels[{at}]"
        assert isinstance(panel, Panel), f"{path}: rows are not read here"
        if panelcfg_config(panel.type_val) is None:
            found.append(f"{path}.type")
        if any(isinstance(target, UnknownDataquery) for target in panel.targets or []):
            found.append(f"{path}.datasource.type")
        if panel.field_config is not None and panel.field_config.defaults.unit not in UNITS | {None}:
            found.append(f"{path}.fieldConfig.defaults.unit")
    return found


def test_grafana_knows_all_fields_of_the_dashboard() -> None:
    assert unknown(dashboard()) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("dashboard.refrehs", "30s"),
        ("dashboard.refresh", 30),
        ("dashboard.time.form", "now-6h"),
        ("dashboard.templating.list[1].includeAl", True),
        ("dashboard.templating.list[1].type", "qurey"),
        ("dashboard.templating.list[1].refresh", 7),
        ("dashboard.templating.list[1].current.txt", "All"),
        ("dashboard.panels[2].titel", "Waiting"),
        ("dashboard.panels[2].type", "timeserie"),
        ("dashboard.panels[2].datasource.uuid", "x"),
        ("dashboard.panels[2].datasource.type", "promtheus"),
        ("dashboard.panels[2].options", {"legnd": {}}),
        ("dashboard.panels[2].gridPos.width", 12),
        ("dashboard.panels[2].gridPos.w", "12"),
        ("dashboard.panels[2].fieldConfig.default", {}),
        ("dashboard.panels[2].fieldConfig.defaults.units", "s"),
        ("dashboard.panels[2].fieldConfig.defaults.unit", "sec"),
        ("dashboard.panels[2].fieldConfig.defaults.custom.fillOpacty", 10),
        ("dashboard.panels[2].fieldConfig.defaults.custom.stacking.mod", "normal"),
        ("dashboard.panels[2].fieldConfig.defaults.custom.stacking.mode", "nomal"),
        ("dashboard.panels[2].targets[0].legendFromat", "x"),
        ("dashboard.panels[2].targets[0].format", "tabel"),
    ],
)
def test_what_grafana_does_not_know_is_found(path: str, value: object) -> None:
    document = dashboard()
    *parents, last = re.findall(r"\w+", path)[1:]
    place = document
    for name in parents:
        place = place[int(name) if name.isdigit() else name]
    place[last] = value
    found = [re.sub(r"_(\w)", lambda letter: letter[1].upper(), each) for each in unknown(document)]
    assert [each for each in found if not each.startswith(path)] == []
    assert found != []
