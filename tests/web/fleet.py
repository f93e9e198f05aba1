"""A real server with a virtual fleet: nodes without machines, whose tasks are reported as running at once.

`python -m tests.web.fleet [NODES]` runs one to look at, and prints its address with a token.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from fairlead.core.commands import AddNode, Report
from fairlead.core.documents import parse_node
from fairlead.core.effects import ForNode
from fairlead.engines.engine import Busy
from tests.http.serving import Orders, Serving
from tests.until import until

NODES = 2_000


def config(nodes: int) -> dict[str, Any]:
    """Return a configuration for a number of nodes."""
    queues = {
        "research": {"share": 50, "vision": {"share": 60, "order": "fair"}, "language": {"share": 40}},
        "production": {"share": 30},
        "ci": {"share": 20, "limit": {"cpu": max(8, 2 * nodes)}},
    }
    partition = {
        "lease": "30d",  # the nodes have no agents
        "starving_after": "1s",
        "hold_for": "1h",
        "share_memory": "1h",
        "queues": {"root": queues},
    }
    return {"partitions": {"default": partition}}


class Fleet(Orders):
    """Reports launched tasks as running, and stopped ones as ended."""

    site: Serving

    def dispatch(self, partition: str, messages: Sequence[ForNode]) -> None:
        super().dispatch(partition, messages)
        for message in messages:
            for launch in message.launches:
                self._tell(partition, message.node, launch, "running")
            for stop in message.stops:
                self._tell(partition, message.node, stop, "stopped")

    def _tell(self, partition: str, node: str, tasks: Any, state: Any) -> None:
        report = Report(
            node=node,
            job=tasks.job,
            stage=tasks.stage,
            indices=tasks.indices,
            attempt=tasks.attempt,
            state=state,
            number=tasks.number,
            operator=True,
        )

        async def offer() -> None:
            while True:
                try:
                    return void(await self.site.control.find(partition).offer(report))
                except Busy:
                    await asyncio.sleep(0.05)

        asyncio.get_running_loop().create_task(offer())


def void(_: object) -> None:
    return None


def node_documents(count: int) -> list[dict[str, Any]]:
    """Return nodes of three kinds, in racks of 40: with eight GPUs, with four, and with CPUs only."""
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("a100", {"cpu": 64, "memory": "512Gi", "gpu": 8}),
        ("l4", {"cpu": 32, "memory": "128Gi", "gpu": 4}),
        ("cpu", {"cpu": 96, "memory": "256Gi"}),
    ]
    documents = []
    digits = 5 if count >= 1_000 else len(str(count))
    for number in range(count):
        kind, resources = kinds[0 if number < max(1, count // 4) else 1 if number < max(2, count // 2) else 2]
        labels = {"rack": f"rack-{number // 40 + 1:02}", "zone": f"zone-{'abc'[number % 3]}", "kind": kind}
        documents.append({"name": f"{kind}-{number:0{digits}}", "resources": resources, "labels": labels, "pool": kind})
    return documents


def add_nodes(site: Serving, count: int) -> None:
    async def add() -> None:
        served = site.control.find()
        for start in range(0, count, 500):
            part = node_documents(count)[start : start + 500]
            commands = [AddNode(name=doc["name"], spec=parse_node(doc)[1], operator=True) for doc in part]
            await asyncio.gather(*[served.execute(command) for command in commands])

    site.do(add())


def job(name: str, queue: str, cpu: float = 1, gpu: float = 0, **stage: Any) -> dict[str, Any]:
    resources = {"cpu": cpu, "memory": f"{round(2048 * cpu)}Mi", **({"gpu": gpu} if gpu else {})}
    main = {"name": "worker", "resources": resources, "command": ["python", "train.py"], **stage}
    return {"name": name, "queue": f"root.{queue}", "stages": [main]}


def large_work(each: int) -> dict[str, list[dict[str, Any]]]:
    """Return jobs by user for thousands of nodes: few, with many tasks."""
    return {
        "ann": [
            job("resnet-sweep", "research.vision", 8, 1, array=each * 12),
            job("segment-anything", "research.vision", 56, 8, count=each * 2),
            job("frames", "research.vision", 4, 0.5, array=each),
        ],
        "bob": [
            job("pretrain-7b", "research.language", 32, 8, count=each, time_limit="6h"),
            job("tokenize", "research.language", 16, array=each * 6, estimate="40min"),
        ],
        "eve": [
            job("serve-ranking", "production", 24, 2, array=each * 2),
            job("features", "production", 12, array=each * 30, estimate="20min"),
        ],
        "cim": [job(f"build-{number}", "ci", 4, array=each, time_limit="15min") for number in range(12)],
        "dan": [
            job("train-moe-large", "research.language", 48, 8, count=each * 3),
            job("old-driver", "production", 4, 1, selectors={"kind": "h100"}),
        ],
    }


def small_work(nodes: int) -> dict[str, list[dict[str, Any]]]:
    """Return jobs by user for up to some hundred nodes: several on each node, of one GPU, of many and of parts."""
    times = min(12, max(1, nodes // 5))
    size = max(1, nodes // (5 * times))
    users: dict[str, list[dict[str, Any]]] = {
        "eve": [job("features", "production", 2, array=7 * nodes, estimate="12min")]
    }

    def add(user: str, *documents: dict[str, Any]) -> None:
        users.setdefault(user, []).extend(documents)

    for number in range(1, times + 1):
        add("ann", job(f"train-resnet-{number}", "research.vision", 6, 2, count=2 * size, time_limit="2h"))
        add("eve", job(f"serve-ranking-{number}", "production", 8, 1, array=size))
        add("bob", job(f"finetune-7b-{number}", "research.language", 12, 4, count=size, estimate="45min"))
        add("ann", job(f"frames-{number}", "research.vision", 3, 0.5, array=2 * size, estimate="25min"))
        add("bob", job(f"tokenize-{number}", "research.language", 6, array=14 * size, estimate="20min"))
        add("cim", job(f"build-{number}", "ci", 4, array=3 * size, time_limit="10min"))
        add("eve", job(f"reports-{number}", "production", 5, array=7 * size, estimate="15min"))
        add("ann", job(f"sweep-{number}", "research.vision", 4, 1, array=8 * size, estimate="30min"))
    add(
        "dan",
        job("train-moe", "research.language", 32, 8, count=max(1, nodes // 8), estimate="3h"),
        job("old-driver", "production", 4, 1, selectors={"kind": "h100"}),
    )
    return users


def fill(site: Serving, count: int = NODES, most: int = NODES) -> None:
    """Give the fleet work of several users: most of it runs, some of it waits for limits, for GPUs or for a gang.

    The work is for at most `most` nodes.
    """
    users = small_work(count) if count < 1_000 else large_work(min(count, most) // 20)
    for user, documents in users.items():
        with site.as_user(user) as client:
            for document in documents:
                client.post("/api/v1/jobs", json=document).raise_for_status()
    settle(site.as_owner)
    names = [document["name"] for document in node_documents(count)]
    for name in names[7 if count > 40 else 1 : count // 4 : max(5, count // 40)]:
        site.as_owner.post(f"/api/v1/nodes/{name}/drain", params={"reason": "new kernel"})
    for name in names[count // 2 + 3 :: max(20, count // 8)]:
        site.as_owner.post(f"/api/v1/nodes/{name}/disable", params={"reason": "fan broken"})
    settle(site.as_owner)


def settle(client: httpx.Client, seconds: float = 60.0) -> None:
    """Wait until no task is on its way to a node."""

    def is_settled() -> bool:
        jobs = client.get("/api/v1/jobs", params={"limit": 1000}).json()["jobs"]
        return not any(stage["assigned"] for each in jobs for stage in each["stages"])

    until(is_settled, pause=0.2)


def start(folder: Path, nodes: int = NODES) -> Serving:
    site = Serving(folder, config(nodes), hub=Fleet)
    assert isinstance(site.orders, Fleet)
    site.orders.site = site
    add_nodes(site, nodes)
    return site


def main() -> None:
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else NODES
    with tempfile.TemporaryDirectory() as folder:
        site = start(Path(folder), nodes)
        began = time.monotonic()
        fill(site, nodes)
        print(f"{site.url}/#token={site.owner}", flush=True)
        print(f"filled in {time.monotonic() - began:.1f} s; user token: {site.token('user', 'ann')}", flush=True)
        time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 3600)
        site.close()


if __name__ == "__main__":
    main()
