"""Applies manifests that other projects publish, and prints which of them run as their authors expect.

`python -m tests.kubernetes.foreign FOLDER` reads FOLDER, which has a folder of YAML files for each source. Every
file with a workload of Kubernetes itself gets a namespace of its own, and only the namespace is changed in it.
Twice all files are applied to a new cluster: to one with kube-scheduler alone, and to one where an admission policy
lets Fairlead schedule them. A file runs as expected if at least as many of its pods are bound as by kube-scheduler.
If its pods name another scheduler or wait for Kueue, all of them have to be bound.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tests.kubernetes.cluster.control_plane import ControlPlane, control_plane
from tests.kubernetes.scene import Scene
from tests.kubernetes.test_deploy import rendered

Json = dict[str, Any]
WORKLOADS = ("Pod", "Job", "Deployment", "ReplicaSet", "StatefulSet", "ReplicationController")
BESIDE = (
    *("PersistentVolume", "PersistentVolumeClaim", "StorageClass", "ConfigMap", "Secret", "PriorityClass"),
    *("ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "PodGroup"),
)
"""Kinds that are applied also from the files beside the one with the workload."""
OTHERS = (
    "yunikorn",
    "volcano",
    "kube-batch",
    "kueue",
    "scheduler-plugins-scheduler",
    "my-scheduler",
    "custom-scheduler",
)
WAITED = 75.0
"""Seconds from the last manifest to the count."""


class File(msgspec.Struct):
    """A file with a workload, and the files beside it that have none, such as claims and storage classes."""

    source: str
    path: str
    documents: list[Json]
    beside: list[Json]
    namespace: str = ""
    refused: list[str] = []
    suspended: int = 0
    """Pods of its Jobs that wait for Kueue."""


def read(folder: Path) -> list[File]:
    """Return all files below the folders of the sources that have a workload of Kubernetes itself."""
    files: list[File] = []
    for source in sorted(each for each in folder.iterdir() if each.is_dir()):
        parsed: dict[Path, list[Json]] = {}
        for path in sorted([*source.rglob("*.yaml"), *source.rglob("*.yml")]):
            try:
                text = path.read_text()
                found = [each for each in yaml.safe_load_all(text) if isinstance(each, dict)]
            except (yaml.YAMLError, UnicodeDecodeError):
                continue
            if "{{" in text:  # a template
                continue
            parsed[path] = [each for each in found if isinstance(each.get("metadata"), dict) and each.get("kind")]
        for path, documents in parsed.items():
            if not any(_is_workload(each) for each in documents):
                continue
            beside = [
                each
                for other, found in parsed.items()
                if other.parent == path.parent and not any(map(_is_workload, found))
                for each in found
                if each["kind"] in BESIDE
            ]
            files.append(File(source.name, str(path.relative_to(source)), documents, beside))
    for at, file in enumerate(files):
        file.namespace = f"m-{at}"
        jobs = [each["spec"] for each in file.documents if each["kind"] == "Job" and each["spec"].get("suspend")]
        file.suspended = sum(spec.get("parallelism", 1) for spec in jobs)
    return files


def _is_workload(document: Json) -> bool:
    return document["kind"] in WORKLOADS and document.get("apiVersion") in ("v1", "apps/v1", "batch/v1")


class Cluster(Scene):
    """A cluster to which files are applied."""

    def __init__(self, plane: ControlPlane, folder: Path, rules: Json) -> None:
        super().__init__(plane, folder, rules=rules)
        self._kinds: dict[tuple[str, str], tuple[str, bool]] = {}
        """API version and kind → path, and True if objects have a namespace."""
        for version in ["v1"] + [
            each["groupVersion"] for group in self.call("GET", "/apis")["groups"] for each in group["versions"]
        ]:
            base = f"/api/{version}" if version == "v1" else f"/apis/{version}"
            for found in (self.call("GET", base) or {}).get("resources", ()):
                if "/" not in found["name"]:
                    self._kinds[version, found["kind"]] = f"{base}|{found['name']}", found["namespaced"]

    def prepare(self, files: list[File]) -> None:
        """Create the nodes, and the namespaces with the service accounts that pods name."""
        for at in range(12):
            labels = {
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "topology.kubernetes.io/zone": "antarctica-east1" if at % 2 else "antarctica-west1",
                "topology.kubernetes.io/region": "antarctica",
                "zone": f"zone-{at % 3}",
                "disktype": "ssd",
                "accelerator": "nvidia-tesla-p100",
                "nodetype": "test",
                "kubernetes.io/e2e-az-name": "e2e-az1",
            }
            more = {"nvidia.com/gpu": "8", "ephemeral-storage": "900Gi", "hugepages-2Mi": "8Gi"}
            self.node(f"n{at}", cpu=96, memory="900Gi", labels=labels, **more)
        for file in files:
            self.namespace(file.namespace)
            for name in sorted(set(_values(file.documents, "serviceAccountName", "serviceAccount"))):
                path = f"/api/v1/namespaces/{file.namespace}/serviceaccounts"
                self.call("POST", path, {"metadata": {"name": name}})

    def apply(self, file: File) -> None:
        for document in file.beside:
            self._create(document, file.namespace)
        file.refused = list(filter(None, (self._create(document, file.namespace) for document in file.documents)))

    def _create(self, document: Json, namespace: str) -> str:
        """Create an object. Return why it is refused; empty if it is not."""
        where, namespaced = self._kinds.get((str(document.get("apiVersion")), document["kind"]), ("", False))
        if not where:
            return f"no kind {document['kind']} of {document.get('apiVersion')}"
        base, _, resource = where.partition("|")
        document = {**document, "metadata": dict(document["metadata"])}
        if namespaced:
            document["metadata"]["namespace"] = namespace
        path = f"{base}/namespaces/{namespace}/{resource}" if namespaced else f"{base}/{resource}"
        answer = self.api.post(path, json=document)
        return "" if answer.is_success or answer.status_code == 409 else str(answer.json().get("message"))[:300]

    def count(self) -> tuple[Counter[str], Counter[str], dict[str, str]]:
        """Return the number of pods and of bound pods of each namespace, and why a pod there is not bound."""
        total: Counter[str] = Counter()
        bound: Counter[str] = Counter()
        why: dict[str, str] = {}
        for pod in self.call("GET", "/api/v1/pods")["items"]:
            namespace = pod["metadata"]["namespace"]
            total[namespace] += 1
            if pod["spec"].get("nodeName"):
                bound[namespace] += 1
            else:
                gates = [gate["name"] for gate in pod["spec"].get("schedulingGates", ())]
                conditions = [each for each in pod["status"].get("conditions", ()) if each["type"] == "PodScheduled"]
                text = conditions[0].get("message", "") if conditions else ""
                why[namespace] = f"{pod['spec']['schedulerName']} {gates}: {text}"[:300]
        return total, bound, why


def _values(found: object, *keys: str) -> Iterator[str]:
    """Yield the texts that keys have anywhere within documents."""
    if isinstance(found, dict):
        for key, value in found.items():
            if key in keys and isinstance(value, str):
                yield value
            yield from _values(value, *keys)
    elif isinstance(found, list):
        for each in found:
            yield from _values(each, *keys)


def run(files: list[File], folder: Path, fairlead: bool) -> tuple[Counter[str], Counter[str], dict[str, str]]:
    """Apply all files to a new cluster, and count after some time."""
    folder.mkdir()
    with control_plane(folder / "cluster") as plane:
        plane.start_scheduler()
        plane.start_controllers()
        rules = {"queues": [{"namespace": "*", "queue": "root.default"}]}  # whatever queue a manifest names
        cluster = Cluster(plane, folder, rules=rules)
        try:
            cluster.prepare(files)
            if fairlead:
                names = ", ".join(f"'{name}'" for name in ("default-scheduler", "fairlead", *OTHERS))
                settings = {"namespaces": [file.namespace for file in files], "policy": True, "instead": names}
                policies = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolic"
                for document in filter(None, yaml.safe_load_all("---\n".join(rendered(admission=settings)))):
                    if document["kind"].startswith("MutatingAdmission"):
                        plural = "ybindings" if document["kind"].endswith("Binding") else "ies"
                        cluster.call("POST", policies + plural, document)
                cluster.start_server()
                cluster.start_adapter()
                cluster.settle(5)  # until the policy works
            for file in files:
                cluster.apply(file)
            cluster.settle(WAITED)
            return cluster.count()
        finally:
            cluster.stop()


def main(folder: Path) -> None:
    files = read(folder)
    with tempfile.TemporaryDirectory() as temporary:
        _, reference, _ = run(files, Path(temporary, "reference"), fairlead=False)
        refused = {file.namespace: file.refused for file in files}
        total, bound, why = run(files, Path(temporary, "fairlead"), fairlead=True)
    rows: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    print()
    for file in files:
        name = file.namespace
        row = rows[file.source]
        row[0] += 1
        row[1] += not file.refused
        other = file.suspended or set(_values(file.documents, "schedulerName")) - {"default-scheduler"}
        wanted = max(total[name], file.suspended) if other else reference[name]
        if bound[name] >= wanted and bool(file.refused) == bool(refused[name]):
            row[2] += 1
        else:
            text = "; ".join(file.refused) or why.get(name, "")
            print(f"{file.source}/{file.path}: {bound[name]} of {wanted} pods bound ({total[name]} exist). {text}")
    print("\n| source | files | applied | as expected |\n|---|---|---|---|")
    for source, (count, applied, good) in rows.items():
        print(f"| {source} | {count} | {applied} | {good} |")
    print("| all | " + " | ".join(str(sum(column)) for column in zip(*rows.values(), strict=True)) + " |")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python -m tests.kubernetes.foreign FOLDER, which has a folder of manifests for each source")
    main(Path(sys.argv[1]))
