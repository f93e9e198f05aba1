"""Documents of the API, made from the state between two cycles, in the units that people write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from heapq import merge
from itertools import islice
from typing import Any, Literal

from fairlead.core.arrays import format_array
from fairlead.core.config import QUEUE_KEYS
from fairlead.core.holds.earmarks import ends_at
from fairlead.core.lanes import Lane
from fairlead.core.model import Ask, Earmark, Job, Micros, Place, Queue, Stage
from fairlead.core.outcomes import live_of
from fairlead.core.ranges import Ranges, count, indices, split
from fairlead.core.resources import MEMORY, MILLI, SECOND, Vector, add
from fairlead.core.state import Partition
from fairlead.core.why.reasons import Reason
from fairlead.views.metrics.lane_metrics import LaneFigures
from fairlead.views.metrics.share_metrics import figures_of
from fairlead.views.summaries import Reasons, ask_view, short_reason, shown_state, task_view, users_view, waiting_since
from fairlead.wire import api as wire

SeesJob = Callable[[Job], bool]
"""True if the caller may see a job."""
SeesUse = Callable[[Queue, str], bool]
"""True if the caller may see what a user uses of a queue."""
NAMED = 20
"""The greatest number of entries in lists that could be very long."""


def units(name: str, amount: int) -> int | float:
    if name == MEMORY:
        return amount
    return amount / MILLI if amount % MILLI else amount // MILLI


def amounts(pairs: Iterable[tuple[str, int]]) -> dict[str, int | float]:
    return {name: units(name, amount) for name, amount in pairs}


def seconds(micros: Micros) -> float:
    return micros / SECOND


def optional_seconds(micros: Micros | None) -> float | None:
    return None if micros is None else micros / SECOND


# -- jobs --------------------------------------------------------------------------------------------------------


def job_answer(partition: Partition, job: Job, reasons: Reasons, sees: SeesJob, with_tasks: bool = False) -> wire.Job:
    spec = job.spec
    return wire.Job(
        id=job.id,
        number=job.number,
        partition=partition.name,
        name=spec.name,
        user=spec.user,
        queue=job.queue.path,
        state=shown_state(job),
        priority=job.priority,
        labels=dict(spec.labels),
        after=list(spec.after),
        submitted=seconds(job.submitted),
        waiting_since=optional_seconds(waiting_since(job)),
        ended=None if job.allocations else optional_seconds(job.ended_at),
        reason=job.reason,
        waits_for="" if job.over else short_reason(partition, job, reasons, by_id(partition, sees)),
        stages=[_stage_answer(stage, _groups(partition, stage) if with_tasks else []) for stage in job.stages],
        matched=spec.matched,
        held_by="" if job.held_by is None or job.over else job.held_by.user,
    )


def by_id(partition: Partition, sees: SeesJob) -> Callable[[str], bool]:
    """Return a predicate of job ids: True if the job exists and the caller may see it."""
    jobs = partition.jobs
    return lambda job_id: job_id in jobs and sees(jobs[job_id])


def _stage_answer(stage: Stage, tasks: list[wire.TaskGroup]) -> wire.Stage:
    spec = stage.spec
    live = Counter([allocation.state for allocation in (stage.live or {}).values()])
    return wire.Stage(
        name=stage.name,
        count=stage.size,
        min=stage.min,
        resources=amounts(spec.resources),
        command=list(spec.command),
        waiting=stage.unstarted(),
        assigned=live["assigned"],
        running=live["running"],
        stopping=live["stopping"],
        ended={name: len(ranges) for name, ranges in sorted((stage.ended or {}).items())},
        array=str(format_array(stage.count, spec.indices)) if spec.indices else "",
        parameters=[name for name, _ in spec.parameters],
        throttle=stage.throttle or None,
        time_limit=optional_seconds(stage.terms.time_limit),
        tasks=tasks,
        pty=spec.pty,
    )


def _groups(partition: Partition, stage: Stage) -> list[wire.TaskGroup]:
    """Return the tasks of a stage in groups: those that have ended, those on nodes, and those that wait."""
    groups = []
    nodes = partition.nodes
    for outcome, ended in sorted((stage.ended or {}).items()):
        rest = ended.copy()
        odd: dict[tuple[int, int | None, str], list[int]] = {}
        for index in sorted(stage.history or ()):
            if index in ended:
                past = stage.past(index)
                odd.setdefault((past.attempt, past.exit_code, past.reason), []).append(index)
        for (attempt, code, reason), indices_of in odd.items():
            flat = Ranges.from_indices(indices_of).flat()
            rest.remove(flat)
            groups.append(
                wire.TaskGroup(indices=list(flat), state=outcome, attempt=attempt, exit_code=code, reason=reason)
            )
        if rest:  # tasks that succeeded at their first attempt, or never ran
            code = 0 if outcome == "succeeded" and not stage.job.manager else None
            groups.append(wire.TaskGroup(indices=list(rest.flat()), state=outcome, attempt=1, exit_code=code))
    groups += [
        wire.TaskGroup(
            indices=list(allocation.indices),
            state="assigned" if allocation.slots else allocation.state,
            attempt=allocation.attempt,
            node=nodes.name[nodes.rows[allocation.node]],
            started=optional_seconds(allocation.started),
        )
        for allocation in live_of(stage)
    ]
    waiting = Ranges()
    for pending in filter(None, stage.pending):
        waiting.add(pending.flat())
    return [*groups, wire.TaskGroup(indices=list(waiting.flat()), state="pending")] if waiting else groups


def task_answers(partition: Partition, stages: Iterable[Stage], after: int, limit: int, most: int) -> wire.TaskPage:
    """Return a page of tasks by stage and index. `after` is the number of tasks on earlier pages.

    The page ends early if the parameters of its tasks have more than `most` characters.
    """
    tasks: list[wire.Task] = []
    at = size = 0
    for stage in stages:
        first = min(max(0, after - at), stage.size)
        left = limit - len(tasks) if size <= most else 0
        for index in islice(indices(split(stage.tasks, first)[1]), left):
            tasks.append(_task_answer(partition, stage, index))
            size += sum(map(len, tasks[-1].parameters.values()))
            if size > most:
                break
        at += stage.size
    reached = after + len(tasks)
    return wire.TaskPage(tasks=tasks, next=str(reached) if tasks and reached < at else "")


def _task_answer(partition: Partition, stage: Stage, index: int) -> wire.Task:
    view = task_view(partition, stage, index)
    # Nothing is stored for a task that succeeded at its first attempt: its exit code was 0.
    spec = stage.spec
    plain = view.state == "succeeded" and view.exit_code is None and not stage.job.manager
    return wire.Task(
        stage=stage.name,
        index=index,
        state=view.state,
        attempt=view.attempt,
        tries_used=view.tries_used,
        node=view.node,
        devices=list(view.devices),
        exit_code=0 if plain else view.exit_code,
        reason=view.reason,
        note=view.note,
        started=optional_seconds(view.started),
        parameters=dict(zip([name for name, _ in spec.parameters], spec.values(index), strict=True)),
    )


def code_of(reason: Reason | None) -> str:
    return "" if reason is None else str(type(reason).__struct_config__.tag)


# -- the cluster -------------------------------------------------------------------------------------------------


def node_answer(partition: Partition, row: int, sees: SeesJob) -> wire.Node:
    nodes = partition.nodes
    held_for = _held_for(partition, nodes.node_id[row])
    seen = [job for job in held_for if sees(partition.jobs[job])]
    return wire.Node(
        name=nodes.name[row],
        state=node_state(partition, row),
        pool=nodes.pool[row],
        manager=nodes.manager[row],
        labels=dict(nodes.labels[row]),
        taints=list(nodes.taints[row]),
        users=list(nodes.users[row]),
        resources=amounts(nodes.capacity_of(row).items()),
        used=amounts(nodes.used_by(row).items()),
        devices=[used / MILLI for used in nodes.devices[row]],
        tasks=sum(count(allocation.indices) for allocation in nodes.allocations[row].values() if not allocation.slots),
        avoided=nodes.node_id[row] in nodes.avoided,
        disconnected=optional_seconds(_disconnected_since(partition, row)),
        reason=nodes.reasons.get(nodes.node_id[row], ""),
        until=optional_seconds(nodes.closed_until.get(nodes.node_id[row])),
        closes=optional_seconds(nodes.closing.get(nodes.node_id[row])),
        held_for=seen,
        held_for_others=len(held_for) - len(seen),
        held=_held_on(partition, nodes.node_id[row]),
    )


def _held_for(partition: Partition, node_id: int) -> list[str]:
    earmarks = [partition.earmark_of(seq) for seq in partition.nodes.held.get(node_id, ())]
    return sorted({earmark.job for earmark in earmarks if earmark is not None})


def _held_on(partition: Partition, node_id: int) -> dict[str, int | float]:
    """Return the resources that are held or promised on a node."""
    needed: Vector = {}
    for seq, places in partition.nodes.held.get(node_id, {}).items():
        earmark = partition.earmark_of(seq)
        if earmark is not None:
            _add_needs(needed, partition, earmark, places)
    return amounts(sorted(needed.items()))


def _held(partition: Partition, earmark: Earmark) -> dict[str, dict[str, int | float]]:
    """Return the nodes of an earmark by name, with the resources that its tasks need there."""
    needed: dict[int, Vector] = {}
    for place in earmark.places:
        _add_needs(needed.setdefault(place[0], {}), partition, earmark, (place,))
    nodes = partition.nodes
    return {nodes.name[nodes.rows[node_id]]: amounts(sorted(each.items())) for node_id, each in needed.items()}


def _add_needs(into: Vector, partition: Partition, earmark: Earmark, places: Iterable[Place]) -> None:
    stages = partition.jobs[earmark.job].stages
    for _, stage, tasks in places:
        add(into, dict(stages[stage].shape.amounts), tasks)


def node_state(partition: Partition, row: int) -> str:
    """Return the state of a node as users see it: an up node without a connected agent is disconnected."""
    state = partition.nodes.state[row]
    return "disconnected" if state == "up" and _disconnected_since(partition, row) is not None else state


def _disconnected_since(partition: Partition, row: int) -> Micros | None:
    """Return since when the agent of a node is disconnected; after a restart of the server, since the restart."""
    nodes = partition.nodes
    since = nodes.disconnected.get(nodes.node_id[row])
    return partition.readiness.silent_since(nodes, row) if since is None else since


def _asks_below(queue: Queue) -> int:
    return queue.asks + sum(_asks_below(child) for child in queue.children.values())


def _jobs_below(queue: Queue) -> int:
    return queue.jobs + sum(_jobs_below(child) for child in queue.children.values())


def no_use(queue: Queue, user: str) -> bool:
    """Show the use of no user, in answers that many callers share."""
    return False


def all_queues(partition: Partition, now: Micros, sees_use: SeesUse = no_use) -> wire.Queues:
    """Return all queues by path."""
    paths = sorted(partition.queues)
    return wire.Queues(queues=[queue_answer(partition, partition.queues[path], now, sees_use) for path in paths])


def queue_answer(partition: Partition, queue: Queue, now: Micros, sees_use: SeesUse = no_use) -> wire.Queue:
    """Return a queue, with the use of those users that the caller may see."""
    settings = queue.settings
    figures = figures_of(partition, queue, now)
    return wire.Queue(
        path=queue.path,
        state=queue.state,
        leaf=not queue.children,
        order=settings.order,
        share=settings.share,
        guarantee=amounts(settings.guarantee),
        limit=None if settings.limit is None else amounts(settings.limit),
        used=amounts(sorted(queue.account.used.items())),
        jobs=_jobs_below(queue),
        running=queue.account.running,
        asks=_asks_below(queue),
        entitlement_percent=figures.entitlement,
        use_percent=figures.use,
        loan_percent=figures.loan,
        past_percent=figures.past,
        users=[
            wire.QueueUser(user=user, use_percent=100 * use, past_percent=100 * past)
            for user, use, past in users_view(partition, queue, now)
            if sees_use(queue, user)
        ],
    )


def lane_answers(
    partition: Partition, figures: LaneFigures, lanes: int, first: int, sees: SeesJob, reasons: Reasons
) -> list[wire.Lane]:
    """Return the lanes with the most pending tasks, each with the first asks that the caller may see."""
    sees_id = by_id(partition, sees)
    by_name: dict[tuple[str, str], list[Lane]] = {}
    for lane in partition.lanes.values():  # lanes of different users may have the same name
        by_name.setdefault((lane.queue.path, lane.text), []).append(lane)
    answers: list[wire.Lane] = []
    for (queue, shape), (asks, tasks) in figures.most(lanes).items():
        alike = by_name.get((queue, shape), [])
        shown: list[Ask] = []
        for at, ask in enumerate(merge(*alike, key=alike[0].key) if alike else ()):
            if at >= 50 * first or len(shown) >= first:
                break
            if sees(ask.stage.job):
                shown.append(ask)
        answers.append(
            wire.Lane(
                queue=queue,
                shape=shape,
                asks=asks,
                tasks=tasks,
                first=[_ask_answer(partition, ask, reasons, sees_id) for ask in shown],
            )
        )
    return answers


def hold_answers(partition: Partition, sees: SeesJob, now: Micros) -> list[wire.Hold]:
    """Return the holds of jobs that the caller may see, the oldest first."""
    holds = sorted(partition.holds.values(), key=lambda hold: (hold.since, hold.seq))
    return [
        wire.Hold(
            **_earmark_fields(partition, hold),
            until=None if hold.recalled else seconds(ends_at(partition, hold, now)),
        )
        for hold in holds
        if sees(partition.jobs[hold.job])
    ]


def promise_answers(partition: Partition, sees: SeesJob) -> list[wire.Promise]:
    """Return the promises to jobs that the caller may see, the oldest first."""
    allocations = partition.allocations
    return [
        wire.Promise(
            **_earmark_fields(partition, promise),
            stopping=sum(count(allocations[number].indices) for number in promise.victims if number in allocations),
            ordered=promise.ordered,
        )
        for promise in sorted(partition.promises.values(), key=lambda promise: (promise.since, promise.seq))
        if sees(partition.jobs[promise.job])
    ]


def _earmark_fields(partition: Partition, earmark: Earmark) -> dict[str, Any]:
    nodes = partition.nodes
    return {
        "job": earmark.job,
        "stage": partition.jobs[earmark.job].stages[earmark.stage].name,
        "tasks": earmark.tasks,
        "nodes": [nodes.name[nodes.rows[node_id]] for node_id in earmark.nodes],
        "held": _held(partition, earmark),
        "since": seconds(earmark.since),
    }


def _ask_answer(partition: Partition, ask: Ask, reasons: Reasons, sees_id: Callable[[str], bool]) -> wire.Ask:
    view = ask_view(ask)
    job = ask.stage.job
    return wire.Ask(
        job=view.job,
        stage=view.stage,
        kind=view.kind,
        count=view.count,
        asked=view.asked / SECOND,
        waiting_since=view.waiting_since / SECOND,
        name=job.spec.name,
        user=job.user,
        reason=short_reason(partition, job, reasons, sees_id),
    )


def partition_answer(partition: Partition) -> wire.Partition:
    return wire.Partition(
        name=partition.name,
        ready=partition.readiness.ready,
        nodes=len(partition.nodes),
        jobs=len(partition.jobs),
        waiting_for=[]
        if partition.readiness.ready
        else partition.readiness.missing(partition.nodes, partition.managers)[:NAMED],
    )


def differences(
    before: Mapping[str, object], after: Mapping[str, object], at: tuple[str, ...] = ()
) -> list[wire.Difference]:
    """Return the entries that differ between two configurations. Both are documents of the partitions by name."""
    changes: list[wire.Difference] = []
    for key in [*before, *(key for key in after if key not in before)]:
        old, new = before.get(key), after.get(key)
        path = (*at, key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changes += differences(old, new, path)
        elif old != new:
            changes.append(wire.Difference(key=".".join(path), before=old, after=new, what=_changed(path)))
    return changes


def loss_of(partition: Partition, key: str, pool: str = "") -> wire.Loss:
    """Return how many jobs and nodes are lost if a partition, or one of its pools, leaves the configuration."""
    nodes = partition.nodes
    present = [row for row in nodes.rows.values() if not pool or nodes.pool[row] == pool]
    coming = [name for order in partition.orders.values() if not pool or order.pool == pool for name in order.coming]
    jobs = 0 if pool else sum(not job.over for job in partition.jobs.values())
    return wire.Loss(key=key, jobs=jobs, nodes=len(present) + len(coming))


def _changed(path: tuple[str, ...]) -> Literal["partition", "queue", "pool", "setting"]:
    """Return the kind of entry at a path of keys, which begins with the name of the partition."""
    match path:
        case (_,):
            return "partition"
        case (_, "pools", _):
            return "pool"
        case (_, "queues", _, *below) if not any(part in QUEUE_KEYS for part in below):
            return "queue"
    return "setting"
