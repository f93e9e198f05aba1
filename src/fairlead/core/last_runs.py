"""Expected run times. With `estimates: learned`, they come from earlier runs of the same user, and of the same name.

The state holds the last two run times of each user, and of each of the user's job and stage names. The arithmetic is in
`core/policy/run_times.py`.
"""

from __future__ import annotations

from heapq import heappop

from fairlead.core.ahead.expected_ends import guess
from fairlead.core.changes import Ended, RunsNoted, SinglesEnded
from fairlead.core.model import Allocation, Ask, Micros, Runs, RunsKey, Stage
from fairlead.core.plan import Plan
from fairlead.core.policy.run_times import learned_run
from fairlead.core.resources import DAY
from fairlead.core.state import MAX_RUNS, Partition

KEEP: Micros = 90 * DAY
"""Run times of a user or name are dropped if this time passes without a new one."""


def learn(plan: Plan) -> None:
    """Note the run times of tasks that ended in this cycle. Drop run times that are old or too many."""
    partition = plan.partition
    if not partition.settings.learns:
        if partition.runs:
            plan.do(RunsNoted((), tuple(sorted(partition.runs))))
        return
    noted: dict[RunsKey, Runs] = {}
    for allocation in _ended(plan):
        assert allocation.started is not None
        job = allocation.stage.job
        user, name = job.owner
        for key in ((user, "", ""), (user, name, allocation.stage.name)):
            before = noted.get(key) or partition.runs.get(key)
            noted[key] = Runs(plan.now, plan.now - allocation.started, None if before is None else before.last)
    if noted:
        plan.do(RunsNoted(tuple(sorted(noted.items())), _to_drop(partition, plan.now, noted)))


def run_time(partition: Partition, ask: Ask) -> Micros | None:
    """Return the expected run time of an ask, the longest of its stages; None if that of a stage is unknown."""
    if not ask.whole:
        return expected_run(partition, ask.stage)
    return _longest([expected_run(partition, stage) for stage in ask.stages])


def given_run_time(ask: Ask) -> Micros | None:
    """Return the run time of an ask by the submission, the longest of its stages; None if a stage gives none."""
    return guess(ask.stage.terms) if not ask.whole else _longest([guess(stage.terms) for stage in ask.stages])


def expected_run(partition: Partition, stage: Stage) -> Micros | None:
    """Return the expected run time of a task that starts now; None if it is unknown."""
    given = guess(stage.terms)
    if not partition.settings.learns:
        return given
    user, name = stage.job.owner
    runs = partition.runs.get((user, name, stage.name)) or partition.runs.get((user, "", ""))
    return given if runs is None else learned_run(runs.last, runs.before, given)


def _longest(lengths: list[Micros | None]) -> Micros | None:
    return None if None in lengths else max([length for length in lengths if length is not None], default=0)


def _ended(plan: Plan) -> list[Allocation]:
    """Return the allocations that ended by themselves in this cycle; of a gang, only the one that ended last."""
    ended: list[Allocation] = []
    for change, before in plan.done:
        if isinstance(change, SinglesEnded):
            ended += before
        elif isinstance(change, Ended) and change.outcome in ("succeeded", "failed"):
            stage = before.allocation.stage
            if stage.min == 1 or not stage.live:
                ended.append(before.allocation)
    return [allocation for allocation in ended if allocation.started is not None]


def _to_drop(partition: Partition, now: Micros, noted: dict[RunsKey, Runs]) -> tuple[RunsKey, ...]:
    heap, runs = partition.derived.old_runs, partition.runs
    dropped: dict[RunsKey, None] = {}
    excess = len(runs) + sum([key not in runs for key in noted]) - MAX_RUNS
    while heap and (heap[0][0] < now - KEEP or excess > len(dropped)):
        when, key = heappop(heap)
        entry = runs.get(key)
        if entry is not None and entry.noted == when and key not in noted:
            dropped[key] = None
    return tuple(dropped)
