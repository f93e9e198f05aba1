"""The manifests of other schedulers on a real API server: their objects are watched, and their pods bound as gangs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.cluster.control_plane import ControlPlane
from tests.kubernetes.reading import MANIFESTS, pods_of
from tests.kubernetes.scene import Scene, scenes

pytestmark = pytest.mark.kubernetes

GROUPS = ["--feature-gates=GenericWorkload=true", "--runtime-config=scheduling.k8s.io/v1beta1=true"]
CUSTOM = {
    ("scheduling.x-k8s.io", "v1alpha1", "PodGroup"): "podgroups",
    ("scheduling.volcano.sh", "v1beta1", "PodGroup"): "podgroups",
    ("jobset.x-k8s.io", "v1alpha2", "JobSet"): "jobsets",
}
PATHS = {
    "Pod": "/api/v1/namespaces/ml/pods",
    "Job": "/apis/batch/v1/namespaces/ml/jobs",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
}
RULES = {"queues": [{"namespace": "*", "queue": "root.default"}]}
MADE_BY_TESTS = ("JobSet", "Job")
"""Kinds whose controller does not run here."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane that knows the groups of Kubernetes itself and of other schedulers."""
    with ControlPlane(tmp_path_factory.mktemp("groups"), arguments=GROUPS) as plane:
        plane.start_kubelets()
        for (group, version, kind), plural in CUSTOM.items():
            plane.request(
                "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", _kind(group, version, kind, plural)
            )
        yield plane


def _kind(group: str, version: str, kind: str, plural: str) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


@pytest.fixture
def scene(plane: ControlPlane, tmp_path: Path) -> Iterator[Scene]:
    yield from scenes(plane, tmp_path, rules=RULES)


def create(scene: Scene, document: dict[str, Any]) -> int:
    """Create an object, and the pods that its controller would make. Returns the number of pods."""
    version, kind = document["apiVersion"], document["kind"]
    path = PATHS.get(kind) or f"/apis/{version}/namespaces/ml/{kind.lower()}s"
    if kind == "Job":
        document["spec"]["template"]["spec"].setdefault("restartPolicy", "Never")
    if kind == "PodGroup":  # admission looks for its PriorityClass in a cache that may lag behind
        dry_run = partial(scene.api.post, f"{path}?dryRun=All", json=document)
        scene.wait(lambda: dry_run().status_code != 403, "the API server knows the PriorityClass")
    created = scene.call("POST", path, document)
    if kind == "Pod":
        return 1
    if kind not in MADE_BY_TESTS:
        return 0
    document["metadata"]["uid"] = created["metadata"]["uid"]
    pods = [{**pod, "apiVersion": "v1"} for pod in pods_of(document)]
    for pod in pods:
        pod["metadata"].pop("uid")
    return sum(create(scene, pod) for pod in pods)


@pytest.mark.parametrize("file", sorted(MANIFESTS.glob("*.yaml")), ids=lambda file: file.stem)
def test_manifest(scene: Scene, file: Path) -> None:
    """Pods that may start one by one do; those of a gang wait until there is room for it."""
    scene.namespace("ml")
    scene.node("small", cpu=1)
    scene.start_adapter()
    count = sum(create(scene, document) for document in yaml.safe_load_all(file.read_text()))
    gang = file.stem not in ("pod", "job", "suspended-job", "yunikorn-labels", "kueue-job")
    if count and gang:
        scene.wait(lambda: all(scene.reason(name)[0] == "Unschedulable" for name in scene.pods("ml")), "the gang waits")
        assert not scene.nodes_of()
    elif count:
        scene.wait(lambda: len(scene.nodes_of()) == 1, "one pod is bound")
    scene.node("large", cpu=8)
    scene.wait(lambda: len(scene.nodes_of()) == count, f"all {count} pods are bound")
    scene.kill_adapter()
    for name in scene.pods("ml"):
        scene.delete(name, "ml")
