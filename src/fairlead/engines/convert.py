"""Checks messages of agents, and converts between them and values of the core."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fairlead.core.changes import NodeSpec
from fairlead.core.commands import Report
from fairlead.core.documents import parse_node
from fairlead.core.errors import Refused
from fairlead.core.ranges import indices
from fairlead.core.reader import check_name
from fairlead.core.resources import shown
from fairlead.core.settings import PartitionSettings
from fairlead.core.state import Partition
from fairlead.engines.agent_connections import Attached, block_of
from fairlead.engines.engine import Ended, Peer
from fairlead.wire import agent_messages as wire
from fairlead.wire.agent_messages import Hello, Tasks
from fairlead.wire.handshake import NONCE_BYTES

ADDRESS = re.compile(r"[0-9A-Za-z]([0-9A-Za-z._-]{0,251}[0-9A-Za-z])?|[0-9A-Fa-f:]{2,39}(%[0-9A-Za-z._-]{1,32})?")
"""A host name, an IPv4 address, or an IPv6 address."""


def check_knock(knock: wire.Knock) -> None:
    if knock.version != wire.VERSION:
        raise Refused(
            "version", f"the agent speaks version {knock.version}, the server {wire.VERSION}; update one", "conflict"
        )
    check_name(knock.node, "node")
    if len(knock.nonce) != NONCE_BYTES:
        raise Refused("nonce", f"it has {len(knock.nonce)} bytes; send {NONCE_BYTES}")


def check_greeting(hello: Hello, peer: Peer) -> None:
    name, _ = node_of(hello)
    if hello.address and not ADDRESS.fullmatch(hello.address):
        raise Refused("address", f"{shown(hello.address)} is no host name or address; start the agent with --address")
    if name != peer.node:
        raise Refused("node", f"this connection is for node {peer.node}, not for {name}; connect as {name}")
    if peer.pool not in ("", hello.pool):
        raise Refused("pool", f"node {name} was admitted to pool {peer.pool}; start its agent with --pool {peer.pool}")
    if peer.users and not (hello.users and set(hello.users) <= set(peer.users)):
        only = " ".join([f"--for {user}" for user in peer.users])
        raise Refused("users", f"node {name} was admitted for tasks of some users only; start its agent with {only}")


def node_of(hello: Hello) -> tuple[str, NodeSpec]:
    """Return the name and the specification of an agent's node. Raises `Refused` if they are not valid."""
    document: dict[str, object] = {"name": hello.node, "resources": hello.resources, "labels": hello.labels}
    if hello.taints:
        document["taints"] = list(hello.taints)
    if hello.pool:
        document["pool"] = hello.pool
    if hello.users:
        document["users"] = list(hello.users)
    return parse_node(document)


def lease_of(settings: PartitionSettings) -> int:
    """Return the lease of agents; 0 if they have none."""
    return settings.lease if settings.fence == "lease" else 0


def welcome(epoch: int, settings: PartitionSettings, hello: Hello, lock: str) -> wire.Welcome:
    """Return the server's answer to a greeting.

    `lock` is the file that this server has locked. It is sent only to an agent on the same machine.
    """
    here = hello.machine != "" and hello.machine == wire.this_machine()
    return wire.Welcome(epoch, settings.heartbeat, lease_of(settings), settings.preempt_grace, lock if here else "")


def running_on(partition: Partition, node: str) -> list[Tasks]:
    """Return the tasks that run on a node, and those whose launch was sent before the data were set back."""
    node_id = partition.nodes.find(node)
    if node_id is None:
        return []
    allocations = partition.nodes.allocations[partition.nodes.rows[node_id]]
    return [
        Tasks(
            allocation.stage.job.id,
            allocation.stage.job.number,
            allocation.stage.name,
            allocation.attempt,
            allocation.indices,
        )
        for _, allocation in sorted(allocations.items())
        if (allocation.state == "running" or (allocation.state == "assigned" and allocation.known_until))
        and not allocation.stage.job.manager
    ]


def own_nodes(partition: Partition) -> list[str]:
    """Return the nodes with agents (not those of external managers)."""
    nodes = partition.nodes
    return [nodes.name[row] for _, row in sorted(nodes.rows.items()) if not nodes.manager[row]]


def present_nodes(partition: Partition) -> list[str]:
    """Return the nodes with agents that are not lost."""
    nodes = partition.nodes
    return [name for name in own_nodes(partition) if nodes.state[nodes.rows[nodes.joins[name]]] != "lost"]


def command_of(node: str, report: wire.Report, confined: bool = False) -> Report:
    """Return the command for a report. `confined` is True for a node that was admitted for some users only."""
    tasks = report.tasks
    return Report(
        node=node,
        job=tasks.job,
        stage=tasks.stage,
        indices=tasks.indices,
        attempt=tasks.attempt,
        state=report.state,
        exit_code=report.exit_code,
        reason=report.reason,
        number=tasks.number,
        ran=sum(report.ran) // len(report.ran) if report.ran else 0,
        confined=confined,
        operator=True,
    )


def ends_of(partition: str, attached: Attached, report: wire.Report, stale: bool) -> Iterable[Ended]:
    """Yield the ends of tasks that ran. Tasks that never started are left out."""
    job, number, stage, attempt = block_of(report.tasks)
    state, code, signal = report.state, report.exit_code, report.signal
    listed = indices(report.tasks.indices)
    for index, ran, cpu, memory in zip(listed, report.ran, report.cpu, report.memory, strict=False):
        if ran:
            task = (partition, attached.node, job, number, stage, index, attempt)
            yield Ended(*task, state, code, signal, ran, cpu, memory, stale, attached.pool)
