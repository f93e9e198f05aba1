"""The manifests and the chart: they render, agree with each other, and allow what the adapter calls and no more.

`python -m tests.kubernetes.test_deploy` writes deploy/kubernetes/fairlead.yaml from the chart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from fairlead.cli.main import app
from fairlead.core.config import parse_config
from fairlead.kubernetes.groups import GroupObjects
from fairlead.kubernetes.rules import Rules, parse_rules
from tests.kubernetes.rights import ADMISSION_RULES, CLUSTER_RULES, LEASE_RULES, resource_of

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
SOURCE = Path(__file__).parents[2] / "src" / "fairlead" / "kubernetes"
PLAIN = FOLDER / "fairlead.yaml"
NAMESPACE = "fairlead"
HEAD = f"""# Fairlead on Kubernetes with the default values of the chart.
# `python -m tests.kubernetes.test_deploy` writes this file.
# docs/kubernetes.md has the steps before and after `kubectl apply -f fairlead.yaml`.
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
"""

_VALUE = re.compile(r"\{\{ \$?(\.[A-Za-z.]*) \}\}")
_BLOCK = re.compile(r"\s*\{\{- (if (\.[A-Za-z.]+)|range (\.[A-Za-z.]+)|else|end) \}\}")
_YAML = re.compile(r"\s*\{\{- toYaml (\.[A-Za-z.]+) \| nindent ([0-9]+) \}\}")


def render(template: str, scope: dict[str, Any]) -> str:
    """Render a template that uses only values, `if`, `else`, `end`, `range` (within which are no other blocks) and
    `toYaml … | nindent`; refuse all else."""

    def find(path: str) -> Any:
        found: Any = scope
        for part in path.strip(".").split("."):
            found = found[part] if part else scope["."]
        return found

    lines: list[str] = []
    shown = [True]
    source = iter(template.splitlines())
    for line in source:
        if block := _BLOCK.fullmatch(line):
            if block[3]:
                inner = list(takewhile(lambda each: not each.strip().startswith("{{- end"), source))
                for item in find(block[3]) if all(shown) else ():
                    lines += render("\n".join(inner), {**scope, ".": item}).splitlines()
            elif block[1] == "end":
                shown.pop()
            elif block[1] == "else":
                shown[-1] = not shown[-1]
            else:
                shown.append(bool(find(block[2])))
        elif not all(shown):
            continue
        elif values := _YAML.fullmatch(line):
            indent = " " * int(values[2])
            lines += [indent + each for each in yaml.safe_dump(find(values[1])).splitlines()]
        else:
            filled = _VALUE.sub(lambda match: str(find(match[1])), line)
            assert "{{" not in filled, f"the test does not know this form: {line}"
            lines.append(filled)
    assert shown == [True]
    return "\n".join(lines) + "\n"


def rendered(release: str = "fairlead", **changed: Any) -> list[str]:
    values = yaml.safe_load((FOLDER / "chart/values.yaml").read_text())
    for key, value in changed.items():
        values[key] = {**values[key], **value} if isinstance(values[key], dict) else value
    scope = {"Values": values, "Release": {"Namespace": NAMESPACE, "Name": release}}
    order = ("account", "rbac", "admission", "config", "server", "adapter", "monitor")
    files = {path.stem: path for path in (FOLDER / "chart/templates").glob("*.yaml")}
    assert sorted(files) == sorted(order)
    return [render(files[name].read_text(), scope) for name in order]


def plain() -> str:
    return "---\n".join([HEAD, *filter(str.strip, rendered())])


def documents(text: str) -> dict[tuple[str, str], dict[str, Any]]:
    found = [document for document in yaml.safe_load_all(text) if document]
    return {(document["kind"], document["metadata"]["name"]): document for document in found}


def objects(**changed: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return documents("---\n".join(rendered(**changed)))


def containers() -> Iterator[dict[str, Any]]:
    for kind, name in (("Deployment", "fairlead-kubernetes"), ("StatefulSet", "fairlead-server")):
        yield from objects()[kind, name]["spec"]["template"]["spec"]["containers"]


def test_the_plain_manifests_are_those_of_the_chart() -> None:
    assert PLAIN.read_text() == plain(), "run `python -m tests.kubernetes.test_deploy`"


def test_objects() -> None:
    found = objects()
    assert all(
        each["metadata"].get("namespace") == NAMESPACE for (kind, _), each in found.items() if "Cluster" not in kind
    )
    deployment = found["Deployment", "fairlead-kubernetes"]
    assert deployment["spec"]["replicas"] == 2
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for kind, name in (("Service", "fairlead-kubernetes"), ("PodDisruptionBudget", "fairlead-kubernetes")):
        selector = found[kind, name]["spec"]["selector"]
        assert selector.get("matchLabels", selector) == labels
    without = objects(server={"enabled": False}, adapter={"server": "https://elsewhere:7070"})
    assert ("StatefulSet", "fairlead-server") not in without
    args = without["Deployment", "fairlead-kubernetes"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--server=https://elsewhere:7070" in args
    fast = objects(server={"storageClassName": "fast"})["StatefulSet", "fairlead-server"]
    assert fast["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast"


def test_admission_is_limited_to_its_namespaces() -> None:
    policy = {"namespaces": ["ml", "ci"], "policy": True}
    found = list(filter(None, yaml.safe_load_all("---\n".join(rendered(admission=policy)))))
    bindings = [
        each for each in found if (each["kind"], each["metadata"]["name"]) == ("RoleBinding", "fairlead-admission")
    ]
    assert [each["metadata"]["namespace"] for each in bindings] == ["ml", "ci"]
    policies = [each for each in found if each["kind"] == "MutatingAdmissionPolicy"]
    for policy in policies:
        (namespaces,) = policy["spec"]["matchConstraints"]["namespaceSelector"]["matchExpressions"]
        assert namespaces["values"] == ["ml", "ci"]
    bound = [each["spec"]["policyName"] for each in found if each["kind"] == "MutatingAdmissionPolicyBinding"]
    assert bound == [policy["metadata"]["name"] for policy in policies]


def test_the_monitor_finds_the_service_of_the_adapters() -> None:
    found = objects(adapter={"serviceMonitor": True})
    monitor, service = (found[kind, "fairlead-kubernetes"] for kind in ("ServiceMonitor", "Service"))
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_a_second_release_shares_no_object_with_the_first() -> None:
    other = documents("---\n".join(rendered("other")))
    assert not set(other) & set(objects())
    selectors = [each["spec"]["selector"] for each in other.values() if "selector" in each.get("spec", {})]
    assert selectors and "fairlead-" not in str(selectors)


@pytest.mark.parametrize("container", list(containers()), ids=lambda container: container["name"])
def test_containers(container: dict[str, Any]) -> None:
    """Their commands are ours, and they need no rights on their machine."""
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    with group.make_context("fairlead", list(container["args"])) as context:
        name, command, rest = group.resolve_command(context, list(container["args"]))
        assert command is not None
        command.make_context(name, rest, parent=context)  # raises what the command line would refuse
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]} and not security["allowPrivilegeEscalation"]
    assert security["readOnlyRootFilesystem"]
    ports = {port["name"] for port in container["ports"]}
    assert container["livenessProbe"]["httpGet"]["port"] in ports


def test_mounted_volumes_exist() -> None:
    for kind, name in (("Deployment", "fairlead-kubernetes"), ("StatefulSet", "fairlead-server")):
        spec = objects()[kind, name]["spec"]
        volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
        [container] = spec["template"]["spec"]["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_configuration() -> None:
    data = objects()["ConfigMap", "fairlead"]["data"]
    assert list(parse_config(yaml.safe_load(data["fairlead.yaml"]))) == ["default"]
    assert parse_rules(yaml.safe_load(data["rules.yaml"])) == Rules()


def granted(kind: str, name: str) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in objects()[kind, name]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_rights_are_those_of_the_calls() -> None:
    for (kind, name), rules in (
        (("ClusterRole", "fairlead"), CLUSTER_RULES),
        (("ClusterRole", "fairlead-admission"), ADMISSION_RULES),
        (("Role", "fairlead-lease"), LEASE_RULES),
    ):
        needed = {(rule.group, rule.resource, verb) for rule in rules for verb in rule.verbs}
        assert granted(kind, name) == needed
    assert not [kind for kind, _ in objects() if kind in ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding")]
    account = {"kind": "ServiceAccount", "name": "fairlead", "namespace": NAMESPACE}
    assert objects()["ClusterRoleBinding", "fairlead"]["subjects"] == [account]


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("/api/v1/nodes", ("", "nodes")),
        ("/api/v1/pods?watch=1", ("", "pods")),
        ("/api/v1/namespaces/x", ("", "namespaces")),
        ("/api/v1/namespaces/x/pods/y", ("", "pods")),
        ("/api/v1/namespaces/x/pods/y/binding", ("", "pods/binding")),
        ("/apis/batch/v1/jobs", ("batch", "jobs")),
        ("/apis/coordination.k8s.io/v1/namespaces/x/leases/y", ("coordination.k8s.io", "leases")),
    ],
)
def test_the_resource_of_a_path(path: str, resource: tuple[str, str]) -> None:
    assert resource_of(path) == resource


def test_every_path_in_the_code_has_a_rule() -> None:
    known = {(rule.group, rule.resource) for rule in (*CLUSTER_RULES, *LEASE_RULES)}
    used: set[tuple[str, str]] = set()
    for file in sorted(SOURCE.glob("*.py")):
        if file.name in ("partition_link.py",):  # the API of Fairlead itself
            continue
        for path in re.findall(r'f?"(/apis?/[^"]+)"', file.read_text()):
            used.add(resource_of(re.sub(r"\{[^}]*\}", "x", path)))
    assert used <= known
    followed = {resource_of(path) for path, *_ in GroupObjects().followed()}
    optional = {(rule.group, rule.resource) for rule in CLUSTER_RULES if rule.optional and "watch" in rule.verbs}
    assert optional <= followed <= used
    # Subresources are reached from the path of a pod.
    assert known - used == {("", "pods/binding"), ("", "pods/eviction")}


if __name__ == "__main__":
    PLAIN.write_text(plain())
