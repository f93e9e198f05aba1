"""Resource managers as documents of the API: all managers, the state of one, and why its jobs wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

import msgspec

from fairlead.core.admission import blocks_lane, refusal
from fairlead.core.lanes import LaneKey, lane_key
from fairlead.core.model import Ask, Micros, Stage
from fairlead.core.outcomes import live_of
from fairlead.core.ranges import Ranges
from fairlead.core.state import Partition
from fairlead.core.why.explain import why_no_capacity
from fairlead.core.why.never import why_never
from fairlead.core.why.reasons import NeverFits, NoCapacity, NotReady, Reason
from fairlead.views.answers import code_of, seconds
from fairlead.views.summaries import Reasons
from fairlead.wire import api as wire

LOOKED_AT = 100
"""The number of asks at the head of a lane that are searched for one without capacity."""


def manager_answers(partition: Partition) -> list[wire.Manager]:
    """Return the resource managers by name."""
    nodes = Counter(partition.nodes.manager[row] for row in partition.nodes.rows.values())
    jobs = Counter(job.manager for job in partition.jobs.values() if not job.over)
    return [
        wire.Manager(
            name=name,
            registered=seconds(manager.registered),
            nodes=nodes[name],
            jobs=jobs[name],
            reported=partition.readiness.has_reported(name),
        )
        for name, manager in sorted(partition.managers.items())
    ]


def manager_state(partition: Partition, name: str, seq: int) -> wire.ManagerState:
    """Return the nodes of a resource manager, and its jobs that are not over or have stopping tasks."""
    nodes = partition.nodes
    return wire.ManagerState(
        seq=seq,
        nodes=[
            wire.ManagerNode(name=nodes.name[row], state=nodes.state[row], reason=nodes.reasons.get(node_id, ""))
            for node_id, row in nodes.rows.items()
            if nodes.manager[row] == name
        ],
        jobs=[
            wire.ManagerJob(job=job.id, over=job.over, asks=[_manager_ask(partition, stage) for stage in job.stages])
            for job in partition.jobs.values()
            if job.manager == name and (job.allocations or not job.over)
        ],
    )


def _manager_ask(partition: Partition, stage: Stage) -> wire.ManagerAsk:
    nodes = partition.nodes
    waiting, ended = Ranges(), Ranges()
    for wanted in stage.pending:
        if wanted is not None:
            waiting.add(wanted.flat())
    for ranges in (stage.ended or {}).values():
        ended.add(ranges.flat())
    return wire.ManagerAsk(
        ask=stage.name,
        count=stage.count,
        min=stage.terms.min or stage.count,
        live=[
            wire.ManagerTasks(
                node=nodes.name[nodes.rows[allocation.node]],
                indices=list(allocation.indices),
                state=allocation.state,
                cause=allocation.cause,
            )
            for allocation in live_of(stage)
        ],
        waiting=list(waiting.flat()),
        ended=list(ended.flat()),
    )


def waiting_answers(
    partition: Partition, manager: str, jobs: Iterable[str], reasons: Reasons, now: Micros
) -> list[wire.WaitingJob]:
    """Return why jobs of a resource manager wait. Nodes are counted only once for all jobs of a lane."""
    details: dict[LaneKey, Reason | None] = {}
    answers: list[wire.WaitingJob] = []
    for job_id in jobs:
        job = partition.jobs.get(job_id)
        if job is None or job.manager != manager:
            continue
        ask = next((ask for stage in job.stages for ask in stage.asks if ask is not None), None)
        if ask is None:
            continue
        reason, behind = _why_waits(partition, ask, reasons, details, now)
        if reason is None and not partition.readiness.ready:
            reason = NotReady()
        text = "" if reason is None else str(reason)
        if behind:
            text = f"behind other jobs in queue {job.queue.path}" + (f": {text}" if text else "")
        answers.append(wire.WaitingJob(job=job_id, code=code_of(reason), reason=text, missing=_is_missing(reason)))
    return answers


def _why_waits(
    partition: Partition, ask: Ask, reasons: Reasons, details: dict[LaneKey, Reason | None], now: Micros
) -> tuple[Reason | None, bool]:
    """Return why an ask waits, and True if the reason is that of an ask ahead of it in its lane."""
    own = _reason_of(ask, reasons)
    if isinstance(own, NeverFits):
        return why_never(partition, ask.stage, own), False
    if own is not None and not isinstance(own, NoCapacity):
        return own, False
    if own is None:
        refused = refusal(partition, ask)
        if refused is not None:
            return refused, False
    key = lane_key(ask)
    if key not in details:
        details[key] = _why_closed(partition, islice(partition.lanes[key], LOOKED_AT), reasons, now)
    found = details[key]
    if isinstance(found, NeverFits):
        return found, False  # the same is true of every ask of the lane
    if isinstance(own, NoCapacity) and isinstance(found, NoCapacity):
        return msgspec.structs.replace(found, wanted=own.wanted, fitting=own.fitting, stages=own.stages), False
    return found or own, own is None


def _why_closed(partition: Partition, asks: Iterable[Ask], reasons: Reasons, now: Micros) -> Reason | None:
    """Return the reason of the first ask without which later asks of the lane could start; None if there is none."""
    for ask in asks:
        reason = _reason_of(ask, reasons)
        if isinstance(reason, NoCapacity):
            return why_no_capacity(partition, ask.stage, reason, now)
        if isinstance(reason, NeverFits) and blocks_lane(ask, reason):
            return why_never(partition, ask.stage, reason)
    return None


def _reason_of(ask: Ask, reasons: Reasons) -> Reason | None:
    return reasons.get((ask.stage.job.id, ask.stage.name, ask.kind))


def _is_missing(reason: Reason | None) -> bool:
    """True if more nodes would help, so that the manager's cluster should grow."""
    if isinstance(reason, NoCapacity):
        return not (reason.coming or reason.without_share)
    return isinstance(reason, NeverFits)
