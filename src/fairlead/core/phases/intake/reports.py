"""Intake of agents' reports. A report of an old attempt is counted and ignored; it is never an error."""

from __future__ import annotations

from fairlead.core.changes import Acknowledged
from fairlead.core.commands import Accepted, Report
from fairlead.core.errors import Refused
from fairlead.core.model import Allocation, Stage
from fairlead.core.outcomes import confirm_stop, fail, lose, succeed, take_back
from fairlead.core.plan import Plan
from fairlead.core.ranges import Ranges, check_flat, indices

STALE = "stale reports"
UNKNOWN_ATTEMPT = "reports of attempts newer than the journal"


def report(plan: Plan, command: Report) -> Accepted:
    check_flat(command.indices, "indices")
    job = plan.partition.jobs.get(command.job)
    stage = job.stage(command.stage) if job is not None else None
    if stage is None:
        plan.note(STALE)
        return Accepted(note="stale: the job is not known any more")
    blocks = _live(plan, stage, command)
    for allocation, block in blocks:
        _take(plan, allocation, block, command)
    return Accepted(note="" if blocks else "stale: none of these attempts is live")


def _live(plan: Plan, stage: Stage, command: Report) -> list[tuple[Allocation, tuple[int, ...]]]:
    """The reported tasks that are live under that attempt on that node, by allocation."""
    found: dict[int, list[int]] = {}
    for index in indices(command.indices):
        allocation = (stage.live or {}).get(index)
        known = stage.top if allocation is None else allocation.attempt
        if command.attempt > known:
            # Somebody runs what this journal never decided: an operator must look before anything is killed.
            plan.note(UNKNOWN_ATTEMPT)
            raise Refused(
                "attempt",
                f"{command.attempt} of {command.job} {command.stage}[{index}] is newer than the journal's {known}; "
                "check that this is the right journal",
                "alarm",
            )
        if allocation is None or command.attempt < known or _node(plan, allocation) != command.node:
            plan.note(STALE)
            continue
        found.setdefault(allocation.id, []).append(index)
    return [(plan.partition.allocations[number], Ranges.from_indices(found[number]).flat()) for number in sorted(found)]


def _take(plan: Plan, allocation: Allocation, block: tuple[int, ...], command: Report) -> None:
    state = command.state
    stopping = allocation.state == "stopping"
    if state == "running":
        if allocation.state == "assigned":
            whole = block == allocation.indices
            plan.do(Acknowledged(allocation.id, block, 0 if whole else plan.partition.counters.allocation))
    elif state == "succeeded":
        succeed(plan, allocation, block, command.exit_code)
    elif stopping:
        # Whatever it died of, it was told to stop and it has.
        confirm_stop(plan, allocation, block, command.reason)
    elif state == "failed":
        fail(plan, allocation, block, command.reason or f"exit code {command.exit_code}", command.exit_code)
    elif state == "refused" and allocation.state == "assigned":
        take_back(plan, allocation, block, command.reason or f"node {command.node} refused the launch")
    else:
        lose(plan, allocation, block, command.reason or f"node {command.node} lost it")


def _node(plan: Plan, allocation: Allocation) -> str:
    nodes = plan.partition.nodes
    return nodes.name[nodes.rows[allocation.node]]
