"""End to end: adapters, servers and API servers are killed, and no gang stays half bound, no pod is bound twice."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.client.async_pool import Address, Http, Reply
from fairlead.kubernetes.kubeconfig import read_kubeconfig
from fairlead.kubernetes.partition_link import ApiLink
from fairlead.kubernetes.runner import Runner, Settings
from tests.kubernetes.cluster.control_plane import ControlPlane
from tests.kubernetes.scene import NAMESPACE, SECONDS, Scene, scenes
from tests.servers import Server

pytestmark = pytest.mark.kubernetes


def test_one_of_two_adapters_works(scene: Scene) -> None:
    scene.node("n1", cpu=16)
    scene.start_adapter("one", lease="default/fairlead-test")
    scene.wait_bound(scene.pod("first"))
    scene.start_adapter("two", lease="default/fairlead-test")
    scene.wait_bound(*[scene.pod(f"p-{at}") for at in range(4)])
    assert "registered" not in (scene.folder / "adapter-two.log").read_text()
    scene.kill_adapter("one")
    scene.wait_bound(*[scene.pod(f"q-{at}") for at in range(4)])
    assert "registered" in (scene.folder / "adapter-two.log").read_text()
    assert len(scene.jobs()) == 9


def test_an_adapter_that_stops_hands_over_at_once(scene: Scene) -> None:
    scene.node("n1")
    scene.start_adapter("one", lease="default/fairlead-handover")
    scene.wait_bound(scene.pod("first"))
    scene.start_adapter("two", lease="default/fairlead-handover")
    scene.kill_adapter("one", signal.SIGTERM)
    lease = scene.call("GET", "/apis/coordination.k8s.io/v1/namespaces/default/leases/fairlead-handover")
    assert lease["spec"]["holderIdentity"] != "" or lease["spec"]["leaseTransitions"] >= 1
    scene.wait_bound(scene.pod("second"))


@pytest.mark.brief
def test_what_changed_while_the_adapter_was_away_is_recovered(scene: Scene) -> None:
    scene.node("n1")
    scene.node("n2")
    scene.start_adapter()
    gang, plain = scene.gang("app", 4), [scene.pod(f"plain-{at}") for at in range(2)]
    scene.wait_bound(*gang, *plain)
    scene.kill_adapter()
    scene.delete(plain[0])
    scene.delete("app-3")
    scene.node("n3")
    scene.pod("bound", nodeName="n3", scheduler="fairlead")  # bound, and unknown to the journal
    late = scene.pod("late")
    scene.start_adapter()
    scene.wait_bound(late)
    used = {node["name"]: node["used"].get("cpu", 0) for node in scene.fairlead.get("/nodes").json()["nodes"]}
    assert sum(used.values()) == 6 and used["n3"] >= 1, used


@pytest.mark.brief
def test_the_journal_is_lost(scene: Scene, tmp_path: Path) -> None:
    """The API server tells what is bound: a server with an empty journal books the pods where they are."""
    scene.node("n1")
    scene.node("n2")
    scene.start_adapter()
    scene.wait_bound(*scene.gang("app", 6))
    before = scene.nodes_of()
    scene.kill_adapter()
    scene.kill_server()
    (scene.folder / "data").rename(scene.folder / "lost")
    scene.start_server()
    scene.start_adapter()
    scene.wait_bound(scene.pod("late", cpu="2"))
    assert {name: node for name, node in scene.nodes_of().items() if name != "late"} == before
    assert not scene.overbooked()


@pytest.mark.brief
def test_running_pods_of_a_refused_job_keep_their_room(scene: Scene) -> None:
    """The job is refused because its queue does not exist. Its pods are booked when it does."""
    scene.node("n1")
    waiting = scene.pod("a-waiting", cpu="2")  # listed before the pods that run
    running = [scene.pod(f"b-{at}", nodeName="n1", annotations={"fairlead.dev/queue": "root.late"}) for at in range(3)]
    scene.start_adapter()
    scene.wait_reason(waiting, "Unschedulable")
    scene.wait_bound(scene.pod("small"))  # in the room that is left
    assert waiting not in scene.nodes_of() and not scene.overbooked()
    config = {"partitions": {"default": {"queues": {"root": {"default": {}, "late": {}}}}}}
    assert scene.fairlead.put("/config", json=config).is_success
    scene.wait(lambda: scene.fairlead.get("/nodes/n1").json()["used"].get("cpu") == 4, "all pods are booked")
    for name in running[:2]:
        scene.delete(name)
    scene.wait_bound(waiting)
    assert not scene.overbooked()


@pytest.mark.brief
def test_the_server_restarts_under_the_adapter(scene: Scene) -> None:
    scene.node("n1", cpu=16)
    scene.start_adapter()
    scene.wait_bound(*[scene.pod(f"p-{at}") for at in range(4)])
    scene.kill_server()
    names = [scene.pod(f"q-{at}") for at in range(4)]
    scene.start_server()
    scene.wait_bound(*names)
    assert len(scene.jobs()) == 8


def test_the_adapter_runs_inside_the_server(plane: ControlPlane, tmp_path: Path) -> None:
    scene = Scene(plane, tmp_path)
    try:
        scene.clean()
        scene.node("n1")
        scene.start_server("--kubernetes", str(plane.kubeconfig()), "--kubernetes-lease", "none")
        scene.wait_bound(*scene.gang("app", 3))
        scene.kill_server()
        late = scene.pod("late")
        scene.start_server("--kubernetes", str(plane.kubeconfig()), "--kubernetes-lease", "none")
        scene.wait_bound(late)
        assert not scene.overbooked()
    finally:
        scene.stop()


class SlowHttp(Http):
    """A client whose answers to one list are held back until `go`."""

    def __init__(self, address: Address, path: str) -> None:
        super().__init__(address)
        self.path = path
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def call(self, method: str, path: str, *arguments: Any, **more: Any) -> Reply:
        reply = await super().call(method, path, *arguments, **more)
        if path.startswith(f"{self.path}?"):
            self.asked.set()
            await self.go.wait()
        return reply


@pytest.mark.parametrize("path", ["/api/v1/nodes", "/api/v1/pods", "/apis/batch/v1/jobs"])
def test_nothing_is_scheduled_before_the_lists_are_complete(scene: Scene, path: str) -> None:
    scene.node("n1")
    scene.pod("waiting")

    async def play() -> None:
        slow = SlowHttp(read_kubeconfig(scene.plane.kubeconfig())[0], path)
        server = Http(Address("127.0.0.1", int(scene.url.rpartition(":")[2]), token=lambda: scene.token), 4)
        runner = Runner(slow, ApiLink(server, "kubernetes"), Settings(), lambda event, **fields: None)
        running = asyncio.create_task(runner.run())
        try:
            async with asyncio.timeout(SECONDS):
                await slow.asked.wait()
                for follower in runner.followers:
                    if follower.path != path:
                        await follower.synced.wait()
                await asyncio.sleep(1)  # time in which nothing may happen
                assert not runner.adapter.adopted and path in runner.health.missing()
                assert not await asyncio.to_thread(scene.nodes_of)
                assert not (await asyncio.to_thread(scene.fairlead.get, "/managers")).json()["managers"]
                slow.go.set()
                while not await asyncio.to_thread(scene.nodes_of):
                    await asyncio.sleep(0.05)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            server.close()

    asyncio.run(play())


def test_the_adapter_of_a_server_that_stands_by_waits(plane: ControlPlane, tmp_path: Path, database: str) -> None:
    """It must not hold the lease, or no pod would be scheduled by the server that leads."""
    scene = Scene(plane, tmp_path)
    cluster = ("--kubernetes", str(plane.kubeconfig()), "--kubernetes-lease", "default/fairlead-servers")
    one, two = (Server(tmp_path, name, database, "--lease", "5s", *cluster) for name in ("one", "two"))
    try:
        scene.clean()
        scene.node("n1")
        one.start()
        scene.wait_bound(scene.pod("first"))
        two.start()
        scene.settle(2)
        assert "adapter" not in two.log() and "link lost" not in two.log()
        one.kill()
        scene.wait_bound(scene.pod("second"))
        one.start()
        scene.settle(1)
        two.kill(signal.SIGTERM)  # both leases are given back
        scene.wait_bound(scene.pod("third"))
        assert not scene.overbooked()
    finally:
        for server in (one, two):
            server.kill()
        scene.stop()


def test_health_and_metrics(scene: Scene) -> None:
    from tests.kubernetes.cluster.control_plane import free_port

    port = free_port()
    scene.node("n1")
    scene.start_adapter("one", "--listen", f"127.0.0.1:{port}", lease="none")

    def ready() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz").is_success
        except httpx.TransportError:
            return False

    scene.wait(ready, "the adapter is ready")
    scene.wait_bound(scene.pod("a"))
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    assert 'fairlead_kubernetes_calls_total{result="201",verb="bind"} 1.0' in text
    scene.kill_server()
    scene.wait(lambda: not ready(), "the adapter is not ready")
    assert httpx.get(f"http://127.0.0.1:{port}/healthz").is_success


# -- kills at random instants ----------------------------------------------------------------------------------------


def storm(scene: Scene, kills: int, seed: int, **spec: Any) -> None:
    """Submit gangs and plain pods, kill the adapter or the API server again and again, and judge the end."""
    draw = random.Random(seed)
    for at in range(8):
        scene.node(f"n{at}", cpu=8)
    scene.start_adapter()
    size, alive = 4, []
    number = 0
    for kill in range(kills):
        for _ in range(draw.randrange(1, 4)):
            alive.append((f"g{number}", scene.gang(f"g{number}", size, **spec)))
            number += 1
        while len(alive) > 12:  # the cluster holds 16 gangs
            _, names = alive.pop(draw.randrange(4))
            for name in names:
                scene.delete(name)
        scene.settle(draw.uniform(0.0, 0.6))
        if draw.random() < 0.75:
            scene.kill_adapter()
            scene.settle(draw.uniform(0.0, 0.2))
            scene.start_adapter()
        else:
            scene.plane.kill_api_server()
            scene.settle(draw.uniform(0.0, 0.2))
            scene.plane.start_api_server()
        if kill % 5 == 4:
            judge(scene, alive)
    judge(scene, alive)


def judge(scene: Scene, alive: list[tuple[str, list[str]]]) -> None:
    """All gangs are bound whole in the end, on nodes that hold them; the partition has the same bookings."""
    scene.wait_bound(*[name for _, names in alive for name in names])
    assert not scene.overbooked()
    pods = [pod for pod in scene.pods(NAMESPACE).values() if pod["spec"].get("nodeName")]

    def booked() -> bool:
        used = {node["name"]: node["used"].get("cpu", 0) for node in scene.fairlead.get("/nodes").json()["nodes"]}
        real: dict[str, int] = dict.fromkeys(used, 0)
        for pod in pods:
            real[pod["spec"]["nodeName"]] += 1
        return used == real

    scene.wait(booked, "the partition books what is bound")
    refusals = [line for line in scene.logs().splitlines() if "already assigned" in line]
    assert not refusals, refusals


def test_kills_leave_no_half_gang(scene: Scene) -> None:
    storm(scene, kills=6, seed=1)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_200_kills_leave_no_half_gang(plane: ControlPlane, tmp_path: Path) -> None:
    for scene in scenes(plane, tmp_path):
        storm(scene, kills=200, seed=2)
