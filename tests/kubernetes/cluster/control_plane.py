"""A real Kubernetes control plane on 127.0.0.1: etcd and the API server, and on demand kube-scheduler,
kube-controller-manager and KWOK, which plays the kubelets.

Everything lives in one folder and ends with the process that started it. `kill_api_server` and `start_api_server` are
for tests of recovery.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.kubernetes.cluster.certificates import Authority
from tests.kubernetes.cluster.programs import KUBERNETES

READY_WITHIN = 120.0
ADMIN, ADAPTER, SCHEDULER = "admin", "system:serviceaccount:fairlead:fairlead", "system:kube-scheduler"
RUNNING = """
{{ $now := Now }}
conditions:
- {lastTransitionTime: {{ $now | Quote }}, status: "True", type: Initialized}
- {lastTransitionTime: {{ $now | Quote }}, status: "True", type: Ready}
- {lastTransitionTime: {{ $now | Quote }}, status: "True", type: ContainersReady}
phase: Running
startTime: {{ $now | Quote }}
"""
ENDED = "phase: Succeeded"


def _matches(key: str, operator: str, *values: str) -> dict[str, object]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def _stage(name: str, kind: str, matches: list[dict[str, object]], then: dict[str, object], wait: str = "") -> object:
    delay = {"delay": {"durationMilliseconds": 0, "durationFrom": {"expressionFrom": wait}}} if wait else {}
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": matches},
            **delay,
            "next": then,
        },
    }


GOING = _matches(".metadata.deletionTimestamp", "Exists")
STAYING = _matches(".metadata.deletionTimestamp", "DoesNotExist")
PHASE, RUN_FOR = ".status.phase", '.metadata.annotations["test/run-for"]'
STAGES = [
    _stage("ready", "Pod", [STAYING, _matches(PHASE, "In", "Pending")], {"statusTemplate": RUNNING}),
    _stage(
        "complete",
        "Pod",
        [STAYING, _matches(PHASE, "In", "Running"), _matches(RUN_FOR, "Exists")],
        {"statusTemplate": ENDED},
        RUN_FOR,
    ),
    _stage("delete", "Pod", [GOING], {"finalizers": {"empty": True}, "delete": True}),
    # KWOK plays no pods without a stage for nodes. This one never happens: tests set the status of nodes.
    _stage("never", "Node", [_matches('.metadata.labels["test/never"]', "Exists")], {"statusTemplate": "{}"}),
]
"""What KWOK does with pods: they run at once, end after the time in an annotation, and vanish when deleted."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class ControlPlane:
    """The processes of one cluster. Use it as a context manager."""

    def __init__(self, folder: Path, authorization: str = "AlwaysAllow", arguments: Sequence[str] = ()) -> None:
        self.folder = folder
        self.port = free_port()
        self.authority = folder / "pki" / "apiserver.crt"
        self.tokens = {name: secrets.token_hex(16) for name in (ADMIN, ADAPTER, SCHEDULER)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._authorization = authorization
        self._arguments = list(arguments)
        self._etcd_port = free_port()

    def __enter__(self) -> ControlPlane:
        (self.folder / "pki").mkdir(parents=True, exist_ok=True)
        self.users = Authority(self.folder / "pki" / "users.crt")
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (self.folder / "pki" / "sa.key").write_bytes(private)
        (self.folder / "pki" / "sa.pub").write_bytes(public)
        groups = {ADMIN: "system:masters", ADAPTER: "system:serviceaccounts", SCHEDULER: ""}
        lines = [f'{token},{name},{name},"{groups[name]}"' for name, token in self.tokens.items()]
        (self.folder / "tokens.csv").write_text("\n".join(lines) + "\n")
        for name in self.tokens:
            self._write_kubeconfig(name)
        try:
            self._start_etcd()
            self.start_api_server()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def kubeconfig(self, user: str = ADMIN) -> Path:
        """Return the kubeconfig file of a user."""
        return self.folder / f"{user.replace(':', '-')}.kubeconfig"

    def start_api_server(self) -> None:
        """Start the API server, for the first time or after it was killed, and wait until it is ready."""
        pki = self.folder / "pki"
        off = ["TaintNodesByCondition"] if "kube-controller-manager" not in self.processes else []
        self._start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={pki}",
            f"--client-ca-file={pki / 'users.crt'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            f"--authorization-mode={self._authorization}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki / 'sa.pub'}",
            f"--service-account-signing-key-file={pki / 'sa.key'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            *(f"--disable-admission-plugins={name}" for name in off),
            "--endpoint-reconciler-type=none",
            "--profiling=false",
            "--advertise-address=192.0.2.1",
            *self._arguments,
        )
        self._wait_ready()

    def kill_api_server(self) -> None:
        """End the API server as a crash does."""
        process = self.processes.pop("kube-apiserver")
        process.kill()
        process.wait()

    def start_kubelets(self) -> None:
        """Start KWOK, which plays the kubelets of all nodes."""
        parallel = {f"{kind}{what}": 4 for kind in ("pod", "node") for what in ("PlayStageParallelism",)} | {
            "nodeLeaseParallelism": 4
        }
        settings = {
            "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
            "kind": "KwokConfiguration",
            "options": {"manageAllNodes": True, "nodeLeaseDurationSeconds": 40, **parallel},
        }
        file = self.folder / "kwok.yaml"
        file.write_text(yaml.safe_dump_all([settings, *STAGES]))
        self._start("kwok", "--kubeconfig", str(self.kubeconfig()), "--config", str(file), "--manage-all-nodes")

    def start_controllers(self) -> None:
        """Start kube-controller-manager, which makes pods of jobs and taints nodes."""
        self._start(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig()}",
            f"--service-account-private-key-file={self.folder / 'pki' / 'sa.key'}",
            f"--root-ca-file={self.authority}",
            "--leader-elect=false",
            "--secure-port=0",
            "--use-service-account-credentials=false",
            "--kube-api-qps=1000",
            "--kube-api-burst=1000",
        )

    def start_scheduler(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start kube-scheduler, with raised client limits."""
        file = self.folder / "scheduler.yaml"
        connection = {"kubeconfig": str(self.kubeconfig()), "qps": 5000, "burst": 5000}
        settings = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": connection,
        }
        file.write_text(yaml.safe_dump(settings))
        return self._start("kube-scheduler", f"--config={file}", "--secure-port=0", *arguments)

    def stop(self) -> None:
        """End all processes, the clients first."""
        for name in [
            *(name for name in self.processes if name not in ("kube-apiserver", "etcd")),
            "kube-apiserver",
            "etcd",
        ]:
            process = self.processes.pop(name, None)
            if process is not None:
                process.send_signal(signal.SIGTERM if name != "kube-apiserver" else signal.SIGKILL)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def end(self, name: str) -> None:
        """End one process."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def log(self, name: str) -> str:
        """Return the end of a program's log."""
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def _start_etcd(self) -> None:
        peer = free_port()
        self._start(
            "etcd",
            "--name=test",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{self._etcd_port}",
            f"--advertise-client-urls=http://127.0.0.1:{self._etcd_port}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=test=http://127.0.0.1:{peer}",
            "--log-level=warn",
            "--unsafe-no-fsync",
        )

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(KUBERNETES.build([name]) / name), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "GOMAXPROCS": str(os.cpu_count() or 2)},
            )
        self.processes[name] = process
        return process

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_WITHIN
        server = self.processes["kube-apiserver"]
        while True:
            if server.poll() is not None:
                raise RuntimeError(f"kube-apiserver ended: {self.log('kube-apiserver')}")
            try:
                self.request("GET", "/readyz", timeout=2)
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"kube-apiserver is not ready: {self.log('kube-apiserver')}") from None
                time.sleep(0.1)

    def request(self, method: str, path: str, body: object = None, user: str = ADMIN, timeout: float = 30) -> bytes:
        """Send a request as a user and return the content of the answer."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        call = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.tokens[user]}", "Content-Type": kind},
            method=method,
        )
        context = ssl.create_default_context(cafile=str(self.authority))
        with urllib.request.urlopen(call, timeout=timeout, context=context) as answer:
            content: bytes = answer.read()
        return content

    def _write_kubeconfig(self, user: str) -> None:
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.authority)}}
            ],
            "users": [{"name": "user", "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
            "current-context": "test",
        }
        file = self.kubeconfig(user)
        file.write_text(yaml.safe_dump(document))
        file.chmod(0o600)


@contextmanager
def control_plane(folder: Path, authorization: str = "AlwaysAllow", kubelets: bool = True) -> Iterator[ControlPlane]:
    with ControlPlane(folder, authorization) as plane:
        if kubelets:
            plane.start_kubelets()
        yield plane
