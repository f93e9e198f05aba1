"""Nodes and queues in Slurm's words, for sinfo and scontrol."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fairlead.slurm.queues import short

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.wire import api as wire

SHORT = {
    "IDLE": "idle", "MIXED": "mix", "ALLOCATED": "alloc", "DRAINING": "drng", "DRAINED": "drain", "DOWN": "down",
    "RESERVED": "resv", "UNKNOWN": "unk",
}  # fmt: skip
OWN = ("version", "users", "cgroup", "tmp", "node", "image")
"""Labels, or what comes before their first dot, that say how an agent runs; all others are features."""


class Host(msgspec.Struct, frozen=True):
    """A node, with its state in Slurm's words."""

    node: wire.Node

    @property
    def name(self) -> str:
        return self.node.name

    def amount(self, name: str, used: bool = False) -> float:
        return (self.node.used if used else self.node.resources).get(name, 0)

    @property
    def state(self) -> str:
        node = self.node
        busy = node.tasks > 0
        if node.state == "lost":
            return "DOWN"
        if node.state in ("draining", "disabled"):
            return "DRAINING" if busy else "DRAINED"
        if node.state == "disconnected" and not busy:
            return "DOWN"
        if node.held_for or node.held_for_others:
            return "RESERVED" if not busy else "MIXED"
        if not busy:
            return "IDLE"
        return "ALLOCATED" if self.amount("cpu", True) >= self.amount("cpu") else "MIXED"

    @property
    def answers(self) -> bool:
        return self.node.state not in ("lost", "disconnected")

    @property
    def shown(self) -> str:
        """The state as sinfo writes it: with * if the node does not answer."""
        return SHORT[self.state] + ("" if self.answers else "*")

    @property
    def features(self) -> str:
        labels = sorted((name, value) for name, value in self.node.labels.items() if name.partition(".")[0] not in OWN)
        return ",".join(name if value in ("", "true") else f"{name}={value}" for name, value in labels)

    @property
    def gres(self) -> str:
        model = self.node.labels.get("gpu_model", "")
        found = []
        for name, count in sorted(self.node.resources.items()):
            if name == "gpu":
                found.append(f"gpu:{model}:{count:g}" if model else f"gpu:{count:g}")
            elif name not in ("cpu", "memory"):
                found.append(f"{name}:{count:g}")
        return ",".join(found)

    @property
    def gres_used(self) -> str:
        others = [name for name in sorted(self.node.resources) if name not in ("cpu", "memory")]
        return ",".join(f"{name}:{self.amount(name, True):g}" for name in others)

    @property
    def mib(self) -> int:
        return int(self.amount("memory") // 2**20)

    @property
    def group(self) -> int:
        """The group of the state in A/I/O/T: 0 allocated, 1 idle, 2 other."""
        return {"ALLOCATED": 0, "MIXED": 0, "DRAINING": 2, "IDLE": 1}.get(self.state, 2)


class Part(msgspec.Struct, frozen=True):
    """A queue as a partition of Slurm."""

    queue: wire.Queue
    default: bool

    @property
    def name(self) -> str:
        return short(self.queue.path)

    @property
    def up(self) -> bool:
        return self.queue.state == "active"


def read_hosts(client: Client) -> list[Host]:
    from fairlead.wire import operations as op

    found = [node for page in client.pages(op.Nodes(limit=1000)) for node in page.nodes]
    return [Host(node) for node in found]


def read_parts(client: Client) -> list[Part]:
    """Return the leaf queues. The default one is `root.default`, or else the only one."""
    leaves = [queue for queue in client.queues() if queue.leaf]
    return [Part(queue, queue.path == "root.default" or len(leaves) == 1) for queue in leaves]
