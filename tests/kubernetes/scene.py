"""A scene for end-to-end tests: a real cluster, a Fairlead server and adapters, each a process of its own."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.kubernetes.cluster.control_plane import ADMIN, ControlPlane, free_port

SECONDS = 90.0
"""The longest wait of a test; no result depends on it."""
Json = dict[str, Any]
NAMESPACE = "test"
FAIRLEAD = str(Path(sys.executable).with_name("fairlead"))


class Scene:
    """Everything a test needs to act as users, controllers, kubelets and operators."""

    def __init__(
        self, plane: ControlPlane, folder: Path, config: Json | None = None, rules: Json | None = None
    ) -> None:
        self.plane = plane
        self.folder = folder
        self.api = httpx.Client(
            base_url=plane.url,
            headers={"Authorization": f"Bearer {plane.tokens[ADMIN]}"},
            verify=ssl.create_default_context(cafile=str(plane.authority)),
            timeout=30,
        )
        self.url = ""
        self.user = ADMIN
        """The user of the cluster that adapters log in as."""
        self._config = config
        self._port = free_port()
        self._server: subprocess.Popen[bytes] | None = None
        self._rules = folder / "rules.yaml"
        if rules is not None:
            self._rules.write_text(yaml.safe_dump(rules))
        self.adapters: dict[str, subprocess.Popen[bytes]] = {}

    # -- processes

    def start_server(self, *arguments: str) -> None:
        data = self.folder / "data"
        command = [FAIRLEAD, "server", "--data", str(data), "--port", str(self._port)]
        if self._config is not None and not data.exists():
            file = self.folder / "config.yaml"
            file.write_text(yaml.safe_dump(self._config))
            command += ["--config", str(file)]
        log = (self.folder / "server.out").open("ab")
        self._server = subprocess.Popen([*command, *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{self._port}"
        self.wait(self._serves, "the server serves")
        token = (data / "token").read_text().strip()
        self.fairlead = httpx.Client(
            base_url=f"{self.url}/api/v1", headers={"Authorization": f"Bearer {token}"}, timeout=30
        )
        self.token = token

    def _serves(self) -> bool:
        assert self._server is not None
        assert self._server.poll() is None, (self.folder / "server.out").read_text()
        try:
            return httpx.get(f"{self.url}/healthz").is_success
        except httpx.TransportError:
            return False

    def kill_server(self) -> None:
        assert self._server is not None
        self._server.kill()
        self._server.wait()

    def start_adapter(self, name: str = "one", *arguments: str, lease: str = "none") -> None:
        command = [FAIRLEAD, "kubernetes", "--server", self.url, "--lease", lease]
        command += ["--kubeconfig", str(self.plane.kubeconfig(self.user)), "--listen", "none"]
        if self._rules.exists():
            command += ["--rules", str(self._rules)]
        with (self.folder / f"adapter-{name}.log").open("ab") as log:
            self.adapters[name] = subprocess.Popen(
                [*command, *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "FAIRLEAD_TOKEN": self.token},
            )

    def kill_adapter(self, name: str = "one", number: signal.Signals = signal.SIGKILL) -> None:
        process = self.adapters.pop(name)
        process.send_signal(number)
        process.wait(30)

    def stop(self) -> None:
        for name in list(self.adapters):
            self.kill_adapter(name)
        if self._server is not None:
            self.kill_server()
        self.api.close()

    def logs(self) -> str:
        """Return the ends of the logs, for the message of a failed test."""
        files = [*self.folder.glob("adapter-*.log"), self.folder / "server.out"]
        return "\n".join(f"== {file.name}\n{file.read_text()[-3000:]}" for file in files if file.exists())

    # -- waiting

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
        """Wait until a condition holds, and return its value."""
        deadline = time.monotonic() + seconds
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {seconds:g} s\n{self.logs()}")
            time.sleep(0.05)

    def settle(self, seconds: float = 1.0) -> None:
        """Let time pass in which nothing should happen."""
        time.sleep(seconds)

    # -- the cluster

    def call(self, method: str, path: str, body: Any = None, patch: str = "application/merge-patch+json") -> Any:
        """Call the API server, again if it is away, and return the answer."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                headers = {"Content-Type": patch if method == "PATCH" else "application/json"}
                answer = self.api.request(method, path, json=body, headers=headers)
                if answer.status_code < 500 and answer.status_code != 429:
                    break
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline, f"{method} {path}"
            time.sleep(0.1)
        if answer.status_code == 409 and method == "POST":
            return answer.json()  # repeated after a lost answer
        if answer.status_code == 404 and method in ("DELETE", "GET"):
            return None
        assert answer.is_success, f"{method} {path}: {answer.text}"
        return answer.json()

    def clean(self) -> None:
        """Remove all pods, nodes and groups of earlier tests."""
        self.namespace(NAMESPACE)
        self.wait(self._is_empty, "all Jobs and pods are gone")
        self.call("DELETE", "/api/v1/nodes")

    def _is_empty(self) -> bool:
        """Delete all Jobs and pods. Return True if there are none: a controller may make pods once more meanwhile."""
        left = False
        for path, base in (("jobs", "/apis/batch/v1"), ("pods", "/api/v1")):
            found = self.call("GET", f"{base}/{path}")["items"]
            for namespace in {each["metadata"]["namespace"] for each in found}:
                options = "gracePeriodSeconds=0&propagationPolicy=Background"
                self.call("DELETE", f"{base}/namespaces/{namespace}/{path}?{options}")
            left |= bool(found)
        return not left

    def namespace(self, name: str) -> str:
        """Create a namespace, with the objects that admission of its pods needs."""
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        self.call("POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
        return name

    def node(
        self, name: str, cpu: int = 4, memory: str = "16Gi", labels: Mapping[str, str] | None = None, **more: str
    ) -> None:
        resources = {"cpu": str(cpu), "memory": memory, "pods": "110", **more}
        labels = {"kubernetes.io/hostname": name, **(labels or {})}
        node = {"metadata": {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}}}
        self.call("POST", "/api/v1/nodes", node)
        status = {"allocatable": resources, "capacity": resources, "conditions": [condition("Ready", "True")]}
        self.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})

    def set_ready(self, name: str, ready: bool) -> None:
        status = {"conditions": [condition("Ready", "True" if ready else "Unknown")]}
        self.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})

    def pod(
        self, name: str, cpu: str = "1", namespace: str = NAMESPACE, scheduler: str = "fairlead", **more: Any
    ) -> str:
        """Create a pod. `more` has labels, annotations, gates, or keys of its spec."""
        metadata = {
            "name": name,
            "labels": more.pop("labels", {}),
            "annotations": more.pop("annotations", {}),
        }
        if "owner" in more:
            metadata["ownerReferences"] = [more.pop("owner")]
        container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}
        if "ports" in more:
            container["ports"] = more.pop("ports")
        gates = more.pop("gates", ())
        spec = {
            "schedulerName": scheduler,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            **({"schedulingGates": [{"name": gate} for gate in gates]} if gates else {}),
            **more,
        }
        self.call("POST", f"/api/v1/namespaces/{namespace}/pods", {"metadata": metadata, "spec": spec})
        return name

    def gang(self, name: str, size: int, cpu: str = "1", namespace: str = NAMESPACE, **more: Any) -> list[str]:
        """Create the pods of a gang, in the dialect of YuniKorn: no other object is needed."""
        annotations = {
            "yunikorn.apache.org/task-group-name": "workers",
            "yunikorn.apache.org/task-groups": f'[{{"name": "workers", "minMember": {size}}}]',
            **more.pop("annotations", {}),
        }
        labels = {"applicationId": name, "gang": name, **more.pop("labels", {})}
        return [
            self.pod(f"{name}-{at}", cpu, namespace, annotations=annotations, labels=labels, **more)
            for at in range(size)
        ]

    def pods(self, namespace: str = "") -> dict[str, Json]:
        """Return all pods by name."""
        path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
        return {pod["metadata"]["name"]: pod for pod in self.call("GET", path)["items"]}

    def nodes_of(self, prefix: str = "") -> dict[str, str]:
        """Return the bound pods with their nodes."""
        return {
            name: pod["spec"]["nodeName"]
            for name, pod in self.pods().items()
            if name.startswith(prefix) and pod["spec"].get("nodeName")
        }

    def wait_bound(self, *names: str, seconds: float = SECONDS) -> dict[str, str]:
        """Wait until these pods are bound, and return their nodes."""
        wanted = set(names)
        self.wait(lambda: wanted <= set(self.nodes_of()), f"{len(wanted)} pods are bound", seconds)
        return {name: node for name, node in self.nodes_of().items() if name in wanted}

    def delete(self, name: str, namespace: str = NAMESPACE) -> None:
        self.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")

    def end(self, name: str, namespace: str = NAMESPACE, failed: bool = False) -> None:
        """End a pod as a kubelet does."""
        code, phase = (1, "Failed") if failed else (0, "Succeeded")
        ended = {"exitCode": code, "reason": "Error" if failed else "Completed"}
        status = {
            "phase": phase,
            "containerStatuses": [
                {
                    "name": "main",
                    "state": {"terminated": ended},
                    "ready": False,
                    "restartCount": 0,
                    "image": "none",
                    "imageID": "",
                }
            ],
        }
        self.call("PATCH", f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": status})

    def reason(self, name: str) -> tuple[str, str]:
        """Return reason and message of a pod's condition PodScheduled."""
        pod = self.pods().get(name, {})
        for entry in pod.get("status", {}).get("conditions", ()):
            if entry["type"] == "PodScheduled":
                return entry.get("reason", ""), entry.get("message", "")
        return "", ""

    def wait_reason(self, name: str, *reasons: str, seconds: float = SECONDS) -> str:
        """Wait until a pod has one of some reasons, and return the message."""
        self.wait(lambda: self.reason(name)[0] in reasons, f"{name} has reason {reasons}", seconds)
        return self.reason(name)[1]

    def overbooked(self) -> list[str]:
        """Return the nodes with pods that ask for more CPU than the node has."""
        capacity = {
            node["metadata"]["name"]: int(node["status"]["allocatable"]["cpu"])
            for node in self.call("GET", "/api/v1/nodes")["items"]
        }
        used: Counter[str] = Counter()
        for pod in self.pods().values():
            if pod["spec"].get("nodeName") and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                used[pod["spec"]["nodeName"]] += int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
        return [node for node, cpus in used.items() if cpus > capacity.get(node, cpus)]

    def ready(self) -> bool:
        return httpx.get(f"{self.url}/readyz").is_success

    def jobs(self) -> list[Json]:
        found: list[Json] = self.fairlead.get("/jobs", params={"limit": 1000}).json()["jobs"]
        return found


def condition(kind: str, status: str) -> Json:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {
        "type": kind,
        "status": status,
        "reason": "Test",
        "message": "",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }


def scenes(plane: ControlPlane, folder: Path, **more: Any) -> Iterator[Scene]:
    """Yield a clean scene with a server, and stop it at the end."""
    scene = Scene(plane, folder, **more)
    try:
        scene.clean()
        scene.start_server()
        yield scene
    finally:
        scene.stop()
