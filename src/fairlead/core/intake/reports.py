"""Intake of agents' reports. A report of an old attempt is counted and ignored; it is not an error.

A node may report only tasks assigned to it: a report of another node's task is refused. Consecutive reports that the
task of a one-task job succeeded, and so did its job, are the most common ones. They become one change.
"""

from __future__ import annotations

from itertools import chain
from typing import NoReturn, get_args

from fairlead.core.arrays import MAX_TASKS
from fairlead.core.changes import Acknowledged, Measured, SinglesEnded, StrangeFound
from fairlead.core.commands import Accepted, Rejected, Report, ReportState
from fairlead.core.effects import Stop
from fairlead.core.errors import Refused
from fairlead.core.intake.command_table import handles
from fairlead.core.model import KINDS, Allocation, Job, Micros, Stage
from fairlead.core.outcomes import avoid, confirm_stop, fail, lose, return_unstarted, succeed, trust, withdraw_launch
from fairlead.core.plan import Plan
from fairlead.core.policy.run_times import measured
from fairlead.core.ranges import Ranges, check_flat, count, difference, indices
from fairlead.core.resources import parse_count, printable, shown

STATES = get_args(ReportState)
MAX_NUMBER = 2**53
MAX_REASON = 1_000
MAX_COMPARED = 100_000
"""Reports of more tasks than this are not searched for attempt numbers that this journal never issued."""
MAX_SKIPPED = 1_000_000
"""The greatest number of job or attempt numbers that one report can make unusable."""
MAX_STRANGE = 10_000
"""The greatest number of recorded stages with attempts unknown to this journal, and of such attempts of one stage."""


@handles(Report)
def report(plan: Plan, command: Report) -> Accepted | Rejected:
    _check(command)
    answer = _handle(plan, command)
    node_id = plan.partition.nodes.find(command.node)
    if node_id is not None and isinstance(answer, Accepted):
        plan.partition.readiness.note_node(node_id)
    return answer


def _handle(plan: Plan, command: Report) -> Accepted | Rejected:
    partition = plan.partition
    job = partition.jobs.get(command.job)
    stage = job.stage(command.stage) if job is not None else None
    if stage is None or command.number not in (0, stage.job.number):
        return _handle_unknown(plan, command)
    reason = printable(" ".join(command.reason[: 10 * MAX_REASON].split()), MAX_REASON) if command.reason else ""
    whole = _whole(plan, stage, command)
    if whole is not None:
        _take(plan, whole, whole.indices, command, reason)
        return Accepted()
    blocks = _live(plan, stage, command)
    live = chain.from_iterable(indices(block) for _, block in blocks)
    rest = difference(command.indices, Ranges.from_indices(live).flat())
    strange = _strange(plan, stage, command, rest) if rest else ()
    stale = difference(rest, strange)
    if stale:
        plan.note("stale report")
        _stop_stray(plan, command, stale)
    for allocation, block in blocks:
        # Consequences for an earlier block may have stopped this one, so read the allocation again.
        _take(plan, partition.allocations[allocation.id], block, command, reason)
    if strange:
        return _alarm(plan, command, strange, stage.top)
    if not blocks:
        return Accepted(note="stale: none of these attempts is live")
    tasks = count(command.indices)
    return Accepted(note=f"stale: {count(stale)} of {tasks} tasks are not live under this attempt" if stale else "")


def _handle_unknown(plan: Plan, command: Report) -> Accepted | Rejected:
    """Handle a report of a job or stage that is not known: it was forgotten, or this journal never had it."""
    partition = plan.partition
    is_new = command.number >= partition.counters.job or command.number in partition.skipped
    strange = command.indices if is_new else _strange_before(plan, command)
    if strange:
        return _alarm(plan, command, strange, 0)
    plan.note("stale report")
    _stop_stray(plan, command, command.indices)
    return Accepted(note="stale: the job is not known any more")


def _whole(plan: Plan, stage: Stage, command: Report) -> Allocation | None:
    """Return the allocation of which a report covers exactly the tasks, as nearly all reports do; None without one."""
    allocation = stage.live.get(command.indices[0]) if stage.live and command.indices else None
    if allocation is None or allocation.indices != command.indices or allocation.attempt != command.attempt:
        return None
    return allocation if _node(plan, allocation) == command.node else None


def _measure(plan: Plan, allocation: Allocation, ran: Micros) -> None:
    """Record the run time of the tasks of a stage, if more of its tasks wait and could be chained."""
    stage = allocation.stage
    if not ran and allocation.started is not None:
        ran = plan.now - allocation.started  # measured by the scheduler
    setting = plan.partition.settings.chain
    # Chains are not for tasks with GPUs: the scheduler assigns devices, and cannot know which device a chained task
    # would get.
    if not (setting and ran and stage.waiting()) or stage.shape.devices or stage.job.manager:
        return
    estimate = measured(stage.ran, ran, setting)
    if estimate != stage.ran:
        plan.do(Measured(stage.job.id, stage.position, estimate))


