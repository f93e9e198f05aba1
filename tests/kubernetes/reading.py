"""Read manifests as the adapter would see them: with the pods that controllers make of Jobs and JobSets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from fairlead.kubernetes.groups import GroupObjects, group_of, membership
from fairlead.kubernetes.objects import Node, Pod
from fairlead.kubernetes.pods import Needs
from fairlead.kubernetes.rules import Rules

MANIFESTS = Path(__file__).parent / "manifests"
PATHS = {
    ("batch/v1", "Job"): "/apis/batch/v1/jobs",
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): "/apis/jobset.x-k8s.io/v1alpha2/jobsets",
    ("scheduling.k8s.io/v1beta1", "PodGroup"): "/apis/scheduling.k8s.io/v1beta1/podgroups",
    ("scheduling.x-k8s.io/v1alpha1", "PodGroup"): "/apis/scheduling.x-k8s.io/v1alpha1/podgroups",
    ("scheduling.volcano.sh/v1beta1", "PodGroup"): "/apis/scheduling.volcano.sh/v1beta1/podgroups",
    ("scheduling.k8s.io/v1", "PriorityClass"): "/apis/scheduling.k8s.io/v1/priorityclasses",
}


def read_pod(**document: Any) -> Pod:
    return msgspec.convert(document, Pod)


def read_node(**document: Any) -> Node:
    return msgspec.convert(document, Node)


class Cluster:
    """The objects of a manifest."""

    def __init__(self, *documents: dict[str, Any]) -> None:
        self.objects = GroupObjects()
        self.follows = {path: (kind, put, drop) for path, kind, put, drop in self.objects.followed()}
        self.pods: list[Pod] = []
        for document in documents:
            self.add(document)

    def add(self, document: dict[str, Any]) -> None:
        document["metadata"].setdefault("uid", f"uid-{document['kind']}-{document['metadata']['name']}")
        if document["kind"] == "Pod":
            # Decoded from JSON, as from the API server.
            self.pods.append(msgspec.json.decode(msgspec.json.encode(document), type=Pod))
            return
        kind, put, _ = self.follows[PATHS[document["apiVersion"], document["kind"]]]
        put(msgspec.json.decode(msgspec.json.encode(document), type=kind))
        for pod in pods_of(document):
            self.add(pod)

    def items(self, rules: Rules | None = None, **rest: Any) -> list[tuple[dict[str, Any], str]]:
        """The job items of all groups, with their stages, and what each waits for."""
        grouped: dict[str, list[Pod]] = {}
        for pod in self.pods:
            grouped.setdefault(membership(pod).key, []).append(pod)
        return [self.item(pods, rules or Rules(), **rest) for pods in grouped.values()]

    def item(self, pods: list[Pod], rules: Rules, **rest: Any) -> tuple[dict[str, Any], str]:
        group = group_of(membership(pods[0]), pods, self.objects, rules)
        counts: dict[str, int] = {}
        for pod in pods:
            needs = group.needs_of(pod, **rest)
            assert isinstance(needs, Needs), needs
            ask = self.objects.ask(membership(pod).part, needs)
            counts[ask] = counts.get(ask, 0) + 1
        stages = group.stages(counts)
        gang = {"gang": "job"} if group.is_gang and len(stages) > 1 else {}
        return {**group.job_item(), "stages": stages, **gang}, group.waits_for


def load(name: str) -> Cluster:
    return Cluster(*yaml.safe_load_all((MANIFESTS / f"{name}.yaml").read_text()))


def pods_of(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The pods that the controllers of Kubernetes and of JobSet make of an object."""
    if document["kind"] == "JobSet":
        for replicated in document["spec"]["replicatedJobs"]:
            for replica in range(replicated.get("replicas", 1)):
                labels = {
                    "jobset.sigs.k8s.io/jobset-name": document["metadata"]["name"],
                    "jobset.sigs.k8s.io/replicatedjob-name": replicated["name"],
                }
                meta = {
                    "name": f"{document['metadata']['name']}-{replicated['name']}-{replica}",
                    "namespace": document["metadata"]["namespace"],
                }
                yield from _of_job(meta, replicated["template"]["spec"], labels)
    elif document["kind"] == "Job":
        yield from _of_job(document["metadata"], document["spec"], {})


def _of_job(meta: dict[str, Any], spec: dict[str, Any], labels: dict[str, str]) -> Iterator[dict[str, Any]]:
    uid = meta.get("uid", f"uid-Job-{meta['name']}")
    for index in range(0 if spec.get("suspend") else spec.get("parallelism", 1)):
        template = spec["template"]
        own = {"batch.kubernetes.io/job-name": meta["name"], "batch.kubernetes.io/controller-uid": uid}
        indexed = spec.get("completionMode") == "Indexed"
        yield {
            "kind": "Pod",
            "metadata": {
                "name": f"{meta['name']}-{index}",
                "namespace": meta["namespace"],
                "uid": f"uid-Pod-{meta['name']}-{index}",
                "labels": {**template.get("metadata", {}).get("labels", {}), **labels, **own},
                "annotations": {
                    **template.get("metadata", {}).get("annotations", {}),
                    **({"batch.kubernetes.io/job-completion-index": str(index)} if indexed else {}),
                },
                "ownerReferences": [
                    {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": uid, "controller": True}
                ],
            },
            "spec": template["spec"],
        }
