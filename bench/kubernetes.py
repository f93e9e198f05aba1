"""`python -m bench.kubernetes`: pods bound per second on a real control plane, compared with other schedulers.

Every run has a new cluster on 127.0.0.1 with 1,000 nodes. All pods are created first; then the scheduler starts. The
time from its start to the last binding counts, as seen by a watch on the API server. The floor is a program that binds
to nodes in turn without deciding. It also begins the bindings of a gang together, so that its spread within a gang is
that of the API server. The other schedulers are kube-scheduler, Volcano and YuniKorn (`kubernetes_peers.py`). `--large`
measures the start on a cluster with many bound pods, `--reasons` the time until a pod shows a reason.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import uvloop

from bench import kubernetes_peers as peers
from fairlead.client.async_pool import Http
from fairlead.kubernetes.actions import AT_ONCE, Performer, Target
from fairlead.kubernetes.kubeconfig import read_kubeconfig
from fairlead.kubernetes.objects import Pod
from fairlead.kubernetes.reflector import Follower
from tests.go_programs import NotBuilt
from tests.kubernetes.cluster.control_plane import ADMIN, ControlPlane, free_port

FAIRLEAD = str(Path(sys.executable).with_name("fairlead"))
NAMESPACE = "bench"
GANG = 8
LIMIT = 300.0
SCHEDULERS = ("floor", "kube-scheduler", "volcano", "yunikorn", "fairlead")
GROUP = "fairlead.dev/group"
NATIVE = ["--runtime-config=scheduling.k8s.io/v1beta1=true", "--feature-gates=GenericWorkload=true"]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Pod).decode
Json = dict[str, Any]


def node(name: str) -> Json:
    amounts = {"cpu": "32", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = {"type": "Ready", "status": "True", "reason": "Bench", "lastHeartbeatTime": now, "lastTransitionTime": now}
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"z{int(name[1:]) % 4}"}
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": [ready]},
    }


def pod(number: int, scheduler: str, kind: str, bound: str = "") -> Json:
    metadata: Json = {"name": f"p{number:05d}", "namespace": NAMESPACE}
    spec: Json = {
        "schedulerName": scheduler,
        "restartPolicy": "Never",
        "containers": [
            {"name": "c", "image": "none", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}},
        ],
    }
    if bound:
        spec["nodeName"] = bound
    size = GANG if kind == "gangs" else 1
    group = f"g{number // size:05d}"
    if scheduler in peers.MODULES:
        peers.mark(scheduler, metadata, group, size)
    elif kind == "gangs" and scheduler == "default-scheduler":
        spec["schedulingGroup"] = {"podGroupName": group}
    elif kind == "gangs":
        metadata["annotations"] = {GROUP: group, "fairlead.dev/min": str(GANG)}
    return {"metadata": metadata, "spec": spec}


def groups(name: str, kind: str, pods: int) -> Iterator[tuple[str, Json]]:
    """Yield the group objects that a scheduler needs for gangs, as paths and bodies."""
    if name == "kube-scheduler" and kind == "gangs":
        policy = {"schedulingPolicy": {"gang": {"minCount": GANG}}}
        for at in range(pods // GANG):
            body = {"metadata": {"name": f"g{at:05d}"}, "spec": policy}
            yield f"/apis/scheduling.k8s.io/v1beta1/namespaces/{NAMESPACE}/podgroups", body
    elif name == "volcano":
        size = GANG if kind == "gangs" else 1
        for at in range(pods // size):
            yield f"{peers.VOLCANO}/namespaces/{NAMESPACE}/podgroups", peers.group(f"g{at:05d}", size)


async def send(http: Http, requests: Iterator[tuple[str, Json]], at_once: int = 24) -> None:
    """Post objects, many at a time."""

    async def work() -> None:
        for path, body in requests:
            reply = await http.call("POST", path, _encode(body), timeout=60)
            assert reply.status < 300, reply.content[:500]

    await asyncio.gather(*(work() for _ in range(at_once)))


NAMESPACE_OBJECTS = (
    ("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}),
    (f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "default"}}),
)
"""The namespace of the pods, and the account that admission of pods asks for."""


class Bound:
    """The times at which pods were bound, as seen by a watch. Pods that a scheduler creates do not count."""

    def __init__(self, http: Http, wanted: int) -> None:
        self.times: dict[str, float] = {}
        self.nodes: dict[str, str] = {}
        self.all = asyncio.Event()
        self._wanted = wanted
        self._follower = Follower(http, f"/api/v1/namespaces/{NAMESPACE}/pods", _decode, self._put, lambda uid: None)

    def _put(self, found: Pod) -> None:
        name = found.metadata.name
        if found.spec.node_name and name.startswith("p") and name not in self.times:
            self.times[name] = time.monotonic()
            self.nodes[name] = found.spec.node_name
            if len(self.times) >= self._wanted:
                self.all.set()

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        running = asyncio.create_task(self._follower.run())
        await self._follower.synced.wait()
        yield
        running.cancel()


async def floor(http: Http, nodes: int, scheduler: str, at_once: int) -> None:
    """Bind pods to nodes in turn, without deciding anything."""
    performer = Performer(http, lambda target: None, lambda target, problem: print("refused", problem), at_once=at_once)
    number = 0

    def put(found: Pod) -> None:
        nonlocal number
        if not found.spec.node_name:
            meta = found.metadata
            target = Target("bind", meta.namespace, meta.name, meta.uid, None, f"n{number % nodes:04d}")
            target.gang = meta.annotation(GROUP)
            performer.add(target)
            number += 1

    selector = {"fieldSelector": f"spec.schedulerName={scheduler},spec.nodeName="}
    follower = Follower(http, "/api/v1/pods", _decode, put, lambda uid: None, selector)
    await http.open(at_once)
    await asyncio.gather(performer.run(), follower.run())


class Started:
    """A running scheduler, with its processes by name."""

    def __init__(self, *processes: subprocess.Popen[bytes]) -> None:
        self.processes = processes

    def ended(self) -> bool:
        return any(process.poll() is not None for process in self.processes)

    def cpu(self) -> float:
        return sum(_cpu(process.pid) for process in self.processes)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> int:
    """Return the peak memory of a process so far, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


