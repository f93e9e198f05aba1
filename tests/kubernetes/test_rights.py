"""The manifests of deploy/kubernetes on a real API server with RBAC: they are accepted, and their rights suffice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.kubernetes.names import GATE
from tests.kubernetes.cluster.control_plane import ADAPTER, ControlPlane, control_plane
from tests.kubernetes.reading import MANIFESTS
from tests.kubernetes.rights import ADMISSION_RULES, CLUSTER_RULES, LEASE_RULES
from tests.kubernetes.scene import NAMESPACE, Scene, scenes
from tests.kubernetes.test_deploy import PLAIN, rendered

pytestmark = pytest.mark.kubernetes

BUILT_IN = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Service": "/api/v1/namespaces/{}/services",
    "Pod": "/api/v1/namespaces/{}/pods",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with RBAC, and the plain manifests applied to it."""
    with control_plane(tmp_path_factory.mktemp("guarded"), "RBAC") as plane:
        for document in yaml.safe_load_all(PLAIN.read_text()):
            create(plane, document)
        create(plane, {"kind": "Namespace", "metadata": {"name": NAMESPACE}})
        create(plane, {"kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "default"}})
        policy = {"namespaces": [NAMESPACE], "policy": True}
        for document in yaml.safe_load_all("---\n".join(rendered(admission=policy))):
            if document and document["metadata"]["name"] == "fairlead-admission" and document["kind"] == "RoleBinding":
                create(plane, document)
        yield plane


def create(plane: ControlPlane, document: dict[str, Any], dry_run: bool = False) -> dict[str, Any]:
    path = BUILT_IN[document["kind"]].format(document["metadata"].get("namespace", ""))
    query = "?fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
    created: dict[str, Any] = json.loads(plane.request("POST", path + query, document))
    return created


def may(plane: ControlPlane, verb: str, group: str, resource: str, namespace: str = "") -> bool:
    name, _, sub = resource.partition("/")
    asked = {"verb": verb, "group": group, "resource": name, "subresource": sub, "namespace": namespace}
    review = {"spec": {"user": ADAPTER, "resourceAttributes": asked}}
    answer = plane.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(json.loads(answer)["status"]["allowed"])


def test_the_account_has_the_rights_of_the_calls_and_no_others(guarded: ControlPlane) -> None:
    for rule in CLUSTER_RULES:
        assert all(may(guarded, verb, rule.group, rule.resource, "any") for verb in rule.verbs), rule
    for rule in ADMISSION_RULES:
        assert all(may(guarded, verb, rule.group, rule.resource, NAMESPACE) for verb in rule.verbs), rule
        assert not any(may(guarded, verb, rule.group, rule.resource, "other") for verb in rule.verbs), rule
    for rule in LEASE_RULES:
        assert all(may(guarded, verb, rule.group, rule.resource, "fairlead") for verb in rule.verbs), rule
        assert not any(may(guarded, verb, rule.group, rule.resource, "other") for verb in rule.verbs), rule
    for verb, group, resource in (
        ("get", "", "secrets"),
        ("list", "", "secrets"),
        ("get", "", "configmaps"),
        ("create", "", "pods"),
        ("update", "", "pods"),
        ("create", "", "pods/exec"),
        ("patch", "", "nodes"),
        ("delete", "batch", "jobs"),
        ("create", "rbac.authorization.k8s.io", "clusterrolebindings"),
    ):
        assert not may(guarded, verb, group, resource, "fairlead"), (verb, resource)


@pytest.mark.parametrize("file", sorted(MANIFESTS.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_manifests_of_tests_are_valid(guarded: ControlPlane, file: Path) -> None:
    for document in yaml.safe_load_all(file.read_text()):
        if document["apiVersion"] not in ("v1", "batch/v1", "scheduling.k8s.io/v1"):
            continue  # a custom resource, or behind a feature gate
        if document["kind"] == "Pod":
            document["spec"].pop("schedulingGroup", None)
        if "namespace" in document["metadata"]:
            document["metadata"]["namespace"] = "default"
        if document["kind"] == "Job":
            document["spec"]["template"]["spec"].setdefault("restartPolicy", "Never")
        create(guarded, document, dry_run=True)


@pytest.fixture
def scene(guarded: ControlPlane, tmp_path: Path) -> Iterator[Scene]:
    yield from scenes(guarded, tmp_path)


def test_an_adapter_with_these_rights_does_all_its_work(scene: Scene) -> None:
    """It binds, admits, preempts, explains and keeps a lease, and no call is forbidden."""
    scene.user = ADAPTER
    scene.node("n1")
    scene.start_adapter(lease="fairlead/fairlead-kubernetes")
    low = scene.gang("low", 4)
    scene.wait_bound(*low)
    urgent = {"metadata": {"name": "urgent"}, "value": 100}
    scene.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", urgent)
    probe = {"priorityClassName": "urgent", "containers": [{"name": "main", "image": "none"}]}
    dry = {"metadata": {"name": "probe"}, "spec": probe}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
    scene.wait(lambda: scene.api.post(path, json=dry).is_success, "the API server knows the priority class")
    scene.pod("high", priorityClassName="urgent")
    scene.wait_bound("high")
    # The gang was evicted whole, so there is room for the gated pod.
    scene.pod("gated", scheduler="default-scheduler", gates=[GATE])
    scene.wait(lambda: not scene.pods()["gated"]["spec"].get("schedulingGates"), "the gate is removed")
    assert scene.pods()["gated"]["status"]["nominatedNodeName"] == "n1"
    scene.pod("large", cpu="64")
    scene.wait_reason("large", "Unschedulable")
    events = scene.call("GET", f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events")["items"]
    assert events
    lease = scene.call("GET", "/apis/coordination.k8s.io/v1/namespaces/fairlead/leases/fairlead-kubernetes")
    assert lease["spec"]["holderIdentity"]
    assert "forbidden" not in scene.logs()
