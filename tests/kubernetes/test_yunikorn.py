"""`fairlead config import yunikorn`: everything is carried over, or named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.config import QUEUE_KEYS, parse_config
from fairlead.kubernetes.yunikorn import SETTINGS, NotConverted, convert
from fairlead.testing import World
from tests import test_docs

FILE = """
partitions:
  - name: default
    nodesortpolicy: {type: binpacking}
    preemption: {enabled: true}
    placementrules:
      - {name: provided}
      - {name: fixed, value: root.ci, filter: {type: allow, users: [ci-bot]}}
      - {name: fixed, value: batch}
    limits:
      - {limit: everyone, users: ["*"], maxapplications: 50}
    queues:
      - name: root
        submitacl: "*"
        properties: {application.sort.policy: fair, application.sort.priority: disabled}
        queues:
          - name: ml
            submitacl: "ann,bob ml"
            adminacl: " ops"
            parent: true
            resources:
              guaranteed: {vcore: 40, memory: 100Gi}
              max: {vcore: "80", memory: 200Gi, nvidia.com/gpu: 8}
            maxapplications: 20
            limits:
              - {limit: ann, users: [ann, bob], maxresources: {vcore: 16500m}, maxapplications: 2}
              - {limit: each, groups: [ml, "*"], maxresources: {nvidia.com/gpu: 0}}
            queues:
              - {name: train, properties: {preemption.policy: disabled}}
              - {name: infer, properties: {application.sort.policy: fifo}}
          - name: ci
            properties: {application.sort.priority: enabled, application.sort.policy: fifo}
          - name: batch
