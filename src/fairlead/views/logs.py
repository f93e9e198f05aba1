"""Logs: one line for each decision that a person would ask about, with its reason, made from sealed plans.

`Logs` is an observer of writers. Nothing is configured here: whoever puts the program together makes the logger.
docs/metrics.md says what each line has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any

from structlog.typing import FilteringBoundLogger

from fairlead.core.changes import (
    Arrived,
    CalledBack,
    Chained,
    Change,
    ConfigVersioned,
    Ended,
    GivenBack,
    Held,
    JobAdded,
    JobForgotten,
    JobMoved,
    NodeAvoided,
    NodeMoved,
    NodeRemoved,
    Ordered,
    OrderFailed,
    PartitionRemoved,
    Placed,
    PoolMoved,
    PoolsSet,
    Promised,
    QueueMoved,
    QueuesAdded,
    QueuesSet,
    Regrouped,
    Released,
    SettingsSet,
    SinglesEnded,
    SinglesPlaced,
    StopOverdue,
    Stopped,
    Trimmed,
)
from fairlead.core.commands import Rejected
from fairlead.core.cycle import Cycle
from fairlead.core.model import KINDS, Allocation, Ask, Earmark, Hold, Job, JobState, NodeOrder, Promise, Stage
from fairlead.core.ranges import count, indices
from fairlead.core.resources import SECOND, format_duration
from fairlead.core.state import Partition
from fairlead.views.metrics.lanes import placed_tasks

Line = tuple[int, str, dict[str, Any]]
"""Its level, its event and its fields."""

NAMED = 10
"""So many nodes of a block are named."""


class Logs:
    def __init__(self, logger: FilteringBoundLogger) -> None:
        self._logger: FilteringBoundLogger = logger.bind()  # what is not bound yet is bound anew by each call
        self._ready: dict[str, bool] = {}
        """Partition → whether its readiness was told."""

    def began(self, partition: Partition) -> None:
        self._ready[partition.name] = partition.reign.ready
        fields = {"jobs": len(partition.jobs), "nodes": len(partition.nodes.rows), "ready": partition.reign.ready}
        self._logger.info("writer began", partition=partition.name, at=partition.now / SECOND, **fields)

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        partition = decided.plan.partition
        common = {"partition": partition.name, "at": decided.plan.now / SECOND}
        for level, event, fields in self._lines(decided):
            self._logger.log(level, event, **common, **fields)

    def stopped(self, partition: Partition, why: str) -> None:
        self._logger.error("writer stopped", partition=partition.name, at=partition.now / SECOND, reason=why)

    def _lines(self, decided: Cycle) -> Iterator[Line]:
        partition = decided.plan.partition
        if partition.reign.ready and not self._ready[partition.name]:
            self._ready[partition.name] = True
            yield INFO, "partition ready", {}
        yield from lines(decided, self._logger.is_enabled_for(INFO))
        if self._logger.is_enabled_for(DEBUG):
            for (job, stage, kind), reason in decided.reasons.items():
                yield DEBUG, "not placed", {"job": job, "stage": stage, "kind": KINDS[kind], "reason": str(reason)}


def lines(decided: Cycle, all_of_them: bool) -> Iterator[Line]:
    """What a cycle decided, in the order in which it did; perhaps only what may need somebody's care."""
    tellers = TELLERS if all_of_them else CAREFUL
    for answer in decided.answers:
        if isinstance(answer, Rejected) and answer.code in ALARMS:
            yield ERROR, ALARMS[answer.code], {"reason": str(answer)}
    kinds = set(map(type, decided.changes))
    if not kinds.isdisjoint(CONFIGURATION):
        yield from _configuration(decided)
    if not kinds.isdisjoint(tellers):
        names = _Names(decided)
        for change, kept in decided.plan.done:
            teller = tellers.get(type(change))
            if teller is not None:
                yield from teller(names, change, kept)
    if Stopped in kinds:
        yield from _gangs(decided)