def _stop_stray(plan: Plan, command: Report, block: tuple[int, ...]) -> None:
    """Send a stop for running tasks whose attempt was given up, such as tasks acknowledged too late."""
    if block and command.state == "running" and command.number:
        stop = Stop(command.job, command.number, command.stage, block, command.attempt, "stale")
        plan.strays.append((command.node, stop))


# -- attempts that this journal never issued: its data were set back, or it is the wrong journal ----------------------


def _strange(plan: Plan, stage: Stage, command: Report, block: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tasks of a report, none of them live, whose attempt number this journal never issued."""
    attempt = command.attempt
    floor, highest, raised = stage.earlier or (stage.floor, 0, 0)
    if attempt > stage.top or max(floor, highest) < attempt <= raised:
        return block
    if attempt > raised:
        floor = stage.floor
    found = plan.partition.strange.get((command.number, command.stage))
    floor = floor if found is None else found.floor
    if attempt <= floor or count(block) > MAX_COMPARED:
        return ()
    before = Ranges(() if found is None else found.tasks.get(attempt, ()))
    new = [index for index in indices(block) if index in before or _is_new(stage, index, attempt)]
    return Ranges.from_indices(new).flat()


def _is_new(stage: Stage, index: int, attempt: int) -> bool:
    """True if this journal never issued this attempt number for a task; it is above `Stage.floor`."""
    past = stage.past(index).attempt
    allocation = (stage.live or {}).get(index)
    if allocation is not None:  # without a history, it had no other attempt
        return attempt > past and attempt != allocation.attempt
    if past:
        return attempt > past
    # A task that succeeded with attempt 1 leaves no history.
    return attempt > 1 or any(index in stage.wanted(kind) for kind in range(len(KINDS)))


def _strange_before(plan: Plan, command: Report) -> tuple[int, ...]:
    """Return the reported tasks of an unknown job that are already recorded as never started by this journal."""
    found = plan.partition.strange.get((command.number, command.stage))
    return Ranges(() if found is None else found.tasks.get(command.attempt, ())).overlap(command.indices)


def _alarm(plan: Plan, command: Report, block: tuple[int, ...], highest: int) -> Rejected:
    """Refuse a report of tasks that this journal never started, and raise an alarm for an operator.

    The tasks are not killed. Their job and attempt numbers are not used again, so that they are recognised as long as
    they run.
    """
    partition = plan.partition
    if command.confined:
        plan.note("stale report")
        task = f"{command.job[:64]} {command.stage[:64]}[{Ranges(block).first_index()}]"
        return Rejected("attempt", f"{command.attempt} of {task} was never given to this node", "unknown")
    plan.note("unknown attempt")
    found = partition.strange.get((command.number, command.stage))
    new = difference(block, () if found is None else found.tasks.get(command.attempt, ()))
    if (
        new
        and command.state == "running"
        and command.number
        and command.number < partition.counters.job + MAX_SKIPPED
        and command.attempt < highest + MAX_SKIPPED
        and (found is not None or len(partition.strange) < MAX_STRANGE)
        and (found is None or command.attempt in found.tasks or len(found.tasks) < MAX_STRANGE)
    ):
        change = StrangeFound(command.node, command.job, command.number, command.stage, command.attempt, new)
        plan.do(change)
    return Rejected(
        "attempt",
        f"{command.attempt} of {command.job} {command.stage}[{Ranges(block).first_index()}] (job number "
        f"{command.number}) was never given by this journal, which is at {highest} in era {partition.era}; its data "
        "were set back to an earlier time, or it is the wrong one",
        "alarm",
    )


def _check(command: Report) -> None:
    check_flat(command.indices, "indices")
    if command.indices and command.indices[-1] > MAX_TASKS:
        raise Refused("indices", f"a stage has at most {MAX_TASKS} tasks; report those it has")
    parse_count(command.attempt, "attempt", 0, MAX_NUMBER)
    if command.ran:
        parse_count(command.ran, "ran", 0, MAX_NUMBER)
    if command.exit_code is not None:
        parse_count(command.exit_code, "exit_code", -MAX_NUMBER, MAX_NUMBER)
    if command.state not in STATES:
        raise Refused("state", f"{shown(command.state)} is not one of {', '.join(STATES)}; write one")


def _live(plan: Plan, stage: Stage, command: Report) -> list[tuple[Allocation, tuple[int, ...]]]:
    """Return the reported tasks that are live under this attempt on this node, by allocation."""
    live = stage.live or {}
    reported = Ranges(command.indices)
    # Iterate over the smaller set: a report may name millions of tasks that are not live.
    candidates = sorted(index for index in live if index in reported) if len(reported) > len(live) else list(reported)
    by_allocation: dict[int, list[int]] = {}
    for index in candidates:
        allocation = live.get(index)
        if allocation is None or command.attempt != allocation.attempt:
            continue
        if _node(plan, allocation) != command.node:
            _refuse_foreign(plan, command, index, _node(plan, allocation))
        by_allocation.setdefault(allocation.id, []).append(index)
    return [
        (plan.partition.allocations[number], Ranges.from_indices(by_allocation[number]).flat())
        for number in sorted(by_allocation)
    ]


def _refuse_foreign(plan: Plan, command: Report, index: int, node: str) -> NoReturn:
    plan.note("foreign report")
    raise Refused(
        "node",
        f"attempt {command.attempt} of {command.job} {command.stage}[{index}] was given to node {node}, "
        f"not to {command.node}; look at {command.node}, and revoke it with `fairlead node revoke` if it is not yours",
        "foreign",
    )


def _acknowledge(plan: Plan, allocation: Allocation, block: tuple[int, ...], ran: Micros) -> None:
    if allocation.state == "assigned" or (allocation.state == "running" and allocation.known_until):
        into = 0 if block == allocation.indices else plan.partition.counters.allocation
        plan.do(Acknowledged(allocation.id, block, into, ran))
        trust(plan, allocation.node)


def _take(plan: Plan, allocation: Allocation, block: tuple[int, ...], command: Report, reason: str) -> None:
    state, node = command.state, command.node
    if state == "running":
        _acknowledge(plan, allocation, block, command.ran)
    elif state == "succeeded":
        if allocation.stage.terms.min == 1:
            _measure(plan, allocation, command.ran)
        succeed(plan, allocation, block, command.exit_code, command.ran)
    elif allocation.state == "stopping":
        # The tasks were told to stop, so how they ended does not matter.
        confirm_stop(plan, allocation, block, reason, command.ran)
    elif state == "failed":
        fail(plan, allocation, block, reason or f"exit code {command.exit_code}", command.exit_code, command.ran)
    elif allocation.state == "assigned" and (allocation.slots or allocation.cause):
        _return(plan, allocation, block, state == "refused", reason or f"node {node} did not start it")
    elif state == "refused" and allocation.state == "assigned":
        plan.note("launch refused", count(block))
        withdraw_launch(plan, allocation, block, reason or f"node {node} refused the launch", refused=True)
    else:
        lose(plan, allocation, block, reason or f"node {node} lost it")


def _return(plan: Plan, allocation: Allocation, block: tuple[int, ...], refused: bool, reason: str) -> None:
    """Take tasks back that waited in a chain and were not started."""
    if not allocation.cause and allocation.stage.ran is not None:
        # The node does not start chained tasks. Send no more until the stage is measured as quick again.
        plan.do(Measured(allocation.stage.job.id, allocation.stage.position, None))
    return_unstarted(plan, allocation, block, reason)
    if refused:
        plan.note("launch refused", count(block))
        if plan.partition.nodes.avoided.get(allocation.node, 0) <= plan.now:  # one pause is enough
            avoid(plan, allocation.node)


def _node(plan: Plan, allocation: Allocation) -> str:
    nodes = plan.partition.nodes
    return nodes.name[nodes.rows[allocation.node]]


class Ends:
    """Collects reports for one change. `make` must be called before other code reads the state."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._ended: dict[int, Micros] = {}
        """Allocation → how long its task ran; 0 if that is not known."""

    def take(self, report: Report) -> bool:
        """Collect a report. False if the fast path does not cover it."""
        allocation = self._find(report)
        if allocation is None or allocation.id in self._ended:
            return False
        self._ended[allocation.id] = report.ran
        self.plan.partition.readiness.note_node(allocation.node)
        return True

    def make(self) -> None:
        """Make the change for the collected reports, if any."""
        if self._ended:
            self.plan.do(SinglesEnded(tuple(self._ended), tuple(self._ended.values())))
            self._ended = {}

    def _find(self, report: Report) -> Allocation | None:
        partition = self.plan.partition
        job = partition.jobs.get(report.job)
        if job is None or not _is_plain(report) or partition.removed:
            return None
        stage = _only_task(job)
        if stage is None or job.id in partition.derived.followers or stage.name != report.stage:
            return None
        allocation = (stage.live or {}).get(0)
        if (
            allocation is None
            or allocation.attempt != 1
            or allocation.state == "stopping"
            or report.number not in (0, job.number)
        ):
            return None
        return allocation if partition.nodes.name[partition.nodes.rows[allocation.node]] == report.node else None


def _is_plain(report: Report) -> bool:
    """True if an agent reports that the first attempt of the first task of a stage succeeded."""
    return (
        report.state == "succeeded"
        and report.attempt == 1
        and report.indices == (0, 1)
        and report.exit_code in (0, None)
        and type(report.ran) is int
        and 0 <= report.ran <= MAX_NUMBER
        and not report.user
    )


def _only_task(job: Job) -> Stage | None:
    """Return the stage of a one-task job in its first attempt; None for other jobs."""
    if len(job.stages) != 1 or job.manager or job.after or job.over:
        return None
    stage = job.stages[0]
    return None if stage.count != 1 or stage.history or len(stage.live or ()) != 1 else stage