"""


def converted(text: str) -> tuple[dict[str, Any], list[str]]:
    document, warnings = convert(yaml.safe_load(text))
    parse_config(document)
    return document, warnings


def test_a_file() -> None:
    document, warnings = converted(FILE)
    assert document["partitions"]["default"] == {
        "place": "pack",
        "preempt": "guarantees",
        "requestors": [{"match": "^ci-bot$", "queue": "root.ci"}, {"match": "", "queue": "root.batch"}],
        "queues": {
            "root": {
                "submit": ["*"],
                "users": {"*": {"max_jobs": 50}},
                "ml": {
                    "guarantee": {"cpu": 40, "memory": 100 * 2**30},
                    "limit": {"cpu": 80, "memory": 200 * 2**30, "nvidia.com/gpu": 8},
                    "max_jobs": 20,
                    "submit": ["ann", "bob", "@ml"],
                    "admin": ["@ops"],
                    "users": {
                        "ann": {"limit": {"cpu": "16500m"}, "max_jobs": 2},
                        "bob": {"limit": {"cpu": "16500m"}, "max_jobs": 2},
                    },
                    "groups": {"ml": {"limit": {"nvidia.com/gpu": 0}}, "*": {"limit": {"nvidia.com/gpu": 0}}},
                    "train": {"order": "fair", "preemptible": False},
                    "infer": {"order": "fifo"},
                },
                "ci": {},
                "batch": {"order": "fair"},
            }
        },
    }
    assert warnings == [
        "partitions[0].queues[0].queues[0].queues[0].properties.preemption.policy: tasks of the queue are not "
        "preempted; others are, if it has a guarantee"
    ]


def test_the_limits_hold() -> None:
    document, _ = converted(FILE)
    w = World({key: value for key, value in document["partitions"]["default"].items() if key != "place"})
    w.nodes(4, cpu=32, memory="64Gi")
    for at in range(3):
        w.submit(name=f"j{at}", user="ann", queue="root.ml.infer", stages=[{"resources": {"cpu": 1}}])
    w.submit(name="ci", user="ci-bot", stages=[{"resources": {"cpu": 1}}])
    w.cycle()
    assert [bool(w.placements(f"j{at}")) for at in range(3)] == [True, True, False]
    assert w.job("ci").queue == "root.ci"


ROOT = "partitions: [{name: default, queues: [{name: root, submitacl: '*', %s}]}]"


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            ROOT % "properties: {priority.offset: '5'}",
            "properties.priority.offset: priorities count within a queue only",
        ),
        (
            ROOT % "properties: {priority.policy: fence}",
            "properties.priority.policy: priorities count within a queue only",
        ),
        (
            ROOT % "properties: {preemption.policy: fence}",
            "properties.preemption.policy: there are no fences for preemption",
        ),
        (ROOT % "properties: {preemption.delay: 10s}", "properties.preemption.delay: preemption has no delay"),
        (ROOT % "properties: {odd: x}", "properties.odd: there is no such setting"),
        (
            ROOT % "properties: {application.sort.policy: fair}",
            "the order fair compares priorities of one user only",
        ),
        (ROOT % "properties: {application.sort.policy: stateaware}", "stateaware is read as fifo"),
        (ROOT % "childtemplate: {maxapplications: 1}", "childtemplate: queues are not made on demand"),
        (ROOT % "parent: true", "parent: the queue has no queues below it"),
        (ROOT % "queues: [{name: users}]", "queues[0].name: users is not a name here; the queue is called users-queue"),
        (ROOT % "queues: [{name: 'a:b'}]", "queues[0].name: a:b is not a name here; the queue is called a-b"),
        (
            ROOT % "limits: [{limit: a, users: [x], maxapplications: 1}, {limit: b, users: [x], maxapplications: 2}]",
            "limits[1].users: x has a limit in this queue already; the first one counts",
        ),
        ("partitions: [{name: d, queues: [{name: root}]}]", "no queue has a submitacl"),
        (
            "partitions: [{name: d, usergroupresolver: {type: os}, queues: [{name: a, submitacl: '*'}]}]",
            "usergroupresolver",
        ),
        ("partitions: [{name: d, preemption: {quotapreemptionenabled: true}, queues: []}]", "quotapreemptionenabled"),
        (
            "partitions: [{name: d, nodesortpolicy: {type: fair, resourceweights: {vcore: 2}}, queues: []}]",
            "resourceweights",
        ),
        ("partitions: [{name: d, queues: [], placementrules: [{name: tag, value: namespace}]}]", "queues by namespace"),
        (
            "partitions: [{name: d, queues: [], placementrules: [{name: user, create: true}]}]",
            "there is no placement by user",
        ),
        (
            "partitions: [{name: d, queues: [], placementrules: [{name: user, create: true}]}]",
            "[0].create: queues are not",
        ),
        ("partitions: [{name: d, queues: [], placementrules: [{name: user}]}]", "there is no rule provided"),
        (
            "partitions: [{name: d, queues: [{name: root, queues: [{name: q}]}], placementrules: "
            "[{name: fixed, value: q, filter: {type: deny, users: [x]}}]}]",
            "filter: requestors match names of users only",
        ),
    ],
)
def test_what_cannot_be_carried_over_is_named(text: str, warning: str) -> None:
    _, warnings = converted(text)
    assert [found for found in warnings if warning in found], warnings


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "the file: it is not a mapping; write key: value pairs"),
        ("{}", "partitions: missing; is this a queues.yaml?"),
        ("partitions: 3", "partitions: it is not a list; write one entry a line, each with a dash"),
        ("queues: []", "queues: YuniKorn has no such key; it has partitions, checksum"),
        (ROOT % "maxapps: 3", "partitions[0].queues[0].maxapps: YuniKorn has no such key; it has name, parent"),
        (
            ROOT % "resources: {max: {vcore: lots}}",
            'partitions[0].queues[0].resources.max.vcore: "lots" is not a quantity',
        ),
        (ROOT % "maxapplications: many", "partitions[0].queues[0].maxapplications: it is not a number of applications"),
        (ROOT % "submitacl: 3", None),
        (ROOT % "queues: [{name: 'a:b'}, {name: a-b}]", "there are two queues a-b; rename one"),
        (
            "partitions: [{name: d, nodesortpolicy: {type: odd}, queues: []}]",
            "nodesortpolicy.type: 'odd' is not one of",
        ),
        ("{kind: ConfigMap, data: {}}", "data: the ConfigMap has no queues.yaml"),
    ],
)
def test_a_file_that_is_wrong(text: str, problem: str | None) -> None:
    if problem is None:
        text, problem = text.replace("submitacl: '*', ", ""), "submitacl: it is not text; write it in quotes"
    with pytest.raises(NotConverted) as raised:
        convert(yaml.safe_load(text))
    assert problem in str(raised.value)


def test_settings_are_those_of_queues() -> None:
    assert frozenset(QUEUE_KEYS) == SETTINGS


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(FILE)
    done = CliRunner().invoke(app, ["config", "import", "yunikorn", str(file)])
    assert done.exit_code == 0, done.output
    assert "warning: partitions[0].queues[0].queues[0].queues[0].properties.preemption.policy: " in done.stderr
    assert yaml.safe_load(done.stdout) == converted(FILE)[0]
    assert "&id" not in done.stdout
    file.write_text(yaml.safe_dump({"kind": "ConfigMap", "data": {"queues.yaml": FILE}}))
    assert CliRunner().invoke(app, ["config", "import", "yunikorn", str(file)]).stdout == done.stdout
    file.write_text(ROOT % "resources: {guaranteed: {vcore: 5}, max: {vcore: 1}}")
    refused = CliRunner().invoke(app, ["config", "import", "yunikorn", str(file)])
    assert refused.exit_code == 1
    assert "guarantee" in refused.stderr


def test_the_example_of_the_page_is_what_the_command_prints() -> None:
    page = (test_docs.ROOT / "docs" / "from" / "yunikorn.md").read_text(encoding="utf-8")
    before, after = (block[2] for block in test_docs.FENCE.finditer(page) if "partitions:" in block[2])
    converted, _ = convert(yaml.safe_load(before))
    assert converted == yaml.safe_load(after)