class _Names:
    """The jobs and nodes that a cycle speaks of, also those that left in it."""

    def __init__(self, decided: Cycle) -> None:
        self.now = decided.plan.now
        self.partition = decided.plan.partition
        self._forgotten: dict[str, Job] = {}
        self._removed: dict[int, str] = {}
        for change, kept in decided.plan.done:
            if isinstance(change, JobForgotten):
                self._forgotten[change.job] = kept[0]
            elif isinstance(change, NodeRemoved):
                self._removed[change.node_id] = kept[0].name

    def job(self, name: str) -> Job:
        return self._forgotten[name] if name in self._forgotten else self.partition.jobs[name]

    def node(self, node_id: int) -> str:
        nodes = self.partition.nodes
        return self._removed[node_id] if node_id in self._removed else nodes.name[nodes.rows[node_id]]


def _submitted(names: _Names, change: JobAdded, kept: Any) -> Iterator[Line]:
    spec = change.spec
    yield (
        INFO,
        "job submitted",
        {
            "job": change.id,
            "user": spec.user,
            "queue": spec.queue,
            "priority": spec.priority,
            "tasks": sum(stage.count for stage in spec.stages),
            "after": list(spec.after),
        },
    )


def _placed(names: _Names, change: Placed, kept: Any) -> Iterator[Line]:
    stage = names.job(change.job).stages[change.stage]
    nodes = list(dict.fromkeys(part.node for part in change.parts))
    tasks = placed_tasks(change)
    yield _placement(names, stage, change.kind, change.attempt, tasks, change.group > 0, nodes, kept[0])


def _singles_placed(names: _Names, change: SinglesPlaced, kept: Any) -> Iterator[Line]:
    for ask, _ in kept[0]:
        yield _placement(names, ask.stage, ask.kind, 1, 1, False, [change.node], ask)


def _placement(
    names: _Names,
    stage: Stage,
    kind: int,
    attempt: int,
    tasks: int,
    gang: bool,
    nodes: list[int],
    completed: Ask | None,
) -> Line:
    fields = {
        "job": stage.job.id,
        "stage": stage.name,
        "kind": KINDS[kind],
        "attempt": attempt,
        "tasks": tasks,
        "gang": gang,
        "nodes": len(nodes),
        "on": [names.node(node_id) for node_id in nodes[:NAMED]],
        "waited_seconds": None if completed is None else (names.now - completed.waiting_since) / SECOND,
    }
    return INFO, "tasks placed", fields


def _chained(names: _Names, change: Chained, kept: Any) -> Iterator[Line]:
    front: Allocation = kept[1]
    fields = {"kind": KINDS[change.kind], "attempt": change.attempt, "tasks": count(change.indices)}
    yield INFO, "tasks sent ahead", {**_where(names, front), **fields, "rooms": change.rooms}


def _called_back(names: _Names, change: CalledBack, before: Any) -> Iterator[Line]:
    yield INFO, "tasks asked back", {**_where(names, before), "tasks": count(before.indices)}


def _held(names: _Names, change: Held, kept: Hold) -> Iterator[Line]:
    ask = names.partition.kept_for(kept)
    waited = None if ask is None else (names.now - ask.waiting_since) / SECOND
    yield INFO, "nodes held", {**_kept(names, kept), "large": change.large, "waited_seconds": waited}


def _promised(names: _Names, change: Promised, kept: Promise) -> Iterator[Line]:
    yield INFO, "room promised", {**_kept(names, kept), "victims": len(change.victims), "cause": change.cause}


def _kept(names: _Names, kept: Earmark) -> dict[str, Any]:
    nodes = list(kept.nodes)
    return {
        "job": kept.job,
        "stage": names.job(kept.job).stages[kept.stage].name,
        "tasks": kept.tasks,
        "nodes": len(nodes),
        "on": [names.node(node_id) for node_id in nodes[:NAMED]],
    }