def start_floor(plane: ControlPlane, nodes: int, at_once: int) -> Started:
    command = [sys.executable, "-m", "bench.kubernetes", "--floor", str(plane.kubeconfig()), "--nodes", str(nodes)]
    with (plane.folder / "floor.log").open("ab") as log:
        return Started(subprocess.Popen([*command, "--at-once", str(at_once)], stdout=log, stderr=log))


class Server:
    """A Fairlead server that is up before the clock starts, as the API server is."""

    def __init__(self, folder: Path, at_once: int) -> None:
        self.folder = folder
        self.at_once = at_once
        self.port = free_port()
        self.log = (folder / "fairlead.log").open("ab")
        command = [FAIRLEAD, "server", "--data", str(folder / "data"), "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.url = f"http://127.0.0.1:{self.port}"
        while True:
            try:
                if httpx.get(f"{self.url}/healthz").is_success:
                    break
            except httpx.TransportError:
                time.sleep(0.1)

    def start_adapter(self, plane: ControlPlane) -> Started:
        token = (self.folder / "data" / "token").read_text().strip()
        command = [FAIRLEAD, "kubernetes", "--server", self.url, "--kubeconfig", str(plane.kubeconfig())]
        command += ["--lease", "none", "--listen", "none", "--at-once", str(self.at_once)]
        adapter = subprocess.Popen(
            command, stdout=self.log, stderr=self.log, env={**os.environ, "FAIRLEAD_TOKEN": token}
        )
        return Started(adapter, self.process)


async def install(http: Http, name: str) -> None:
    """Create the objects that an installation of a scheduler has, and wait until the API server serves their kinds."""
    objects = list(peers.definitions(name))
    await send(http, iter(objects))
    for _, body in objects:
        if body.get("kind") == "CustomResourceDefinition":
            spec = body["spec"]
            path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
            while (await http.call("GET", path)).status != 200:
                await asyncio.sleep(0.1)
    for path, body in peers.queues(name):
        await send(http, iter([(path, body)]))
        state = _encode({"status": {"state": "Open"}})
        status = f"{path}/{body['metadata']['name']}/status"
        reply = await http.call("PATCH", status, state, "application/merge-patch+json")
        assert reply.status == 200, reply.content[:500]


async def measure(name: str, kind: str, nodes: int, pods: int, at_once: int) -> str:
    """Bind pods with one scheduler on a new cluster, and return a row of the table."""
    with tempfile.TemporaryDirectory() as folder, ControlPlane(Path(folder), arguments=NATIVE) as plane:
        http = Http(read_kubeconfig(plane.kubeconfig(ADMIN))[0], 32)
        scheduler = {"kube-scheduler": "default-scheduler", "floor": "fairlead"}.get(name, name)
        await send(http, iter(NAMESPACE_OBJECTS), 1)
        await send(http, (("/api/v1/nodes", node(f"n{at:04d}")) for at in range(nodes)))
        await install(http, name)
        await send(http, groups(name, kind, pods))
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        await send(http, ((path, pod(at, scheduler, kind)) for at in range(pods)))
        server = Server(Path(folder), at_once) if name == "fairlead" else None
        bound = Bound(http, pods)
        async with bound.watch():
            await asyncio.sleep(1)
            before = {part: _cpu(process.pid) for part, process in plane.processes.items()}
            began = time.monotonic()
            if server is not None:
                running = server.start_adapter(plane)
            elif name == "floor":
                running = start_floor(plane, nodes, at_once)
            elif name == "kube-scheduler":
                running = Started(plane.start_scheduler("--feature-gates=GenericWorkload=true"))
            else:
                running = Started(peers.start(name, plane))
            done = asyncio.create_task(bound.all.wait())
            while not done.done() and time.monotonic() - began < LIMIT:
                await asyncio.wait([done], timeout=0.5)
                if running.ended():
                    running.stop()
                    http.close()
                    last = (plane.log(name).strip() or "it wrote nothing").splitlines()[-1]
                    return f"| {name} | {kind} | it ended: {last} |"
            done.cancel()
            spent = running.cpu()
            memory = _memory(running.processes[0].pid)
            api = sum(_cpu(plane.processes[part].pid) - before[part] for part in before if part in plane.processes)
        running.stop()
        http.close()
    return _row(name, kind, bound, began, pods, spent, api, memory)


def _row(name: str, kind: str, bound: Bound, began: float, pods: int, spent: float, api: float, memory: int) -> str:
    times = sorted(bound.times.values())
    if not times:
        return f"| {name} | {kind} | nothing was bound |"
    last = times[-1] - began
    spread = ""
    if kind == "gangs":
        gangs: dict[int, list[float]] = {}
        for each, when in bound.times.items():
            gangs.setdefault(int(each[1:]) // GANG, []).append(when)
        widths = sorted(max(gang) - min(gang) for gang in gangs.values() if len(gang) == GANG)
        half = sum(1 for gang in gangs.values() if len(gang) < GANG)
        if widths:
            spread = f"{1000 * widths[len(widths) // 2]:.0f} / {1000 * widths[len(widths) * 99 // 100]:.0f} ms" + (
                f", {half} half" if half else ""
            )
    load = Path("/proc/loadavg").read_text().split()[0]
    return (
        f"| {name} | {kind} | {len(times)} of {pods} | {last:.1f} s | {len(times) / last:.0f} | "
        f"{len(times) / max(times[-1] - times[0], 1e-9):.0f} | {times[0] - began:.1f} s | {spread} | {spent:.1f} s | "
        f"{api:.1f} s | {memory} MiB | {load} |"
    )


HEAD = (
    "| scheduler | pods | bound | to all bound | pods/s | first to last, pods/s | first | spread in a gang, 50 / 99 % "
    "| its CPU | CPU of API server and etcd | memory | load |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


async def reasons(nodes: int, at_once: int) -> None:
    """Create pods that fit on no node, one by one; measure the time until each has a condition with the reason."""
    with tempfile.TemporaryDirectory() as folder, ControlPlane(Path(folder), arguments=NATIVE) as plane:
        http = Http(read_kubeconfig(plane.kubeconfig(ADMIN))[0], 32)
        await send(http, iter(NAMESPACE_OBJECTS), 1)
        await send(http, (("/api/v1/nodes", node(f"n{at:04d}")) for at in range(nodes)))
        server = Server(Path(folder), at_once)
        running = server.start_adapter(plane)
        times: list[float] = []
        for at in range(21):
            body = pod(at, "fairlead", "plain")
            if at:  # the first pod is bound, which shows that the adapter works
                body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "64"
            path = f"/api/v1/namespaces/{NAMESPACE}/pods"
            began = time.monotonic()
            await send(http, iter([(path, body)]))
            while b'"PodScheduled"' not in (await http.call("GET", f"{path}/{body['metadata']['name']}")).content:
                await asyncio.sleep(0.01)
            times.append(time.monotonic() - began)
        times = sorted(times[1:])
        print(f"a reason on a pod that cannot run: median {times[10]:.2f} s, longest {times[-1]:.2f} s of {len(times)}")
        running.stop()
        http.close()


async def large(nodes: int, pods: int, at_once: int) -> None:
    """Start on a cluster with many bound pods: measure memory, and the time to the first binding of a waiting pod."""
    with tempfile.TemporaryDirectory() as folder, ControlPlane(Path(folder), arguments=NATIVE) as plane:
        http = Http(read_kubeconfig(plane.kubeconfig(ADMIN))[0], 32)
        await send(http, iter(NAMESPACE_OBJECTS), 1)
        await send(http, (("/api/v1/nodes", node(f"n{at:04d}")) for at in range(nodes)))
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        bound_pods = (pod(at, "fairlead", "plain", f"n{at % nodes:04d}") for at in range(pods))
        began = time.monotonic()
        await send(http, ((path, each) for each in bound_pods))
        print(f"{nodes} nodes and {pods} bound pods created in {time.monotonic() - began:.0f} s", flush=True)
        server = Server(Path(folder), at_once)
        for turn in ("an empty journal", "a restart of the adapter"):
            name = f"p9000{len(turn) % 10}"
            await send(http, iter([(path, pod(int(name[1:]), "fairlead", "plain"))]))
            began = time.monotonic()
            running = server.start_adapter(plane)
            while True:
                reply = await http.call("GET", f"{path}/{name}")
                if _decode(reply.content).spec.node_name:
                    break
                if time.monotonic() - began > LIMIT:
                    print("not bound")
                    break
                await asyncio.sleep(0.1)
            took = time.monotonic() - began
            adapter, fairlead = (_memory(process.pid) for process in running.processes)
            print(f"first binding after {turn}: {took:.1f} s; adapter {adapter} MiB, server {fairlead} MiB", flush=True)
            running.processes[0].kill()
            running.processes[0].wait()
        server.process.kill()
        http.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.kubernetes")
    parser.add_argument("--nodes", type=int, help="1,000, or 5,000 with --large")
    parser.add_argument("--pods", type=int, help="5,000, or 50,000 with --large")
    parser.add_argument("--only", default=",".join(SCHEDULERS), help="schedulers that are measured, in this order")
    parser.add_argument("--kinds", default="plain,gangs")
    parser.add_argument(
        "--at-once", type=int, default=AT_ONCE, help="calls of the adapter and of the floor under way at once"
    )
    parser.add_argument("--large", action="store_true", help="measure the start on a cluster with bound pods")
    parser.add_argument("--reasons", action="store_true", help="measure the time to a reason on a pod that cannot run")
    parser.add_argument("--floor", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    nodes = options.nodes or (5_000 if options.large else 1_000)
    pods = options.pods or (50_000 if options.large else 5_000)
    if options.floor:
        http = Http(read_kubeconfig(Path(options.floor))[0], options.at_once + 8)
        uvloop.run(floor(http, nodes, "fairlead", options.at_once))
        return
    if options.reasons:
        uvloop.run(reasons(nodes, options.at_once))
        return
    if options.large:
        uvloop.run(large(nodes, pods, options.at_once))
        return
    names = options.only.split(",")
    if unknown := set(names) - set(SCHEDULERS):
        parser.error(f"--only: {', '.join(sorted(unknown))} is not known; choose from {', '.join(SCHEDULERS)}")
    for name in [name for name in names if name in peers.MODULES]:
        try:
            peers.build(name)
        except NotBuilt as problem:
            print(f"{name} is left out: {problem}", file=sys.stderr)
            names.remove(name)
    print(HEAD, flush=True)
    for kind in options.kinds.split(","):
        for name in names:
            print(uvloop.run(measure(name, kind, nodes, pods, options.at_once)), flush=True)


if __name__ == "__main__":
    main()
