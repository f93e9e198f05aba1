"""Intake of the configuration, and of commands for queues and the partition."""

from __future__ import annotations

from fairlead.core.changes import (
    SKIPPED,
    ConfigVersioned,
    Ended,
    EraBegun,
    NodeRemoved,
    NumbersContinued,
    PartitionRemoved,
    PoolsSet,
    QueueMoved,
    QueuesAdded,
    QueuesSet,
    SettingsSet,
)
from fairlead.core.commands import Accepted, BeginEra, Configure, MarkReady, MoveQueue, RemovePartition
from fairlead.core.errors import Refused
from fairlead.core.intake.command_table import handles
from fairlead.core.intake.lookup import find_queue, need_operator
from fairlead.core.intake.nodes import tell_to_stop
from fairlead.core.intake.pools import forget_orders, welcome
from fairlead.core.model import Queue, QueueState
from fairlead.core.outcomes import finish, recall
from fairlead.core.plan import Plan
from fairlead.core.resources import shown
from fairlead.core.state import Partition


@handles(Configure)
def configure(plan: Plan, command: Configure) -> Accepted:
    need_operator(command, "configure")
    partition = plan.partition
    before = plan.mark()
    if command.numbers is not None:
        plan.do(NumbersContinued(command.numbers))
    if partition.settings != command.config.settings:
        plan.do(SettingsSet(command.config.settings))
    _queues(plan, command)
    pools = {name: pool.settings for name, pool in partition.pools.items()}
    if pools != dict(command.config.pools):
        forget_orders(plan, dict(command.config.pools))
        plan.do(PoolsSet(command.config.pools))
        welcome(plan, [name for name in partition.pools if name not in pools])
    changed = plan.mark() > before
    if command.version > partition.config_version:
        plan.do(ConfigVersioned(command.version))
    return Accepted(note="" if changed else "no change")


@handles(BeginEra)
def begin_era(plan: Plan, command: BeginEra) -> Accepted:
    need_operator(command, "begin an era")
    if command.era > plan.partition.era:
        plan.do(EraBegun(command.era, SKIPPED * (command.era - plan.partition.era), command.reached))
    return Accepted()


def _queues(plan: Plan, command: Configure) -> None:
    partition = plan.partition
    wanted = dict(command.config.queues)
    added = tuple((path, settings) for path, settings in wanted.items() if path not in partition.queues)
    for path, _ in added:
        _check_parent(partition, path)
    # Draining queues that the configuration names again become active, parents before children.
    for path in wanted:
        if path in partition.queues and partition.queues[path].state == "draining":
            plan.do(QueueMoved(path, "active"))
    if added:
        plan.do(QueuesAdded(added))
    changed = tuple(
        (path, settings) for path, settings in wanted.items() if partition.queues[path].settings != settings
    )
    if changed:
        plan.do(QueuesSet(changed))
    for path in sorted((path for path in partition.queues if path not in wanted), reverse=True):
        _drain(plan, partition.queues[path])


def _check_parent(partition: Partition, path: str) -> None:
    parent = partition.queues.get(path.rpartition(".")[0])
    if parent is not None and not parent.children and parent.jobs:
        raise Refused(
            f"queues.{path}",
            f"queue {parent.path} has {parent.jobs} jobs and cannot get queues below it; "
            "wait until they ended, or kill them",
            "conflict",
        )


def _drain(plan: Plan, queue: Queue) -> None:
    """Drain a queue that left the configuration. Refuses a stopped queue, because its jobs would never end."""
    if queue.state == "stopped":
        raise Refused(
            f"queues.{queue.path}",
            f"queue {queue.path} is stopped and cannot be removed; start it first, so that it can drain",
            "conflict",
        )
    if queue.state == "active":
        plan.do(QueueMoved(queue.path, "draining"))


@handles(MoveQueue)
def move_queue(plan: Plan, command: MoveQueue) -> Accepted:
    need_operator(command, "start or stop a queue")
    partition = plan.partition
    queue = find_queue(partition, command.queue)
    if command.action not in ("start", "stop"):
        raise Refused("action", f"{shown(command.action)} is not one of start, stop; write one of them")
    state: QueueState = "active" if command.action == "start" else "stopped"
    if queue.state == state:
        return Accepted(note="no change")
    if queue.state == "draining":
        raise Refused(
            "queue", f"{queue.path} left the configuration and drains; put it back there to keep it", "conflict"
        )
    plan.do(QueueMoved(queue.path, state))
    if state == "stopped":
        chained = [waiting for number in sorted(partition.derived.chains) for waiting in partition.waiting_in(number)]
        recall(plan, [waiting for waiting in chained if queue in waiting.stage.job.queue.line()])
    return Accepted()


@handles(MarkReady)
def mark_ready(plan: Plan, command: MarkReady) -> Accepted:
    need_operator(command, "mark the partition ready")
    if plan.partition.readiness.ready:
        return Accepted(note="no change")
    plan.partition.become_ready()
    return Accepted()


@handles(RemovePartition)
def remove_partition(plan: Plan, command: RemovePartition) -> Accepted:
    """Release everything in the partition immediately: jobs, allocations, nodes."""
    need_operator(command, "remove a partition")
    partition = plan.partition
    for node_id in sorted(partition.nodes.rows):
        tell_to_stop(plan, node_id)
    for job in sorted(partition.jobs.values(), key=lambda job: job.number):
        if not job.over:
            finish(plan, job, "killed", f"partition {partition.name} was removed")
    for number in sorted(partition.allocations):
        plan.do(Ended(number, partition.allocations[number].indices, "killed", reason="the partition was removed"))
    for node_id in sorted(partition.nodes.rows):
        plan.do(NodeRemoved(node_id))
    forget_orders(plan, {})
    plan.do(PartitionRemoved())
    return Accepted()