def _trimmed(names: _Names, change: Trimmed, kept: Any) -> Iterator[Line]:
    left, before = kept
    gone = [node_id for node_id in dict.fromkeys(place[0] for place in before) if node_id not in left.nodes]
    fields = {"job": left.job, "nodes": len(gone), "kept": len(left.nodes)}
    yield INFO, "some nodes let go", {**fields, "reason": change.why}


def _let_go(names: _Names, change: Released, kept: Any) -> Iterator[Line]:
    before: Earmark = kept[0]
    fields = {"job": before.job, "nodes": len(before.nodes), "kept_seconds": (names.now - before.since) / SECOND}
    yield INFO, "nodes let go", {**fields, "reason": change.why}


def _ordered(names: _Names, change: Ordered, kept: Any) -> Iterator[Line]:
    jobs = list(dict.fromkeys(each[0] for _, meant in change.nodes for each in meant))
    fields = {"pool": change.pool, "order": change.number, "nodes": sum(nodes for nodes, _ in change.nodes)}
    yield INFO, "nodes ordered", {**fields, "cause": change.cause, "jobs": len(jobs), "for": jobs[:NAMED]}


def _arrived(names: _Names, change: Arrived, kept: Any) -> Iterator[Line]:
    order: NodeOrder = kept[0]
    waited = (names.now - order.since) / SECOND
    yield INFO, "ordered node came", {"pool": order.pool, "order": change.number, "node": change.name, "after": waited}


def _order_failed(names: _Names, change: OrderFailed, kept: Any) -> Iterator[Line]:
    order: NodeOrder = kept[0]
    fields = {"pool": order.pool, "order": change.number, "nodes": len(change.names), "reason": change.reason}
    yield WARNING, "ordered nodes not expected any more", fields


def _pool_moved(names: _Names, change: PoolMoved, kept: Any) -> Iterator[Line]:
    yield INFO, "pool paused" if change.paused else "pool resumed", {"pool": change.pool}


def _given_back(names: _Names, change: GivenBack, kept: Any) -> Iterator[Line]:
    on = [names.node(node_id) for node_id in change.nodes[:NAMED]]
    yield INFO, "nodes given back", {"pool": change.pool, "nodes": len(change.nodes), "on": on}


def _where(names: _Names, allocation: Allocation) -> dict[str, Any]:
    stage = allocation.stage
    return {"job": stage.job.id, "stage": stage.name, "node": names.node(allocation.node)}


def _ended(names: _Names, change: Ended, kept: Any) -> Iterator[Line]:
    event = {"pending": "launch taken back", "lost": "tasks lost", "failed": "tasks failed"}.get(change.outcome)
    if event is None:
        return
    level = WARNING
    before: Allocation = kept[0]
    if change.outcome == "pending" and (before.rooms or before.cause):
        level, event = INFO, "tasks returned"  # of a chain: nothing went wrong with them
    fields = {
        "job": before.stage.job.id,
        "stage": before.stage.name,
        "attempt": before.attempt,
        "tasks": count(change.indices),
        "node": names.node(before.node),
        "again": KINDS[change.again] if change.again >= 0 else None,
        "reason": change.reason,
    }
    yield level, event, fields


def _stop_overdue(names: _Names, change: StopOverdue, kept: Allocation) -> Iterator[Line]:
    fields = {"tasks": count(kept.indices), "indices": list(indices(kept.indices))[:NAMED], "cause": kept.cause}
    told = (names.now - kept.since) / SECOND
    yield WARNING, "tasks did not stop", {**_where(names, kept), "attempt": kept.attempt, **fields, "after": told}


def _over(names: _Names, change: JobMoved, kept: Any) -> Iterator[Line]:
    yield _job_over(names, names.job(change.job), change.state, change.reason)


def _singles_ended(names: _Names, change: SinglesEnded, kept: Any) -> Iterator[Line]:
    for before in kept:
        yield _job_over(names, before.stage.job, "succeeded", "")


def _job_over(names: _Names, job: Job, state: JobState, reason: str) -> Line:
    fields = {
        "job": job.id,
        "state": state,
        "queue": job.queue.path,
        "lasted_seconds": (names.now - job.submitted) / SECOND,
        "reason": reason,
    }
    return WARNING if state == "failed" else INFO, "job over", fields


