"""Intake of resource managers: their nodes, jobs, asks, releases, and allocations to recover.

A manager's ask is a stage of its job. Each item of an update is accepted or rejected by itself. Releasing an allocation
that does not exist is accepted, because a restarted manager cannot know what exists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec

from fairlead.core.arrays import MAX_TASKS
from fairlead.core.changes import (
    Ended,
    JobForgotten,
    ManagerRegistered,
    ManagerRemoved,
    Part,
    PendingEnded,
    Placed,
    Revived,
    StageAdded,
    StageScaled,
)
from fairlead.core.commands import Accepted, Item, RegisterManager, RemoveManager, UpdateManager
from fairlead.core.documents import MAX_PRIORITY, MIN_PRIORITY, parse_node, parse_stage
from fairlead.core.errors import Refused
from fairlead.core.intake import nodes
from fairlead.core.intake.command_table import handles
from fairlead.core.intake.jobs import add_job, check_resources, rescale
from fairlead.core.intake.lookup import find_job, find_node, need_live, need_operator, unknown
from fairlead.core.lifecycle import IllegalTransition
from fairlead.core.model import NEW, REPLACE, Gang, Job, JobSpec, Stage, StageSpec
from fairlead.core.outcomes import add_ask, avoid, confirm_stop, end_pending, finish, lose
from fairlead.core.plan import Plan
from fairlead.core.policy.fit import overbook_devices
from fairlead.core.ranges import Ranges
from fairlead.core.reader import Reader, check_name
from fairlead.core.resources import printable, shown

MAX_ITEMS = 100_000


@handles(RegisterManager)
def register(plan: Plan, command: RegisterManager) -> Accepted:
    """Register a manager, for the first time or after its restart. Its whole state follows in its next update."""
    need_operator(command, "register a resource manager")
    name = check_name(command.name, "name")
    plan.do(ManagerRegistered(name))
    plan.partition.readiness.await_manager(name)
    return Accepted()


@handles(RemoveManager)
def remove(plan: Plan, command: RemoveManager) -> Accepted:
    """Remove a manager. Its tasks end immediately, because the manager cannot confirm any stop."""
    need_operator(command, "remove a resource manager")
    partition = plan.partition
    if command.name not in partition.managers:
        raise unknown("name", "resource manager", command.name, partition.managers)
    own_jobs = [job for job in partition.jobs.values() if job.manager == command.name and not job.over]
    for job in sorted(own_jobs, key=lambda job: job.number):
        finish(plan, job, "killed", f"resource manager {command.name} was removed")
    for number in sorted(partition.allocations):
        allocation = partition.allocations[number]
        if allocation.stage.job.manager == command.name:
            confirm_stop(plan, allocation, allocation.indices)
    table = partition.nodes
    for node_id in sorted(table.rows):
        row = table.rows[node_id]
        if table.manager[row] == command.name:
            nodes.leave(plan, table.name[row])
    plan.do(ManagerRemoved(command.name))
    return Accepted()


@handles(UpdateManager)
def update(plan: Plan, command: UpdateManager) -> Accepted:
    need_operator(command, "send a resource manager's update")
    count = sum(map(len, (command.nodes, command.jobs, command.asks, command.releases, command.recover)))
    if count > MAX_ITEMS:
        raise Refused("update", f"{count} items are too many; send at most {MAX_ITEMS} at once")
    if command.name not in plan.partition.managers:
        raise Refused("name", f"there is no resource manager {shown(command.name)}; register it first", "unknown")
    items: list[Item] = []
    for what, documents, take in (
        ("node", command.nodes, _node),
        ("job", command.jobs, _job),
        ("recover", command.recover, _recover),
        ("ask", command.asks, _ask),
        ("release", command.releases, _release),
    ):
        items += [_item(plan, command, what, at, doc, take) for at, doc in enumerate(documents)]
    if command.spare is not None and plan.partition.readiness.spare(command.name, frozenset(command.spare)):
        plan.partition.wake()  # asks may have tasks stopped now
    if not command.more:
        plan.partition.readiness.note_manager(command.name)
    return Accepted(items=tuple(items))


Take = Callable[[Plan, UpdateManager, Reader], str]
"""A function that handles one item and returns its name."""


def _item(plan: Plan, command: UpdateManager, what: str, at: int, doc: object, take: Take) -> Item:
    mark = plan.mark()
    try:
        read = Reader(doc, f"{what}[{at}]", f"a manager's {what}")
        return Item(what, take(plan, command, read), True)
    except Refused as refusal:
        plan.rollback(mark)
        at_item = f"{what}[{at}]"
        field = refusal.field if refusal.field.startswith(at_item) else f"{at_item}.{refusal.field}"
        return Item(what, _name_of(what, doc), False, f"{field}: {refusal.problem}")
    except IllegalTransition as refusal:
        plan.rollback(mark)
        return Item(what, _name_of(what, doc), False, f"{what}[{at}]: {refusal}")


def _name_of(what: str, doc: object) -> str:
    """Return the name of a refused item, in the same form as for accepted items."""
    if not isinstance(doc, dict):
        return ""
    parts = [doc.get(key) for key in (("name",) if what == "node" else ("job", "ask"))]
    return "/".join(printable(part, 63) for part in parts if isinstance(part, str))


def _node(plan: Plan, command: UpdateManager, read: Reader) -> str:
    action = read.choice("action", ("add", "update", "drain", "disable", "enable", "lose", "remove"), "add")
    name = read.name("name")
    node_id = plan.partition.nodes.find(name)
    if node_id is not None and plan.partition.nodes.manager[plan.partition.nodes.rows[node_id]] != command.name:
        raise Refused(read.at("name"), f"node {name} is not one of {command.name}'s; choose another name")
    if action in ("add", "update"):
        _, spec = parse_node({key: value for key, value in read.doc.items() if key != "action"}, read.field)
        nodes.join(plan, name, spec, command.name)
    else:
        # The other keys of a node document are allowed and ignored.
        for key in ("resources", "labels", "taints", "pool", "users"):
            read.get(key)
        reason = read.text("reason", "", nodes.MAX_REASON)
        read.close()
        if action == "remove":
            nodes.leave(plan, name)
        else:
            nodes.move_to(plan, name, nodes.STATES[action], reason if action in ("drain", "disable") else "")
    return name


def _job(plan: Plan, command: UpdateManager, read: Reader) -> str:
    partition = plan.partition
    job_id = read.name("job")
    existing = partition.jobs.get(job_id)
    known = existing if existing is not None and existing.manager == command.name else None
    if read.flag("remove", False):
        read.close()
        if known is not None and known.over:
            _release_all(plan, known)  # the job was killed, and its tasks have stopped
            return job_id
        job = _own_job(plan, command, job_id)
        _release_all(plan, job)
        finish(plan, job, "succeeded", f"removed by {command.name}")
        return job_id
    spec = _read_job(command, job_id, read)
    if known is not None and not known.over:
        return job_id  # sent again after a restart: the job keeps its place and its allocations
    if known is not None and not known.allocations and job_id not in partition.derived.followers:
        plan.do(JobForgotten(job_id))  # an earlier job with this id has ended and is replaced
    add_job(plan, command, spec, job_id, "job")
    return job_id


def _read_job(command: UpdateManager, job_id: str, read: Reader) -> JobSpec:
    stages = read.get("stages", [])
    if not isinstance(stages, list | tuple):
        raise Refused(read.at("stages"), f"{shown(stages)} is not a list; write [{{…}}, {{…}}]")
    spec = JobSpec(
        name=read.name("name", job_id),
        user=read.name("user", "anonymous"),
        groups=read.names("groups", most=1_000),
        queue=read.text("queue", "", most=1_000),
        stages=tuple(_stage(stage, read.at(f"stages[{at}]")) for at, stage in enumerate(stages)),
        priority=read.count("priority", 0, MIN_PRIORITY, MAX_PRIORITY),
        labels=read.pairs("labels"),
        gang=cast(Gang, read.choice("gang", ("stage", "job"), "stage")),
        preemptible=read.flag("preemptible", True),
        preempts=read.flag("preempts", True),
        manager=command.name,
    )
    read.close()
    names = [stage.name for stage in spec.stages]
    if len(set(names)) < len(names):
        raise Refused(read.at("stages"), "two stages have the same name; give each stage its own")
    if spec.gang == "job" and not names:
        raise Refused(read.at("gang"), "a gang of a whole job needs its stages; write them, or leave gang out")
    return spec


_STAGES: dict[bytes, StageSpec] = {}
"""A cache of stages by their documents: most jobs of a manager are alike, and reading a stage takes long."""
MAX_STAGES, MAX_PACKED = 1_000, 10_000
_packed = msgspec.msgpack.Encoder().encode


def _stage(doc: object, field: str) -> StageSpec:
    if not isinstance(doc, dict):
        return parse_stage(doc, field)
    try:
        key = _packed(doc)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return parse_stage(doc, field)  # the document cannot be packed: it has, for example, a number beyond 64 bits
    spec = _STAGES.get(key)
    if spec is None:
        spec = parse_stage(doc, field)
        if len(_STAGES) >= MAX_STAGES:
            _STAGES.clear()
        if len(key) <= MAX_PACKED:
            _STAGES[key] = spec
    return spec


def _ask(plan: Plan, command: UpdateManager, read: Reader) -> str:
    job = _own_job(plan, command, read.name("job"))
    name = read.name("ask")
    stage = job.stage(name)
    index = read.optional_count("index", 0, MAX_TASKS - 1)
    if read.flag("withdraw", False):
        read.close()
        if stage is not None:
            _give_up(plan, stage, index)
    elif index is not None:
        read.close()
        _ask_for_one(plan, job, name, index, read)
    elif stage is not None and read.doc.keys() <= {"job", "ask", "count"} and read.get("count") is not None:
        _ask_again(plan, stage, read.count("count", 1, 1, MAX_TASKS))  # the stage is only scaled and keeps its shape
    else:
        _ask_for_stage(plan, job, name, read)
    return f"{job.id}/{name}"


def _ask_for_stage(plan: Plan, job: Job, name: str, read: Reader) -> None:
    stage = job.stage(name)
    if stage is None and job.whole:
        raise Refused(
            read.at("ask"), f"job {job.id} is one gang and has no stage {name}; add another job with all its stages"
        )
    own = {key: value for key, value in read.doc.items() if key not in ("job", "ask")}
    spec = parse_stage({**own, "name": name}, read.field)
    check_resources(plan.partition, spec, read.field)
    if stage is None:
        plan.do(StageAdded(job.id, spec))
        add_ask(plan, job.stages[-1], NEW)
    elif msgspec.structs.replace(spec, count=0) == msgspec.structs.replace(stage.spec, count=0):
        _ask_again(plan, stage, spec.count)
    else:
        raise Refused(
            read.at("ask"),
            f"{name} of job {job.id} was asked for with another shape; withdraw it and choose another name",
            "conflict",
        )


def _give_up(plan: Plan, stage: Stage, index: int | None) -> None:
    """Withdraw the pending tasks of a stage, or only one task if an index is given."""
    if index is None:
        end_pending(plan, stage, "killed")
        return
    for kind, wanted in enumerate(stage.pending):
        if wanted is not None and index in wanted:
            plan.do(PendingEnded(stage.job.id, stage.position, kind, (index, index + 1), "killed"))
            return


def _ask_for_one(plan: Plan, job: Job, name: str, index: int, read: Reader) -> None:
    """Ask again for one task that has ended or was withdrawn. In a started stage the task is a replacement."""
    stage = job.stage(name)
    if stage is None or index >= stage.count:
        raise Refused(read.at("index"), f"job {job.id} has no task {name}[{index}]; ask with a count first", "unknown")
    if any(index in ranges for ranges in (stage.ended or {}).values()):
        kind = REPLACE if stage.started else NEW
        plan.do(Revived(job.id, stage.position, kind, (index, index + 1)))
        add_ask(plan, stage, kind)


def _ask_again(plan: Plan, stage: Stage, count: int) -> None:
    """Handle a repeated ask: it keeps its place, or is scaled. Its withdrawn tasks, or all ended ones, wait again."""
    before = plan.mark()
    withdrawn = stage.ended_as("killed").flat()
    if withdrawn:
        plan.do(Revived(stage.job.id, stage.position, NEW, withdrawn))
        add_ask(plan, stage, NEW)
    elif stage.count and not stage.waiting() and not stage.running():
        plan.do(StageScaled(stage.job.id, stage.position, 0))
    if count != stage.count:
        rescale(plan, stage, count)
    if plan.mark() == before:
        plan.note("asked for again")


def _release(plan: Plan, command: UpdateManager, read: Reader) -> str:
    job_id = read.text("job", "", most=63)
    name = read.text("ask", "", most=63)
    index = read.optional_count("index", 0, MAX_TASKS)
    lost = read.flag("lost", False)
    withdraw = read.flag("withdraw", False)
    reason = read.text("reason", "", nodes.MAX_REASON)
    read.close()
    job = plan.partition.jobs.get(job_id)
    if job is None or job.manager != command.name:
        return f"{job_id}/{name}"
    for stage in job.stages:
        if name not in ("", stage.name):
            continue
        if lost:
            _lose_stage(plan, stage, index, reason or "lost by its manager")
        else:
            _release_stage(plan, stage, index, withdraw)
    return f"{job_id}/{name}"


def _release_all(plan: Plan, job: Job) -> None:
    for stage in job.stages:
        _release_stage(plan, stage, None)


def _release_stage(plan: Plan, stage: Stage, index: int | None, withdraw: bool = False) -> None:
    """End live tasks. Preempted tasks wait again, unless they are withdrawn with the release."""
    for number, block in _live_blocks(stage, index):
        allocation = plan.partition.allocations[number]
        if allocation.state != "stopping":
            plan.do(Ended(number, block, "succeeded", reason="released"))
        elif withdraw:
            plan.do(Ended(number, block, "killed", reason="released"))
        else:
            confirm_stop(plan, allocation, block, "released")


def _lose_stage(plan: Plan, stage: Stage, index: int | None, reason: str) -> None:
    for number, block in _live_blocks(stage, index):
        allocation = plan.partition.allocations.get(number)
        if allocation is not None:
            lose(plan, allocation, block, reason, reported=True)
            avoid(plan, allocation.node)


def _live_blocks(stage: Stage, index: int | None) -> list[tuple[int, tuple[int, ...]]]:
    """Return the live allocations of a stage by number, with their tasks; with an index, only with this task."""
    chosen = sorted(stage.live or ()) if index is None else [index]
    by_allocation: dict[int, list[int]] = {}
    for task in chosen:
        allocation = (stage.live or {}).get(task)
        if allocation is not None:
            by_allocation.setdefault(allocation.id, []).append(task)
    return [(number, Ranges.from_indices(by_allocation[number]).flat()) for number in sorted(by_allocation)]


def _recover(plan: Plan, command: UpdateManager, read: Reader) -> str:
    """Book an allocation that the manager reports as running, even beyond limits and capacity."""
    nodes = plan.partition.nodes
    job = _own_job(plan, command, read.name("job"))
    name, node_name = read.name("ask"), read.name("node")
    index = read.count("index", 0, 0, MAX_TASKS - 1)
    node_id = find_node(plan.partition, node_name, "node")
    if nodes.manager[nodes.rows[node_id]] != command.name:
        raise Refused(
            read.at("node"), f"node {node_name} is not one of {command.name}'s; name one that is", "forbidden"
        )
    stage = _recovered_stage(plan, job, name, index, read)
    live = (stage.live or {}).get(index)
    if live is None:
        _book(plan, stage, index, node_id, read)
    elif live.node != node_id:
        on = nodes.name[nodes.rows[live.node]]
        raise Refused(read.at("node"), f"task {index} runs on {on} by this journal; release it first", "conflict")
    return f"{job.id}/{name}"


def _recovered_stage(plan: Plan, job: Job, name: str, index: int, read: Reader) -> Stage:
    """Return the stage of a recovered task. A missing or smaller stage grows; its other new tasks are withdrawn."""
    rest = {key: value for key, value in read.doc.items() if key not in ("job", "ask", "node", "index")}
    stage = job.stage(name)
    # Reading a stage takes long, and the stage of most recovered tasks is known already.
    spec = parse_stage({"count": index + 1, **rest, "name": name}, read.field) if stage is None or rest else None
    if stage is None:
        assert spec is not None
        plan.do(StageAdded(job.id, spec))
        stage = job.stages[-1]
        _withdraw(plan, stage, 0, index)
    elif spec is not None and "resources" in rest and spec.resources != stage.spec.resources:
        raise Refused(
            read.at("resources"),
            f"{name} of job {job.id} was asked for with others; recover it under another name",
            "conflict",
        )
    elif index >= stage.count:
        first = stage.count
        plan.do(StageScaled(job.id, stage.position, index + 1, NEW))
        _withdraw(plan, stage, first, index)
    return stage


def _book(plan: Plan, stage: Stage, index: int, node_id: int, read: Reader) -> None:
    partition, block = plan.partition, (index, index + 1)
    if any(index in ranges for ranges in (stage.ended or {}).values()):
        plan.do(Revived(stage.job.id, stage.position, NEW, block))
    kind = next((kind for kind, wanted in enumerate(stage.pending) if wanted is not None and index in wanted), None)
    if kind is None:
        raise Refused(read.at("index"), f"task {index} has ended by this journal; ask for it again", "conflict")
    nodes, row, shape = partition.nodes, partition.nodes.rows[node_id], stage.shape
    devices = overbook_devices(nodes.devices[row], nodes.gpus[row], shape.devices, shape.device_milli)
    attempt, first = stage.next_attempt(block), partition.counters.allocation
    plan.do(Placed(stage.job.id, stage.position, kind, attempt, first, (Part(node_id, block, devices),)))
    if partition.backfills:
        partition.wake()  # other asks may have been kept back for it


def _withdraw(plan: Plan, stage: Stage, start: int, end: int) -> None:
    """Withdraw tasks that exist only because a task with a higher index was recovered."""
    block = stage.wanted(NEW).overlap((start, end)) if start < end else ()
    if block:
        plan.do(PendingEnded(stage.job.id, stage.position, NEW, block, "killed"))


def _own_job(plan: Plan, command: UpdateManager, job_id: str) -> Job:
    job = find_job(plan.partition, job_id)
    if job.manager != command.name:
        raise Refused("job", f"job {job_id} is not one of {command.name}'s; name one that is", "forbidden")
    need_live(job, "; add it again under another id")
    return job
