"""`fairlead config import kueue`: quotas, cohorts and LocalQueues are carried over, or named."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.config import parse_config
from fairlead.kubernetes.kueue import convert, rules_text
from fairlead.kubernetes.rules import parse_rules
from fairlead.kubernetes.yunikorn import NotConverted
from fairlead.testing import World

FILE = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: default}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Cohort
metadata: {name: all}
spec:
  resourceGroups:
    - {coveredResources: [cpu], flavors: [{name: default, resources: [{name: cpu, nominalQuota: 2}]}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: team-a}
spec:
  cohortName: all
  resourceGroups:
    - coveredResources: [cpu, memory]
      flavors:
        - name: default
          resources: [{name: cpu, nominalQuota: 4, borrowingLimit: 2}, {name: memory, nominalQuota: 8Gi}]
        - name: spot
          resources: [{name: cpu, nominalQuota: 1, borrowingLimit: 0}, {name: memory, nominalQuota: 1Gi}]
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: limit}
spec:
  cohort: all
  resourceGroups:
    - {coveredResources: [cpu], flavors: [{name: default, resources: [{name: cpu, nominalQuota: 3, lendingLimit: 1}]}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: alone}
spec:
  queueingStrategy: StrictFIFO
  resourceGroups:
    - {coveredResources: [cpu], flavors: [{name: default, resources: [{name: cpu, nominalQuota: 7}]}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {namespace: a, name: user-queue}
spec: {clusterQueue: team-a}
"""


def test_quotas_cohorts_and_local_queues() -> None:
    config, rules, warnings = convert(yaml.safe_load_all(FILE))
    root = config["partitions"]["default"]["queues"]["root"]
    assert root["alone"] == {"order": "priority", "limit": {"cpu": 7}, "guarantee": {"cpu": 7}}
    team = root["all"]["team-a"]
    assert team["guarantee"]["cpu"] == 5 and team["limit"] == {"cpu": 7}
    assert root["all"]["limit-queue"] == {"guarantee": {"cpu": 3}}
    assert root["all"]["limit"]["cpu"] == 10 and root["all"]["guarantee"]["cpu"] == 8
    assert parse_rules(yaml.safe_load(rules_text(rules))).queue("a", "user-queue") == "root.all.team-a"
    assert [warning.partition(":")[0] for warning in warnings] == [
        "ClusterQueue limit.resourceGroups[0].flavors[0].resources[0].lendingLimit",
        "ResourceFlavor default",
    ]
    parse_config(config)


def test_a_queue_borrows_from_its_cohort_and_lends_back() -> None:
    config, _, _ = convert(yaml.safe_load_all(FILE))
    w = World(config=config["partitions"]["default"])
    w.nodes(4, cpu=10)
    w.submit(
        name="a", queue="root.all.limit-queue", stages=[{"name": "w", "count": 12, "resources": {"cpu": 1}, "min": 1}]
    )
    w.advance(1)
    assert len(w.placements("a")) == 10  # its own 3, and all else of the cohort


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kind: LocalQueue", "no ClusterQueue"),
        (FILE.replace("cohortName: all", "cohortNam: all"), "Kueue has no such key"),
        (FILE.replace("clusterQueue: team-a", "clusterQueue: other"), "there is no ClusterQueue other"),
        (FILE.replace("nominalQuota: 7", "nominalQuota: seven"), "seven"),
    ],
)
def test_what_cannot_be_converted_is_named(text: str, problem: str) -> None:
    with pytest.raises(NotConverted, match=problem):
        convert(yaml.safe_load_all(text))


def test_command(tmp_path: Path) -> None:
    file, rules = tmp_path / "kueue.yaml", tmp_path / "rules.yaml"
    file.write_text(FILE)
    done = CliRunner().invoke(app, ["config", "import", "kueue", str(file), "--rules", str(rules)])
    assert done.exit_code == 0, done.output
    assert yaml.safe_load(done.stdout)["partitions"]["default"]["queues"]["root"]["alone"]
    assert "root.all.team-a" in rules.read_text()
    again = CliRunner().invoke(app, ["config", "import", "kueue", str(file), "--rules", str(rules)])
    assert again.exit_code and "name a new one" in again.output