def _avoided(names: _Names, change: NodeAvoided, kept: Any) -> Iterator[Line]:
    if change.until not in (0, kept[2]):  # else the pause ends, or goes on
        fields = {"failures": change.failures, "pause_seconds": (change.until - names.now) / SECOND}
        yield WARNING, "node avoided", {"node": names.node(change.node_id), **fields}


def _moved(names: _Names, change: NodeMoved, kept: Any) -> Iterator[Line]:
    level = WARNING if change.state == "lost" else INFO
    yield level, "node moved", {"node": names.node(change.node_id), "before": kept[0], "state": change.state}


def _queue_moved(names: _Names, change: QueueMoved, kept: Any) -> Iterator[Line]:
    yield INFO, "queue moved", {"queue": change.queue, "before": kept, "state": change.state}


def _partition_removed(names: _Names, change: PartitionRemoved, kept: Any) -> Iterator[Line]:
    yield WARNING, "partition removed", {}


Tellers = dict[type[Change], Callable[[_Names, Any, Any], Iterator[Line]]]

CAREFUL: Tellers = {
    Ended: _ended,
    JobMoved: _over,
    NodeAvoided: _avoided,
    NodeMoved: _moved,
    PartitionRemoved: _partition_removed,
    StopOverdue: _stop_overdue,
}
TELLERS: Tellers = {
    **CAREFUL,
    JobAdded: _submitted,
    Placed: _placed,
    SinglesPlaced: _singles_placed,
    SinglesEnded: _singles_ended,
    Chained: _chained,
    CalledBack: _called_back,
    Held: _held,
    Promised: _promised,
    Released: _let_go,
    Trimmed: _trimmed,
    QueueMoved: _queue_moved,
    Ordered: _ordered,
    Arrived: _arrived,
    OrderFailed: _order_failed,
    PoolMoved: _pool_moved,
    GivenBack: _given_back,
}

ALARMS = {"alarm": "unknown attempt", "foreign": "foreign report"}
"""Code of a refused report → event."""
CONFIGURATION = {
    SettingsSet: "settings",
    QueuesAdded: "queues",
    QueuesSet: "queues",
    PoolsSet: "pools",
    ConfigVersioned: "",
}


def _configuration(decided: Cycle) -> Iterator[Line]:
    """All that a cycle followed of a configuration is one decision."""
    found = [CONFIGURATION[type(change)] for change in decided.changes if type(change) in CONFIGURATION]
    if found:
        changed = sorted({each for each in found if each})
        version = decided.plan.partition.config_version
        yield INFO, "configuration applied", {"version": version, "changed": changed}


def _gangs(decided: Cycle) -> Iterator[Line]:
    """A gang that is taken back is one decision, however many of its members are told to stop."""
    regrouped = {change.job for change, _ in decided.plan.done if isinstance(change, Regrouped)}
    reasons: dict[tuple[str, str], str] = {}
    stopped: dict[tuple[str, str], str] = {}
    tasks: dict[tuple[str, str], int] = {}
    for change, kept in decided.plan.done:
        if isinstance(change, Ended | Stopped):
            stage: Stage = kept[0].stage
            # What was added to one stage of a whole job is a gang for itself.
            gang = (stage.job.id, "all" if stage.job.whole and stage.job.id in regrouped else stage.name)
            if isinstance(change, Ended):
                reasons[gang] = change.reason
            elif change.cause == "gang":
                stopped.setdefault(gang, reasons.get(gang, ""))
                tasks[gang] = tasks.get(gang, 0) + count(change.indices)
    within = format_duration(decided.plan.partition.settings.replace_within)
    for (job, name), reason in stopped.items():
        # Whoever was not lost in this cycle was short of workers for too long.
        fields = {"tasks": tasks[job, name], "reason": reason or f"it was short of workers for {within}"}
        yield WARNING, "gang taken back", {"job": job, "stage": name, **fields}
